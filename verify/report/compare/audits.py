"""What changed between two audits of a kernel: its ladders, its fingerprint, what disagrees with its contract.

The data of a ladder follow from the seed, and both audits have the same seed: each step has its counterpart.
"""

from collections.abc import Iterator
from math import inf, log2

from verify_norm.auditing.fingerprint.statement import UNDECIDED, Fingerprint, Statement
from verify_norm.auditing.model import Audit, Document, Ladder
from verify_norm.core.dtypes import FORMATS
from verify_norm.report.compare import coverage
from verify_norm.report.compare.model import Change, Way

FLOOR, CEILING = 2.0**-4, 2.0**24  # ulp: smaller errors are all as good, larger ones all as bad
OCTAVES = 1.0  # powers of 2 by which the errors of a ladder must differ on average
SURE = 0.75  # least confidence of a statement that can make a kernel worse
RANKS: dict[str, tuple[tuple[str, ...], ...]] = {  # the values of a statement, the best first; no order in a tuple
    "variance": (("two_pass", "welford", "centered"), ("shifted",), ("one_pass",)),
    "divisor": (("N",), ("N-1",)),
    "eps place": (("inside",), ("outside", "clamped")),
    "xhat": (("not rounded",), ("rounded",)),
    "form": (("centred",), ("expanded",)),
    "deterministic": (("yes",), ("no",)),
    "batch invariant": (("yes",), ("no",)),
}
LONG = (("in parts",), ("sequential",))
TYPED = (" accumulator", " partials", "statistics")  # ends of the names of statements about a type


def changes(before: Document, after: Document) -> Iterator[Change]:
    """Yield the changes between two audits; none where one of the two is a report."""
    if not isinstance(before, Audit) or not isinstance(after, Audit):
        return
    yield from _parts(before, after)
    yield from _disagreements(before, after)
    yield from _ladders(before, after)
    if before.fingerprint is not None and after.fingerprint is not None:
        yield from _fingerprint(before.fingerprint, after.fingerprint)


def _parts(before: Audit, after: Audit) -> Iterator[Change]:
    """Yield whole parts that one of the two lacks."""
    for what, old, new in (
        ("errors in typical data", before.ulps, after.ulps),
        ("ladders", before.ladders, after.ladders),
        ("fingerprint", before.fingerprint, after.fingerprint),
    ):
        if bool(old) != bool(new):
            missing = after if old else before
            why = "; ".join(skip.reason for skip in missing.skipped if skip.what in what)
            yield coverage.change("worse" if old else "better", what, "done", "not done", why)


def _disagreements(before: Audit, after: Audit) -> Iterator[Change]:
    """Yield new and fixed disagreements with the contract; the words before the evidence identify a line."""
    old, new = ({line.partition(":")[0]: line for line in audit.disagreements} for audit in (before, after))
    for head, line in new.items():
        if head not in old:
            known = before.fingerprint is not None
            why = "" if known else "the old audit has no fingerprint"
            yield Change("contract", "worse" if known else "changed", "disagreement", "none", line, why)
    for head, line in old.items():
        if head not in new and after.fingerprint is not None:
            yield Change("contract", "better", "disagreement", line, "none")


def _ladders(old: Audit, new: Audit) -> Iterator[Change]:
    """Yield the ladders that leave their bound elsewhere, or whose errors have another size or another likeness."""
    before = {(one.name, one.output, one.dtype): one for one in old.ladders}
    for ladder in new.ladders:
        if partner := before.get((ladder.name, ladder.output, ladder.dtype)):
            what = f"{ladder.output} over {ladder.unit}"
            if old.report.contract == new.report.contract:
                yield from _first_over(what, partner, ladder)
            yield from _heights(what, partner, ladder)


def _first_over(what: str, old: Ladder, new: Ladder) -> Iterator[Change]:
    """Yield that the first step beyond its bound moved, among the steps that both ladders have."""
    common = {rung.value for rung in old.rungs} & {rung.value for rung in new.rungs}
    ends = [inf if one.first_over is None else one.first_over for one in (old, new)]
    was, now = (sum(value < end for value in common) for end in ends)  # how many steps are within the bound
    if was != now:
        words = ["within its bound" if end == inf else f"over from {end:.3g}" for end in ends]
        yield Change("ladder", "worse" if now < was else "better", what, *words)


def _heights(what: str, old: Ladder, new: Ladder) -> Iterator[Change]:
    """Yield that the errors of all steps together, or the algorithms that they resemble, changed."""
    errors = {rung.value: rung.error_ulp for rung in old.rungs}
    both = [(errors[rung.value], rung.error_ulp) for rung in new.rungs if rung.value in errors]
    octaves = [[log2(min(max(error, FLOOR), CEILING)) for error in pair] for pair in both]
    mean = sum(now - was for was, now in octaves) / max(len(octaves), 1)
    was, now = (f"like {', '.join(ladder.like)}" if ladder.like else "like none" for ladder in (old, new))
    if mean > OCTAVES:
        yield Change("ladder", "worse", what, was, f"{now}, {2**mean:.3g} times the error on average")
    elif mean < -OCTAVES:
        yield Change("ladder", "better", what, was, f"{now}, 1/{2**-mean:.3g} of the error on average")
    elif old.like and new.like and not set(old.like) & set(new.like):
        yield Change("ladder", "changed", what, was, now, "its errors are about as large")


def _fingerprint(old: Fingerprint, new: Fingerprint) -> Iterator[Change]:
    """Yield the statements with another value, where both are decided."""
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
    """Return how good a value is, 0 the best; None where the values have no order."""
    name, value = statement.name, statement.said
    if name.endswith(TYPED):
        return -FORMATS[value].precision if value in FORMATS else None
    if name == "eps value":
        return int(value != "as given")
    order = LONG if name.startswith("long ") else RANKS.get(name, ())
    return next((place for place, names in enumerate(order) if value in names), None)
