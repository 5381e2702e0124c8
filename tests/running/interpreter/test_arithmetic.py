"""Operations of the interpreter, where they round once against exact fractions.

What a GPU gives is in test_likeness.py, what is not imitated in test_differs_on_gpu.py.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from verify_norm.core.dtypes import FORMATS
from verify_norm.running.interpreter import arithmetic

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def fused(X, Y, Z, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.fma(tl.load(X + i), tl.load(Y + i), tl.load(Z + i)))


@triton.jit
def cast(X, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.load(X + i).to(Out.dtype.element_ty))


def nearest(exact, got, form):
    """Whether `got` is the nearest number of the format, or one of the two nearest where there is a tie."""
    beside = [float(form.round(np.array(got + sign * float(form.ulp(np.array(got)))))) for sign in (-1, 1)]
    error = abs(exact - Fraction(got))
    return all(error <= abs(exact - Fraction(other)) for other in beside if np.isfinite(other))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_fma_rounds_once(dtype):
    """Also where the product and the sum nearly cancel, and where a sum in float64 would be a tie."""
    form, drawn = FORMATS[dtype], torch.Generator().manual_seed(2)
    kind = getattr(torch, dtype)
    x, y = (torch.randn(512, generator=drawn, dtype=torch.float64).to(kind) for _ in range(2))
    z = (-(x.double() * y.double()) * torch.tensor([1.0, 0.5, 1 + 2.0**-8, 2.0**-20, 2.0**8, 3.0] * 86)[:512]).to(kind)
    tie = torch.tensor([1 + 2 * form.u], dtype=torch.float64).to(kind)  # its square has a last bit far below a tie
    x[:2], y[:2], z[:2] = tie, tie, torch.tensor([form.u * 2.0**-30, -form.u * 2.0**-12], dtype=torch.float64).to(kind)
    out = torch.zeros(512, dtype=kind)
    fused[(1,)](x, y, z, out, 512)
    numbers = [[Fraction(v) for v in t.double().tolist()] for t in (x, y, z)]
    exact = [a * b + c for a, b, c in zip(*numbers, strict=True)]
    assert all(nearest(e, got, form) for e, got in zip(exact, out.double().tolist(), strict=True))


A = 2.0**-12
BESIDE_TIES = [  # x, y, z and x·y + z in float32: the term that decides is below the last bit of the sum in float64
    (1 + A, 1 + A, 2.0**-60, 1 + 2 * A + 2.0**-23),
    (1 + A, 1 + A, -(2.0**-60), 1 + 2 * A),
    (-1 - A, 1 + A, -(2.0**-60), -1 - 2 * A - 2.0**-23),
    (A * (1 + 2.0**-23), A * (1 - 2.0**-23), 1 + 2.0**-23, 1 + 2.0**-23),
    (A * (1 + 2.0**-23), -A * (1 - 2.0**-23), -1 - 2.0**-23, -1 - 2.0**-23),
    (1 + A, 1 + A, 0.0, 1 + 2 * A),
]


def test_fma_rounds_as_what_lies_beside_a_tie_says():
    x, y, z, want = torch.tensor((BESIDE_TIES * 3)[:16], dtype=torch.float64).float().T.contiguous()
    out = torch.zeros(16)
    fused[(1,)](x, y, z, out, 16)
    assert torch.equal(out, want)


def test_fma_in_float64_is_that_of_numpy():
    x, y, z = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = torch.zeros(64, dtype=torch.float64)
    fused[(1,)](x, y, z, out, 64)
    assert torch.equal(out, x * y + z)


@triton.jit
def compared(X, Y, Less, Not, N: tl.constexpr):
    i = tl.arange(0, N)
    less = tl.load(X + i) < tl.load(Y + i)
    tl.store(Less + i, less.to(Less.dtype.element_ty))
    tl.store(Not + i, (~less).to(Not.dtype.element_ty))


@pytest.mark.parametrize("target", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "int32"])
def test_a_comparison_is_one_bit(source, target):
    """Not a number of the type that is compared: it is inverted, and cast to a number."""
    x, y = torch.tensor([[1, 2, 3, -1], [2, 2, 1, 0]]).to(getattr(torch, source))
    less, inverse = (torch.full((4,), 7, dtype=getattr(torch, target)) for _ in range(2))
    compared[(1,)](x, y, less, inverse, 4)
    assert less.tolist() == [1, 0, 0, 1]
    assert inverse.tolist() == [0, 1, 1, 0]


@triton.jit
def extremes(X, Y, Out, N: tl.constexpr, NAN: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(X + i), tl.load(Y + i)
    tl.store(Out + i, tl.minimum(x, y, propagate_nan=NAN))
    tl.store(Out + N + i, tl.maximum(x, y, propagate_nan=NAN))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_minus_zero_is_below_zero(dtype, keeps):
    x, y = torch.tensor([[0.0, -0.0], [-0.0, 0.0]], dtype=getattr(torch, dtype))
    out = torch.ones(4, dtype=x.dtype)
    extremes[(1,)](x, y, out, 2, tl.PropagateNan.ALL if keeps else tl.PropagateNan.NONE)
    assert out.abs().tolist() == [0.0] * 4
    assert out.signbit().tolist() == [True, True, False, False]


@triton.jit
def root(X, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.sqrt(tl.load(X + i)))


def test_a_root_takes_subnormal_numbers_of_float32_for_zeros():
    tiny = float(np.finfo(np.float32).tiny)
    x = torch.tensor([tiny, tiny / 2, -tiny / 2, 4.0])
    for dtype, want in ((torch.float32, [tiny**0.5, 0.0, -0.0, 2.0]), (torch.float64, [tiny**0.5, (tiny / 2) ** 0.5])):
        out = torch.ones(4, dtype=dtype)
        root[(1,)](x.to(dtype), out, 4)
        assert list(map(str, out.tolist()))[: len(want)] == list(map(str, want))


@pytest.mark.parametrize(
    ("target", "values", "want"),
    [
        ("int8", [127.9, -128.9, 0.5, -0.5], [127, -128, 0, 0]),
        ("int8", [128.0, -129.0, 300.0, 1e6], [-128, 127, 44, -1]),
        ("uint8", [255.5, 256.0, -1.0, 65536.0], [255, 0, 0, 255]),
        ("int16", [32767.0, 32766.0, -32768.0, 32768.0], [32767, 32766, -32768, 32767]),
        ("int16", [-32769.0, -32767.0, torch.inf, torch.nan], [-32768, -32767, 32767, 0]),
        ("int32", [2.0**31, -(2.0**31) - 1, 2.0**31 - 1, -(2.0**31)], [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]),
        ("int64", [2.0**63, -torch.inf, 2.0**62, -(2.0**63)], [2**63 - 1, -(2**63), 2**62, -(2**63)]),
    ],
)
def test_a_number_out_of_range_becomes_the_nearest_of_16_bits_or_more(target, values, want):
    out = torch.zeros(4, dtype=getattr(torch, target))
    cast[(1,)](torch.tensor(values, dtype=torch.float64), out, 4)
    assert out.tolist() == want


@pytest.mark.parametrize("source", ["int64", "int32", "float64"])
def test_casts_to_bfloat16_round_once(source):
    """A tie in float32 or float64 on the way would be rounded twice."""
    form = FORMATS["bfloat16"]
    odd = [2**30 + 2**22 + 1, 2**30 + 2**22, 2**30 + 2**22 - 1, -(2**30) - 2**22 - 1, 257, 2**24 + 2**16 + 1]
    if source != "int32":
        odd += [2**53 + 2**45 + 1, 2**62 + 2**54 + 1, 2**62 + 2**54 - 1, -(2**62) - 2**54 - 1, 2**54 + 2**46 + 1]
    x = torch.tensor((odd * 16)[:64], dtype=getattr(torch, source))
    out = torch.zeros(64, dtype=torch.bfloat16)
    cast[(1,)](x, out, 64)
    for value, got in zip(x.tolist(), out.double().tolist(), strict=True):
        exact = Fraction(value)
        even = exact == Fraction(2**30 + 2**22)
        assert nearest(exact, got, form)
        assert not even or got == 2**30


def test_a_builder_that_lacks_operations_gets_none():
    class Bare:
        pass

    arithmetic.patch(Bare)
    assert [name for name in vars(Bare) if not name.startswith("__")] == ["get_bf16"]


@triton.jit
def scaled(X, Out, C: tl.constexpr):
    tl.store(Out, tl.load(X) * C)


@pytest.mark.parametrize(("dtype", "half"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_a_constant_is_a_number_of_float32_first(dtype, half):
    """As the compiler's: a tie and a hair that float32 does not hold is a tie."""
    x = torch.ones(1, dtype=getattr(torch, dtype))
    out = torch.zeros_like(x)
    for constant, want in ((1 + half + 2.0**-30, 1.0), (1 + half + 2.0**-20, 1 + 2 * half)):
        scaled[(1,)](x, out, constant)
        assert out.item() == want


@triton.jit
def power(X, Out):
    tl.store(Out, tl.exp2(tl.load(X)))


def test_a_power_that_is_subnormal_is_zero():
    out = torch.ones(1)
    power[(1,)](torch.tensor([-140.0]), out)
    assert out.item() == 0.0
