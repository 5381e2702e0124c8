"""The statement about the algorithm of the variance, from its error on rows with an offset."""

from collections.abc import Callable, Iterator

import numpy as np

from verify_norm.auditing.fingerprint.forward import noise
from verify_norm.auditing.fingerprint.rig import Feed, Outputs, Rig
from verify_norm.auditing.fingerprint.statement import HiddenError, Statement, undecided
from verify_norm.auditing.fingerprint.sums import Bits, means, rstds
from verify_norm.core.dtypes import FORMATS, Array

SCALE = 16.0  # of the noise, so that usual eps are negligible next to its square
OFFSETS = (4, 6, 8, 10, 12, 16, 20, 22)  # log2 of offset/σ
ROWS, LENGTH = 8, 960  # not a power of two, so that the mean is rounded; longer than most tiles
FAR = 1.5 * 2.0**20  # an offset/σ at which the rounding of a float32 mean shows
GRID = 2.0  # the ulp of float32 at FAR·SCALE
Statistics = Callable[[Array], tuple[Array, Array]]
COARSE = 2.0**-11  # much larger than the error of one_pass in float32 at the first offset


def variance(rig: Rig, seen: Bits | None, divisor: str, *, from_y: bool) -> Iterator[Statement]:
    """Yield one_pass, two_pass, welford, shifted or centered.

    With sums of p bits, E[x²] − E[x]² has a relative error of about 2**−p·(offset/σ)². A centred variance does not: two
    passes with a rounded mean m̃ give var + (mean − m̃)² to some ulps, a second-order error. It shows at an offset of
    2**20 σ in float32: the result is either that (two passes), or var itself (an exact shift, or a mean that is wider
    than the output), or neither (Welford's updates or Chan's merges, which round at every step).

    If `from_y`, the returned statistics are too coarse, and only y is used.
    """
    p = FORMATS["float32"].precision if seen is None or seen.why else seen.most
    times = LENGTH / (LENGTH - 1) if divisor == "N-1" else 1.0

    def statistics(x: Array) -> tuple[Array, Array]:  # mean and variance (with eps) of each row
        out = rig.rows(Feed(x))
        if from_y:
            out = Outputs({"y": out["y"]}, out.dtypes)
        return means(out, x), 1 / np.square(rstds(out, x))

    errors = []
    for offset in OFFSETS:
        x = _rows(2.0**offset)
        error = np.abs(statistics(x)[1] / (x.var(1) * times) - 1)
        errors.append(float(np.where(np.isfinite(error), error, np.inf).max()))
    listed = ", ".join(f"{e:.1e} at 2^{offset}" for e, offset in zip(errors, OFFSETS, strict=True))
    shown = f"the relative error of the variance is {listed} σ of offset"
    expected = [2.0 ** (2 * offset - p) for offset in OFFSETS]
    clear = [k for k, e in enumerate(expected) if 2.0**-14 < e < 2.0**-1]
    if not clear:
        yield undecided("variance", f"{shown}; with sums of {p} bits no offset shows the algorithm")
    elif errors[0] > COARSE:
        yield undecided("variance", f"{shown}: the output is too coarse")
    elif all(2.0**-8 < errors[k] / expected[k] < 2.0**4 for k in clear) and errors[clear[-1]] > 8 * errors[clear[0]]:
        yield Statement("variance", "one_pass", f"{shown}: it grows with the square of the offset", 0.95)
    elif all(errors[k] < max(expected[k] * 2.0**-8, 2.0**-18) for k in clear[-2:]):
        yield _centred(statistics, times, p, shown)
    else:
        yield undecided("variance", shown)


def _rows(offset: float) -> Array:
    """Return random rows at this offset/σ."""
    return FORMATS["float32"].round(SCALE * (offset + noise(ROWS, LENGTH)))


def _centred(statistics: Statistics, times: float, p: int, shown: str) -> Statement:
    """Return which algorithm without one_pass's error it is."""
    if _shifted(statistics):
        return Statement("variance", "shifted", f"{shown}; a mask in the first element changes all others", 0.9)
    x = _rows(FAR)
    (mean, var), truth = statistics(x), x.var(1) * times
    if p > FORMATS["float32"].precision:
        return Statement("variance", "centered", f"{shown}; its sums are too wide to show more", 0.85)
    steps = mean / GRID
    if not (np.abs(steps - np.rint(steps)) < 2.0**-6).all():
        return undecided("variance", f"{shown}; the mean is no float32, so it may be shifted")
    rounding = np.square(x.mean(1) - mean) * times
    visible = rounding > truth * 2.0**-14
    if visible.sum() < 4 or not np.isfinite(var).all():
        return undecided("variance", f"{shown}; the rounding of the mean does not show, so it may be shifted")
    two, exact = (np.abs(var / want - 1)[visible] for want in (truth + rounding, truth))
    if (two < 2.0**-17).all():
        more = f"at 2^20 σ it is the variance about the rounded mean, to {two.max():.1e}"
        return Statement("variance", "two_pass", f"{shown}; {more}", 0.95)
    if (exact < 2.0**-17).all():
        more = f"at 2^20 σ the error is {exact.max():.1e}, less than the rounding of the mean explains"
        return undecided("variance", f"{shown}; {more}: shifted, or centred about a wider mean")
    more = f"at 2^20 σ the error is {exact.max():.1e}, and {two.max():.1e} from the variance about the rounded mean"
    return Statement("variance", "welford", f"{shown}; {more}, for example after updates and merges", 0.8)


def _shifted(statistics: Statistics) -> bool:
    """Whether x[0] is subtracted from all elements: only a mask in x[0] then absorbs all other elements."""
    n, unit, mask = 64, 2.0**-10, 2.0**50
    x = np.full((3, n), unit)
    x[0, 3], x[0, 9] = x[1, n // 2], x[1, n - 1] = mask, -mask
    x[2, 0], x[2, 5] = mask, -mask
    try:
        mean, _ = statistics(x)
    except HiddenError:
        return False
    return bool((np.abs(mean / unit - [1, 1, 0]) < 2.0**-8).all())
