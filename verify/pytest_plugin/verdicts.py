"""What the reports of a kernel say of each check, as plain data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verify_norm.auditing.model import report_of
from verify_norm.core.case_words import count
from verify_norm.core.errors import Exit
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.report_text import cases, failure, gap, next_step, replay_line
from verify_norm.core.results import Report
from verify_norm.report import documents
from verify_norm.report.basis import seen
from verify_norm.report.words import no_data

MORE = "give more time by --norm-seconds, or accept it by --norm-allow-incomplete"


def answer(text: str, *, every: bool = True) -> dict[str, Any]:
    """Return `summary` of the reports that the command line wrote, and their JSON texts as `reports`."""
    reports = [document for document in documents.load_all(text) if isinstance(document, Report)]
    return summary(reports, every=every) | {"reports": [documents.dump(report) for report in reports]}


def summary(reports: Sequence[Report], *, every: bool = True) -> dict[str, Any]:
    """Return what the plugin shows of a kernel's reports, one for each direction.

    `verdicts` has for each check an `outcome` (passed, failed, unchecked or skipped), the `reason`, and the `replays`.
    A check is unchecked if its kernel's run is, which `gap` says, or if it has no data. `others` are the findings of
    checks that were not asked for, such as a crash in a run that checks accuracy alone. Without `every`, a direction
    that checked nothing counts only if all did.
    """
    names = reports[0].settings.checks
    if not every and any(report.verdict is not Exit.NOTHING for report in reports):
        reports = [report for report in reports if report.verdict is not Exit.NOTHING]
    others = [failure(report, f) for report in reports for f in report.findings if f.check not in names]
    return {
        "verdicts": {name: _verdict(reports, name) for name in names},
        "others": "\n".join(others),
        "gap": next(filter(None, map(gap, reports)), ""),
        "max_ulp": {f"{t.output}.{t.dtype}": t.ulp.maximum for report in reports for t in report.tallies},
        "basis": "; ".join(map(_basis, reports)),
        "notes": list(dict.fromkeys(note for report in reports for note in _notes(report))),
    }


def regressions(
    found: Mapping[str, Any], baseline: str, checks: Sequence[str], limits: RegressionLimits | None
) -> dict[str, Any]:
    """Return the `notes` with what was compared with a file; if a kernel is `worse`, that, and the check as `bearer`.

    The test of the bearer fails. Incomplete reports, and kernels that the file lacks, are not compared. Raises
    UsageError if the file cannot be read, or has other cases.
    """
    from verify_norm.report.compare.compare import ONLY_EQUAL, compare
    from verify_norm.report.difference import sentence

    new = [document for text in found["reports"] for document in documents.load_all(text)]
    if found["gap"]:
        return {"notes": [*found["notes"], f"not compared with {baseline}: {found['gap']}"]}
    stored = [report_of(document) for document in documents.read(baseline)]
    runs = {(report_of(document).bind, report_of(document).only) for document in new}
    alike = [one for one in stored if (one.bind, one.only) in runs]  # a kernel may be there with several constants
    compared = compare(alike or stored, new, limits)
    changes = [change for pair in compared.pairs for change in pair.of("worse")]
    worse = [sentence(one) + f"\n  replay    {one.replay}" * bool(one.replay) for one in changes]
    notes = [*found["notes"], *(f"the baseline {baseline} has no {name}" for name in compared.new_alone)]
    if compared.pairs and not worse:
        both = sum(min(pair.old_cases, pair.new_cases) for pair in compared.pairs)
        of = count(sum(pair.old_cases for pair in compared.pairs), "case")
        notes.append(f"compared with {baseline}: {both} of {of}, no worse")
    notes += [note for pair in compared.pairs for note in pair.notes if note.endswith(ONLY_EQUAL)]
    text = "\n".join((f"worse than in {baseline}:", *worse))
    bearer = "accuracy" if "accuracy" in checks else checks[0]
    return {"notes": notes} | ({"worse": text, "bearer": bearer} if worse else {})


def line(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict on a kernel in a word, and what it rests on."""
    if "error" in record:
        return "ERROR", record["error"]
    expected = record["expected"]
    outcomes = {name: verdict["outcome"] for name, verdict in record["verdicts"].items()}
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    known = [name for name in failed if name in expected]
    unknown = [name for name in failed if name not in known]
    passing = [name for name, outcome in outcomes.items() if outcome == "passed" and name in expected]
    checked = [name for name, outcome in outcomes.items() if outcome in ("passed", "failed")]
    empty = [name for name, outcome in outcomes.items() if outcome == "unchecked"]
    parts = [", ".join(unknown)] if unknown else []
    parts += ["a check that was not selected found something"] * bool(record["others"])
    parts += [f"{name} failed as expected ({expected[name]})" for name in known]
    parts += [f"{name} was expected to fail and passes" for name in passing]
    parts += ["worse than its baseline"] * ("worse" in record)
    parts += [record["gap"]] if record["gap"] else [f"no data for {', '.join(empty)}"] * bool(empty)
    parts += [f"{len(checked)} check{'s' * (len(checked) != 1)}", record["basis"]]
    bad = "worse" in record or unknown or passing or record["others"] or empty
    return "FAIL" if bad else "pass" if checked else "skipped", "; ".join(parts)


def _basis(report: Report) -> str:
    """Return what the verdict on a kernel rests on, with the largest error of each output against its bound."""
    worst: dict[str, float] = {}
    for tally in report.tallies:
        worst[tally.output] = max(worst.get(tally.output, 0.0), tally.ratio)
    text = f"{cases(report)} in {report.seconds:.1f} s on {report.settings.device}{report.within}"
    ratios = ", ".join(f"{output} {ratio:.2g}" for output, ratio in worst.items())
    return f"{text}, error/bound {ratios}" if ratios else text


def _notes(report: Report) -> Iterator[str]:
    """Yield what would settle all findings, what was seen, and what was not checked.

    Checks that do not apply are tests that skip.
    """
    settled, _ = next_step(report)
    yield from [f"{report.op}: {settled}"] * bool(settled)
    yield from (f"{report.op}: {line}" for line in seen(report))
    for skip in report.skipped:
        if not skip.what.startswith("check "):
            yield f"not checked: {skip.what}{f' ({skip.cases} cases)' * (skip.cases > 1)}: {skip.reason}"


def _verdict(reports: Sequence[Report], name: str) -> dict[str, Any]:
    found = [(report, finding) for report in reports for finding in report.findings if finding.check == name]
    if found:
        return {
            "outcome": "failed",
            "reason": "\n".join(failure(*pair) for pair in found),
            "replays": [replay_line(report, finding.spec) for report, finding in found],
        }
    results = [(report, result) for report in reports for result in report.checks if result.name == name]
    if not results:
        return {"outcome": "skipped", "reason": f"{name} {_not_applicable(reports, name)}", "replays": []}
    if missing := next(((report, why) for report in reports if (why := gap(report))), None):
        report, why = missing
        more = f"; {MORE}" * (report.verdict is not Exit.NOTHING)
        return {"outcome": "unchecked", "reason": f"{name}: {why}{more}", "replays": []}
    empty = [(report, result) for report, result in results if not result.cases]
    needed = [no_data(result) for report, result in empty if result.offered and not report.settings.allow_incomplete]
    if needed or len(empty) == len(results):
        why = "; ".join(dict.fromkeys(needed or [no_data(result) for _, result in empty]))
        return {"outcome": "unchecked" if needed else "skipped", "reason": f"{name}: {why}", "replays": []}
    checked = sum(result.cases for _, result in results)
    return {"outcome": "passed", "reason": f"nothing found in {checked} cases", "replays": []}


def _not_applicable(reports: Sequence[Report], name: str) -> str:
    """Return why no report has the check."""
    skips = [skip for report in reports for skip in report.skipped if skip.what == f"check {name}"]
    return "; ".join(dict.fromkeys(skip.reason for skip in skips)) or "did not run"
