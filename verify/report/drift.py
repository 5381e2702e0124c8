"""What changed between two audits of a kernel: its ladders, its fingerprint, and what disagrees with its contract.

The data of a ladder follow from the seed. With the same seed each rung has its counterpart; with another, the first
rung over the bound moves by one, and the mean of log2(error) by up to 1.8, or 2.8 where a library changes its algorithm
with the length (measured over four seeds of two right kernels and two of torch's): two rungs and 4 are asked for then.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from verify_norm.auditing.model import Audit, Document, Ladder
from verify_norm.dtypes import FORMATS
from verify_norm.fingerprint.statement import UNDECIDED, Fingerprint, Statement
from verify_norm.report.comparison import Change, Way

FLOOR, CEILING = 2.0**-4, 2.0**24  # ulp: below the first all errors are as good, above the last as bad
SAME_SEED, OTHER_SEED = (1, 1.0), (2, 4.0)  # rungs, and powers of 2 on average over the rungs, that count
SURE = 0.75  # confidence of a statement that can make a kernel worse
RANKS: dict[str, tuple[tuple[str, ...], ...]] = {  # what a statement may say, the best first; no order within a tuple
    "variance": (("two_pass", "welford", "centered"), ("shifted",), ("one_pass",)),
    "divisor": (("N",), ("N-1",)),
    "eps place": (("inside",), ("outside", "clamped")),
    "xhat": (("not rounded",), ("rounded",)),
    "form": (("centred",), ("expanded",)),
    "deterministic": (("yes",), ("no",)),
    "batch invariant": (("yes",), ("no",)),
}
LONG = (("in parts",), ("sequential",))
TYPED = (" accumulator", " partials", "statistics")  # ends of the names of statements that say a type


def drift(before: Document, after: Document) -> Iterator[Change]:
    """The changes between two audits; none where one of the two is none."""
    if not isinstance(before, Audit) or not isinstance(after, Audit):
        return
    seeds = before.report.settings.seed == after.report.settings.seed
    yield from _parts(before, after)
    yield from _disagreements(before, after)
    if before.ladders and after.ladders:
        promised = before.report.contract == after.report.contract
        yield from _ladders(before.ladders, after.ladders, SAME_SEED if seeds else OTHER_SEED, promised=promised)
    if before.fingerprint is not None and after.fingerprint is not None:
        yield from _fingerprint(before.fingerprint, after.fingerprint)


def _parts(before: Audit, after: Audit) -> Iterator[Change]:
    """Whole parts that one of the two lacks."""
    for what, old, new in (
        ("errors in typical data", before.ulps, after.ulps),
        ("ladders", before.ladders, after.ladders),
        ("fingerprint", before.fingerprint, after.fingerprint),
    ):
        if bool(old) != bool(new):
            missing = after if old else before
            why = "; ".join(skip.reason for skip in missing.skipped if skip.what in what)
            way: Way = "worse" if old else "better"
            yield Change("coverage", way, what, *(("done", "not done") if old else ("not done", "done")), why)


def _disagreements(before: Audit, after: Audit) -> Iterator[Change]:
    """Lines of what the contract excludes, by what they say before their evidence."""
    old, new = ({line.partition(":")[0]: line for line in audit.disagreements} for audit in (before, after))
    for head, line in new.items():
        if head not in old:
            known = before.fingerprint is not None
            why = "" if known else "the old audit has no fingerprint"
            yield Change("contract", "worse" if known else "changed", "disagreement", "none", line, why)
    for head, line in old.items():
        if head not in new and after.fingerprint is not None:
            yield Change("contract", "better", "disagreement", line, "none")


def _ladders(
    old: tuple[Ladder, ...], new: tuple[Ladder, ...], counts: tuple[int, float], *, promised: bool
) -> Iterator[Change]:
    before = {(one.name, one.output, one.dtype): one for one in old}
    for ladder in new:
        partner = before.get((ladder.name, ladder.output, ladder.dtype))
        if partner is None:
            continue
        what = f"{ladder.output} over {ladder.unit}"
        if promised:
            yield from _first_over(what, partner, ladder, counts[0])
        yield from _heights(what, partner, ladder, counts[1])


def _first_over(what: str, old: Ladder, new: Ladder, rungs: int) -> Iterator[Change]:
    """The first rung beyond its bound, where that moved by enough rungs of those that both climbed."""
    climbed = sorted({rung.value for rung in old.rungs} & {rung.value for rung in new.rungs})
    place = [_place(ladder.first_over, climbed) for ladder in (old, new)]
    if abs(place[1] - place[0]) >= rungs:
        said = [
            "within its bound" if one.first_over is None else f"over from {one.first_over:.3g}" for one in (old, new)
        ]
        yield Change("ladder", "worse" if place[1] < place[0] else "better", what, said[0], said[1])


def _place(first_over: float | None, climbed: list[float]) -> int:
    return len(climbed) if first_over is None else sum(value < first_over for value in climbed)


def _heights(what: str, old: Ladder, new: Ladder, octaves: float) -> Iterator[Change]:
    """The errors of all rungs together, and the algorithms that they resemble."""
    errors = {rung.value: rung.error_ulp for rung in old.rungs}
    grown = [_octave(rung.error_ulp) - _octave(errors[rung.value]) for rung in new.rungs if rung.value in errors]
    mean = sum(grown) / len(grown) if grown else 0.0
    way: Way = "worse" if mean > octaves else "better" if mean < -octaves else "changed"
    said = [f"like {', '.join(ladder.like)}" if ladder.like else "like none" for ladder in (old, new)]
    if way != "changed":
        times = f"{2 ** abs(mean):.3g} times the error" if mean > 0 else f"1/{2 ** abs(mean):.3g} of the error"
        yield Change("ladder", way, what, said[0], f"{said[1]}, {times} on average")
    elif old.like and new.like and not set(old.like) & set(new.like):
        yield Change("ladder", way, what, said[0], said[1], "its errors are about as large")


def _octave(error: float) -> float:
    return log2(min(max(error, FLOOR), CEILING))


def _fingerprint(old: Fingerprint, new: Fingerprint) -> Iterator[Change]:
    """The statements that say something else, where both are decided."""
    before = {(one.name, one.dtype): one for one in old.statements}
    for statement in new.statements:
        partner = before.get((statement.name, statement.dtype))
        if partner is None or UNDECIDED in (partner.said, statement.said) or partner.said == statement.said:
            continue
        was, now = _rank(partner), _rank(statement)
        way: Way = "changed"
        sure = min(partner.confidence, statement.confidence) >= SURE
        if sure and was is not None and now is not None and was != now:
            way = "worse" if now > was else "better"
        what = statement.name + (f" in {statement.dtype}" if statement.dtype != "float32" else "")
        yield Change("fingerprint", way, what, partner.said, statement.said, statement.evidence)


def _rank(statement: Statement) -> int | None:
    """How good what it says is, 0 the best; None where that has no order."""
    name, said = statement.name, statement.said
    if name.endswith(TYPED):
        return -FORMATS[said].precision if said in FORMATS else None
    if name == "eps value":
        return int(said != "as given")
    order = LONG if name.startswith("long ") else RANKS.get(name, ())
    return next((place for place, names in enumerate(order) if said in names), None)
