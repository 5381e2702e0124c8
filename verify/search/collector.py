"""Collects what a run finds: tallies, findings, and what was checked."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from verify_norm.cases.covering import Pairs
from verify_norm.checks import CHECKS
from verify_norm.checks.check import Check
from verify_norm.core.coverage import Seen
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import layout_field
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, having
from verify_norm.core.tally import Tally
from verify_norm.core.work import NOTHING, Compiled
from verify_norm.running.runners import Runner
from verify_norm.running.untrusted.runner import UNSEEN
from verify_norm.search.detectable import DetectedErrors, ErrorOfCase
from verify_norm.search.examined import NO_ROOM, Examined
from verify_norm.search.journal import Journal
from verify_norm.search.limits import Raised, hints, separating, stated, wording
from verify_norm.search.pace import Pace

NO_JOURNAL = Journal(None, resume=False)


@dataclass(slots=True)
class Collector:
    """What a run has found so far.

    `looked` and `failed` count the cases of each check. `held` counts those in which a property that the kernel does
    not promise held, and those in which it did not. `skipped` counts what was not checked, by what and why; `too_slow`
    has the cases of such a reason. `failing` has the cases of each finding; `seconds` are those inside the kernel.
    `planned` to `ended` are those of `verify_norm.core.coverage.Coverage`. Cases in which the kernel raises an error
    that names a limit are `waiting`, with their number, until `settle` knows all cases that `ran`: then `limits` has
    the limits, by their wording, and `suggested` those that no error names. `not_returned` has the cases in which an
    output was not returned, `falling_back` those in which a norm operator of torch ran inside the kernel. `entered` are
    all cases so far, and `contents` is what the compared ones had in them. `detected` has the smallest errors that a
    check would have detected, by check, output and type. `drawn`: from now on the cases are random ones. `pairs` are
    the pairs of choices that met in cases with results; `possible` counts all of them. `pace` tells which sizes the
    kernel's time allows.
    """

    kernel: Kernel
    settings: Settings
    runner: Runner
    journal: Journal = NO_JOURNAL
    pace: Pace = field(init=False)
    checks: tuple[Check, ...] = ()
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    findings: dict[tuple[str, str | None], Finding] = field(default_factory=dict)
    looked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    held: Counter[tuple[str, bool]] = field(default_factory=Counter)
    failing: defaultdict[tuple[str, str | None], list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    contents: Seen = field(default_factory=Seen)
    layouts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    too_slow: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    detected: defaultdict[tuple[str, str, str], DetectedErrors] = field(
        default_factory=lambda: defaultdict(DetectedErrors)
    )
    drawn: bool = False
    pairs: Pairs | None = None
    possible: int = 0
    entered: set[CaseSpec] = field(default_factory=set)
    ran: list[CaseSpec] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    waiting: list[tuple[Examined, int]] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    suggested: dict[str, str] = field(default_factory=dict)
    not_returned: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    falling_back: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    cases: int = 0
    tried: int = 0
    planned: int = 0
    corners: int = 0
    corners_done: int = 0
    refused: int = 0
    compared: int = 0
    outputs: Counter[str] = field(default_factory=Counter)
    ended: str = ""
    hangs: int = 0
    seconds: float = 0.0  # inside the kernel
    compiled: Compiled = NOTHING
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Choose the checks that apply, and begin to note how long cases take."""
        self.pace = Pace.of(self.settings, OPS[self.kernel.op])
        wanted = self.settings.checks or CHECKS
        self.checks = tuple(c for name, c in CHECKS.items() if name in wanted and c.applies(OPS[self.kernel.op]))
        if self.settings.untrusted:
            for check in self.checks:
                if check.name in UNSEEN:
                    self.skipped[f"check {check.name}", UNSEEN[check.name]] += 1

    def leave_out(self, reason: str, spec: CaseSpec, corners: int = 0) -> None:
        """Count a planned case that takes too long; `corners` is 1 for a corner case."""
        self.skipped["cases", reason] += 1
        self.too_slow[reason].append(spec)
        self.planned -= 1
        self.corners -= corners

    def enter(self, examined: Examined) -> None:
        """Add the results of one case."""
        self.compiled += examined.compiled
        if examined.unsupported is not None:
            self.skipped["cases", examined.unsupported] += 1
            self.refused += 1
            return
        self.tried += 1
        spec = having(examined.spec, {layout_field(name): "contiguous" for name in examined.near})  # as it ran
        if examined.problem is not None:
            self.raised.append(Raised(spec, examined.problem, examined.limits))
        elif "crash" not in {finding.check for finding in examined.findings}:
            self.ran.append(spec)
        if examined.limits:
            self.waiting.append((examined, self.tried))
        else:
            self._count(examined, self.tried)

    def settle(self, *, alone: bool = False) -> None:
        """Decide which cases the kernel refuses and in which it fails, now that all have run."""
        self.limits = stated(self.kernel, self.raised, self.ran, alone=alone)
        self.suggested = hints(self.kernel, self.raised, self.ran)
        for examined, number in self.waiting:
            if self.excuse(examined):
                self.refused += 1
            else:
                self._count(examined, number)
        self.waiting.clear()

    def excuse(self, examined: Examined) -> str | None:
        """Return the limit of the kernel outside of which a case lies; None if there is none."""
        if not examined.limits or examined.problem is None:
            return None
        return self.limits.get(wording(examined.problem))

    def _count(self, examined: Examined, number: int) -> None:
        """Add the results of a case that the kernel does not refuse: the `number`-th that was tried."""
        self.cases += 1
        self.hangs += examined.hung
        self.seconds += examined.seconds
        self.looked.update(examined.looked)
        self.layouts.update(examined.layouts)
        self.held.update(examined.observed)
        for name in examined.missing:
            self.not_returned[name].append(examined.spec)
        for name in examined.operators:
            self.falling_back[name].append(examined.spec)
        self._count_compared(examined)
        self._count_left_out(examined)
        self._count_findings(examined, number)

    def _count_compared(self, examined: Examined) -> None:
        """Add the errors of the outputs that were compared, and what the checks would have detected in them."""
        if not examined.tallies:
            return
        self.compared += 1
        ways, operators, notes = examined.ways, examined.operators, examined.notes
        contents = Seen.of(examined.spec, OPS[self.kernel.op], examined.layouts, ways, operators, notes)
        self.contents = self.contents.merge(contents)
        if self.pairs:
            self.pairs.enter(examined.spec)
        for tally in examined.tallies:
            self.outputs[tally.output] += 1
            key = (tally.output, tally.dtype)
            before = self.tallies.get(key)
            self.tallies[key] = before.merge(tally) if before else tally
        dtypes = {tally.output: tally.dtype for tally in examined.tallies}
        for check, error in examined.detectable:
            detected = self.detected[check, error.output, dtypes[error.output]]
            detected.errors.append(ErrorOfCase(error, examined.spec, corner=not self.drawn))

    def _count_left_out(self, examined: Examined) -> None:
        """Count what a case ran without: checks, further runs, layouts."""
        for name in examined.left_out:
            self.skipped[f"check {name}", NO_ROOM] += 1
        if examined.slow:
            reason = f"one would take {self.pace.over(self.pace.rerun_seconds)}"
            self.skipped["further runs of a large case", reason] += 1
        for name in examined.near:
            self.skipped[f"{name} beyond 2³¹ elements", "there is not enough memory"] += 1

    def _count_findings(self, examined: Examined, number: int) -> None:
        """Add the findings of a case; of each check and output the first is kept, and one of a case itself if any."""
        self.failed.update({finding.check for finding in examined.findings})
        for finding in examined.findings:
            key = (finding.check, finding.output)
            self.failing[key].append(finding.spec)
            kept = self.findings.get(key)
            if kept is None or (kept.during and not finding.during):
                self.findings[key] = replace(finding, after=number)

    def counted(self, finding: Finding) -> Finding:
        """Return the finding with the number of cases that show it, and with the limit that they may have in common."""
        key, message = (finding.check, finding.output), finding.message
        if finding.check == "signature" and finding.status == "error":
            hint = self.suggested.get(wording(message))
            message = f"{message}; {hint}" if hint else message
        return replace(finding, message=message, cases=len(self.failing[key]), after=self.findings[key].after)

    def outside(self) -> str:
        """Return the --only within which no case has findings, though most others have; "" if there is none."""
        failed = [spec for specs in self.failing.values() for spec in specs]
        return separating(self.kernel, failed, self.ran, [one.problem for one in self.raised])
