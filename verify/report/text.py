"""Findings as plain text: what failed, where, got, wanted, what was allowed, and the line that replays it."""

from __future__ import annotations

from verify_norm.registry import BUILTIN
from verify_norm.report.json import spec_text
from verify_norm.report.model import Report
from verify_norm.spec import CaseSpec, Finding


def replay_line(report: Report, spec: CaseSpec) -> str:
    """The command that runs a case again, or where no command can find the kernel, the call."""
    text = spec_text(report.kernel, spec, None if report.kernel in BUILTIN else report.op)
    if not report.target:
        return f"verify_norm.replay(<the kernel>, {text!r})"
    bind = f" --bind '{report.bind}'" if report.bind else ""
    return f"verify-norm replay '{text}'{bind}"


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
        first = f"{title}: {kinds} finding{'s' * (kinds != 1)} in {report.cases} cases"
        return "\n".join((first, *(f"{f.check}: {failure(report, f)}" for f in report.findings)))
    if not report.checked:
        return f"{title}: nothing was checked. " + "; ".join(f"{skip.what}: {skip.reason}" for skip in report.skipped)
    return "" if report.ok else f"{title}: the run was interrupted"
