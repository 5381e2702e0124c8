"""Conversions of Triton's interpreter that differ from a GPU, and are patched."""

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def _arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, y))
    tl.store(out_ptr + 4 * N + i, tl.where(x < y, x, y))


def test_bfloat16_is_added_multiplied_and_compared_as_numbers():
    """Not as the 16-bit integers that Triton keeps it in: kernels of Liger's multiply dy by a rounded x̂."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, (2, 4096)).astype(np.uint16)
    x, y = bits.view(ml_dtypes.bfloat16)
    out = torch.zeros(5 * 4096, dtype=torch.bfloat16)
    _arithmetic[(1,)](*(torch.from_numpy(b.view(np.int16)).view(torch.bfloat16) for b in bits), out, 4096)
    with np.errstate(all="ignore"):
        got = out.view(torch.int16).numpy().view(ml_dtypes.bfloat16).reshape(5, -1).astype(np.float64)
        wide = [v.astype(np.float64) for v in (x, y)]
        exact = [(wide[0].astype(np.longdouble) + sign * wide[1]) for sign in (1, -1)]  # but for a tie's hair
        want = [v.astype(np.float64).astype(ml_dtypes.bfloat16) for v in (*exact, wide[0] * wide[1])]
        want = [v.astype(np.float64) for v in want]
    for number, values in enumerate(want):
        np.testing.assert_array_equal(got[number], values)
    known = ~(np.isnan(wide[0]) | np.isnan(wide[1]))
    np.testing.assert_array_equal(got[3][known], np.maximum(*wide)[known])
    np.testing.assert_array_equal(got[4][known], np.minimum(*wide)[known])


@triton.jit
def _total(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


def test_bfloat16_is_summed_as_numbers():
    """Each addition rounds, as a GPU's does."""
    out = torch.zeros(1, dtype=torch.bfloat16)
    _total[(1,)](torch.tensor([256.0, 2.5, 1.0, 2.5], dtype=torch.bfloat16), out, 4)
    assert out.item() == 260.0  # 256 + 1 → 256 and 5, whose sum of 261 is a tie; in float32 it would be 262


@triton.jit
def _root(x_ptr, out_ptr, eps):
    tl.store(out_ptr, rsqrt(tl.load(x_ptr) + eps.to(tl.float32)))
    tl.store(out_ptr + 1, eps)


def test_a_float_is_a_scalar_and_libdevice_has_a_root():
    """As kernels of Liger's need: `eps.to(tl.float32)`, and the rsqrt of libdevice."""
    out = torch.zeros(2)
    _root[(1,)](torch.tensor([4.0]), out, 0.1)
    assert out.tolist() == pytest.approx([4.1**-0.5, 0.1], rel=1e-6)


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (8, 4)], key=["N"])
@triton.jit
def _tuned(out_ptr, N, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.program_id(0), tl.load(out_ptr + tl.program_id(0)) + BLOCK)


def test_an_autotuned_kernel_takes_its_first_configuration_and_runs_once():
    out = torch.zeros(3)
    _tuned[(3,)](out, 3)
    assert out.tolist() == [8.0] * 3
