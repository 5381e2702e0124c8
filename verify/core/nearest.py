"""The nearest case that a kernel takes, by the clauses of --only (`verify_norm.core.only`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from math import gcd, inf, lcm, prod
from typing import Any

from verify_norm.core import geometry
from verify_norm.core.errors import UsageError
from verify_norm.core.layouts import layout_field, layout_of
from verify_norm.core.only import BESIDE_X, FLAGS, MEMORY, NUMBERS, POWERS, RANKS, SIZES, WORDS, Clause, applies, read
from verify_norm.core.op import Op
from verify_norm.core.ranges import out_of_range
from verify_norm.core.spec import CaseSpec

ELEMENTS = 2**17  # of x, about: a case whose rows grow gets fewer of them
MOST = 2**22  # … and no case grows beyond, but where one row is longer
LARGEST = 2**38  # elements of x: no machine holds more
# Numbers to choose from where a case has another one. A weight_offset as small as an eps vanishes in weight + offset.
USUAL, USUAL_EPS = (0.0, 0.1, 0.25, 1.0, 1e3), (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
GROUPS = -1  # the axis that stands for num_groups
NONE = -2  # no axis changes it


def fit(text: str, spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the nearest case that meets the clauses, as far as there is one.

    >>> from verify_norm.core.ops import OPS
    >>> fit("ndim=2,N%8=0", CaseSpec((2, 3, 30), x_layout="transposed"), OPS["rmsnorm_fwd"]).shape
    (6, 32)
    """
    clauses = [clause for clause in read(text) if applies(clause.name, op)]
    kept = _held(clauses, spec, op)
    return _counted(_afforded(_sized(kept, clauses, op), kept), clauses, op)


def refuse_impossible(text: str, ops: Iterable[Op], specs: Callable[[Op], Iterable[CaseSpec]]) -> None:
    """Raise UsageError if no case can be fitted to the clauses; `specs` returns cases of an operator to start from.

    >>> from verify_norm.core.ops import OPS
    >>> refuse_impossible("ndim=2,N<8,N>9", [OPS["rmsnorm_fwd"]], lambda op: [CaseSpec((2, 8))])
    Traceback (most recent call last):
    verify_norm.core.errors.UsageError: only: found no case that meets both N<8 and N>9
    """
    clauses = read(text)
    starts = [(op, {_kind(spec): spec for spec in specs(op)}.values()) for op in ops if clauses]

    def possible(some: Sequence[Clause], most: float = LARGEST) -> bool:
        for op, cases in starts:
            asked = [clause for clause in some if applies(clause.name, op)]
            fitted = (_counted(_sized(_held(asked, spec, op), asked, op), asked, op) for spec in cases)
            few = (spec for spec in fitted if prod(n or 1 for n in spec.shape) <= most)
            if any(all(clause.holds(spec, op) for clause in asked) for spec in few):
                return True
        return False

    if clauses and not possible(clauses):
        fewer = (*combinations(clauses, 1), *combinations(clauses, 2))
        met = next((some for some in fewer if not possible(some)), clauses)
        all_of = {1: "", 2: "both "}.get(len(met), "all of ")
        small = " of at most 2^38 elements" * possible(met, inf)
        raise UsageError(f"only: found no case{small} that meets {all_of}{' and '.join(map(str, met))}")


def _kind(spec: CaseSpec) -> tuple[object, ...]:
    """Return what fitting does not change by itself: cases that share it are fitted alike."""
    return len(spec.shape), spec.normalized_ndim, 0 in spec.shape, spec.num_groups, spec.dtype, spec.training


def _held(clauses: Sequence[Clause], spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the case with what the clauses say beside its sizes."""
    held: dict[str, Any] = {}
    for clause in clauses:
        if clause.name in FLAGS:
            held[clause.name] = clause.values[0]
        elif clause.name in MEMORY:
            allowed = MEMORY[clause.name]
            laid = {name: layout_of(spec, name) for name in clause.tensors(op)}
            held |= {layout_field(name): "contiguous" for name, layout in laid.items() if layout not in allowed}
        elif clause.name in WORDS and not clause.holds(spec, op):
            held[clause.name] = clause.values[0]
        elif clause.name in BESIDE_X and not clause.holds(spec, op):
            held[clause.name] = None if clause.values[0] == "x" else clause.values[0]
        elif clause.name in NUMBERS:
            held[clause.name] = _usual(clause.name, spec, [c for c in clauses if c.name == clause.name])
    return replace(spec, **held)


def _usual(name: str, spec: CaseSpec, clauses: list[Clause]) -> float:
    """Return the nearest number that all of the clauses allow, in the field's range; the case's own if none is."""
    value: float = getattr(spec, name)
    bounds: list[float] = [v for clause in clauses for v in clause.values]
    between = ((one + other) / 2 for one, other in combinations(bounds, 2))
    for pool in ((value, *bounds, *USUAL, *(USUAL_EPS if name == "eps" else ())), between):
        allowed = [v for v in pool if out_of_range(name, v) is None and all(clause.met(v) for clause in clauses)]
        if allowed:
            return min(allowed, key=lambda v: abs(v - value))
    return value


def _afforded(fitted: CaseSpec, spec: CaseSpec) -> CaseSpec:
    """Return the fitted case; the one that it is made of, where it has become too large to run."""
    return spec if prod(fitted.shape) > max(MOST, prod(spec.shape)) else fitted


def _sized(spec: CaseSpec, clauses: Sequence[Clause], op: Op) -> CaseSpec:
    """Return the case with the nearest shape, number of groups and batch that meet the clauses about sizes."""
    clauses = [clause for clause in clauses if clause.name in SIZES]
    if not clauses or (all(clause.holds(spec, op) for clause in clauses) and not spec.batch):
        return spec
    ranks = [clause for clause in clauses if clause.name in RANKS]
    fitted = _ranked(spec, ranks, op) if ranks else spec
    more = replace(fitted, shape=(1, *fitted.shape))  # a single row has no dimension for more of them
    if not geometry.leads(fitted, op) and all(clause.holds(more, op) for clause in ranks):
        rows = [clause for clause in clauses if clause.name in ("M", "B")]
        fitted = fitted if all(clause.holds(fitted, op) for clause in rows) else more
    axes = {_axis(clause.name, fitted, op): None for clause in clauses if clause.name not in RANKS}
    for axis in sorted(axes, key=lambda axis: (axis != GROUPS, axis == 0, axis)):  # groups, then channels, … rows last
        if axis == 0 and prod(fitted.shape) > max(ELEMENTS, prod(spec.shape)):
            fitted = _with(fitted, 0, max(ELEMENTS * fitted.shape[0] // prod(fitted.shape), 1))
        fitted = _nearest(fitted, axis, [c for c in clauses if _axis(c.name, fitted, op) == axis], op)
    if prod(fitted.shape) > max(ELEMENTS, prod(spec.shape)) and 0 not in axes and len(fitted.shape) > 1:
        fitted = _with(fitted, 0, max(ELEMENTS * fitted.shape[0] // prod(fitted.shape), 1))
    if fitted.batch:
        rows = [c for c in clauses if _axis(c.name, fitted, op) == 0]
        batch = _nearest(geometry.repeated(fitted), 0, rows, op)
        whole = batch.shape[0] > fitted.shape[0] and all(c.holds(batch, op) for c in rows)
        fitted = replace(fitted, batch=batch.shape[0] if whole else 0)
    return fitted


def _counted(spec: CaseSpec, clauses: Sequence[Clause], op: Op) -> CaseSpec:
    """Return the case with the nearest variance_size that meets the clauses about it, as far as its rows have one."""
    asked = [clause for clause in clauses if clause.name == "variance_size"]
    now = geometry.variance_size(spec, op) if asked else 0
    if all(clause.met(now) for clause in asked):
        return spec
    allowed = [k for k in range(1, geometry.row_length(spec, op) + 1) if all(clause.met(k) for clause in asked)]
    return replace(spec, variance_size=min(allowed, key=lambda k: abs(k - now))) if allowed else spec


def _axis(name: str, spec: CaseSpec, op: Op) -> int:
    """Return the dimension of x that changes a size; GROUPS for that of groups, NONE where there is none."""
    last = len(spec.shape) - 1
    if name in RANKS:
        return NONE
    if name == "G":
        return GROUPS
    if name == "C" or (name == "M" and op.view == "channels"):
        return 1
    leads = geometry.leads(spec, op)
    if name in ("N", "last", "bytes") or (name == "numel" and not leads):
        return 0 if op.view == "channels" and last < 2 else last
    return 0 if leads else NONE


def _with(spec: CaseSpec, axis: int, size: int) -> CaseSpec:
    """Return the case with another size along an axis; each group keeps its channels."""
    if axis == GROUPS:
        samples, channels, *space = spec.shape
        each = max(channels // (spec.num_groups or 1), 1)
        return replace(spec, shape=(samples, each * size, *space), num_groups=size)
    return replace(spec, shape=(*spec.shape[:axis], size, *spec.shape[axis + 1 :]))


def _nearest(spec: CaseSpec, axis: int, clauses: list[Clause], op: Op) -> CaseSpec:
    """Return the case with the nearest size along an axis that meets the clauses; the case itself if there is none."""
    if axis == NONE or not clauses or all(clause.holds(spec, op) for clause in clauses):
        return spec
    unit = (spec.num_groups or 1) if axis == 1 and op.view == "groups" else 1  # channels go by whole groups
    now = ((spec.num_groups or 1) if axis == GROUPS else spec.shape[axis]) // unit
    found: list[tuple[int, CaseSpec]] = []
    for flat in (spec, _flat(spec, axis, op)):
        for count in _counts(flat, axis, unit, now, clauses, op):
            made = _with(flat, axis, count * unit)
            if all(clause.holds(made, op) for clause in clauses) and geometry.refusal(made, op) is None:
                found.append((abs(count - now), made))
        if found:
            return min(found, key=lambda pair: pair[0])[1]
    return spec


def _flat(spec: CaseSpec, axis: int, op: Op) -> CaseSpec:
    """Return the case with 1 for what else makes up the sizes along an axis: other dimensions, or groups."""
    rank, leads = len(spec.shape), geometry.leads(spec, op)
    kept = set(range(rank))
    if op.view == "rows":
        kept = {axis, *(range(leads, rank) if axis < leads else range(leads))}
    elif axis > 1:
        kept = {axis, 1, *(() if op.view == "channels" else (0,))}
    elif axis == 0 and spec.num_groups:
        spec = replace(spec, num_groups=1)
    shape = [max(size, 1) if n in kept else 1 for n, size in enumerate(spec.shape)]
    if op.view == "groups" and axis > 1:
        shape[1] = geometry.groups(spec, op) or 1  # one channel a group
    return replace(spec, shape=tuple(shape))


def _counts(spec: CaseSpec, axis: int, unit: int, now: int, clauses: list[Clause], op: Op) -> set[int]:
    """Return sizes along an axis, in units, among which the nearest one is: every size is a multiple of that of 1."""
    each = {clause: SIZES[clause.name][1](_with(spec, axis, unit), op) or 1 for clause in clauses}
    step, near = 1, {now}
    for clause, size in each.items():
        step = lcm(step, clause.divisor // gcd(clause.divisor, size))
        for value in clause.values:
            near |= {2**power // size for power in range(31)} if value == POWERS else {value // size}
    floors = {count // step * step for count in near}
    return {count + more for count in floors for more in (-step, 0, step) if count + more > 0}


def _ranked(spec: CaseSpec, clauses: list[Clause], op: Op) -> CaseSpec:
    """Return the case with the nearest rank, and number of normalized dimensions, that meet the clauses."""
    least = 1 if op.view == "rows" else 2
    shapes = {
        (rank, inner): _reshaped(spec, rank, inner, op)
        for rank in range(least, 6)
        for inner in range(1, rank + 1 if op.view == "rows" else 2)
    }
    allowed = [where for where, made in shapes.items() if all(clause.holds(made, op) for clause in clauses)]
    here = len(spec.shape), spec.normalized_ndim
    nearest = min(allowed, key=lambda at: (abs(at[0] - here[0]), abs(at[1] - here[1])), default=None)
    return spec if nearest is None or nearest == here else shapes[nearest]


def _reshaped(spec: CaseSpec, rank: int, inner: int, op: Op) -> CaseSpec:
    """Return the case in another rank: dimensions are merged, or ones are added; rows are left out if none can be."""
    if op.view != "rows":
        space, samples = spec.shape[2:], spec.shape[0] * (prod(spec.shape[2:]) if rank == 2 else 1)
        return replace(spec, shape=(samples, spec.shape[1], *_merged(space, rank - 2, front=False)))
    split = len(spec.shape) - spec.normalized_ndim
    leads, normalized = _merged(spec.shape[:split], rank - inner), _merged(spec.shape[split:], inner)
    return replace(spec, shape=(*leads, *normalized), normalized_ndim=inner, batch=spec.batch if leads else 0)


def _merged(sizes: tuple[int, ...], count: int, *, front: bool = True) -> tuple[int, ...]:
    """Return as many sizes with the same product, as long as there is one at least."""
    if count == 0:
        return ()
    more = (1,) * (count - len(sizes))
    sizes = (*more, *sizes) if front else (*sizes, *more)
    extra = len(sizes) - count + 1
    return (prod(sizes[:extra]), *sizes[extra:])
