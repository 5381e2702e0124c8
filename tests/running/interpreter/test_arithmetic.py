"""Operations of the interpreter that round once, against exact fractions; what a GPU gives is in test_likeness.py."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from verify_norm.core.dtypes import FORMATS

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


@pytest.mark.parametrize("source", ["int64", "int32", "float64"])
def test_casts_to_bfloat16_round_once(source):
    """A tie in float32 or float64 on the way would be rounded twice."""
    form = FORMATS["bfloat16"]
    odd = [2**30 + 2**22 + 1, 2**30 + 2**22, 2**30 + 2**22 - 1, -(2**30) - 2**22 - 1, 257, 2**24 + 2**16 + 1]
    if source != "int32":
        odd += [2**62 + 2**54 + 1, 2**62 + 2**54 - 1, -(2**62) - 2**54 - 1, 2**54 + 2**46 + 1]
    x = torch.tensor((odd * 16)[:64], dtype=getattr(torch, source))
    out = torch.zeros(64, dtype=torch.bfloat16)
    cast[(1,)](x, out, 64)
    for value, got in zip(x.tolist(), out.double().tolist(), strict=True):
        exact = Fraction(value)
        even = exact == Fraction(2**30 + 2**22)
        assert nearest(exact, got, form)
        assert not even or got == 2**30
