"""What got worse or better from one run to another, beyond what the choice of cases does.

Kernels are matched by name and operator. Of each pair are compared: findings, by check and output; what was looked at,
for a check that no longer looks is a loss; errors, as `verify_norm.report.noise` says; and the parts of an audit, as
`verify_norm.report.drift` does. Times are not.

A finding is no matter of chance, but which cases a run met is. A new finding makes a kernel worse where the old run had
none at all, for then the verdict has changed; and where the old run is known to have met the case, or one like it: in
the corner table, among the same cases, or because it was seen so early that the old run would have met it in its many
more (of two runs of one kernel with a and n random cases, one alone sees something in its first a with a probability
of at most a/(a + n); a limit of 1 % is set). Other new findings of a kernel that failed before are shown as changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.corners import corners
from verify_norm.ops import OPS
from verify_norm.report.comparison import Change, Comparison, Errors, Limits, Pair, Row, Way
from verify_norm.report.coverage import asked, lost, notes
from verify_norm.report.drift import drift
from verify_norm.report.model import Report
from verify_norm.report.noise import footing, losses, of_survey, of_tally
from verify_norm.report.text import replay_line
from verify_norm.spec import Finding

CHANCE = 0.01  # that one run of two alone sees something so early
ORDER: tuple[Way, ...] = ("worse", "better", "changed", "same")


def compare(old: Iterable[Document], new: Iterable[Document], limits: Limits | None = None) -> Comparison:
    """Compare every kernel that is in both; where there is none, the comparison has no pairs.

    Several documents of one kernel and operator are taken in their order. What has no partner of its name is compared
    with what is alone with its operator in the other file, as a new kernel with the one it is to replace.
    """
    pairs, alone = _matched(list(old), list(new))
    compared = tuple(_pair(before, after, limits or Limits()) for before, after in pairs)
    return Comparison(compared, tuple(map(_name, alone[0])), tuple(map(_name, alone[1])))


Matched = tuple[list[tuple[Document, Document]], tuple[list[Document], list[Document]]]


def _matched(old: list[Document], new: list[Document]) -> Matched:
    pairs = []
    waiting: defaultdict[tuple[str, str], list[Document]] = defaultdict(list)
    for document in old:
        waiting[_key(document)].append(document)
    unmatched = []
    for document in new:
        if partners := waiting[_key(document)]:
            pairs.append((partners.pop(0), document))
        else:
            unmatched.append(document)
    left = [document for documents in waiting.values() for document in documents]
    for document in list(unmatched):
        op = report_of(document).op
        same = [[d for d in side if report_of(d).op == op] for side in (old, new, left)]
        if [len(side) for side in same] == [1, 1, 1]:
            pairs.append((same[2][0], document))
            left.remove(same[2][0])
            unmatched.remove(document)
    return pairs, (left, unmatched)


def _key(document: Document) -> tuple[str, str]:
    report = report_of(document)
    return report.kernel, report.op


def _name(document: Document) -> str:
    kernel, op = _key(document)
    return kernel if op in kernel else f"{kernel} ({op})"


def _pair(before: Document, after: Document, limits: Limits) -> Pair:
    old, new = report_of(before), report_of(after)
    same = same_cases(old, new)
    rows = tuple(_rows(before, after, same=same))
    changes = [
        *_findings(old, new, same=same),
        *lost(old, new, limits),
        *(change for row in rows for change in _errors(row, limits, bound=old.contract == new.contract)),
        *drift(before, after),
    ]
    changes.sort(key=lambda change: ORDER.index(change.way))
    return Pair(
        new.kernel, old.kernel, new.op, old.cases, new.cases, same, tuple(changes), rows,
        tuple(notes(before, after, same=same)),
    )  # fmt: skip


def same_cases(old: Report, new: Report) -> bool:
    """Whether both runs met the same cases, as far as their counts show."""
    seeds = old.settings.seed == new.settings.seed or old.settings.examples == new.settings.examples == 0
    alike = old.op == new.op and asked(old) == asked(new) and old.settings.shapes == new.settings.shapes
    counts = [{(t.output, t.dtype): (t.cases, t.elements) for t in report.tallies} for report in (old, new)]
    common = counts[0].keys() & counts[1].keys()
    return (
        seeds and alike and old.cases == new.cases and old.layouts == new.layouts
        and all(counts[0][key] == counts[1][key] for key in common)
    )  # fmt: skip


def _rows(before: Document, after: Document, *, same: bool) -> Iterator[Row]:
    """The errors that are in both: of the checks' cases, then of typical data."""
    old, new = report_of(before), report_of(after)
    yield from _side_by_side(map(of_tally, old.tallies), map(of_tally, new.tallies), same=same)
    if isinstance(before, Audit) and isinstance(after, Audit):
        seeds = old.settings.seed == new.settings.seed and asked(old) == asked(new)
        for row in _side_by_side(map(of_survey, before.ulps), map(of_survey, after.ulps), same=seeds):
            elsewhere = on_gpu(old) != on_gpu(new)  # its rows are longer there
            yield replace(row, footing="other cases") if elsewhere and row.footing == "typical data" else row


def _side_by_side(old: Iterable[Errors], new: Iterable[Errors], *, same: bool) -> Iterator[Row]:
    before = {(errors.output, errors.dtype): errors for errors in old}
    for errors in new:
        partner = before.get((errors.output, errors.dtype))
        if partner is not None:
            yield Row(partner, errors, footing(partner, errors, same=same))


def _errors(row: Row, limits: Limits, *, bound: bool) -> Iterator[Change]:
    where = f"{row.new.output} {row.new.dtype}"
    over = f"over {row.footing}"
    if row.new.typical and row.footing == "the same cases":
        over += " of typical data"
    for what, was, now, allowed in losses(row.old, row.new, row.footing, limits, bound=bound):
        yield Change("errors", "worse", f"{where} {what}", was, now, f"{over}; {allowed}")
    for what, now, was, _ in losses(row.new, row.old, row.footing, limits, bound=bound):
        yield Change("errors", "better", f"{where} {what}", was, now, over)


def _findings(old: Report, new: Report, *, same: bool) -> Iterator[Change]:
    before = {(f.check, f.output): f for f in old.findings}
    after = {(f.check, f.output): f for f in new.findings}
    common = old.cases if same else shared(old, new)
    for key, finding in after.items():
        what, said, replay = " ".join(filter(None, key)), _said(finding), replay_line(new, finding.spec)
        if key in before:
            yield Change("finding", "same", what, _said(before[key]), said, "", replay)
            continue
        reason = _unasked(finding, old) or _chance(finding, old, common, same=same)
        yield Change("finding", "changed" if reason else "worse", what, "not found", said, reason, replay)
    for key, finding in before.items():
        if key not in after:
            reason = _unasked(finding, new) or _chance(finding, new, common, same=same)
            what = " ".join(filter(None, key))
            yield Change("finding", "changed" if reason else "better", what, _said(finding), "not found", reason)


def _said(finding: Finding) -> str:
    return f"{finding.message} ({finding.cases} case{'s' * (finding.cases != 1)})"


def _unasked(finding: Finding, other: Report) -> str:
    """That the other run did not look for such a finding; "" where it did."""
    if not any(check.name == finding.check and check.cases for check in other.checks):
        return f"the check {finding.check} looked at nothing in the other run"
    if finding.spec.dtype not in asked(other):
        return f"the other run had no {finding.spec.dtype}"
    return ""


def _chance(finding: Finding, other: Report, common: int, *, same: bool) -> str:
    """Why the other run, which has failed as well, may merely have missed a finding; "" where it has not."""
    if same or not other.findings or finding.after <= common:
        return ""
    early, others = finding.after - common, max(other.cases - common, 0)
    if early <= CHANCE * (early + others):
        return ""
    return f"seen first in case {finding.after}: the other run met other cases, and may have missed it"


def shared(old: Report, new: Report) -> int:
    """How many cases both runs began with, at least: the corner table, where both had it."""
    if asked(old) != asked(new) or old.op != new.op or old.op not in OPS or on_gpu(old) != on_gpu(new):
        return 0
    if "models" in (old.settings.shapes, new.settings.shapes) or not asked(new):
        return 0
    table = len(corners(OPS[new.op], asked(new), gpu=on_gpu(new)))
    refused = max(sum(skip.cases for skip in report.skipped if skip.what == "cases") for report in (old, new))
    return max(min(table, old.cases, new.cases) - refused, 0)


def on_gpu(report: Report) -> bool:
    """Whether it ran on a GPU."""
    return report.settings.device != "cpu"
