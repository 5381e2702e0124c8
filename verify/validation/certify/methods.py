"""Ways to compute a derivative independently of the reference: complex step, scipy's estimate, central differences.

Each returns the largest error relative to the size of the terms, and the error allowed there, in the same unit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.differentiate import jacobian

from verify_norm.core.dtypes import Array
from verify_norm.validation.certify.probes import Probe

U = 2.0**-53
STEP = 1e-200  # its square underflows: no truncation, and nothing cancels
AGREEMENT = 1e-13  # 900 u: some tens of roundings, times the row's largest |x̂| where it meets a mean
RESOLVES = 1e-3  # a method that allows more than this part of the largest entry has checked nothing
ORDER = 8  # of scipy's formula

Agreement = tuple[float, float, bool]  # of the worst entry its error and the error allowed; whether all are ok


def complex_step(probe: Probe) -> Agreement:
    """Compare with ∂f = Im f(x + ih)/h, h = 10⁻²⁰⁰: exact but for the roundings of f itself, which both sides have.

    Allowed: 10⁻¹³(1 + κ) of the terms' size, with the condition κ of `sizes`.
    """
    slope = probe.path(STEP * 1j).imag / STEP
    return agreement(slope - probe.claim, AGREEMENT * (1.0 + probe.kappa) * probe.size, probe)


def scipy_estimate(probe: Probe) -> Agreement:
    """Compare with scipy.differentiate.jacobian along the path, which estimates its own error.

    It starts at half the length over which the path bends, and halves the step until it has 10⁻¹⁰ of the terms' size
    or its estimate grows. Allowed are that estimate, round-off (each value of the path errs by ν = 4u(1 + κ) of its
    magnitude, a formula of order 8 on steps h, h/2, h/4, h/8 divides the last difference by h/8, and its weights sum to
    less than 4), and the claim's own roundings, 8 ulps of its terms.
    """
    first = probe.length / 2.0
    noise = 4.0 * U * (1.0 + probe.kappa) * (probe.magnitude + first * probe.size)

    def path(t: Array) -> NDArray[Any]:
        return np.stack([probe.path(float(s)) for s in t.ravel()], axis=-1).reshape(-1, *t.shape[1:])

    goal = np.maximum(1e-10 * probe.size.max(), 8.0 * noise.max() / first)
    found = jacobian(path, np.zeros(1), tolerances={"atol": goal, "rtol": 0.0}, order=ORDER, initial_step=first)
    last = first / 2.0 ** (found.nit[:, 0] - 1 + ORDER / 2 - 1)
    return agreement(found.df[:, 0] - probe.claim, found.error[:, 0] + 4.0 * noise / last + _own(probe), probe)


def central_difference(probe: Probe) -> Agreement:
    """Compare with Richardson's D(h/2) + (D(h/2) − D(h))/3 of central differences D, at a derived step h.

    Values err by ν|f|, ν = 4u(1 + κ), and f‴ is about |f|/length³. So D(h) errs by h²|f‴|/6 of truncation and by ν|f|/h
    of round-off, least in sum where h³ = 3ν·length³. Richardson's step removes the h² term, and its size bounds the
    rest; round-off is then at most (4·2 + 1)/3 = 3 times ν|f|/h. Allowed are both, and the claim's own roundings.
    """
    nu = 4.0 * U * (1.0 + probe.kappa)
    h = probe.length * (3.0 * nu) ** (1 / 3)
    wide, narrow = ((probe.path(s) - probe.path(-s)) / (2.0 * s) for s in (h, h / 2.0))
    moved = (narrow - wide) / 3.0
    allowed = np.abs(moved) + 3.0 * nu * probe.magnitude / h + _own(probe)
    return agreement(narrow + moved - probe.claim, allowed, probe)


METHODS = {"complex step": complex_step, "scipy": scipy_estimate, "central difference": central_difference}
WHY = {
    "complex step": "1e-13 (1 + κ) of the largest term, κ = mean|x|·rstd where a mean is subtracted",
    "scipy": "its own error estimate, and 4u(1 + κ) of round-off through its last step",
    "central difference": "the size of Richardson's step, and 4u(1 + κ) of round-off over the step ∛(3·4u(1 + κ))",
}


def _own(probe: Probe) -> Array:
    return 8.0 * 2.0 * U * (1.0 + probe.kappa) * probe.size


def agreement(difference: Array, allowed: Array, probe: Probe) -> Agreement:
    """Return the worst entry; one that is not finite has an infinite error."""
    error = np.where(np.isfinite(difference), np.abs(difference), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error > 0.0, error / allowed, 0.0)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
    worst = int(np.argmax(ratio))
    size = probe.size[worst] or 1.0
    sees = bool(allowed.max() <= RESOLVES * probe.size.max())
    return float(error[worst] / size), float(allowed[worst] / size), sees and bool(ratio[worst] <= 1.0)


def as_published(forward: Callable[[NDArray[Any]], NDArray[Any]], value: Array, gradient: Array) -> float:
    """Return the error of one gradient by a published check (seed 002): the largest |a − n|/(|a| + |n| + 1e-8).

    It takes differences in float32 with h = 1e-5. `forward` maps the float32 argument to the loss ⟨dy, y⟩.
    """
    probe, h = value.astype(np.float32), np.float32(1e-5)
    slope = np.zeros_like(probe)
    for place in np.ndindex(probe.shape):
        old = probe[place]
        probe[place] = old + h
        up = forward(probe)
        probe[place] = old - h
        slope[place] = (up - forward(probe)) / (2 * h)
        probe[place] = old
    return float((np.abs(gradient - slope) / (np.abs(gradient) + np.abs(slope) + 1e-8)).max())
