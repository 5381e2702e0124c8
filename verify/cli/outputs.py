"""Where reports go: to the terminal, to files, beside a baseline, to the summary of a CI step; and the exit status."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from verify_norm.cli.console import complain, err
from verify_norm.core import files
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.report_text import unchecked
from verify_norm.core.results import worst_of

if TYPE_CHECKING:
    from verify_norm.auditing.model import Document
    from verify_norm.core.regression import RegressionLimits
    from verify_norm.core.results import Report
    from verify_norm.report.compare.model import RunComparison

ACCEPTED = "or accept it with --allow-incomplete"
MORE = f"run it again with more --seconds, {ACCEPTED}"
RESUMED = f"run it again with --resume, which continues it, {ACCEPTED}"
AGAIN = f"run it again, {ACCEPTED}"
SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that GitHub Actions shows after a step


@dataclass(slots=True)
class Destinations:
    """Where reports go and what they are compared with. Everything is checked before the run.

    Raises UsageError if a file cannot be written, no page can be made, or the baseline cannot be read.
    """

    json_path: str = ""
    html_path: str = ""
    junit_path: str = ""
    baseline: str = ""
    limits: RegressionLimits | None = None  # of the comparison; None: the usual ones
    stored: tuple[Document, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Check the files, and read the baseline."""
        apart({"--json": self.json_path, "--html": self.html_path, "--junit": self.junit_path})
        files.writable(self.json_path)
        files.writable(self.html_path, ours=("<!DOCTYPE html>",))
        files.writable(self.junit_path, ours=("<?xml",))
        if self.html_path:
            from verify_norm.report.html.page import missing

            if reason := missing():
                raise UsageError(reason)
        if self.baseline:
            from verify_norm.report import documents

            if not os.path.lexists(self.baseline):
                hint = f"to write it, run once with --json {self.baseline} and without --baseline"
                settings = "with --baseline '' if the option is from pyproject.toml"
                raise UsageError(f"there is no baseline {self.baseline}; {hint} ({settings})")
            self.stored = documents.read(self.baseline)

    @property
    def shown(self) -> bool:
        """Whether standard output is for people."""
        return "-" not in (self.json_path, self.html_path, self.junit_path)


def deliver(
    *documents: Document, to: Destinations, all_of_them: bool = True, planned: int = 0, resumable: bool = False
) -> Exit:
    """Show and write reports or audits, compare them with the baseline, and return the exit status: the worst of all.

    A report that checked nothing is an error if `all_of_them` were asked for, else only if none checked anything.
    A baseline is not compared with incomplete runs. Of `planned` directions, those after Ctrl-C have no report.
    `resumable` says whether the command has --resume.
    """
    from verify_norm.auditing.model import report_of
    from verify_norm.report import junit, markdown
    from verify_norm.report.documents import dump

    if to.shown:
        _show(documents)
    written = not to.json_path or _kept(dump(*documents), to.json_path)
    if to.html_path:
        from verify_norm.report.html.page import pages

        written &= _kept(pages(*documents), to.html_path)
    reports = [report_of(document) for document in documents]
    incomplete = any(report.verdict is Exit.INCOMPLETE for report in reports)
    compared, unequal = None, ""
    if to.baseline and not incomplete:
        try:
            compared = _compared(documents, to)
        except UsageError as error:  # the verdict on the run itself stands
            unequal = f"baseline {to.baseline}: {error}"
            complain(unequal)
    if to.junit_path:
        written &= _kept(junit.of(reports, compared, unequal, every=all_of_them), to.junit_path)
    summary = markdown.of(*documents)
    if compared is not None:
        summary += f"\n{markdown.of_comparison(compared)}"
    summarize(summary)
    _complain_of_gaps(reports, RESUMED if resumable else AGAIN)
    if compared is not None and compared.worse:
        return Exit.FINDINGS
    verdict = _verdict(documents, every=all_of_them)
    if len(documents) < planned:
        complain(f"interrupted: {len(documents)} of {planned} directions ran")
        verdict = worst_of((verdict, Exit.INCOMPLETE))
    if not written and verdict is not Exit.FINDINGS:
        return Exit.NOTHING
    return Exit.NOTHING if unequal and verdict is Exit.PASS else verdict


def _show(documents: tuple[Document, ...]) -> None:
    """Print reports and audits, and if they are of several kernels a table of all."""
    from verify_norm.auditing.model import Audit, report_of
    from verify_norm.report import audit, terminal
    from verify_norm.report.summary import show_summary

    for document in documents:
        if isinstance(document, Audit):
            audit.show_audit(document, terminal.console())
        else:
            terminal.show_report(document, terminal.console())
    if len({report_of(document).kernel for document in documents}) > 1:
        show_summary(documents, terminal.console())


def _complain_of_gaps(reports: list[Report], resumed: str) -> None:
    """Say which reports checked nothing, or are incomplete, why, and what to do."""
    several_kernels = len({report.kernel for report in reports}) > 1
    for report in reports:
        if report.verdict is Exit.NOTHING:
            of = ""
            if several_kernels:
                of = report.kernel
            elif len(reports) > 1:  # the directions of one
                of = report.op
            complain(unchecked(report, of=of))
        elif report.verdict is Exit.INCOMPLETE:
            complain(f"incomplete: {report.unfinished}; {resumed if report.interrupted else MORE}")


def _kept(text: str, path: str) -> bool:
    """Write to a file; say so and return False if it cannot be written: other files and the verdict are not lost."""
    try:
        write(text, path)
    except UsageError as error:
        complain(str(error))
        return False
    return True


def _verdict(documents: tuple[Document, ...], *, every: bool) -> Exit:
    """Return the worst verdict of any kernel; without `every`, a direction that checked nothing may be left out."""
    from verify_norm.auditing.model import report_of

    by_kernel: defaultdict[str, list[Exit]] = defaultdict(list)
    for document in documents:
        by_kernel[report_of(document).kernel].append(document.verdict)
    return worst_of(worst_of(verdicts, every=every) for verdicts in by_kernel.values())


def _compared(documents: tuple[Document, ...], to: Destinations) -> RunComparison | None:
    """Compare with the baseline and show it where people look; None if the baseline has none of these kernels."""
    from verify_norm.report import difference, terminal
    from verify_norm.report.compare.compare import compare

    compared = replace(compare(to.stored, documents, to.limits), old_alone=())
    for name in compared.new_alone:
        complain(f"the baseline {to.baseline} has no {name} to compare with")
    if not compared.pairs:
        return None
    difference.show_comparison(compared, terminal.console() if to.shown else err)
    return compared


def apart(written: Mapping[str, str], read: Iterable[str] = ()) -> None:
    """Raise UsageError if two of the files to write are one, or one of them is read, whatever their names."""
    places = {option: _place(path) for option, path in written.items() if path}
    for option, place in places.items():
        if place in map(_place, read):
            raise UsageError(f"cannot write {written[option]}: the command reads it")
        twin = next((other for other in places if other != option and places[other] == place), None)
        if twin is not None:
            raise UsageError(f"{option} and {twin} are both {written[option]}")


def _place(path: str) -> str:
    """Return the file that a path leads to; the path itself, if it is "-" or cannot be one."""
    return path if path == "-" or "\0" in path else os.path.realpath(path)


def summarize(text: str) -> None:
    """Append Markdown to the summary of a step in GitHub Actions. A file that cannot be written is no error."""
    path = os.environ.get(SUMMARY)
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except (OSError, ValueError) as error:
            complain(f"cannot write the summary {path}: {getattr(error, 'strerror', None) or error}")


def write(text: str, path: str) -> None:
    """Write to a file; "-" is standard output, and "" is nowhere."""
    if path == "-":
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")  # as files are, whatever a terminal can show
        print(text.encode("utf-8", "backslashreplace").decode("utf-8"), end="", flush=True)
    elif path:
        files.write(text, path)


def write_json(value: Any, path: str) -> None:
    """Write a value as JSON, one field a line."""
    write(json.dumps(value, indent=1, ensure_ascii=False) + "\n" if path else "", path)
