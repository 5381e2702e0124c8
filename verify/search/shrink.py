"""Makes a failing case small: the smallest shape and the fewest unusual settings that still fail.

Hypothesis does not shrink explicit examples, as the corner table is, and its shrinking takes no time limit.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from math import prod
from typing import Any

from verify_norm.core import geometry, ways
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec
from verify_norm.core.specials import special_input


def reduce(spec: CaseSpec, op: Op, fails: Callable[[CaseSpec], bool], check: str = "") -> CaseSpec:
    """Return the simplest failing spec that single steps reach from `spec`.

    If it does not fail without the further runs of `check`, it names the way in which it fails there. `fails` is called
    once for each spec; to end the search, it returns False from then on.
    """
    tried, field = {spec}, _way_field(spec, fails, check)
    while True:
        for candidate in _candidates(spec, op, field):
            if candidate in tried or _cost(candidate, field) >= _cost(spec, field) or geometry.refusal(candidate, op):
                continue
            tried.add(candidate)
            if fails(candidate):
                spec = candidate
                break
        else:
            return spec


def _way_field(spec: CaseSpec, fails: Callable[[CaseSpec], bool], check: str) -> str:
    """Return the field that names the way in which a case fails; "" if it fails without a further run."""
    field = next((field for field, its_check in ways.CHECKS.items() if its_check == check), "")
    further = tuple(name for name in spec.further if name != check)
    return "" if not field or fails(replace(spec, further=further)) else field


def _cost(spec: CaseSpec, field: str) -> tuple[int, int, int, int, float]:
    """Return how hard a spec is to read: its size, its rank, then the number of fields that are not the default.

    Its `field` is easier to read where it names one way.
    """
    default = CaseSpec(shape=spec.shape, num_groups=spec.num_groups)
    names = [f.name for f in fields(CaseSpec) if f.name not in ("seed", field)]
    unusual = sum(getattr(spec, name) != getattr(default, name) for name in names)
    unusual += _leaves_way_open(spec, field)
    size, numbers = prod(n + 1 for n in spec.shape), (spec.num_groups or 0) + spec.batch + spec.seed
    return size, len(spec.shape), unusual, numbers, abs(spec.offset)


def _leaves_way_open(spec: CaseSpec, field: str) -> bool:
    """Return whether the field stands for several ways, such as all of them."""
    return field != "" and getattr(spec, field) in ("", ways.QUICK)


def _candidates(spec: CaseSpec, op: Op, field: str) -> Iterator[CaseSpec]:
    """Yield simpler specs, the largest steps first; before them those that name one way."""
    if _leaves_way_open(spec, field):
        for way in ways.every(op)[field]:
            named: dict[str, Any] = {field: way}
            yield replace(spec, **named)
    for batch in sorted({0, spec.batch // 4, spec.batch // 2, 3 * spec.batch // 4, max(spec.batch - 1, 0)}):
        yield replace(spec, batch=batch)
    yield from (replace(spec, shape=shape, normalized_ndim=ndim) for shape, ndim in _smaller(spec, op))
    count = spec.num_groups or 1
    for groups in range(1, min(count, 3)):
        channels = spec.shape[1] // count
        yield replace(spec, num_groups=groups, shape=(spec.shape[0], groups * channels, *spec.shape[2:]))
        yield replace(spec, num_groups=groups)
    default = CaseSpec(shape=spec.shape)
    default = replace(default, special_in=special_input(default, op))
    for f in fields(CaseSpec):
        value = getattr(default, f.name)
        if f.name not in ("num_groups", "normalized_ndim", field) and getattr(spec, f.name) != value:
            yield replace(spec, **{f.name: value})
    if spec.offset:
        yield replace(spec, offset=spec.offset / 10)


def _smaller(spec: CaseSpec, op: Op) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield smaller shapes, each with its normalized_ndim."""
    shape, ndim = spec.shape, spec.normalized_ndim
    group = op.view != "rows"  # dimension 1 has the channels
    lowest = 2 if group else ndim
    if ndim > 1:
        yield (*shape[:-ndim], prod(shape[len(shape) - ndim :])), 1
    if not group and len(shape) > ndim + 1:
        rows = prod(shape[:-ndim])
        yield (rows, *shape[len(shape) - ndim :]), ndim
    if op.view == "channels" and len(shape) > 2:
        yield (prod(shape) // max(shape[1], 1), shape[1]), ndim  # the same values, all of them samples
    if len(shape) > lowest:
        yield (shape[:-1] if group else shape[1:]), ndim
    for axis, size in enumerate(shape):
        step = spec.num_groups or 1 if group and axis == 1 else 1  # channels stay divisible by the groups
        for smaller in sorted({step, 2 * step, size // 4, size // 2, 3 * size // 4, size - step}):
            if step <= smaller < size and smaller % step == 0:
                yield (*shape[:axis], smaller, *shape[axis + 1 :]), ndim
