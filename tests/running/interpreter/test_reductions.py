"""Reductions and scans of the interpreter: in a tree where possible, in the order of the operands, types kept."""

import importlib

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from verify_norm.kernels.variants import groupnorm_welford
from verify_norm.running.interpreter import patch

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels do not pass the interpreter")


@triton.jit
def largest(value1, index1, value2, index2):
    left = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    return tl.where(left, value1, value2), tl.where(left, index1, index2)


@triton.jit
def largest_by_branches(value1, index1, value2, index2):
    if value1 > value2 or (value1 == value2 and index1 < index2):
        value, index = value1, index1
    else:
        value, index = value2, index2
    return value, index


@triton.jit
def largest_by_a_call(value1, index1, value2, index2):
    return largest_by_branches(value1, index1, value2, index2)


@triton.jit
def compose(slope1, shift1, slope2, shift2):
    """First 1, then 2, as affine maps: associative, and every other order of the operands is another map."""
    return slope1 * slope2, shift1 * slope2 + shift2


@triton.jit
def lone_sum(a, b):
    return a + b


@triton.jit
def reduce_two(A, B, OutA, OutB, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, KEEP: tl.constexpr,
               COMBINE: tl.constexpr):  # fmt: skip
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    a, b = tl.reduce((tl.load(A + at), tl.load(B + at)), AXIS, COMBINE, keep_dims=KEEP)
    to = (tl.arange(0, C) if AXIS == 0 else tl.arange(0, R)).reshape(a.shape)
    tl.store(OutA + to, a)
    tl.store(OutB + to, b)


@triton.jit
def reduce_all(A, B, OutA, OutB, R: tl.constexpr, C: tl.constexpr, COMBINE: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    a, b = tl.reduce((tl.load(A + at), tl.load(B + at)), None, COMBINE)
    tl.store(OutA, a)
    tl.store(OutB, b)


@triton.jit
def reduce_states(Mean, M2, Weight, Out, N: tl.constexpr, COMBINE: tl.constexpr):
    i = tl.arange(0, N)
    mean, m2, weight = tl.reduce((tl.load(Mean + i), tl.load(M2 + i), tl.load(Weight + i)), 0, COMBINE)
    tl.store(Out, mean)
    tl.store(Out + 1, m2)
    tl.store(Out + 2, weight)


@pytest.fixture
def routes(monkeypatch):
    """Every reduction also goes through Triton's own loop, and must agree in shape and type: which one gave each."""
    reductions = importlib.import_module("triton.runtime.interpreter").ReduceOps
    patched, taken = reductions.generic_reduce, []

    def both(self, input):
        def loop(self, input):
            taken[-1] = "loop"
            return patched.__wrapped__(self, input)

        taken.append("tree")
        got = patch._in_a_tree(loop, self, input)
        want = patched.__wrapped__(self, input)
        for g, w in zip(got, want, strict=True):
            assert (g.type, g.handle.dtype) == (w.type, w.handle.dtype)
            assert (g.handle.data.shape, g.handle.data.dtype) == (w.handle.data.shape, w.handle.data.dtype)
        return got

    monkeypatch.setattr(reductions, "generic_reduce", both)
    return taken


def fold(function, pairs):
    """One element after another, from the left, in 32 bits that wrap."""
    done = pairs[0]
    for pair in pairs[1:]:
        done = tuple((v + 2**31) % 2**32 - 2**31 for v in function(*done, *pair))
    return done


def two(shape, bound=2**31):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(-bound, bound, shape, generator=generator).int() for _ in range(2)]


@interpreted
@pytest.mark.parametrize("shape", [(4, 32), (16, 2), (8, 1), (1, 8), (1, 1)])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_keeps_the_order_of_operands(routes, shape, axis, keep):
    a, b = two(shape)
    out_a, out_b = (torch.zeros(shape[1 - axis], dtype=torch.int32) for _ in range(2))
    reduce_two[(1,)](a, b, out_a, out_b, *shape, axis, keep, compose)
    lines = np.stack([a.numpy(), b.numpy()], -1).swapaxes(0, axis).astype(object)
    want = [fold(compose.fn, [tuple(pair) for pair in lines[:, i]]) for i in range(lines.shape[1])]
    assert list(zip(out_a.tolist(), out_b.tolist(), strict=True)) == want
    assert routes == ["tree"]


@interpreted
def test_a_reduction_over_all_axes():
    """No comparison with Triton's loop, which flattens only the first of two arrays, and then fails."""
    a, b = two((8, 16))
    out_a, out_b = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    reduce_all[(1,)](a, b, out_a, out_b, 8, 16, compose)
    pairs = list(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    assert (out_a.item(), out_b.item()) == fold(compose.fn, pairs)


@triton.jit
def reduce_all_kept(X, Out, R: tl.constexpr, C: tl.constexpr, COMBINE: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(X + at)
    tl.store(Out + at, x - tl.reduce(x, None, COMBINE, keep_dims=True))


@interpreted
def test_a_reduction_over_all_axes_keeps_their_number():
    x, out = torch.arange(32.0).reshape(4, 8), torch.zeros(4, 8)
    reduce_all_kept[(1,)](x, out, 4, 8, lone_sum)
    assert torch.equal(out, x - x.sum())


@interpreted
@pytest.mark.parametrize(
    ("combine", "route"), [(largest, "tree"), (largest_by_branches, "loop"), (largest_by_a_call, "loop")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_maximum_and_its_index(routes, dtype, combine, route):
    values = two((16, 32), bound=6)[0].to(dtype)  # many ties, whose first is wanted
    index = torch.arange(512, dtype=torch.int32).reshape(16, 32) % 32
    out, at = torch.zeros(16, dtype=dtype), torch.zeros(16, dtype=torch.int32)
    reduce_two[(1,)](values, index, out, at, 16, 32, 1, False, combine)
    assert torch.equal(out, values.amax(1))
    assert at.tolist() == values.numpy().argmax(1).tolist()
    assert routes == [route]


@interpreted
def test_merged_states_of_welford(routes):
    x = torch.randn(256, generator=torch.Generator().manual_seed(1)) + 3.0
    weight = (torch.arange(256) < 200).float()  # the rest holds nothing
    out = torch.zeros(3)
    reduce_states[(1,)](x * weight, torch.zeros(256), weight, out, 256, groupnorm_welford._combine)
    seen = x[:200].double()
    want = torch.stack([seen.mean(), (seen - seen.mean()).square().sum(), torch.tensor(200.0)])
    assert ((out - want).abs() <= 16 * 2.0**-24 * want).all()
    assert routes == ["tree"]


@interpreted
def test_what_is_no_power_of_two_goes_to_the_loop():
    module = importlib.import_module("triton.runtime.interpreter")
    reduction = module.ReduceOps(0, lone_sum, False)
    odd = reduction.to_tensor(np.arange(4.0, dtype=np.float32), tl.float32)
    odd.handle.data = odd.handle.data[:3]
    assert patch._tree(reduction, (odd,)) is None


@triton.jit
def column_sums(X, Out, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    tl.store(Out + cols, tl.sum(tl.load(X + rows[:, None] * N + cols[None, :]), axis=0))


def test_equal_rows_are_summed_exactly_in_a_tree(device):
    # Doubling is exact, so a tree loses nothing; adding 256 rows one after another rounds 255 times, the same way.
    x = torch.full((256, 4), 0.1, device=device)
    out = torch.empty(4, device=device)
    column_sums[(1,)](x, out, 256, 4)
    assert torch.equal(out, x[0] * 256)
    one_by_one = np.float32(0)
    for _ in range(256):
        one_by_one = np.float32(one_by_one + x[0, 0].item())
    assert one_by_one != out[0].item()


@interpreted
def test_a_sum_of_what_is_no_power_of_two_loses_nothing():
    module = importlib.import_module("triton.runtime.interpreter")
    reduction = module.ReduceOps(0, tl.standard._sum_combine, False)
    odd = reduction.to_tensor(np.arange(4.0, dtype=np.float32), tl.float32)
    odd.handle.data = odd.handle.data[1:]
    assert reduction.sum(odd).handle.data == 6.0


@triton.jit
def running_sum(X, Out, N: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.cumsum(tl.load(X + i), 0, dtype=KIND))


@pytest.mark.parametrize(
    ("kind", "want"), [("bfloat16", [256.0, 258.0, 260.0, 264.0]), ("float32", [256.0, 258.5, 259.5, 263.0])]
)
def test_a_running_sum_in_bfloat16_adds_numbers(kind, want, device):
    """Each sum rounds to an even number: 258.5 to 258, 259 to 260, and 263.5 to 264."""
    x, out = torch.tensor([256.0, 2.5, 1.0, 3.5], device=device), torch.zeros(4, device=device)
    running_sum[(1,)](x, out, 4, getattr(tl, kind))
    assert out.tolist() == want
