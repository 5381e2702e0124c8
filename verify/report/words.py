"""The parts of a report in words: its verdict, its contract, what was not checked. The page uses most of them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.core.case_words import count
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit
from verify_norm.core.report_text import cases, unchecked
from verify_norm.core.tally import CheckResult, Skip

CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}  # to their pictures


@dataclass(frozen=True, slots=True)
class Headline:
    """A verdict in one word or two, and in a sentence."""

    kind: Literal["pass", "fail", "none", "part"]
    word: str
    line: str


def headline(document: Document) -> Headline:
    """Return the verdict. As for `Audit.ok`, a disagreement with the contract fails a kernel."""
    report = report_of(document)
    basis = f"{cases(report)} in {report.seconds:.1f} s"
    broken = ""
    if isinstance(document, Audit) and document.disagreements:
        points = count(len(document.disagreements), "point")
        broken = f"the fingerprint disagrees with the contract in {points}"
    cut = f"; {report.unfinished}" if report.unfinished else ""
    if report.findings:
        also = f", and {broken}" if broken else ""
        return Headline("fail", "FAIL", f"{count(len(report.findings), 'finding')} in {basis}{also}{cut}.")
    if broken:
        return Headline("fail", "FAIL", f"No finding in {basis}, but {broken}.")
    if document.verdict is Exit.NOTHING:
        return Headline("none", "Nothing checked", f"This is not a pass: {sentence(unchecked(report))}")
    if document.verdict is Exit.INCOMPLETE:
        missing = f"; not done: {', '.join(document.lost)}" if isinstance(document, Audit) and document.lost else ""
        return Headline("part", "Incomplete", f"No finding so far, in {basis}{cut}{missing}. This is not a pass.")
    ran = sum(check.cases > 0 for check in report.checks)
    return Headline("pass", "PASS", f"No finding by {count(ran, 'check')} in {basis}{report.within}{cut}.")


def failures(document: Document) -> str:
    """Return the number of findings and, of an audit, of disagreements with the contract, in words; "" if none."""
    parts = []
    findings = report_of(document).findings
    if findings:
        parts.append(count(len(findings), "finding"))
    if isinstance(document, Audit) and document.disagreements:
        parts.append(f"{count(len(document.disagreements), 'disagreement')} with its contract")
    return " and ".join(parts)


def facts_of(environment: Mapping[str, str]) -> str:
    """Return where a run was made, and with which versions, on one line."""
    return ", ".join(f"{name} {value}" for name, value in environment.items())


def printable(value: object) -> str:
    """Return the value as text that UTF-8 can encode, with control characters as their pictures.

    >>> printable("a\\x00b")
    'a␀b'
    """
    return str(value).translate(CONTROLS).encode("utf-8", "replace").decode()


def sentence(plain: str) -> str:
    """Return the text with a full stop at its end, "" unchanged."""
    return plain if not plain or plain.endswith((".", "!", "?", "…")) else f"{plain}."


def no_data(check: CheckResult) -> str:
    """Return that a check had nothing to look at, and why."""
    return f"no data: {check.no_data}" if check.no_data else "no data"


def skip_line(skip: Skip) -> str:
    """Return what was not checked, in how many cases, and why."""
    times = f" ({count(skip.cases, 'case')})" if skip.cases > 1 else ""
    return f"{skip.what}{times}: {skip.reason}"


def contract(promised: Contract) -> str:
    """Return the fields of a contract that differ from the strict one, in words."""
    odd = [f"{f.name}={getattr(promised, f.name)}" for f in fields(promised) if getattr(promised, f.name) != f.default]
    return ", ".join(odd) or "strict: float32 throughout, one rounding at the end"


def setting(value: object) -> str:
    """Return a setting of a run in words."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "the default" if value is None else str(value)
