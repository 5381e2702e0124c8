"""The Report: everything that a run found, as frozen data."""

from collections.abc import Iterable
from dataclasses import dataclass

from verify_norm.core import report_text
from verify_norm.core.case_words import count
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage, Seen, barely
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.finding import Finding
from verify_norm.core.only import words
from verify_norm.core.proved import Proved
from verify_norm.core.rendering import Rendered
from verify_norm.core.settings import Settings
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
    target : where it was found, such as "path/file.py:attr"; "" if no command can find it.
    backend : what it is written in, such as "triton".
    contract : what it promises.
    settings : the options of the run.
    environment : versions and hardware, by name.
    cases : the number of cases that ran to their end.
    seconds : the time of the run.
    seconds_in_kernel : the time in calls of the kernel without compilation; of several processes it adds up.
    findings : what is wrong, each with the smallest case that shows it.
    tallies : the errors of each output in each type.
    checks : each check that applies, with the number of its cases.
    skipped : what was not checked, and why.
    layouts : the number of cases with each layout, such as "x transposed".
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
        who, cases = f"{self.kernel} ({self.op})", report_text.cases(self)
        return f"<Report {who}: {self.verdict.name}, {cases}, {len(self.findings)} findings>"

    def raise_for_findings(self) -> None:
        """Raise FindingsError with all findings if there are any, if nothing was checked, or if the run is incomplete.

        An incomplete run is no error with `allow_incomplete`.
        """
        text = report_text.failures(self)
        if text:
            raise FindingsError(text)

    @property
    def process_seconds(self) -> float:
        """Return the seconds of all processes that examined cases at the same time."""
        return self.seconds * (self.work.workers if self.work else 1)

    @property
    def checked(self) -> bool:
        """Return whether checks had something to check: an output was compared in a tenth of the tried cases.

        Cases without elements are not enough, where the kernel refuses others.
        """
        return any(check.cases for check in self.checks) and not self._barely_compared

    @property
    def within(self) -> str:
        """Return " for 2-D input" if a kernel takes no other, ", within its limits" if it refuses cases in words."""
        taken = f" for {words(self.only)}" if self.only else ""
        limited = any(skip.limit for skip in self.skipped)
        return f"{taken}, within its limits" if limited else taken

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
        return done is not None and (barely(done.compared, self._tried) or self.only_empty)

    @property
    def only_empty(self) -> bool:
        """Return whether the kernel refused cases, and x had no element in all that were compared."""
        done, seen = self.coverage, self.seen
        return done is not None and done.refused > 0 and seen is not None and not seen.elements


def worst_of(verdicts: Iterable[Exit], *, every: bool = True) -> Exit:
    """Return the verdict on several runs; without `every`, those that checked nothing count only if all did."""
    found = list(verdicts)
    if not every and any(verdict is not Exit.NOTHING for verdict in found):
        found = [verdict for verdict in found if verdict is not Exit.NOTHING]
    return min((verdict for verdict in found if verdict), default=Exit.PASS)
