"""What is said of a Report: commands that run it again, its findings as text, and why it checked nothing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from verify_norm.core.case_words import case, count, told_apart
from verify_norm.core.coverage import barely, of_time
from verify_norm.core.diagnosis import option_of, sentence
from verify_norm.core.errors import Exit
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding
from verify_norm.core.only import joined
from verify_norm.core.serial import spec_text
from verify_norm.core.settings import DEFAULTS
from verify_norm.core.spec import CaseSpec

if TYPE_CHECKING:
    from verify_norm.core.results import Report  # which imports this module


def unchecked(report: Report, of: str = "") -> str:
    """Return that a run checked nothing `of` an operator, or almost nothing, and why."""
    done, said = report.coverage, "nothing was checked" + (f" of {of}" if of else "")
    told = sorted(report.skipped, key=lambda skip: not skip.limit)  # what the kernel says itself comes first
    idle = {f"check {name}" for name in report.settings.checks} & {skip.what for skip in told}
    if idle and len(idle) == len({*report.settings.checks}):  # none of those that were asked for applies
        told = [skip for skip in told if skip.what in idle]
    told = [skip for skip in told if not skip.what.startswith("check ")] or told  # other such checks explain less
    told = [skip for skip in told if not of_time(skip.reason)] or told
    why = [f"{skip.what}: {skip.reason}" for skip in told]
    if report.only_empty and report.cases:
        said += ": x has no element in all cases that ran"
        why = [reason for reason in why if reason.startswith("cases: ")]
    elif done is None or not done.compared or not barely(done.compared, report.cases + done.refused):
        why += [check.no_data for check in report.checks if check.no_data and report.cases]
    else:
        tried = count(report.cases + done.refused, "case")
        said = f"almost {said}: outputs were compared in {done.compared} of {tried}"
        why = [reason for reason in why if reason.startswith(("cases: ", "outputs: "))]
    return f"{said}. {'; '.join(dict.fromkeys(why))}"


def gap(report: Report) -> str:
    """Return why a run is no evidence, whatever it found: it checked nothing, or it is incomplete; else ""."""
    if report.verdict is Exit.NOTHING:
        return unchecked(report)
    return f"incomplete: {report.unfinished}" if report.unfinished and not report.settings.allow_incomplete else ""


def replay_line(report: Report, spec: CaseSpec) -> str:
    """Return the command that runs a case again; a call, if no command can find the kernel."""
    settings = report.settings
    if not report.target:
        text = spec_text(report.kernel, spec, report.op)
        own = ", require_own=True" if settings.require_own else ""
        return f"verify_norm.replay(<the kernel>, {text!r}{own})"
    line = command(report.kernel, report.op, spec, report.bind, settings.contract, settings.only)
    return " ".join([line, *_flags(report)])


def _flags(report: Report) -> list[str]:
    """Return the switches of the run that a command repeats."""
    settings = report.settings
    given = {"--require-own": settings.require_own, "--untrusted": settings.untrusted}
    return [name for name, is_set in given.items() if is_set]


def command(kernel: str, op: str, spec: CaseSpec, bind: str = "", contract: str = "", only: str = "") -> str:
    """Return the command that runs a case of a kernel again, quoted for a shell."""
    text = spec_text(kernel, spec, None if kernel == op else op)
    options = {"--bind": bind, "--contract": contract, "--only": only}
    given = [f" {name} {shlex.quote(value)}" for name, value in options.items() if value]
    return f"verify-norm replay {shlex.quote(text)}{''.join(given)}"


def explanation(report: Report, finding: Finding) -> str:
    """Return which weaker contract explains a finding, or that none is known to; "" where nobody looked for one.

    That no contract explains an exception says nothing.
    """
    found = (one for one in report.diagnoses if one.output == finding.output)
    told = (sentence(one, report.settings.contract) for one in found if one.contract or finding.status == "fail")
    return next(told, "")


def declaration(report: Report) -> str:
    """Return the --contract that explains all findings; "" where there is none."""
    contracts = tuple(dict.fromkeys(one.contract for one in report.diagnoses))
    return option_of(contracts, report.settings.contract) if all(contracts) and contracts else ""


def next_step(report: Report) -> tuple[str, str]:
    """Return what would settle all findings, in words, and the command that declares it; "" and "" if nothing would."""
    contract, only = declaration(report), report.outside
    if contract:
        meant = f"if the kernel is meant to do so, --contract {contract} declares it"
        settled = f"a weaker contract explains all findings: {meant}"
        return settled, run_line(report, contract, report.settings.only)
    if only and report.findings:
        settled = f"no case within --only {only} fails, and most others do; if the kernel takes no others, declare it"
        return settled, run_line(report, report.settings.contract, joined(report.settings.only, only))
    return "", ""


def run_line(report: Report, contract: str, only: str) -> str:
    """Return the command that checks the kernel again under another contract, or with other cases."""
    settings = report.settings
    if not report.target:
        given = {"contract": contract, "only": only, "require_own": settings.require_own}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
        return f"verify_norm.verify(<the kernel>, {arguments})"
    options = {
        "--kernel": report.kernel,
        "--op": report.op if report.op != report.kernel else "",
        "--bind": report.bind,
        "--dtype": ",".join(settings.dtypes) if settings.dtypes != DEFAULTS.dtypes else "",
        "--checks": ",".join(settings.checks),
        "--contract": contract,
        "--only": only,
    }
    words = [f"{name} {shlex.quote(value)}" for name, value in options.items() if value]
    return " ".join(["verify-norm", *words, *_flags(report)])


def cases(report: Report) -> str:
    """Return how many cases were checked, such as "478 cases", or "400 of 478 cases" if some were left out."""
    left_out = sum(skip.cases for skip in report.skipped if skip.what == "cases")
    if left_out:
        return f"{report.cases:,} of {report.cases + left_out:,} cases"
    return count(report.cases, "case")


def facts(report: Report, finding: Finding) -> dict[str, str]:
    """Return what there is to say of the smallest case that shows a finding, and the command that replays it."""
    valued = finding.got is not None and finding.want is not None
    off, allowed = finding.ulp, finding.allowed
    ulp, most = told_apart(0.0 if off is None else off, 0.0 if allowed is None else allowed)
    away = []
    if off is not None:
        away.append(f"{ulp} ULP away")
    if allowed is not None:
        away.append(f"{most} allowed")
    seen_in = count(finding.cases, "case")
    if finding.after > 1:
        seen_in += f", first in case {finding.after}"
    rows = {
        "case": case(finding.spec),
        "data": str(finding.condition or ""),
        "element": element(finding.output or "", finding.index) if finding.index and finding.row is None else "",
        "sum over": f"{finding.output} of row {finding.row}" if finding.row is not None else "",
        "got": repr(finding.got) if valued else "",
        "expected": f"{finding.want!r}   {', '.join(away)}".rstrip() if valued else "",
        "seen in": seen_in,
        "during": finding.during or "",
        "contract": explanation(report, finding),
        "replay": replay_line(report, finding.spec),
    }
    return {name: text for name, text in rows.items() if text}


def failure(report: Report, finding: Finding) -> str:
    """Return a finding as text: its message, and below it its `facts`."""
    return "\n".join((finding.message, *(f"  {name:<9} {text}" for name, text in facts(report, finding).items())))


def failures(report: Report) -> str:
    """Return all findings of a report, or why it does not pass without any; "" if it passes."""
    title = f"{report.kernel} ({report.op})" if report.op not in report.kernel else report.kernel
    if report.findings:
        lines = [f"{title}: {count(len(report.findings), 'finding')} in {cases(report)}"]
        lines += [f"{finding.check}: {failure(report, finding)}" for finding in report.findings]
        settled, line = next_step(report)
        if settled:
            lines.append(f"{settled}:\n  {line}")
        return "\n".join(lines)
    reason = gap(report)
    return f"{title}: {reason}" if reason else ""
