"""Activations against fifty digits and torch's float64 autograd; their error bounds against float32 evaluations."""

import mpmath
import numpy as np
import pytest
import torch

from verify_norm.reference import activated, activation
from verify_norm.reference.rounding import Arithmetic

FLOAT32 = Arithmetic(u=2**-24, tiny=2.0**-126, huge=float(np.finfo(np.float32).max))
EPS = 1e-3
EXACT = {"silu": lambda z: z / (1 + mpmath.exp(-z)), "gelu": lambda z: z * mpmath.ncdf(z)}
CASES = [((2, 6, 5), 3, "both"), ((3, 4), 2, "weight"), ((2, 3, 2, 4), 1, "bias"), ((1, 4, 3), 4, "neither")]
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
        assert act.value(far).tolist() == [0.0, 0.0, 800.0, 1e300]
        assert act.slope(far).tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", EXACT)
def test_the_largest_slope_and_bend(name):
    act, grid = activation.ACTIVATIONS[name], np.linspace(-8, 8, 160001)
    slope = act.slope(grid)
    bend = np.abs(np.diff(slope) / np.diff(grid)).max()
    assert act.steepest * (1 - 1e-6) < np.abs(slope).max() <= act.steepest
    assert act.bend * (1 - 1e-6) < bend <= act.bend


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("shape", "groups", "given"), CASES)
def test_groupnorm_is_torchs(name, shape, groups, given):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=shape) * 2 + 1, rng.normal(size=shape)
    w = rng.normal(size=shape[1]) if given in ("both", "weight") else None
    b = rng.normal(size=shape[1]) if given in ("both", "bias") else None
    X, W, B = (None if a is None else torch.from_numpy(a).requires_grad_() for a in (x, w, b))
    ones = torch.ones(shape[1], dtype=torch.float64) if W is None else W  # torch has no bias without a weight
    z = torch.nn.functional.group_norm(X, groups, ones, B, EPS)
    y = getattr(torch.nn.functional, name)(z)
    got = getattr(activated, f"{name}_forward")(x, w, b, num_groups=groups, eps=EPS).y
    np.testing.assert_allclose(got, y.detach().numpy(), rtol=1e-11, atol=1e-11)
    grads = iter(torch.autograd.grad(y, [t for t in (X, W, B) if t is not None], torch.from_numpy(dy)))
    for mine, given_to in zip(
        getattr(activated, f"{name}_backward")(dy, x, w, b, num_groups=groups, eps=EPS), (x, w, b), strict=True
    ):
        assert (mine is None) == (given_to is None)
        if mine is not None:
            np.testing.assert_allclose(mine, next(grads).numpy(), rtol=1e-10, atol=1e-10)


def float32(name, z):
    """Ways to evaluate an activation and its derivative in float32: (value, slope) each."""
    t = torch.from_numpy(z)
    if name == "silu":
        s = 1 / (1 + torch.exp2(t * np.float32(-1.4426950408889634)))
        yield t / (1 + torch.exp(-t)), s * (1 + t * (1 - s))
        yield t * torch.sigmoid(t), torch.sigmoid(t) + t * torch.sigmoid(t) * (1 - torch.sigmoid(t))
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
    value, value_off = act.value(exact), activation.pushed(act, exact, nothing, FLOAT32)
    worst = np.zeros(2)
    for got, steep in float32(name, z):
        off = np.abs(got.double().numpy() - value) / value_off, np.abs(steep.double().numpy() - slope) / slope_off
        worst = np.maximum(worst, [o.max() for o in off])
    assert (worst <= 1).all(), worst
    assert (worst > 0.02).all(), worst  # within what a rounding or two of the terms come to


@pytest.mark.parametrize("name", EXACT)
def test_what_z_is_off_by_goes_through(name):
    """A z within δz of the truth stays within the bounds, and does not if it is three times as far."""
    act, rng = activation.ACTIVATIONS[name], np.random.default_rng(3)
    z, dz = rng.normal(size=2000) * 2, np.full(2000, 1e-3)
    for factor, within in ((1.0, True), (3.0, False)):
        moved = z + factor * dz
        value_off = np.abs(act.value(moved) - act.value(z)) / activation.pushed(act, z, dz, FLOAT32)
        slope_off = np.abs(act.slope(moved) - act.slope(z)) / activation.pulled(act, np.ones(2000), z, dz, FLOAT32)[1]
        assert (value_off.max() <= 1) == within
        assert (slope_off.max() <= 1) == within
