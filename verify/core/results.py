"""The Report: everything that a run found, as frozen data, and its findings as text."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from verify_norm.core.case_words import case, count, told_apart
from verify_norm.core.coverage import Coverage, Seen, barely
from verify_norm.core.diagnosis import Diagnosis, option_of, sentence
from verify_norm.core.errors import Exit
from verify_norm.core.errors import FindingsError as FindingsError
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding
from verify_norm.core.only import joined, words
from verify_norm.core.proved import Proved
from verify_norm.core.rendering import Rendered
from verify_norm.core.serial import spec_text
from verify_norm.core.settings import DEFAULTS, Settings
from verify_norm.core.spec import CaseSpec, Contract
from verify_norm.core.tally import CheckResult, Detectable, Skip, Tally
from verify_norm.core.work import Work

SCHEMA = 1


@dataclass(frozen=True, slots=True, repr=False)
class Report(Rendered):
    """The verdict on one kernel, and all the evidence for it. `print` shows what the command line prints.

    Parameters
    ----------
    kernel : the kernel's name.
    op : the operator that it was checked as.
    target : where it was found, as "path/file.py:attr"; "" if no command can find it.
    backend : what it is written in, as "triton".
    contract : what it promises.
    settings : the options of the run.
    environment : versions and hardware, by name.
    cases : the number of cases that ran to their end.
    seconds : the time of the run.
    seconds_in_kernel : the time in calls of the kernel; of several processes it adds up.
    findings : what is wrong, each with the smallest case that shows it.
    tallies : the errors of each output in each type.
    checks : each check that applies, with the number of its cases.
    skipped : what was not checked, and why.
    layouts : the number of cases with each layout, as "x transposed".
    detectable : the smallest errors that checks would have detected; empty in a report of an older verify-norm.
    interrupted : whether the user ended the run.
    bind : the --bind with which it ran.
    diagnoses : which contract explains the findings of each output, and of the call.
    coverage : how much of the run was done; None in a report of an older verify-norm.
    seen : what the cases had in them; None in a report of an older verify-norm.
    only : what the kernel takes, by its declaration, its constants and the settings; "" for all cases.
    outside : the --only within which no case failed, though most cases outside it did; "" if there is none.
    work : what the run spent on other things than cases; None in a report of an older verify-norm.
    proofs : what the certificates of --certificate say of the kernel.
    schema : the version of the JSON document.
    """

    kernel: str
    op: str
    target: str
    backend: str
    contract: Contract
    settings: Settings
    environment: dict[str, str]
    cases: int
    seconds: float
    seconds_in_kernel: float
    findings: tuple[Finding, ...]
    tallies: tuple[Tally, ...]
    checks: tuple[CheckResult, ...]
    skipped: tuple[Skip, ...]
    layouts: dict[str, int]
    detectable: tuple[Detectable, ...] = ()
    interrupted: bool = False
    bind: str = ""
    diagnoses: tuple[Diagnosis, ...] = ()
    coverage: Coverage | None = None
    seen: Seen | None = None
    only: str = ""
    outside: str = ""
    work: Work | None = None
    proofs: tuple[Proved, ...] = ()
    schema: int = SCHEMA

    def __repr__(self) -> str:
        """Return the verdict on one line."""
        return f"<Report {self.kernel} ({self.op}): {self.verdict.name}, {cases(self)}, {len(self.findings)} findings>"

    def raise_for_findings(self) -> None:
        """Raise FindingsError with all findings if there are any, if nothing was checked, or if the run is incomplete.

        An incomplete run is no error with `allow_incomplete`.
        """
        if text := failures(self):
            raise FindingsError(text)

    @property
    def process_seconds(self) -> float:
        """Return the seconds of all processes that examined cases at the same time."""
        return self.seconds * (self.work.workers if self.work else 1)

    @property
    def checked(self) -> bool:
        """Return whether any check had something to check, and an output was compared in a tenth of the tried cases."""
        return any(check.cases for check in self.checks) and not self._barely_compared

    @property
    def within(self) -> str:
        """Return " for 2-D input" if a kernel takes no other, ", within its limits" if it refuses cases in words."""
        taken = f" for {words(self.only)}" if self.only else ""
        return taken + ", within its limits" * any(skip.limit for skip in self.skipped)

    @property
    def unfinished(self) -> str:
        """Return how many corner cases ran and why not all of them, "" if all ran."""
        done = self.coverage
        if done is None:
            return f"the run was interrupted after {count(self.cases, 'case')}" if self.interrupted else ""
        if done.corners_done == done.corners and not self.interrupted:
            return ""
        return f"{done.corners_done} of {done.corners} corner cases ran: {done.ended}"

    @property
    def verdict(self) -> Exit:
        """Return the verdict, which is the exit status of the run alone."""
        if self.findings:
            return Exit.FINDINGS
        if self._barely_compared and self._tried:
            return Exit.NOTHING
        if self.unfinished and not self.settings.allow_incomplete:
            return Exit.INCOMPLETE
        return Exit.PASS if self.checked else Exit.NOTHING

    @property
    def ok(self) -> bool:
        """Return whether the run was complete or need not be, checked something, and found nothing."""
        return self.verdict is Exit.PASS

    @property
    def _tried(self) -> int:
        return self.cases + (self.coverage.refused if self.coverage else 0)

    @property
    def _barely_compared(self) -> bool:
        done = self.coverage
        return done is not None and barely(done.compared, self._tried)


def worst_of(verdicts: Iterable[Exit], *, every: bool = True) -> Exit:
    """Return the verdict on several runs; without `every`, those that checked nothing count only if all did."""
    found = list(verdicts)
    if not every and any(verdict is not Exit.NOTHING for verdict in found):
        found = [verdict for verdict in found if verdict is not Exit.NOTHING]
    return min((verdict for verdict in found if verdict), default=Exit.PASS)


def unchecked(report: Report, of: str = "") -> str:
    """Return that a run checked nothing `of` an operator, or almost nothing, and why."""
    done, said = report.coverage, "nothing was checked" + (f" of {of}" if of else "")
    why = [f"{skip.what}: {skip.reason}" for skip in report.skipped]
    why = [reason for reason in why if not reason.startswith("check ")] or why  # checks that do not apply explain less
    if done is None or not done.compared or not barely(done.compared, report.cases + done.refused):
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
    own = report.settings.require_own
    if not report.target:
        text = spec_text(report.kernel, spec, report.op)
        return f"verify_norm.replay(<the kernel>, {text!r}{', require_own=True' * own})"
    line = command(report.kernel, report.op, spec, report.bind, report.settings.contract, report.settings.only)
    return line + " --require-own" * own + " --untrusted" * report.settings.untrusted


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
        settled = f"a weaker contract explains all findings: --contract {contract} declares it"
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
        return f"verify_norm.verify(<the kernel>, {', '.join(f'{k}={v!r}' for k, v in given.items() if v)})"
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
    words += ["--require-own"] * settings.require_own + ["--untrusted"] * settings.untrusted
    return " ".join(["verify-norm", *words])


def cases(report: Report) -> str:
    """Return how many cases were checked, as "478 cases", or "400 of 478 cases" if some were left out."""
    left_out = sum(skip.cases for skip in report.skipped if skip.what == "cases")
    if left_out:
        return f"{report.cases} of {report.cases + left_out} cases"
    return count(report.cases, "case")


def facts(report: Report, finding: Finding) -> dict[str, str]:
    """Return what there is to say of the smallest case that shows a finding, and the command that replays it."""
    valued = finding.got is not None and finding.want is not None
    off, allowed = finding.ulp, finding.allowed
    ulp, most = told_apart(0.0 if off is None else off, 0.0 if allowed is None else allowed)
    away = [f"{ulp} ULP away"] * (off is not None) + [f"{most} allowed"] * (allowed is not None)
    rows = {
        "case": case(finding.spec),
        "data": str(finding.condition or ""),
        "element": element(finding.output or "", finding.index) if finding.index and finding.row is None else "",
        "sum over": f"{finding.output} of row {finding.row}" if finding.row is not None else "",
        "got": repr(finding.got) if valued else "",
        "expected": f"{finding.want!r}   {', '.join(away)}".rstrip() if valued else "",
        "seen in": count(finding.cases, "case") + f", first in case {finding.after}" * (finding.after > 1),
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
        kinds = len(report.findings)
        first = f"{title}: {kinds} finding{'s' * (kinds != 1)} in {cases(report)}"
        settled, line = next_step(report)
        last = [f"{settled}:\n  {line}"] if settled else []
        return "\n".join((first, *(f"{f.check}: {failure(report, f)}" for f in report.findings), *last))
    return f"{title}: {reason}" if (reason := gap(report)) else ""
