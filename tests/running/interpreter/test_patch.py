"""The interpreter's bfloat16 conversion and its reductions after the patches, and the table of kernels."""

import importlib
import inspect
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from verify_norm import kernels
from verify_norm.core.dtypes import FORMATS
from verify_norm.kernels.variants import groupnorm_welford
from verify_norm.running.interpreter import conversions, patch

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels do not pass the interpreter")


@triton.jit
def cast(X, Explicit, Stored, Back, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < N, other=0.0)
    tl.store(Explicit + i, x.to(tl.bfloat16), mask=i < N)
    tl.store(Stored + i, x, mask=i < N)
    tl.store(Back + i, x.to(tl.bfloat16).to(tl.float32), mask=i < N)


def test_every_tie_and_random_bits(device):
    rng = np.random.default_rng(0)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] + np.array([0x7FFF, 0x8000, 0x8001], np.uint32)
    bits = np.concatenate([ties.ravel(), rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32)])
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    source = torch.from_numpy(x.copy()).to(device)
    explicit, stored = (torch.zeros(len(x), dtype=torch.bfloat16, device=device) for _ in range(2))
    back = torch.zeros(len(x), device=device)
    cast[(triton.cdiv(len(x), 1 << 16),)](source, explicit, stored, back, len(x), BLOCK=1 << 16)
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).view(np.int16)
    assert np.array_equal(source.cpu().to(torch.bfloat16).view(torch.int16).numpy(), want)
    for got in (explicit, stored):
        assert np.array_equal(got.cpu().view(torch.int16).numpy(), want)
    assert torch.equal(back.cpu(), explicit.cpu().float())


@interpreted
def test_enable_twice_is_enable_once():
    assert patch.enable() == patch.enable()
    assert triton.__version__ in patch.enable()


@interpreted
def test_proof_notices_truncation(monkeypatch):
    module = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.setattr(module, "_convert_float", module._convert_float.__wrapped__)
    with pytest.raises(RuntimeError, match="nearest even"):
        conversions.prove()


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


def run(code, **environment):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_enable_after_triton_is_refused():
    done = run("import triton; from verify_norm.running.interpreter import patch; patch.enable()")
    assert done.returncode == 1
    assert "without its interpreter" in done.stderr


def test_import_is_cheap():
    modules = "sys, verify_norm.running.interpreter.patch, verify_norm.kernels"
    done = run(f"import {modules}; print({{'torch', 'triton'}} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize("kernel", kernels.KERNELS, ids=lambda k: k.name)
def test_table_names_what_exists(kernel):
    module, name = kernel.target.split(":")
    function = getattr(importlib.import_module(module), name)
    assert name == kernel.name
    assert kernel.summary
    assert "eps" in inspect.signature(function).parameters


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


@triton.jit
def narrowed(X, Out, Back, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(X + i).to(Out.dtype.element_ty)
    tl.store(Out + i, y)
    tl.store(Back + i, y.to(tl.float32))


@interpreted
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_into_8_bits_and_back(kind, source):
    form, rng = FORMATS[kind], np.random.default_rng(1)
    every = np.arange(256, dtype=np.uint8).view(form.dtype).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    ties = (every[1:] + every[:-1]) / 2
    wide = np.concatenate([every, ties, ties * 1.0001, ties * 0.9999, np.float32([1e6, -1e30, np.inf, -np.inf])])
    wide = np.concatenate([wide, rng.standard_normal(2048 - len(wide)).astype(np.float32)])
    x = torch.from_numpy(wide.astype(np.float32)).to(source)
    out, back = torch.zeros(2048, dtype=getattr(torch, kind)), torch.zeros(2048)
    narrowed[(1,)](x, out, back, 2048)
    exact = x.double().numpy()
    want = np.clip(form.round(np.clip(exact, -form.largest, form.largest)), -form.largest, form.largest)
    assert np.array_equal(out.float().numpy(), want)
    assert np.array_equal(back.numpy(), want)


@interpreted
def test_nan_stays_nan_in_8_bits():
    x = torch.full((16,), torch.nan)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        out, back = torch.zeros(16, dtype=kind), torch.zeros(16)
        narrowed[(1,)](x, out, back, 16)
        assert out.float().isnan().all()
        assert back.isnan().all()
