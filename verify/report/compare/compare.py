"""What got worse or better from one run to another, where both saw the same cases.

Kernels are matched by name and operator. Each pair is compared in its findings (by check and output), in what was
checked (`coverage`), in its errors (`errors`) and in the parts of an audit (`audits`). Times are not compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.core.case_words import count
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.report_text import replay_line
from verify_norm.core.results import Report
from verify_norm.report.compare import audits, coverage, errors
from verify_norm.report.compare.model import Change, Pair, Row, RunComparison, Way

ONLY_EQUAL = "only equal cases count"  # ends the note on an output and type with other cases in the two runs
ORDER: tuple[Way, ...] = ("worse", "better", "changed", "same")


def compare(old: Iterable[Document], new: Iterable[Document], limits: RegressionLimits | None = None) -> RunComparison:
    """Return the differences of every kernel that is in both runs; without such a kernel, a comparison with no pairs.

    Several documents of one kernel and operator are matched in their order. A document without a partner of its name
    is compared with the only one of its operator in the other file, as a new kernel with the one that it replaces.

    Raises UsageError: the two runs of a kernel saw different cases. The message says what to run.
    """
    pairs, only_old, only_new = _matched(list(old), list(new))
    for before, after in pairs:
        if reason := coverage.unequal(before, after):
            raise UsageError(f"cannot compare {_name(after)}: {reason}")
    compared = tuple(_pair(before, after, limits or RegressionLimits()) for before, after in pairs)
    return RunComparison(compared, tuple(map(_name, only_old)), tuple(map(_name, only_new)))


def _matched(
    old: list[Document], new: list[Document]
) -> tuple[list[tuple[Document, Document]], list[Document], list[Document]]:
    """Return the pairs, and the documents that only the old or only the new run has."""
    pairs, only_new = [], []
    waiting: defaultdict[tuple[str, str], list[Document]] = defaultdict(list)
    for document in old:
        waiting[_key(document)].append(document)
    for document in new:
        if partners := waiting[_key(document)]:
            pairs.append((partners.pop(0), document))
        else:
            only_new.append(document)
    only_old = [document for documents in waiting.values() for document in documents]
    for document in list(only_new):
        op = report_of(document).op
        alike = [[one for one in side if report_of(one).op == op] for side in (old, new, only_old)]
        if all(len(side) == 1 for side in alike):
            (partner,) = alike[2]
            pairs.append((partner, document))
            only_old.remove(partner)
            only_new.remove(document)
    return pairs, only_old, only_new


def _key(document: Document) -> tuple[str, str]:
    report = report_of(document)
    return report.kernel, report.op


def _name(document: Document) -> str:
    kernel, op = _key(document)
    return kernel if op in kernel else f"{kernel} ({op})"


def _pair(before: Document, after: Document, limits: RegressionLimits) -> Pair:
    """Return what changed of one kernel, the worse changes first."""
    old, new = report_of(before), report_of(after)
    same = coverage.same_cases(old, new)
    both = list(_in_both(before, after, same=same))
    rows = tuple(row for row in both if _equal(row))
    same_contract = old.contract == new.contract
    found = [
        *_findings(old, new),
        *coverage.changes(old, new, limits, same=same),
        *(change for row in rows for change in errors.changes(row, limits, same_contract=same_contract)),
        *audits.changes(before, after),
    ]
    left_out = [
        f"{row.new.output} {row.new.dtype}: compared in {row.old.cases} → {row.new.cases} cases; {ONLY_EQUAL}"
        for row in both
        if not _equal(row)
    ]
    changes = tuple(sorted(found, key=lambda change: ORDER.index(change.way)))
    notes = (*coverage.notes(before, after, same=same), *left_out)
    return Pair(new.kernel, old.kernel, new.op, old.cases, new.cases, same, changes, rows, notes)


def _in_both(before: Document, after: Document, *, same: bool) -> Iterator[Row]:
    """Yield the errors that are in both runs: those of the checks' cases, then those of typical data."""
    old, new = report_of(before), report_of(after)
    sides = [(map(errors.of_tally, old.tallies), map(errors.of_tally, new.tallies))] if same else []
    if isinstance(before, Audit) and isinstance(after, Audit):
        sides.append((map(errors.of_survey, before.ulps), map(errors.of_survey, after.ulps)))
    for ones, others in sides:
        known = {(one.output, one.dtype): one for one in ones}
        for one in others:
            if (one.output, one.dtype) in known:
                yield Row(known[one.output, one.dtype], one)


def _equal(row: Row) -> bool:
    """Return whether both errors count the same cases and elements."""
    return (row.old.cases, row.old.elements) == (row.new.cases, row.new.elements)


def _findings(old: Report, new: Report) -> Iterator[Change]:
    """Yield the findings that are new, gone, or in both runs."""
    before = {(f.check, f.output): f for f in old.findings}
    after = {(f.check, f.output): f for f in new.findings}
    for key in after | before:
        what, was, now = " ".join(filter(None, key)), before.get(key), after.get(key)
        way: Way = "worse" if now else "better"
        reason = ""
        if was and now:
            way = "same"
        else:
            reason = _unchecked(now, old) or _unchecked(was, new)
            if reason:
                way = "changed"
        replay = replay_line(new, now.spec) if now else ""
        yield Change("finding", way, what, _words(was), _words(now), reason, replay)


def _words(finding: Finding | None) -> str:
    return f"{finding.message} ({count(finding.cases, 'case')})" if finding else "not found"


def _unchecked(finding: Finding | None, other: Report) -> str:
    """Return why the other run could not have such a finding; "" where it could."""
    if finding is None:
        return ""
    if not any(check.name == finding.check and check.cases for check in other.checks):
        return f"the other run had nothing to check with {finding.check}"
    if finding.spec.dtype not in coverage.offered(other):
        return f"the other run had no {finding.spec.dtype}"
    return ""
