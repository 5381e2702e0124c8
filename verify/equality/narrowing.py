"""Makes differences small: the size at which each begins, and the smallest case that shows it."""

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from math import prod

from verify_norm.core import ways
from verify_norm.core.geometry import refusal
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.model import Axis, Difference, Onset
from verify_norm.equality.onset import onset, resized, size_of
from verify_norm.equality.pair import judged
from verify_norm.equality.walk import Looked, Walk
from verify_norm.search.search import ALONE
from verify_norm.search.shrink import reduce

AXES: tuple[Axis, ...] = ("N", "M")
TRIES, TRIED_ROWS = 4, 64  # seeds of a size, and rows: two roundings of one number are often equal
SCANNED = 0.8  # the share of the time after which the scan of sizes ends


def differs(walk: Walk, spec: CaseSpec, output: str | None, end: float) -> bool | None:
    """Return whether an output differs in a case; None if a kernel does not take it, or after the time `end`.

    None also if its type is none of those that the user asked for.
    """
    if time.perf_counter() > end or spec.dtype not in walk.settings.dtypes:
        return None
    if refusal(spec, walk.op) or walk.fitted(spec) != spec:
        return None
    looked = walk.look(spec)
    return None if looked.refused or looked.failed else looked.gap(output) is not None


def onsets(walk: Walk) -> Iterator[Onset]:
    """Yield the sizes at which each output begins to differ, for each type of x; the cases that show it are kept."""
    for output, dtype in walk.steady_keys():
        if output is not None:
            yield from (_onset(walk, output, dtype, axis) for axis in AXES)


def _onset(walk: Walk, output: str, dtype: str, axis: Axis) -> Onset:
    """Return the size along an axis at which an output begins to differ; the cases that show it are kept."""
    specs, op = walk.differing[output, dtype], walk.op
    base = min(specs, key=_plainness)
    known = min(size_of(spec, op, axis) for spec in specs)
    end = walk.until(SCANNED)

    def shows(size: int, seed: int) -> bool | None:
        spec = resized(base, op, axis, size, walk.settings.device)
        if spec is None:
            return None
        spec = replace(spec, seed=seed)
        found = differs(walk, spec, output, end)
        if found:
            specs.append(spec)
        return found

    def shows_with_any_seed(size: int) -> bool | None:
        seeds = max(TRIES, TRIED_ROWS // size) if axis == "M" else TRIES
        for seed in range(seeds):
            found = shows(size, seed)
            if found is not False:
                return found
        return False

    since, equal = onset(shows_with_any_seed, known)
    if equal is None:
        return Onset(output, dtype, axis, since)
    further = [shows(since, TRIED_ROWS + seed) for seed in range(TRIES)]
    return Onset(output, dtype, axis, since, equal, sure=2 * further.count(True) >= TRIES)


def _plainness(spec: CaseSpec) -> tuple[int, int]:
    """Return how many fields of a case are unusual, and its size."""
    plain = CaseSpec(spec.shape, spec.dtype, num_groups=spec.num_groups, seed=spec.seed)
    of_further_runs = ("further", "poison", "variant", *ways.WAYS)
    names = [f.name for f in fields(spec) if f.name not in of_further_runs]
    return sum(getattr(spec, name) != getattr(plain, name) for name in names), prod(spec.shape)


def differences(walk: Walk) -> Iterator[Difference]:
    """Yield each output that differs, on the smallest case that shows it, if possible in processes made for it."""
    small: list[CaseSpec] = []
    for output in dict.fromkeys(output for output, _ in walk.steady_keys()):
        found = _smallest(walk, output, small)
        if found is not None:
            small.append(found.spec)
            yield found


def shown(walk: Walk) -> Iterator[Difference]:
    """Yield each output that differs on the first small case that showed it, without a further run."""
    for output in dict.fromkeys(output for output, _ in walk.steady_keys()):
        spec, cases = _first(walk, output)
        yield _difference(walk, output, spec, walk.seen[spec], cases)


def _smallest(walk: Walk, output: str | None, small: list[CaseSpec]) -> Difference | None:
    """Return the difference in an output; None if a kernel turns out to differ from itself in it."""
    end = walk.until(1)

    def fails(spec: CaseSpec) -> bool:
        return bool(differs(walk, spec, output, end))

    first, cases = _first(walk, output)
    start = next((spec for spec in (*small, *_shortest(walk, output)) if fails(spec)), first)
    for spec in dict.fromkeys((reduce(start, walk.op, fails), first)):
        before = walk.returned(spec)
        for runner in walk.runners:
            runner.fresh()
        after = walk.returned(spec)
        walk.steady(spec, before, after)
        if not any(key[0] == output for key in walk.steady_keys()):
            return None
        looked = walk.between(after)
        if looked.gap(output) is not None:
            return _difference(walk, output, spec, looked, cases)
    return replace(_difference(walk, output, first, walk.seen[first], cases), note=ALONE)


def _shortest(walk: Walk, output: str | None) -> Iterator[CaseSpec]:
    """Yield plain cases of one row of the smallest N that differs."""
    specs = [spec for key in walk.steady_keys() if key[0] == output for spec in walk.differing[key]]
    least = min(specs, key=lambda spec: (size_of(spec, walk.op, "N"), *_plainness(spec)))
    one_row = resized(least, walk.op, "M", 1, walk.settings.device)
    if one_row is not None:
        yield from (replace(one_row, seed=seed) for seed in range(TRIED_ROWS))


def _first(walk: Walk, output: str | None) -> tuple[CaseSpec, int]:
    """Return the smallest case so far in which an output differs, and how many cases show it."""
    keys = [key for key in walk.steady_keys() if key[0] == output]
    specs = [spec for key in keys for spec in walk.differing[key]]
    return min(specs, key=_plainness), sum(walk.gaps[key] for key in keys)


def _difference(walk: Walk, output: str | None, spec: CaseSpec, looked: Looked, cases: int) -> Difference:
    gap = looked.gap(output)
    assert gap is not None
    alike = tuple(name for name in looked.outputs if looked.gap(name) is None)
    return Difference(judged(gap, spec, walk.op, walk.kernels[0].contract), spec, cases, alike)
