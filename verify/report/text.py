"""Findings as plain text: what failed, where, got, wanted, what was allowed, and the line that replays it."""

from __future__ import annotations

import shlex

from verify_norm.registry import BUILTIN
from verify_norm.report.json import spec_text
from verify_norm.report.model import Report
from verify_norm.spec import CaseSpec, Finding


def replay_line(report: Report, spec: CaseSpec) -> str:
    """The command that runs a case again, or where no command can find the kernel, the call."""
    if not report.target:
        return f"verify_norm.replay(<the kernel>, {spec_text(report.kernel, spec, report.op)!r})"
    return command(report.kernel, report.op, spec, report.bind)


def command(kernel: str, op: str, spec: CaseSpec, bind: str = "") -> str:
    """The command that runs a case of a kernel again; its parts are quoted for a shell."""
    text = spec_text(kernel, spec, None if kernel in BUILTIN else op)
    return f"verify-norm replay {shlex.quote(text)}" + (f" --bind {shlex.quote(bind)}" if bind else "")


def cases(report: Report) -> str:
    """How many cases were checked, and of how many, where the time or the kernel left some out."""
    left = sum(skip.cases for skip in report.skipped if skip.what == "cases")
    said = f"{report.cases} of {report.cases + left}" if left else f"{report.cases}"
    return f"{said} case{'s' * (left > 0 or report.cases != 1)}"


def failure(report: Report, finding: Finding) -> str:
    """One finding, as an assertion shows it."""
    lines = [finding.message]
    if finding.got is not None and finding.want is not None:
        lines.append(f"got {finding.got!r}   want {finding.want!r}")
    lines.append(f"replay: {replay_line(report, finding.spec)}")
    return "\n  ".join(lines)


def failures(report: Report) -> str:
    """All findings of a report, or why there is nothing that could pass; "" where it is ok."""
    title = f"{report.kernel} ({report.op})" if report.op not in report.kernel else report.kernel
    if report.findings:
        kinds = len(report.findings)
        first = f"{title}: {kinds} finding{'s' * (kinds != 1)} in {cases(report)}"
        return "\n".join((first, *(f"{f.check}: {failure(report, f)}" for f in report.findings)))
    if not report.checked:
        return f"{title}: nothing was checked. " + "; ".join(f"{skip.what}: {skip.reason}" for skip in report.skipped)
    return "" if report.ok else f"{title}: the run was interrupted"
