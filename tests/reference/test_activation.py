"""Activations against fifty digits; their error bounds against float32 evaluations."""

import mpmath
import numpy as np
import pytest
import torch
from references import FLOAT32

from verify_norm.reference import activation
from verify_norm.reference.stages.activate import Activate
from verify_norm.reference.stages.stage import Approximate, passed

EXACT = {
    "silu": lambda z: z / (1 + mpmath.exp(-z)),
    "gelu": lambda z: z * mpmath.ncdf(z),
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
}
POINTS = np.concatenate([np.linspace(-30, 30, 61), np.random.default_rng(0).normal(size=60) * 3])


@pytest.mark.parametrize("name", EXACT)
def test_values_and_slopes_to_fifty_digits(name):
    act = activation.ACTIVATIONS[name]
    value, slope = act.value(POINTS), act.slope(POINTS)
    with mpmath.workdps(50):
        for z, got, steep in zip(POINTS.tolist(), value, slope, strict=True):
            want, derivative = EXACT[name](mpmath.mpf(z)), mpmath.diff(EXACT[name], mpmath.mpf(z))
            # erfc's argument is rounded, and its tail e^(−z²/2) feels that z² times
            assert abs(got - want) <= 2.0**-52 * (2 + z * z) * abs(want), z
            assert abs(steep - derivative) <= 2.0**-51 * (1 + abs(z)) * (1 + abs(derivative)), z


@pytest.mark.parametrize("name", EXACT)
def test_no_overflow_far_out(name):
    act, far = activation.ACTIVATIONS[name], np.array([-1e300, -800.0, 800.0, 1e300])
    with np.errstate(over="ignore"):
        assert act.value(far).tolist() == [0.0, 0.0, *((1.0, 1.0) if name == "sigmoid" else (800.0, 1e300))]
        assert act.slope(far).tolist() == [0.0, 0.0, *((0.0, 0.0) if name == "sigmoid" else (1.0, 1.0))]


@pytest.mark.parametrize("name", EXACT)
def test_the_largest_slope_and_bend(name):
    act, grid = activation.ACTIVATIONS[name], np.linspace(-8, 8, 160001)
    slope = act.slope(grid)
    bend = np.abs(np.diff(slope) / np.diff(grid)).max()
    assert act.steepest * (1 - 1e-6) < np.abs(slope).max() <= act.steepest
    assert act.bend * (1 - 1e-6) < bend <= act.bend


def float32(name, z):
    """Yield (value, slope) of each way to evaluate an activation and its derivative in float32."""
    t = torch.from_numpy(z)
    if name == "silu":
        s = 1 / (1 + torch.exp2(t * np.float32(-1.4426950408889634)))
        yield t / (1 + torch.exp(-t)), s * (1 + t * (1 - s))
        yield t * torch.sigmoid(t), torch.sigmoid(t) + t * torch.sigmoid(t) * (1 - torch.sigmoid(t))
    elif name == "sigmoid":
        s = 1 / (1 + torch.exp2(t * np.float32(-1.4426950408889634)))
        yield s, s * (1 - s)
        yield torch.sigmoid(t), torch.sigmoid(t) - torch.sigmoid(t).square()
    else:
        phi = np.float32(0.3989422804014327) * torch.exp(-0.5 * t * t)
        yield (
            0.5 * t * (1 + torch.erf(t * np.float32(0.5**0.5))),
            0.5 * (1 + torch.erf(t * np.float32(0.5**0.5))) + t * phi,
        )
        yield 0.5 * (t + t * torch.erf(t / np.float32(2**0.5))), 0.5 * torch.erfc(-t * np.float32(0.5**0.5)) + t * phi


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0])
def test_bounds_hold_and_are_reached(name, scale):
    act = activation.ACTIVATIONS[name]
    z = (np.random.default_rng(2).normal(size=20000) * scale).astype(np.float32)
    exact, nothing = z.astype(np.float64), np.zeros(z.shape)
    slope, slope_off = activation.pulled(act, np.ones(z.shape), exact, nothing, FLOAT32)
    value, value_off = act.value(exact), act.value_error(exact, FLOAT32)
    worst = np.zeros(2)
    for got, steep in float32(name, z):
        off = np.abs(got.double().numpy() - value) / value_off, np.abs(steep.double().numpy() - slope) / slope_off
        worst = np.maximum(worst, [o.max() for o in off])
    assert (worst <= 1).all(), worst
    assert (worst > 0.02).all(), worst  # a rounding or two of the terms


@pytest.mark.parametrize("name", EXACT)
def test_an_error_of_z_passes_through(name):
    """A z within δz of the truth stays within the bounds; a z three times as far does not."""
    act, rng = activation.ACTIVATIONS[name], np.random.default_rng(3)
    z, dz = rng.normal(size=2000) * 2, np.full(2000, 1e-3)
    at = Approximate(z, dz, np.abs(z))
    for factor, within in ((1.0, True), (3.0, False)):
        moved = z + factor * dz
        value_off = np.abs(act.value(moved) - act.value(z)) / passed(Activate(name), at, {}, FLOAT32).delta
        slope_off = np.abs(act.slope(moved) - act.slope(z)) / activation.pulled(act, np.ones(2000), z, dz, FLOAT32)[1]
        assert (value_off.max() <= 1) == within
        assert (slope_off.max() <= 1) == within


def test_a_subnormal_sigmoid_may_be_zero():
    """CUDA's __fdividef(z, d) is 0 for d above 2^126, and a flushed σ below 2^-126; none above 2^-122 may be."""
    z = np.linspace(-90, -80, 2001)
    divisor = 1 + np.exp(-z)
    for largest, right in ((2.0**126, True), (2.0**122, False)):
        y = np.where(divisor > largest, 0.0, z / divisor)
        off = np.abs(y - activation.SILU.value(z)) / activation.SILU.value_error(z, FLOAT32)
        assert (off.max() <= 1) == right
