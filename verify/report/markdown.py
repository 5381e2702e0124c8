"""Reports, audits and comparisons as Markdown, for GitHub's $GITHUB_STEP_SUMMARY.

All that comes from a kernel or a file is escaped: no name or message of it can end a cell, begin a heading, a link or
an HTML element, or mention somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from verify_norm.auditing.model import Audit, Document, Ladder, report_of
from verify_norm.report import difference
from verify_norm.report.comparison import Change, Comparison, Errors, Pair, Way
from verify_norm.report.model import CheckResult, Report, Skip
from verify_norm.report.noise import of_survey, of_tally
from verify_norm.report.terminal import number
from verify_norm.report.text import cases, replay_line
from verify_norm.spec import Finding

LONGEST, LONGEST_CODE = 600, 4000  # characters of what a kernel wrote: GitHub takes 1 MiB for a step
MOST = 50  # lines of one kind
MARKS: dict[Way, str] = {"worse": "❌", "better": "✅", "changed": "⚠️", "same": "➖"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+\-!|~&$@]|:(?=//)|(?<=(?i:www))\.|(?<=\d)\.(?=\s|$))")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def escaped(text: str) -> str:
    r"""Text of any origin, on one line, so that Markdown shows it as it is.

    >>> escaped("a|b\n<b>*c*</b>")
    'a\\|b \\<b\\>\\*c\\*\\</b\\>'
    """
    return _SPECIAL.sub(r"\\\1", _line(text, LONGEST))


def code(text: str) -> str:
    """The same as a code span, which is no place for a table.

    >>> code("a`b")
    '``a`b``'
    """
    line = _line(text, LONGEST_CODE)
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def _line(text: str, longest: int) -> str:
    line = " ".join(_INVISIBLE.sub(" ", text).split()) or "\ufffd" * bool(text)
    return line if len(line) <= longest else line[:longest] + " …"


def of(*documents: Document) -> str:
    """The Markdown of reports and audits, one after the other."""
    return "\n".join("\n".join(_document(document)) + "\n" for document in documents)


def of_comparison(found: Comparison) -> str:
    """The Markdown of a comparison, its verdict first."""
    lines = [f"### {'❌' if found.worse else '✅'} {escaped(difference.verdict(found))}", ""]
    for pair in found.pairs:
        lines += [*_pair(pair), ""]
    lines += [f"- {escaped(line)}" for line in difference.alone(found)]
    return "\n".join(lines).rstrip() + "\n"


def _document(document: Document) -> Iterator[str]:
    report = report_of(document)
    failed = report.findings or (isinstance(document, Audit) and document.disagreements)
    yield f"### {'❌' if failed else '✅' if document.ok else '⚠️'} {_verdict(document, report)}"
    yield ""
    yield from _errors(map(of_tally, report.tallies))
    for finding in report.findings[:MOST]:
        yield from _finding(report, finding)
    if isinstance(document, Audit):
        yield from _audit(document)
    skipped = (*report.skipped, *(document.skipped if isinstance(document, Audit) else ()))
    details = [_check(check) for check in report.checks]
    details += [_skip(skip) for skip in skipped]
    details += [escaped(", ".join(f"{name} {value}" for name, value in report.environment.items()))]
    yield from _folded("checks, and what was not checked", details)


def _verdict(document: Document, report: Report) -> str:
    name = f"{code(report.kernel)} {escaped(report.op) if report.op not in report.kernel else ''}".rstrip()
    basis = f"{cases(report)} in {report.seconds:.1f} s"
    if not report.checked:
        return f"nothing checked: {name}"
    against = len(document.disagreements) if isinstance(document, Audit) else 0
    parts = [_count(len(report.findings), "finding")] * bool(report.findings)
    parts += [_count(against, "disagreement") + " with its contract"] * bool(against)
    if parts:
        return f"FAIL {name}: {' and '.join(parts)}; {basis}"
    return f"interrupted {name}: no finding so far; {basis}" if report.interrupted else f"pass {name}: {basis}"


def _check(check: CheckResult) -> str:
    said = f"failed in {check.failed} of {_count(check.cases, 'case')}" if check.failed else _count(check.cases, "case")
    return f"{escaped(check.name)}: {said if check.cases else 'nothing to look at'}"


def _skip(skip: Skip) -> str:
    times = f" ({skip.cases} cases)" if skip.cases > 1 else ""
    return f"not checked: {escaped(skip.what)}{times}: {escaped(skip.reason)}"


def _errors(errors: Iterable[Errors], title: str = "") -> Iterator[str]:
    rows = [
        (escaped(e.output), escaped(e.dtype), str(e.cases), number(e.mean), f"{e.bias:+.2g}", number(e.p99),
         f"{100 * e.correct:.2f} %", f"{'**' * (e.ratio > 1)}{number(e.ratio)}{'**' * (e.ratio > 1)}")
        for e in errors
    ]  # fmt: skip
    if rows:
        heads = ("output", "dtype", "cases", "mean ULP", "bias", "p99", "rounded right", "error/bound")
        yield from _table(heads, rows, words=2, title=title)


def _table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, words: int, title: str = ""
) -> Iterator[str]:  # fmt: skip
    """A table whose first columns are words, and whose others are numbers."""
    if title:
        yield from (f"**{title}**", "")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * words + "--:|" * (len(heads) - words)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    yield f"- **{escaped(finding.check)}** {escaped(finding.message)}"
    yield f"  seen in {_count(finding.cases, 'case')}; replay: {code(replay_line(report, finding.spec))}"
    yield ""


def _audit(audit: Audit) -> Iterator[str]:
    yield from _errors(map(of_survey, audit.ulps), "errors in typical data")
    for line in audit.disagreements[:MOST]:
        yield f"- **contract** {escaped(line)}"
    if audit.disagreements:
        yield ""
    if audit.ladders:
        yield from _table(
            ("what grows", "output", "over its bound", "like"), map(_ladder, audit.ladders), words=4, title="ladders"
        )
    if audit.fingerprint is not None and audit.fingerprint.statements:
        said = [f"{escaped(s.name)} ({escaped(s.dtype)}): **{escaped(s.said)}**" for s in audit.fingerprint.statements]
        yield from _folded("fingerprint", said)


def _ladder(ladder: Ladder) -> tuple[str, ...]:
    over = "never" if ladder.first_over is None else f"**from {ladder.first_over:.3g}**"
    return escaped(ladder.unit), escaped(ladder.output), over, escaped(", ".join(ladder.like)) or "none"


def _folded(summary: str, lines: list[str]) -> Iterator[str]:
    """A list that is shown when its title is clicked."""
    yield f"<details><summary>{summary}</summary>"
    yield ""
    yield from (f"- {line}" for line in lines[:MOST])
    yield ""
    yield "</details>"


def _pair(pair: Pair) -> Iterator[str]:
    yield f"**{code(difference.title(pair))}**: {difference.cases(pair)}"
    yield ""
    changes = [change for change in pair.changes if change.way != "same"]
    yield from (_change(change) for change in changes[:MOST])
    if len(changes) > MOST:
        yield f"- … and {len(changes) - MOST} more"
    if same := len(pair.of("same")):
        yield f"- {MARKS['same']} {_count(same, 'finding')} as before"
    yield ""
    cells = ((escaped(row.new.output), escaped(row.new.dtype), "typical" if row.new.typical else "cases",
              *difference.columns(row.old, row.new)) for row in pair.rows)  # fmt: skip
    yield from _table(difference.HEADS, cells, words=3)
    if pair.notes:
        yield from _folded("what else differs", [escaped(note) for note in pair.notes])


def _change(change: Change) -> str:
    replay = f"; replay: {code(change.replay)}" if change.replay else ""
    return f"- {MARKS[change.way]} {change.way}: {escaped(difference.sentence(change))}{replay}"


def _count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'s' * (number_of != 1)}"
