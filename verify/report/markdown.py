"""Reports, audits and comparisons as Markdown, for GitHub's $GITHUB_STEP_SUMMARY.

Every text that comes from a kernel or a file is escaped: no name or message can end a cell, begin a heading, a link or
an HTML element, or mention a user.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from verify_norm.auditing.model import Audit, Document, Ladder, report_of
from verify_norm.core.case_words import case, count
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.report_text import cases, explanation, next_step, replay_line
from verify_norm.core.results import Report
from verify_norm.core.tally import CheckResult
from verify_norm.report import difference
from verify_norm.report.basis import seen
from verify_norm.report.compare.errors import of_survey, of_tally
from verify_norm.report.compare.model import Change, Errors, Pair, RunComparison, Way
from verify_norm.report.detected import detected, detected_by_all
from verify_norm.report.numbers import ascii_number, percent
from verify_norm.report.words import facts_of, failures, no_data, skip_line
from verify_norm.report.worst import CONDITION, worst_cases

LONGEST, LONGEST_CODE = 600, 4000  # characters of one text of a kernel: GitHub accepts 1 MiB for a step
MOST = 50  # lines of one kind
MARKS: dict[Way, str] = {"worse": "❌", "better": "✅", "changed": "⚠️", "same": "➖"}
ERRORS = ("output", "dtype", "cases", "mean ULP", "bias", "p99", "correctly rounded", "error/bound")
LADDERS = ("what grows", "output", "over its bound", "like")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+\-!|~&$@]|:(?=//)|(?<=(?i:www))\.|(?<=\d)\.(?=\s|$))")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def escaped(text: str) -> str:
    r"""Return a text of any origin on one line, so that Markdown shows it as it is.

    >>> escaped("a|b\n<b>*c*</b>")
    'a\\|b \\<b\\>\\*c\\*\\</b\\>'
    """
    return _SPECIAL.sub(r"\\\1", _line(text, LONGEST))


def code(text: str) -> str:
    """Return a text of any origin as a code span; a cell of a table must not hold one.

    >>> code("a`b")
    '``a`b``'
    """
    line = _line(text, LONGEST_CODE)
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def _line(text: str, longest: int) -> str:
    """Return a text on one line, at most so long; U+FFFD for one that has nothing visible."""
    line = " ".join(_INVISIBLE.sub(" ", text).split())
    if text and not line:
        return "\ufffd"
    return line if len(line) <= longest else line[:longest] + " …"


def of(*documents: Document) -> str:
    """Return the Markdown of reports and audits, one after the other."""
    return "\n".join("\n".join(_document(document)) + "\n" for document in documents)


def of_comparison(found: RunComparison) -> str:
    """Return the Markdown of a comparison, its verdict first."""
    lines = [f"### {'❌' if found.worse else '✅'} {escaped(difference.verdict(found))}", ""]
    for pair in found.pairs:
        lines += [*_pair(pair), ""]
    lines += [f"- {escaped(line)}" for line in difference.alone(found)]
    return "\n".join(lines).rstrip() + "\n"


def _document(document: Document) -> Iterator[str]:
    report = report_of(document)
    mark = "✅" if document.ok else "⚠️"
    if failures(document):
        mark = "❌"
    yield f"### {mark} {_verdict(document, report)}"
    yield ""
    saw = seen(report)
    if saw:
        yield from (f"- {escaped(line)}" for line in saw)
        yield ""
    yield from _errors(map(of_tally, report.tallies), probable=[tally.probable for tally in report.tallies])
    yield from _worst(report)
    for finding in report.findings[:MOST]:
        yield from _finding(report, finding)
    settled, line = next_step(report)
    if settled:
        yield f"{escaped(settled[0].upper() + settled[1:])}: {code(line)}"
        yield ""
    skipped = report.skipped
    if isinstance(document, Audit):
        yield from _audit(document)
        skipped += document.skipped
    details = [_check(report, check) for check in report.checks]
    details += [f"the run would have detected {_factor(place)}: {escaped(e)}" for place, e in detected_by_all(report)]
    details += [f"not checked: {escaped(skip_line(skip))}" for skip in skipped]
    details.append(escaped(facts_of(report.environment)))
    yield from _folded("checks, and what was not checked", details)


def _verdict(document: Document, report: Report) -> str:
    """Return the verdict and what it is based on."""
    name = code(report.kernel)
    if report.op not in report.kernel:
        name = f"{name} {escaped(report.op)}"
    basis = f"{cases(report)} in {report.seconds:.1f} s"
    if document.verdict is Exit.NOTHING:
        return f"nothing checked: {name}"
    failed = failures(document)
    if failed:
        return f"FAIL {name}: {failed}; {basis}"
    if report.unfinished:
        basis += f"; {escaped(report.unfinished)}"
    if isinstance(document, Audit) and document.lost:
        basis += f"; not done: {escaped(', '.join(document.lost))}"
    if document.verdict is Exit.INCOMPLETE:
        return f"incomplete {name}: no finding so far; {basis}"
    return f"PASS {name}{report.within}: {basis}"


def _check(report: Report, check: CheckResult) -> str:
    """Return in how many cases a check looked and failed, and what it would have detected."""
    result = count(check.cases, "case") if check.cases else escaped(no_data(check))
    if check.failed:
        result = f"failed in {check.failed} of {result}"
    smallest = detected(report, check.name)
    power = f"; alone it would have detected {_factor('any output')}: {escaped(smallest)}" if smallest else ""
    return f"{escaped(check.name)}: {result}{power}"


def _factor(place: str) -> str:
    return f"a factor of 1 ± e, before the last rounding, on {place}, e"


def _errors(errors: Iterable[Errors], title: str = "", probable: Iterable[float | None] = ()) -> Iterator[str]:
    """Yield the errors of each output, with `probable`, the errors over the probable error, if there are any."""
    rows = []
    beside = ["–" if one is None else ascii_number(one) for one in probable]
    for place, e in enumerate(errors):
        numbers = (str(e.cases), ascii_number(e.mean), f"{e.bias:+.2g}", ascii_number(e.p99), percent(e.correct))
        bold = "**" if e.ratio > 1 else ""
        ratio = f"{bold}{ascii_number(e.ratio)}{bold}"
        rows.append((escaped(e.output), escaped(e.dtype), *numbers, ratio, *beside[place : place + 1]))
    if rows:
        yield from _table((*ERRORS, "error/probable")[: len(rows[0])], rows, words=2, title=title)


def _worst(report: Report) -> Iterator[str]:
    """Yield the worst cases and their conditions."""
    rows = [
        (escaped(w.output), escaped(w.dtype), w.measure, escaped(case(w.spec)), ascii_number(w.error), *w.numbers)
        for w in worst_cases(report)
    ]
    if rows:
        yield "<details><summary>worst cases, and what their data do</summary>"
        yield ""
        yield from _table(("output", "dtype", "by", "in", "error", *map(escaped, CONDITION)), rows, words=4)
        yield "</details>"
        yield ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int, title: str = "") -> Iterator[str]:
    """Yield a table whose first columns are words, and whose others are numbers."""
    if title:
        yield from (f"**{title}**", "")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * words + "--:|" * (len(heads) - words)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    """Yield what failed, what explains it, and the facts about the smallest case that shows it."""
    yield f"- **FAIL {escaped(finding.check)}**: {escaped(finding.message)}"
    why = explanation(report, finding)
    if why:
        yield f"  {escaped(why)}"
    facts = []
    if finding.got is not None and finding.want is not None:
        facts.append(f"got {finding.got!r}, expected {finding.want!r}")
    if finding.condition:
        facts.append(f"data: {escaped(str(finding.condition))}")
    facts.append(f"seen in {count(finding.cases, 'case')}")
    facts.append(f"replay: {code(replay_line(report, finding.spec))}")
    yield f"  {'; '.join(facts)}"
    yield ""


def _audit(audit: Audit) -> Iterator[str]:
    yield from _errors(map(of_survey, audit.ulps), "errors in typical data")
    for line in audit.disagreements[:MOST]:
        yield f"- **contract** {escaped(line)}"
    if audit.disagreements:
        yield ""
    if audit.ladders:
        yield from _table(LADDERS, map(_ladder, audit.ladders), words=4, title="ladders")
    if audit.fingerprint is not None and audit.fingerprint.statements:
        lines = [f"{escaped(s.name)} ({escaped(s.dtype)}): **{escaped(s.said)}**" for s in audit.fingerprint.statements]
        yield from _folded("fingerprint", lines)


def _ladder(ladder: Ladder) -> tuple[str, ...]:
    over = "never" if ladder.first_over is None else f"**from {ladder.first_over:.3g}**"
    return escaped(ladder.unit), escaped(ladder.output), over, escaped(", ".join(ladder.like)) or "none"


def _folded(summary: str, lines: list[str]) -> Iterator[str]:
    """Yield a list that a click on its title shows."""
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
    same = len(pair.of("same"))
    if same:
        yield f"- {MARKS['same']} {count(same, 'finding')} as before"
    yield ""
    rows = []
    for row in pair.rows:
        data = "typical" if row.new.typical else "cases"
        rows.append((escaped(row.new.output), escaped(row.new.dtype), data, *difference.columns(row.old, row.new)))
    yield from _table(difference.HEADS, rows, words=3)
    if pair.notes:
        yield from _folded("what else differs", [escaped(note) for note in pair.notes])


def _change(change: Change) -> str:
    replay = f"; replay: {code(change.replay)}" if change.replay else ""
    return f"- {MARKS[change.way]} {change.way}: {escaped(difference.sentence(change))}{replay}"
