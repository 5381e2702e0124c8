"""Each error bound at data where every magnitude is 1 or a small number: the roundings that its derivation counts.

A bound is a sum of terms. In a row of the table one term is left, by an arithmetic with one kind of error, and its
coefficient is what the docstrings of the reference derive. So a term that is twice as large, or half, fails a row.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from verify_norm.core.ops import OPS
from verify_norm.reference import (
    activation,
    batchnorm,
    fixed,
    layernorm,
    probable,
    quantized,
    residual_sum,
    rmsnorm,
    rounding,
    statistics_rounding,
)
from verify_norm.reference.arithmetic import DIVISION, ROOT, Arithmetic
from verify_norm.reference.norm import Projection
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.stages.activate import Activate
from verify_norm.reference.stages.stage import Approximate, passed
from verify_norm.reference.statistics_rounding import Given, StatisticsError
from verify_norm.reference.view import rows

U, T, V = 2.0**-24, 2.0**-60, 2.0**-8  # a unit roundoff, an underflow, the unit roundoff of a narrow type
EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e30, variance="two_pass")
ROUNDS, FLUSHES = replace(EXACT, u=U), replace(EXACT, tiny=T)
PIECES = replace(EXACT, products="bf16")  # an operand misses 2⁻⁷, a product twice that
N, H = 8, 7  # elements of a row, and the additions of their sum, which are fewer than a tree's with its ends
SIGNS = np.tile([-1.0, 1.0], N // 2)[None]  # mean 0, variance 1, x̂ = x


def norm(offset=0.0, scale=1.0, eps=0.0, weight=None, bias=None, repeats=1, added=0.0):
    """A LayerNorm of rows of ±scale about offset; weight and bias are the same number in every column.

    `added` is the weight's offset.
    """
    x = np.repeat(offset + scale * SIGNS, repeats, 0)
    w, b = (None if p is None else np.full(N, p) for p in (weight, bias))
    return layernorm.norm(rows(x, None), x, w, b, eps, added)


def rms(eps=0.0, weight=None, offset=0.0):
    return rmsnorm.norm(rows(SIGNS, None), SIGNS, None if weight is None else np.full(N, weight), eps, offset)


def statistics(mean=0.0, low=0.0, high=0.0, rho=0.0):
    return StatisticsError(*(np.full((1, 1), v) for v in (mean, low, high, rho)))


def z(shift=0.0, factor=0.0, magnitude=0.0, unit=0.0, floor=0.0):
    return XhatError(
        *(np.full((1, 1), v) for v in (shift, factor)), np.full((1, N), magnitude), unit, np.full((1, 1), floor)
    )


def projected(g=0.0, c1=0.0, c2=0.0, dx=0.0):
    return Projection(np.full((1, N), g), np.full((1, 1), c1), np.full((1, 1), c2), np.full((1, N), dx))


ONES, NEAR = np.ones((1, N)), 1 + 2.0**-12  # a number that 8 bits do not hold
WIDE, LLAMA = replace(ROUNDS, variance="centered"), replace(EXACT, xhat_u=V)
FINE = replace(EXACT, u=2.0**-53, tiny=2.0**-1000)  # float64: it has a nearest number
SHIFTED, EXPANDED = replace(ROUNDS, variance="shifted"), replace(ROUNDS, expanded=True)


def mean(a, **data):
    return statistics_rounding.mean_error(norm(**data), a)[0]


def variance(a, dmean=0.0, size=0.0, which=0, **data):
    return statistics_rounding.variance_error(norm(**data), np.full((1, 1), dmean), np.full((1, 1), size), a)[which]


def root(low=0.0, high=0.0, a=EXACT, rstd=1.0):
    return statistics_rounding.rstd_error(np.array(low), np.array(high), np.array(rstd), a)


STATISTICS = {
    "mean: a sum, 1/n and a product": (mean(ROUNDS, offset=4.0), (H + 5) * 4 * U),
    "mean: Welford's": (mean(WIDE, offset=4.0), (8 + 5) * 4 * U),
    "mean: from the first element": (mean(SHIFTED, offset=4.0) - mean(ROUNDS, offset=4.0), 4 * U + (H + 6) * U),
    "mean: operands": (mean(PIECES, scale=NEAR), 2.0**-7 * NEAR),
    "mean: operands that 8 bits hold": (mean(PIECES), 0.0),
    "mean: operands from the first": (mean(replace(PIECES, variance="shifted")), 2.0**-7),
    "mean: underflow": (mean(FLUSHES), 4 * T),
    "var: two_pass": (variance(ROUNDS, scale=2.0), (H + 1 + 7) * 4 * U),
    "var: two_pass, upwards": (variance(ROUNDS, which=1), (H + 1 + 7) * U),
    "var: the mean's error enters squared": (variance(EXACT, dmean=0.1, which=1), 0.01),
    "var: and never lessens it": (variance(EXACT, dmean=0.1), 0.0),
    "var: Welford's": (variance(WIDE, size=100.0), (15 + 8 * 100) * U),
    "var: merged tiles": (
        variance(replace(PIECES, variance="centered"), scale=NEAR, offset=3.0),
        2.0**-6 * (1 + 3 + 1),
    ),
    "var: shifted": (variance(SHIFTED), 15 * U * (1 + 1 + 2)),
    "var: underflow": (variance(FLUSHES), 4 * T),
    "mean of squares": (statistics_rounding.mean_square_error(rms(), ROUNDS)[0], (H + 1 + 5) * U),
    "mean of squares: operands": (statistics_rounding.mean_square_error(rms(), PIECES)[1], 2.0**-6),
    "mean of squares: underflow": (statistics_rounding.mean_square_error(rms(), FLUSHES)[0], 4 * T),
    "rstd: a root, a division, two roundings more under the root": (root(a=ROUNDS), (ROOT + DIVISION + 1) * U),
    "rstd: a variance too small": (root(low=0.19), 1 / 0.9 - 1),
    "rstd: a variance too large": (root(high=0.21), 1 - 1 / 1.1),
    "rstd: relative to var + eps": (root(low=0.19 / 4, rstd=2.0), 1 / 0.9 - 1),
    "saved": (statistics_rounding.saved(np.array(3.0), np.array(0.0), replace(EXACT, stats_u=V)), 3 * V),
    "saved: of what is off": (
        statistics_rounding.saved(np.array(0.0), np.array(2.0), replace(EXACT, stats_u=V)),
        2 + 2 * V,
    ),
    "saved: underflow": (
        statistics_rounding.saved(np.array(0.0), np.array(0.0), replace(EXACT, stats_u=V, narrow_tiny=T)),
        T,
    ),
    "given mean": (statistics_rounding.saved_error(norm(), FINE, Given(np.array([0.25]), np.array([1.0]))).mean, 0.25),
    "given rstd": (
        statistics_rounding.saved_error(norm(scale=2.0), FINE, Given(np.zeros(1), np.array([0.75]))).rho,
        0.5,
    ),
    "given: one rounding to the accumulation type": (
        statistics_rounding.saved_error(
            norm(offset=NEAR), replace(FINE, u=V), Given(np.array([NEAR]), np.ones(1))
        ).mean,
        2.0**-12,
    ),
    "given: underflow": (
        statistics_rounding.saved_error(norm(), replace(FINE, tiny=T), Given(np.zeros(1), np.ones(1))).mean,
        T,
    ),
}


def affine(n=None, a=EXACT, **errors):
    return rounding.affine_error(norm() if n is None else n, z(**errors), a)


def xhat(field, a=EXACT, n=None, **errors):
    return getattr(rounding.xhat_error(norm() if n is None else n, statistics(**errors), a), field)


FORWARD = {
    "x̂: the mean's error times r": (xhat("shift", n=norm(scale=0.5), mean=0.25), 0.5),
    "x̂: the factor of r": (xhat("factor", rho=0.25), 0.25),
    "x̂: a difference and a product": (xhat("unit", ROUNDS), 2 * U),
    "x̂: a product": (xhat("unit", ROUNDS, n=rms()), U),
    "x̂: x·a + b": (xhat("unit", EXPANDED), 3 * U),
    "x̂: to a narrow type": (xhat("unit", LLAMA), V),
    "x̂: its size": (xhat("magnitude", mean=0.5, rho=0.25), 1.25 + 0.625),
    "x̂: the sizes of x·a and b": (
        xhat("magnitude", EXPANDED, norm(offset=3.0, scale=0.5), mean=0.25),
        2 * (3.0 + 3.25) + 2 * np.array([-0.5, 0.5] * 4),
    ),
    "x̂: underflow": (xhat("floor", FLUSHES, norm(scale=0.25)), (2 * 4 + 1) * T),
    "x̂: underflow of a narrow type": (xhat("floor", replace(LLAMA, narrow_tiny=T)), T),
    "y: what a row shares": (affine(norm(weight=3.0), shift=0.5), 1.5),
    "y: a factor": (affine(norm(weight=3.0), factor=0.5), 1.5),
    "y: an element's own": (affine(norm(weight=3.0), magnitude=2.0, unit=0.5), 3.0),
    "y: floors": (affine(norm(weight=3.0), floor=0.5), 1.5),
    "y: the product with w": (affine(norm(weight=3.0), ROUNDS, magnitude=2.0), 6 * U),
    "y: weight + offset": (affine(rms(weight=2.0, offset=1.0), ROUNDS, magnitude=2.0), 12 * U),
    "y: weight + offset in a narrow type": (
        affine(rms(weight=2.0, offset=1.0), replace(EXACT, offset_u=V), magnitude=2.0),
        6 * V,
    ),
    "y: weight + offset of LayerNorm": (affine(norm(weight=2.0, added=1.0), ROUNDS, magnitude=2.0), 12 * U),
    "y: weight + offset of LayerNorm in a narrow type": (
        affine(norm(weight=2.0, added=1.0), replace(EXACT, offset_u=V), magnitude=2.0),
        6 * V,
    ),
    "y: the sum with b": (affine(norm(bias=3.0), ROUNDS), np.array([2.0, 4.0] * 4) * U),
    "y: x·a + b rounds b too": (affine(norm(bias=3.0), EXPANDED), np.array([5.0, 7.0] * 4) * U),
    "y: underflow": (affine(norm(scale=0.5), FLUSHES), (2 + sqrt(N) / 2) * T),
    **{
        f"{name} of a forward": (
            layernorm.normalize_error(norm(), replace(ROUNDS, stats_u=V))._asdict()[name],
            counted * U,
        )
        for name, counted in {"y": 12 + 14.5 + 2, "mean": 12, "rstd": 15 / 2 + 7}.items()
    },
    "y of RMSNorm": (rmsnorm.normalize_error(rms(), ROUNDS).y, (13 / 2 + 7 + 1) * U),
    "rstd of RMSNorm": (rmsnorm.normalize_error(rms(), replace(ROUNDS, stats_u=V)).rstd, (13 / 2 + 7) * U),
}


def means(field, n=None, a=EXACT, p=None, lost=0.0, **errors):
    return getattr(rounding.means_error(norm() if n is None else n, p or projected(), z(**errors), a, lost), field)


def dx(n=None, a=EXACT, p=None, lost=0.0, **errors):
    return rounding.projection_error(norm() if n is None else n, p or projected(), z(**errors), a, lost=lost)


def coefficient(n, a, dy, lost=0.0, **errors):
    return rounding.coefficient_error(n, np.full((1, N), dy), z(**errors), a, lost=lost)


def dweight(a=EXACT, dy=1.0, lost=0.0, repeats=4, **errors):
    n = norm(repeats=repeats, weight=1.0)
    return rounding.weight_error(n, np.full((repeats, N), dy), z(**errors), a, lost=lost)


def dbias(a=EXACT, dy=1.0, lost=0.0, repeats=4):
    return rounding.bias_error(norm(repeats=repeats), np.full((repeats, N), dy), a, lost=lost)


G1, NARROW = projected(g=1.0), replace(EXACT, partials_u=V)
BACKWARD = {
    "c1: sum, 1/n and a product": (means("dc1", a=ROUNDS, p=G1, magnitude=3.0), (H + 1 + 5) * 3 * U),
    "c1: operands": (means("dc1", a=PIECES, p=G1, magnitude=3.0), 3 * 2.0**-6),
    "c1: an element's own": (means("dc1", p=G1, magnitude=3.0, unit=0.5), 1.5),
    "c1: g of a weight": (means("dc1", norm(weight=2.0), ROUNDS, G1, magnitude=3.0), (H + 7) * 3 * U),
    "c1: g of a narrow type": (means("dc1", a=LLAMA, p=G1, magnitude=3.0), 3 * V),
    "c1: a factor": (means("dc1", p=projected(c1=3.0), factor=0.5), 1.5),
    "c1: a shift meets c2": (means("dc1", p=projected(c2=3.0), shift=0.5), 1.5),
    "c1: lost": (means("dc1", norm(weight=2.0), lost=0.5, magnitude=3.0), 3.0),
    "c1: floors": (means("dc1", p=projected(g=3.0), floor=0.5), 1.5),
    "c1: underflow": (means("dc1", a=FLUSHES), (1 + 3) * T),
    "c2: sum, 1/n and a product": (means("dc2", a=ROUNDS, p=projected(g=3.0)), (H + 5) * 3 * U),
    "c2: g of a weight": (means("dc2", norm(weight=2.0), ROUNDS, projected(g=3.0)), (H + 6) * 3 * U),
    "c2: operands": (means("dc2", a=PIECES, p=projected(g=NEAR)), 2.0**-7 * NEAR),
    "c2: lost": (means("dc2", norm(weight=2.0), lost=0.5), 1.0),
    "c2: underflow": (means("dc2", a=FLUSHES), 4 * T),
    "c2: none in RMSNorm": (means("dc2", rms(), ROUNDS, replace(G1, c2=None)), 0.0),
    "dx: g, a product with n and a difference": (dx(a=ROUNDS, p=G1), (2 + (H + 5)) * U),  # the other is c2's
    "dx: g in a narrow type, and in c2": (dx(a=LLAMA, p=G1), 2 * V),
    "dx: c2": (dx(a=ROUNDS, p=projected(c2=3.0)), 6 * U),
    "dx: c1": (dx(a=ROUNDS, p=projected(c1=3.0), magnitude=1.0), 12 * U),
    "dx: x̂ of an element meets c1": (dx(p=projected(c1=3.0), magnitude=2.0, unit=0.5), 3.0),
    "dx: a shift meets c1": (dx(p=projected(c1=3.0), shift=0.5), 1.5),
    "dx: floors meet c1": (dx(p=projected(c1=3.0), floor=0.5), 1.5),
    "dx: lost": (dx(rms(), p=replace(projected(), c2=None), lost=0.5), 0.5),
    "dx: the last roundings": (dx(a=ROUNDS, p=projected(dx=3.0)), (2 + DIVISION) * 3 * U),
    "dx: a factor": (dx(p=projected(dx=3.0), factor=0.5), 1.5),
    "dx: a factor in c1, and r": (dx(norm(scale=0.5), p=projected(c1=2.0), factor=0.25), 2 * 1.25 * (0.5 + 0.25 * 2.5)),
    "dx: underflow": (dx(rms(), FLUSHES, replace(projected(), c2=None)), (4 + 1 + 3 + 2) * T),
    "dx: underflow of r·w, which meets dy and the means of a normalization of its own": (
        coefficient(norm(scale=0.5, weight=2.0), FLUSHES, dy=5.0, lost=1.0, magnitude=3.0),
        (6 + 6 + 3 * 6 * 3) * T,
    ),
    "dx: no r·w without a weight": (coefficient(norm(), FLUSHES, dy=5.0), 0.0),
    "dweight: a sum of products": (dweight(ROUNDS, magnitude=3.0), 4 * (4 * 3 * U)),
    "dweight: operands": (dweight(PIECES, magnitude=3.0), 4 * 3 * 2.0**-6),
    "dweight: narrow partial sums": (dweight(NARROW, magnitude=3.0), 4 * 3 * 4 * V),
    "dweight: an element's own": (dweight(magnitude=3.0, unit=0.5), 4 * 1.5),
    "dweight: a factor": (dweight(dy=3.0, factor=0.5), 4 * 1.5),
    "dweight: a shift": (dweight(dy=3.0, shift=0.5), 4 * 1.5),
    "dweight: lost": (dweight(lost=0.5, magnitude=3.0), 4 * 1.5),
    "dweight: underflow": (dweight(FLUSHES), 4 * 2 * T),
    "dweight: underflow of a narrow type": (dweight(replace(NARROW, narrow_tiny=T)), 4 * T),
    "dweight: in one run": (dweight(replace(ROUNDS, atomic=True), repeats=1024, magnitude=1.0), 1024 * 1024 * U),
    "dbias: a sum": (dbias(ROUNDS, 3.0), 4 * 3 * 3 * U),
    "dbias: runs of 8 terms, and a tree": (dbias(ROUNDS, repeats=1024), 1024 * (10 + 8 / 3 + 6) * U),
    "dbias: operands": (dbias(PIECES, NEAR), 4 * NEAR * 2.0**-7),
    "dbias: narrow partial sums": (dbias(NARROW, 3.0), 4 * 3 * 4 * V),
    "dbias: lost": (dbias(lost=0.5), 4 * 0.5),
    "dbias: underflow": (dbias(FLUSHES), 4 * T),
    "dbias: underflow of a narrow type": (dbias(replace(NARROW, narrow_tiny=T), 0.0), 4 * T),
}


def evaluation(a, running_mean=0.0, weight=None):
    """BatchNorm's evaluation of ±1 with a running variance of 1."""
    x, one = SIGNS.T, np.ones(1)
    w = None if weight is None else np.full(1, weight)
    return fixed.norm(batchnorm.channels(x, False), x, w, w, np.full(1, running_mean), one, 0.0)


def gradient(a, dy=1.0, weight=None, field="dx", **data):
    return getattr(fixed.gradients_error(evaluation(a, weight=weight, **data), np.full((N, 1), dy), a), field)


def moved(a, field, running=0.0):
    """The running statistics after a batch of ±1, with half of the batch in them."""
    old = np.full(1, running)
    error = batchnorm.forward_error(SIGNS.T, None, None, old, old, training=True, momentum=0.5, eps=0.0, arithmetic=a)
    return getattr(error, field)


def summed(a, x, residual):
    return residual_sum.sum_error(np.array([x]), np.array([residual]), a)


def joined(a, n, passed=0.0, dy=0.0):
    shape = (1, N)
    return residual_sum.joined_error(n, np.full(shape, dy), np.zeros(shape), np.full(shape, passed), a)


def channels(a, weight):
    """The backward of ±1 in one channel, where nothing is left but what underflows."""
    x, w = SIGNS.T, np.full(1, weight)
    return batchnorm.backward_error(0 * x, x, w, w, None, None, training=True, eps=0.0, arithmetic=a)


def silu(a, weight, **how):
    """The backward of a group of ±1 where dy is 1."""
    x, w = SIGNS[None], np.full(1, weight)
    error = OPS["groupnorm_silu_bwd"].error
    return error(dy=x * x, x=x, weight=w, bias=0 * w, num_groups=1, eps=0.0, arithmetic=a, **how)


def activated(z, off, a):
    """Return how far SiLU of a z may be off."""
    return passed(Activate("silu"), Approximate(z, off, np.abs(z)), {}, a).delta


SILU, GELU = activation.SILU, activation.GELU
sigma, phi, Phi = (float(f(np.array(2.0))) for f in (activation.sigmoid, activation.density, activation.normal))
AROUND = np.array(0.0), np.array(0.1)  # z, and how far it is off
OTHERS = {
    "evaluation: the root alone is off": (fixed.xhat_error(evaluation(ROUNDS), ROUNDS).factor, 7 * U),
    "evaluation: dx": (gradient(ROUNDS, 3.0), (7 + 1) * 3 * U),
    "evaluation: dx with a weight": (gradient(ROUNDS, 3.0, weight=2.0), (7 + 2) * 6 * U),
    "evaluation: dx in a narrow type": (gradient(LLAMA, 3.0), 3 * V),
    "evaluation: dx, underflow": (gradient(FLUSHES, 0.0), 3 * T),
    "evaluation: y, underflow": (
        fixed.normalize_error(evaluation(EXACT, 3.0), FLUSHES).y,
        (5 + sqrt(N) + np.array([4.0, 2.0] * 4)) * T,
    ),
    "channels: dweight as r·D": (
        fixed.factored_error(evaluation(EXACT), np.zeros(1), np.full(1, 3.0), np.ones(1), FLUSHES),
        N * 3 * T,
    ),
    "evaluation: var + eps may lose what underflows": (
        fixed.xhat_error(evaluation(EXACT), replace(EXACT, tiny=0.19)).factor,
        1 / 0.9 - 1,
    ),
    "evaluation: rstd": (fixed.normalize_error(evaluation(ROUNDS), ROUNDS).rstd, 7 * U),
    "channels: dx, underflow, with D = Σ dy·(x − μ)": (channels(FLUSHES, 2.0).dx, 2 * (4 + 4 + 4 + 2 + 3) * T),
    "running mean: its share of the mean's error, four roundings": (moved(ROUNDS, "running_mean"), (H + 5) / 2 * U),
    "running mean: four roundings": (moved(ROUNDS, "running_mean", 1e6), 4e6 * U),
    "running mean: underflow": (moved(FLUSHES, "running_mean"), (2 + 4) * T),
    "running var: n/(n − 1), and its share": (moved(ROUNDS, "running_var"), 8 / 7 * (0.5 * (15 + 5) + 0.5 * 4) * U),
    "running var: four roundings": (moved(ROUNDS, "running_var", 1e6), 4e6 * U),
    "running var: underflow": (moved(FLUSHES, "running_var"), (8 / 7 * 2 + 4) * T),
    "8 bits: what z is off by": (quantized.product_error(0.5, np.zeros(1), np.array(3.0), EXACT), 1.5),
    "8 bits: three products": (quantized.product_error(0.0, np.full(1, 2.0), np.array(3.0), ROUNDS), 3 * 6 * U),
    "8 bits: underflow": (quantized.product_error(0.0, np.zeros(1), np.array(3.0), FLUSHES), 16 * T),
    "8 bits: half of it saturates": (quantized.saturated_error(np.array(447.0), np.array(4.0), 448.0), 4.0),
    "8 bits: all but 1 saturates": (quantized.saturated_error(np.array(448.0), np.array(1.0), 448.0), 1.0),
    "amax": (quantized.amax_error(np.array([1.0, -2.0]), np.array([1.5, 0.25])), 0.5),
    "a sum and its norm": (residual_sum.apart([np.array(1.0)], [np.array(1.5)], [np.array(0.25)]), 0.75),
    "a sum: one right value": (summed(replace(FINE, u=2.0**-24), 1.0, 2.0**-24), 0.0),
    "a sum in a narrow type": (summed(replace(FINE, u=V), 1.0, 2.0**-9), 2.0**-9),
    "a sum: underflow": (summed(replace(FINE, u=2.0**-24, tiny=T), 1.0, T / 2), 3 * T),
    "a sum: flushed before the norm": (residual_sum.flushing(FLUSHES).tiny, 3 * T),
    "passed on, with a mean": (joined(ROUNDS, norm(), 2.0), 3 * 2 * U),
    "passed on, without one": (joined(ROUNDS, rms(), 2.0), 2 * 2 * U),
    "passed on: an addition to the norm's terms": (joined(ROUNDS, norm(), dy=3.0), (3 + 3) * U),  # g and c2
    "passed on: underflow": (joined(FLUSHES, norm()), 4 * T),
    "passed on: underflow, without a mean": (joined(FLUSHES, rms()), 3 * T),
    "SiLU": (SILU.value_error(np.array(2.0), ROUNDS), 2 * sigma * ((1 - sigma) * (4 + 4.7) + 5 + 1) * U),
    "SiLU where its exponential overflows": (SILU.value_error(np.array(-100.0), EXACT), 100 / (1 + np.exp(100.0))),
    "SiLU: underflow": (SILU.value_error(np.array(0.0), FLUSHES), 4 * T),
    "SiLU's slope": (SILU.slope_error(np.array(2.0), ROUNDS), 3 * sigma * ((1 - sigma) * 8.7 + 5 + 6) * U),
    "SiLU's slope: underflow": (SILU.slope_error(np.array(2.0), FLUSHES), 12 * T),
    "GELU far out": (GELU.value_error(np.array(40.0), ROUNDS), (20 * (4 + 2 + 1 + 1) + 3 * 40) * U),
    "GELU": (GELU.value_error(np.array(2.0), ROUNDS), (4 * (2 * Phi - 1) + 2 * Phi + 1 + 1 + 6 * Phi) * U),
    "GELU: underflow": (GELU.value_error(np.array(0.0), FLUSHES), 4 * T),
    "GELU's slope": (
        GELU.slope_error(np.array(2.0), ROUNDS),
        (2 * phi * (8 + 5.35 * 2) + (4 * (2 * Phi - 1) + 2 * Phi + 1) / 2 + 2 * (Phi + 2 * phi)) * U,
    ),
    "GELU's slope: underflow": (GELU.slope_error(np.array(2.0), FLUSHES), 12 * T),
    "activation: z is off": (activated(*AROUND, EXACT), (0.5 + 0.5 * 0.1) * 0.1),
    "activation: z is far off": (activated(AROUND[0], np.array(10.0), EXACT), 10 * SILU.steepest),
    "activation: its own error": (
        activated(np.array(2.0), np.array(0.0), ROUNDS),
        2 * sigma * ((1 - sigma) * 8.7 + 6) * U,
    ),
    "an activated forward": (
        OPS["groupnorm_silu_fwd"]
        .error(x=SIGNS[None], weight=None, bias=None, num_groups=1, eps=0.0, arithmetic=ROUNDS)
        .y,
        np.tile([0.0723 * 28.5 + 2.86, 0.9277 * 28.5 + 5.64], 4) * U,
    ),
    "an activated backward": (
        silu(ROUNDS, 0.0).dbias,
        N * (7 + 7 / 2) * U,
    ),  # the slope's error, and the sum of N halves
    "an activated backward: z is off": (
        silu(FINE, 1.0, given=Given(np.zeros(1), np.array([1.25]))).dbias,
        N * 0.5 * 0.25,
    ),
    "slope: z is off": (activation.pulled(SILU, np.array(2.0), *AROUND, EXACT)[1], 2 * 0.5 * 0.1),
    "slope: the product with dy": (activation.pulled(SILU, np.array(1.0), AROUND[0], 0 * AROUND[1], ROUNDS)[1], 7 * U),
    "slope: underflow": (activation.pulled(SILU, np.array(0.0), AROUND[0], 0 * AROUND[1], FLUSHES)[1], T),
}

ONE_RUN, LAM = replace(ROUNDS, summation="sequential"), 1e4
S, S1 = sqrt(N * (9 / 2 + 1)), sqrt(N * (9 / 2 + 1) + N * N * (9 * 17 / 48 + 2))  # u·√V of ±1, and of ones, in one run


def spread(terms, a):
    return probable.spread(np.asarray(terms), (1,), a, products=True)


def chance(a, lam, field="mean", **data):
    return getattr(probable.statistics_error(norm(**data), a, lam), field)


def weight(a, lam, dy=1.0, **errors):
    """Of x̂ = ±1 in one column of N rows."""
    x = np.repeat(SIGNS[:, :2], N, 0)
    n = layernorm.norm(rows(x, None), x, np.ones(2), None, 0.0)
    one = {name: np.full((N, 1), errors.get(name, 0.0)) for name in ("shift", "factor", "magnitude", "floor")}
    return probable.weight_error(n, np.full((N, 2), dy), XhatError(**one, unit=errors.get("unit", 0.0)), a, lam)


def row_sum(a, lam, dy, phi=1.0, n=None, **errors):
    return probable.row_sum_error(n or norm(), dy * np.ones((1, N)), z(**errors), a, lam, phi * np.ones((1, N)))


QUIET = np.tile([-1.0, -1.0, 1.0, 1.0], N // 4)[None]  # neither a mean nor x̂ in it


def beside(a, lam, dy, phi, **how):
    """What a row shares, where φ meets it: without what its elements are rounded by on their own."""
    return row_sum(a, lam, dy, phi, **how) - row_sum(a, lam, dy, QUIET, **how)


PROBABLE = {
    "a sum of random signs": (spread(SIGNS, ONE_RUN), S * U),
    "a sum of one sign": (spread(ONES, ONE_RUN), S1 * U),
    "a sum in more runs": (spread(np.tile(SIGNS, 128), replace(ROUNDS, lanes=2)), sqrt(1024 * (513 / 2 + 2)) * U),
    "products of operands": (spread(SIGNS, PIECES), sqrt(N) * 2.0**-6),
    "products of operands of one sign": (spread(ONES, PIECES), sqrt(N + N * N) * 2.0**-6),
    "additions that cut off": (
        spread(SIGNS, replace(ONE_RUN, products="bf16")) - spread(SIGNS, PIECES),
        2 * (sqrt(9 * 17 / 6) + 1) * sqrt(N) * U,
    ),
    "mean by chance": (chance(ONE_RUN, LAM), LAM * S * U / N),
    "mean: what is not random": (chance(ONE_RUN, 0.0, offset=4.0), 5 * 4 * U),
    "mean by chance: underflow": (chance(FLUSHES, 0.0), 4 * T),
    "var by chance": (chance(ONE_RUN, LAM, "low"), LAM * S1 * U / N),
    "var: what is not random": (chance(ONE_RUN, 0.0, "low"), 7 * U),
    "var by chance: Welford's": (
        chance(replace(WIDE, summation="sequential"), LAM, "low", offset=100.0) - LAM * S1 * U / N,
        LAM * 200 * U,
    ),
    "var by chance: the mean's error enters squared": (
        chance(replace(ONE_RUN, u=1e-3), 50.0, "high") - chance(replace(ONE_RUN, u=1e-3), 50.0, "low"),
        (50 * S * 1e-3 / N) ** 2,
    ),
    "var by chance: underflow": (chance(FLUSHES, 0.0, "low"), 4 * T),
    "dweight by chance: the sum": (weight(ONE_RUN, LAM), LAM * S1 * U),
    "dweight by chance: an element's own": (weight(EXACT, 1.0, magnitude=3.0, unit=0.5), sqrt(N) * 1.5),
    "dweight by chance: a factor": (weight(EXACT, 1.0, factor=0.5), sqrt(N) / 2),
    "dweight by chance: a shift": (weight(EXACT, 1.0, shift=0.5), sqrt(N) / 2),
    "dweight by chance: a factor of matrix products": (weight(PIECES, 0.0, factor=0.5), N / 2),
    "dweight by chance: a shift of matrix products": (weight(PIECES, 0.0, shift=0.5), N / 2),
    "dweight: what is not random": (weight(ONE_RUN, 0.0), 10 * N * U),
    "dweight by chance: underflow": (weight(FLUSHES, 0.0), N * T),
    "dbias by chance": (probable.bias_error(norm(repeats=N), np.ones((N, N)), ONE_RUN, LAM), LAM * S1 * U),
    "dbias by chance: underflow": (probable.bias_error(norm(repeats=N), np.ones((N, N)), FLUSHES, LAM), N * T),
    "Σdx by chance: the sum of c2": (beside(ONE_RUN, LAM, ONES, ONES), LAM * S1 * U),
    "Σdx by chance: c2 of a weight": (
        beside(ONE_RUN, LAM, ONES, ONES, n=norm(weight=2.0)),
        LAM * 2 * (S1 + sqrt(N)) * U,
    ),
    "Σdx: what is not random of c2": (row_sum(ROUNDS, 0.0, ONES, ONES), 5 * N * U),
    "Σdx: a shift meets c1": (row_sum(EXACT, 0.0, SIGNS, ONES, shift=0.5), N / 2),
    "Σdx·x̂ by chance: the sum of c1": (beside(ONE_RUN, LAM, ONES, SIGNS), LAM * S * U),
    "Σdx·x̂ by chance: x̂ in c1": (beside(EXACT, 1.0, ONES, SIGNS, magnitude=3.0, unit=0.5), sqrt(N) * 1.5),
    "Σdx·x̂ by chance: c1 of a weight": (
        beside(ONE_RUN, LAM, ONES, SIGNS, n=norm(weight=2.0), magnitude=3.0),
        LAM * 2 * (S + sqrt(N) * 3 * 2) * U,
    ),
    "Σdx·x̂: what is not random of c1": (row_sum(ROUNDS, 0.0, SIGNS, SIGNS), 5 * N * U),
    "Σdx·x̂: a factor in c1 and in x̂": (row_sum(EXACT, 0.0, SIGNS, SIGNS, factor=0.5), N * (0.5 + 0.5 * 1.5)),
    "Σdx·x̂: a shift in c1": (row_sum(EXACT, 0.0, ONES, SIGNS, shift=0.5), N / 2),
    "Σφ·dx: a factor of the row": (row_sum(EXACT, 0.0, QUIET, QUIET, factor=0.5), N / 2),
    "Σφ·dx: the last roundings may be alike": (row_sum(ROUNDS, 0.0, QUIET, QUIET), (DIVISION + 2) * N * U),
    "Σφ·dx by chance: g and c2 of each element": (row_sum(ONE_RUN, LAM, ONES, QUIET), LAM * sqrt(N) * (2 + 2) * U),
    "Σφ·dx by chance: the last roundings": (
        row_sum(ONE_RUN, LAM, QUIET, QUIET),
        LAM * sqrt(N) * (2 + DIVISION + 2) * U,
    ),
    "Σφ·dx by chance: g of a weight": (
        row_sum(ONE_RUN, LAM, QUIET, QUIET, norm(weight=2.0)),
        LAM * sqrt(N) * 2 * (1 + 2 + DIVISION + 2) * U,
    ),
    "Σφ·dx by chance: x̂·c1": (row_sum(ONE_RUN, LAM, SIGNS, QUIET, magnitude=1.0), LAM * sqrt(N) * (2 + 4) * U),
    "Σφ·dx by chance: x̂ in x̂·c1": (row_sum(EXACT, 1.0, SIGNS, QUIET, magnitude=3.0, unit=1e-4), sqrt(N) * 3e-4),
    "Σφ·dx by chance: floors": (row_sum(EXACT, 1.0, SIGNS, QUIET, floor=0.5), sqrt(N) / 2),
    "Σdx by chance: underflow": (row_sum(FLUSHES, 0.0, 0.0, QUIET), 2 * N * T),
}


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        pytest.param(value, counted, id=name)
        for name, (value, counted) in (STATISTICS | FORWARD | BACKWARD | OTHERS | PROBABLE).items()
    ],
)
def test_a_bound_is_what_its_derivation_counts(value, counted):
    np.testing.assert_allclose(
        np.ravel(value), np.broadcast_to(counted, np.shape(np.ravel(value))), rtol=1e-2, atol=1e-40
    )


@pytest.mark.parametrize("n", [norm(scale=NEAR, offset=3.0, repeats=2), rms(weight=2.0)], ids=["centred", "RMSNorm"])
def test_statistics_by_matrix_products_err_by_chance_in_the_mean_alone(n):
    """What operands miss of a variance is of one sign; what they miss of a mean has the signs of x."""
    a, lam = replace(PIECES, variance="centered"), 3.0
    error = probable.statistics_error(n, a, lam)
    rounds, often = replace(a, u=U), 1000.0
    more = probable.statistics_error(n, rounds, often)
    missed = a.missed(n.x) * np.sign(n.x)
    by_chance = np.sqrt((missed**2).sum(1, keepdims=True) + missed.sum(1, keepdims=True) ** 2)
    mean = lam * by_chance / N if n.centred else np.zeros((1, 1))
    np.testing.assert_allclose(error.mean, mean, rtol=1e-12)
    size = np.abs(n.x).mean(1, keepdims=True)
    for made, one in ((error, a), (more, rounds)):
        centred, roots = (
            statistics_rounding.variance_error(n, made.mean, size, one),
            statistics_rounding.mean_square_error(n, one),
        )
        low, high = centred if n.centred else roots
        assert (made.low.tolist(), made.high.tolist()) == (np.asarray(low).tolist(), np.asarray(high).tolist())
        assert made.rho.tolist() == statistics_rounding.rstd_error(low, high, n.rstd, one).tolist()
    assert (error.rho > 0).all()
