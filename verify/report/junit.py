"""Reports as JUnit XML, which CI services show: a suite for each kernel and operator, a test for each check.

A test fails with the findings of its check. Where a run is no evidence, as one that ended early, the test `verdict` has
an error. A comparison with a baseline is a suite of its own, with one test for each kernel.
"""

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from verify_norm.core.errors import Exit
from verify_norm.core.report_text import failure, gap
from verify_norm.core.results import Report
from verify_norm.core.tally import CheckResult
from verify_norm.report import difference
from verify_norm.report.compare.model import Pair, RunComparison
from verify_norm.report.words import no_data

Test = tuple[str, str, str]  # a name, the element that says how it ended, and its text; "": the test passes
START = '<?xml version="1.0" encoding="utf-8"?>\n'
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 has no form for these


def of(
    reports: Sequence[Report], compared: RunComparison | None = None, unequal: str = "", *, every: bool = True
) -> str:
    """Return reports as the text of a JUnit file, with a comparison, or why none could be made.

    Without `every`, a direction of a kernel that checked nothing is skipped if the other one checked something.
    """
    root = ElementTree.Element("testsuites", name="verify-norm")
    checked = {report.kernel for report in reports if report.verdict is not Exit.NOTHING}
    for report in reports:
        name = report.kernel if report.op in report.kernel else f"{report.kernel} ({report.op})"
        excused = not every and report.verdict is Exit.NOTHING and report.kernel in checked
        said = "" if report.findings else gap(report)
        verdict = ("verdict", "skipped" if excused else "error", said)
        _suite(root, name, [*_tests(report), verdict], report.seconds)
    pairs = [(difference.title(pair), "failure", _worse(pair)) for pair in compared.pairs] if compared else []
    if unequal:
        pairs.append(("comparison", "error", unequal))
    if pairs:
        _suite(root, "baseline", pairs, 0.0)
    ElementTree.indent(root, " ")
    return START + ElementTree.tostring(root, encoding="unicode") + "\n"


def _tests(report: Report) -> Iterator[Test]:
    """Yield the checks of a report, and those that only a finding names."""
    named = dict.fromkeys([check.name for check in report.checks] + [finding.check for finding in report.findings])
    results = {check.name: check for check in report.checks}
    for name in named:
        found = [failure(report, finding) for finding in report.findings if finding.check == name]
        result: CheckResult | None = results.get(name)
        if found or result is None or result.cases:
            yield name, "failure", "\n\n".join(found)
        else:
            yield name, "skipped", no_data(result)


def _worse(pair: Pair) -> str:
    return "\n".join(difference.sentence(change) for change in pair.of("worse"))


def _suite(root: ElementTree.Element, name: str, tests: list[Test], seconds: float) -> None:
    """Add a suite of tests."""
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name), tests=str(len(tests)))
    for kind, total in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(total, str(sum(bool(text) and how == kind for _, how, text in tests)))
    suite.set("time", f"{seconds:.3f}")
    for test, how, text in tests:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=_clean(test), time="0")
        if text:
            lines = _clean(text)
            ElementTree.SubElement(case, how, message=lines.partition("\n")[0]).text = lines


def _clean(text: str) -> str:
    """Return text without what no XML file can hold."""
    return _FORBIDDEN.sub("\ufffd", text)
