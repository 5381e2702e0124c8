"""The activations as kernels evaluate them: within the bound at every size of z, on this device's own instructions."""

import numpy as np
import pytest
import torch
import triton.language as tl

from verify_norm.kernels.activation import ACTIVATIONS, activate, slope
from verify_norm.kernels.launch import jit, ptx
from verify_norm.reference import activation
from verify_norm.reference.arithmetic import Arithmetic

FLOAT32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
TILE = 8192


@jit
def evaluate(Z, Y, D, ACT: tl.constexpr, PTX: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    z = tl.load(Z + i)
    tl.store(Y + i, activate(z, ACT, PTX))
    tl.store(D + i, slope(z, ACT, PTX))


def run(z, name, device):
    z = torch.from_numpy(z.astype(np.float32)).to(device)
    y, d = torch.empty_like(z), torch.empty_like(z)
    evaluate[(len(z) // TILE,)](z, y, d, ACT=name, PTX=ptx(z.device), TILE=TILE)
    return y.cpu().double().numpy(), d.cpu().double().numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_within_the_bound_at_every_size(device, name):
    """From where a value is subnormal to where e^−z overflows, and densely where it is 2^126 to 2^128."""
    act, sizes = activation.ACTIVATIONS[name], np.ldexp(1.0, np.arange(-149, 128))
    parts = [np.linspace(-110, 110, 5 * TILE), np.linspace(-89, -87, TILE), -sizes, sizes]
    z = np.zeros(7 * TILE)
    z[: sum(map(len, parts))] = np.concatenate(parts)
    z = z.astype(np.float32).astype(np.float64)
    y, d = run(z, name, device)
    nothing = np.zeros(z.shape)
    exact, off = activation.pulled(act, np.ones(z.shape), z, nothing, FLOAT32)
    worst = np.abs(d - exact) / off
    assert worst.max() <= 1, (z[worst.argmax()], worst.max())
    worst = np.abs(y - act.value(z)) / act.value_error(z, FLOAT32)
    assert worst.max() <= 1, (z[worst.argmax()], worst.max())


def test_a_reciprocal_that_is_subnormal_is_not_flushed(device):
    """σ(−87.5) is below 2^−126, where the bound lets it be 0; these kernels keep it."""
    (y, *_), _ = run(np.full(TILE, -87.5), "silu", device)
    assert y == pytest.approx(-87.5 * np.exp(-87.5), rel=1e-4, abs=0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_no_number(device, name):
    z = np.resize([np.inf, np.nan, 0.0, -0.0], TILE)
    y, d = run(z, name, device)
    assert np.isposinf(y[0])
    assert np.isnan([y[1], d[1]]).all()
    assert (y[2:4] == 0).all()
    assert (d[2:4] == 0.5).all()
