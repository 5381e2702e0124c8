"""Which algorithm computes the variance: by what an offset of the row does to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from verify_norm.dtypes import FORMATS, Array
from verify_norm.fingerprint.forward import noise
from verify_norm.fingerprint.precision import Bits
from verify_norm.fingerprint.rig import Outputs, Rig
from verify_norm.fingerprint.statement import Statement, undecided
from verify_norm.fingerprint.sums import means, rstds

SCALE = 16.0  # of the noise, so that no eps in use matters beside its square
RUNGS = (4, 6, 8, 10, 12, 16, 20, 22)  # offsets in units of the noise, as powers of two
ROWS, LENGTH = 8, 960  # no power of two, so that the mean is rounded; more than many a tile
FAR = 1.5 * 2.0**20  # an offset, in units of the noise, at which a float32 mean is visibly rounded
GRID = 2.0  # to a number on this grid: the ulp of float32 at FAR·SCALE
COARSE = 2.0**-11  # what one_pass in float32 is far from at the first rung


def variance(rig: Rig, seen: Bits | None, divisor: str, *, from_y: bool) -> Iterator[Statement]:
    """one_pass, two_pass, welford, shifted or centered.

    With sums of p bits, E[x²] − E[x]² is off by about 2**−p·(offset/σ)², relatively. A centred variance is not: if the
    mean m̃ is rounded, two passes give var + (mean − m̃)² to some ulp, which is of second order. At an offset of 2**20 σ
    that is seen in float32: what comes out is either that (two passes), or var itself (a shift made all exact, or the
    mean is wider than it looks), or neither (Welford's updates, or Chan's merging, which round as they go).

    `from_y` says that the returned statistics are rounded, so that y is to tell.
    """
    p = FORMATS["float32"].precision if seen is None or seen.why else seen.most
    probe = Probe(rig, LENGTH / (LENGTH - 1) if divisor == "N-1" else 1.0, from_y)
    errors = []
    for rung in RUNGS:
        got = probe.measured(2.0**rung)
        if got is None:
            return
        error = np.abs(1 / np.square(got.rstd) / got.truth - 1)
        errors.append(float(np.where(np.isfinite(error), error, np.inf).max()))
    at = ", ".join(f"{e:.1e} at 2^{rung}" for e, rung in zip(errors, RUNGS, strict=True))
    shown = f"the variance is off by {at} σ of offset"
    expected = [2.0 ** (2 * rung - p) for rung in RUNGS]
    clear = [k for k, e in enumerate(expected) if 2.0**-14 < e < 2.0**-1]
    if not clear:
        yield undecided("variance", f"{shown}; with sums of {p} bits no offset tells")
    elif errors[0] > COARSE:
        yield undecided("variance", f"{shown}: what shows it is too coarse")
    elif all(2.0**-8 < errors[k] / expected[k] < 2.0**4 for k in clear) and errors[clear[-1]] > 8 * errors[clear[0]]:
        yield Statement("variance", "one_pass", f"{shown}: as the square of the offset", 0.95)
    elif all(errors[k] < max(expected[k] * 2.0**-8, 2.0**-18) for k in clear[-2:]):
        yield _centred(probe, p, shown)
    else:
        yield undecided("variance", shown)


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows at one offset: their variance and mean, and the rstd and mean that the kernel shows."""

    truth: Array
    mean: Array
    rstd: Array
    used: Array


@dataclass(frozen=True, slots=True)
class Probe:
    """Measures a kernel whose variance is `times` that of the population; by y alone if `from_y`."""

    rig: Rig
    times: float
    from_y: bool

    def outputs(self, x: Array) -> Outputs | None:
        """What shows the statistics of these rows."""
        out = self.rig.rows(x)
        if out is None or not self.from_y:
            return out
        return Outputs({k: v for k, v in out.values.items() if k == "y"}, out.dtypes)

    def measured(self, offset: float) -> Measured | None:
        """Rows at this offset, in units of the noise; None where rstd is not to be had."""
        x = FORMATS["float32"].round(SCALE * (offset + noise(ROWS, LENGTH)))
        out = self.outputs(x)
        rstd = None if out is None else rstds(out, x)
        used = None if out is None else means(out, x)
        return None if rstd is None or used is None else Measured(x.var(1) * self.times, x.mean(1), rstd, used)


def _centred(probe: Probe, p: int, shown: str) -> Statement:
    """Which of the algorithms that an offset does not hurt."""
    if _shifted(probe):
        return Statement("variance", "shifted", f"{shown}; a mask in the first element is in all others too", 0.9)
    got = probe.measured(FAR)
    if got is None or p > FORMATS["float32"].precision:
        return Statement("variance", "centered", f"{shown}; its sums are too wide to tell more", 0.85)
    steps = got.used / GRID
    if not (np.abs(steps - np.rint(steps)) < 2.0**-6).all():
        return undecided("variance", f"{shown}; the mean that shows is no float32, so that shifted is not ruled out")
    rounded = np.square(got.mean - got.used) * probe.times
    visible = rounded > got.truth * 2.0**-14
    var = 1 / np.square(got.rstd)
    if visible.sum() < 4 or not np.isfinite(var).all():
        return undecided("variance", f"{shown}; no first pass's rounded mean shows, so that shifted is not ruled out")
    two, exact = (np.abs(var / want - 1)[visible] for want in (got.truth + rounded, got.truth))
    if (two < 2.0**-17).all():
        more = f"at 2^20 σ it is that about the rounded mean to {two.max():.1e}"
        return Statement("variance", "two_pass", f"{shown}; {more}", 0.95)
    if (exact < 2.0**-17).all():
        more = f"at 2^20 σ it is off by {exact.max():.1e}, less than the rounded mean explains"
        return undecided("variance", f"{shown}; {more}: shifted, or centred about a wider mean")
    more = f"at 2^20 σ it is off by up to {exact.max():.1e}, and from that about the rounded mean by {two.max():.1e}"
    return Statement("variance", "welford", f"{shown}; {more}, as updates and merges leave", 0.8)


def _shifted(probe: Probe) -> bool:
    """Whether x[0] is subtracted from all: no mask swallows it then, and if it is one it swallows all else."""
    n, unit, mask = 64, 2.0**-10, 2.0**50
    x = np.full((3, n), unit)
    x[0, 3], x[0, 9] = x[1, n // 2], x[1, n - 1] = mask, -mask
    x[2, 0], x[2, 5] = mask, -mask
    out = probe.outputs(x)
    mean = None if out is None else means(out, x)
    return mean is not None and bool((np.abs(mean / unit - [1, 1, 0]) < 2.0**-8).all())
