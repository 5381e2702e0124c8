"""The planned cases of a search: the corner table, the shapes of models, and the cases in which all pairs meet."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from verify_norm.cases import corners, covering, dispatch, further_runs, models
from verify_norm.checks import CHECKS
from verify_norm.checks.relations.rerun import crowds
from verify_norm.core.geometry import repeated
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running import patience
from verify_norm.search.collector import Collector

TOO_LARGE = "one of its groups is too large for a CPU"
FIRST = 24  # cases, of which most have ended in every process when the next one begins: `Pace` knows what a case takes


def offered_dtypes(state: Collector) -> tuple[str, ...]:
    """Return the types of x that are asked for and that the kernel offers; note what does not apply."""
    kernel, settings, op = state.kernel, state.settings, OPS[state.kernel.op]
    for name in kernel.unset:
        state.skipped[f"argument {name}", f"{op.name} has none, so it is None"] += 1
    for name, how in kernel.kept:
        state.skipped[f"argument {name}", how] += 1
    for name in settings.checks or CHECKS:
        if not CHECKS[name].applies(op):
            state.skipped[f"check {name}", f"does not apply to {op.name}"] += 1
    for dtype in settings.dtypes:
        if dtype not in kernel.dtypes:
            state.skipped[f"dtype {dtype}", f"{kernel.name} offers {', '.join(kernel.dtypes)}"] += 1
    return tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)


def corner_table(state: Collector, dtypes: tuple[str, ...]) -> tuple[list[CaseSpec], list[CaseSpec]]:
    """Return the corner table with the shapes of models, and the corner cases that may be slow."""
    op, kernel = OPS[state.kernel.op], state.kernel
    corner, shaped, left_out = table_of(op, state.settings, dtypes, frozen=kernel.autograd)
    for name in left_out:
        state.skipped[f"model {name}", TOO_LARGE] += 1
    if state.settings.untrusted:  # data that no file can hold
        corner = [replace(spec, seed=(spec.seed ^ state.settings.seed) % 2**64) for spec in corner]
    if further_runs.BATCHED.isdisjoint(check.name for check in state.checks):
        corner, shaped = ([replace(spec, batch=0) for spec in some] for some in (corner, shaped))
    table, large = state.pace.parted([kernel.fitted(spec) for spec in corner], op)
    return (table, large + shaped) if state.settings.shapes == "fuzz" else (table + shaped, large)


def in_order(table: list[CaseSpec], large: list[CaseSpec], device: str) -> Iterator[tuple[CaseSpec, bool]]:
    """Yield the cases of a corner table, each with whether it may be slow.

    Those in which programs of a GPU may race come early, one of each type: the time may end before the last case.
    """
    races: dict[str, CaseSpec] = {}
    for spec in large:
        if crowds(spec, device):
            races.setdefault(spec.dtype, spec)
    yield from ((spec, False) for spec in table[:FIRST])
    yield from ((spec, True) for spec in races.values())
    yield from ((spec, False) for spec in table[FIRST:])
    yield from ((spec, True) for spec in large if races.get(spec.dtype) != spec)


def covering_cases(state: Collector, dtypes: tuple[str, ...], table: tuple[CaseSpec, ...]) -> tuple[CaseSpec, ...]:
    """Return the first of the further cases: those of `dispatch`, and those in which all pairs of choices meet.

    The pairs are those that do not meet in the table, or in the tiny cases of `dispatch`.
    """
    op, settings = OPS[state.kernel.op], state.settings
    few, gpu = dispatch.tiny(op, dtypes, settings.seed), settings.device != "cpu"
    found = covering.array(op, dtypes, (*table, *few), settings.seed, frozen=state.kernel.autograd, gpu=gpu)
    state.possible = found.pairs
    some = (*few, *found.rows, *dispatch.lengths(op, dtypes, settings.seed))[: settings.examples]
    return tuple(state.kernel.fitted(spec) for spec in some)


def table_of(
    op: Op, settings: Settings, dtypes: tuple[str, ...], *, frozen: bool
) -> tuple[list[CaseSpec], list[CaseSpec], tuple[str, ...]]:
    """Return the corner table, and shapes of models where they are asked for or on a GPU, where they take little time.

    Third are the names of the models that are left out, because one of their groups is too large for a CPU.
    """
    gpu, corner = settings.device != "cpu", list[CaseSpec]()
    if dtypes and settings.shapes != "models":
        corner = _smallest_first(corners.corners(op, dtypes, frozen=frozen, gpu=gpu))
    if settings.shapes == "fuzz" and not gpu:
        return corner, [], ()
    shaped, left_out = models.model_cases(op, full=gpu, dtypes=dtypes)
    if settings.shapes == "fuzz":
        shaped = [replace(spec, further=corners.AT_EVERY_SIZE) for spec in shaped]
        shaped += corners.enormous(op, dtypes)
    return corner, shaped, tuple(left_out)


def _smallest_first(table: list[CaseSpec]) -> list[CaseSpec]:
    """Return the table with the smallest case of each of the types at the front.

    A kernel that is built for a type is built there, where nothing else takes long: a hang later on is no build.
    """
    small: dict[str, CaseSpec] = {}
    for spec in sorted((spec for spec in table if prod(spec.shape)), key=lambda spec: prod(repeated(spec).shape)):
        small.setdefault(patience.types(spec), spec)
    return list(dict.fromkeys((*small.values(), *table)))
