"""Collects what a run finds: tallies, findings, and what was checked; and makes the report."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from verify_norm.cases.covering import Pairs
from verify_norm.checks import CHECKS, condition
from verify_norm.checks.check import Check
from verify_norm.core.case_words import count
from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import layout_field
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Detectable, Skip, Tally
from verify_norm.core.work import NOTHING, Compiled, Work
from verify_norm.running.environment import environment
from verify_norm.running.runners import Runner
from verify_norm.running.untrusted.runner import UNSEEN
from verify_norm.search.detectable import DetectedErrors
from verify_norm.search.examine import NO_ROOM, Examined
from verify_norm.search.journal import Journal
from verify_norm.search.left_out import skips
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
    the limits, by their wording, and `suggested` those that no error names. `without` has the cases in which an output
    was not returned, `calling` those in which a norm operator of torch ran inside the kernel.
    `saw` is what the compared cases had in them. `detected` has the smallest errors that a check would have detected,
    by check, output and type. `drawn`: from now on the cases are random ones. `pairs` are the pairs of choices that met
    in cases with results; `possible` counts all of them. `pace` tells which sizes the kernel's time allows.
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
    saw: Seen = field(default_factory=Seen)
    layouts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    too_slow: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    detected: defaultdict[tuple[str, str, str], DetectedErrors] = field(
        default_factory=lambda: defaultdict(DetectedErrors)
    )
    drawn: bool = False
    pairs: Pairs | None = None
    possible: int = 0
    seen: set[CaseSpec] = field(default_factory=set)
    ran: list[CaseSpec] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    waiting: list[tuple[Examined, int]] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    suggested: dict[str, str] = field(default_factory=dict)
    without: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    calling: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
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
        self.pace = Pace.of(self.settings)
        wanted = self.settings.checks or CHECKS
        self.checks = tuple(c for name, c in CHECKS.items() if name in wanted and c.applies(OPS[self.kernel.op]))
        for check in self.checks if self.settings.untrusted else ():
            if check.name in UNSEEN:
                self.skipped[f"check {check.name}", UNSEEN[check.name]] += 1

    def leave_out(self, slow: str, spec: CaseSpec, corners: int = 0) -> None:
        """Count a planned case that takes too long, which perhaps is a corner case."""
        self.skipped["cases", slow] += 1
        self.too_slow[slow].append(spec)
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
        near: dict[str, Any] = {layout_field(name): "contiguous" for name in examined.near}
        spec = replace(examined.spec, **near)
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
        self.cases += 1
        if examined.tallies:
            self.compared += 1
            self.saw = self.saw.merge(self._of_case(examined))
            if self.pairs:
                self.pairs.enter(examined.spec)
        self.outputs.update(tally.output for tally in examined.tallies)
        self.hangs += examined.hung
        self.seconds += examined.seconds
        self.looked.update(examined.looked)
        self.layouts.update(examined.layouts)
        self.held.update(examined.observed)
        self.failed.update({finding.check for finding in examined.findings})
        for name in examined.left_out:
            self.skipped[f"check {name}", NO_ROOM] += 1
        if examined.slow:
            self.skipped[
                "further runs of a large case", f"one would take {self.pace.over(self.pace.rerun_seconds)}"
            ] += 1
        for name in examined.missing:
            self.without[name].append(examined.spec)
        for name in examined.operators:
            self.calling[name].append(examined.spec)
        for name in examined.near:
            self.skipped[f"{name} beyond 2³¹ elements", "there is not enough memory"] += 1
        dtypes = {tally.output: tally.dtype for tally in examined.tallies}
        for name, error in examined.detectable:
            detected = self.detected[name, error.output, dtypes[error.output]]
            detected.errors.append((error, examined.spec, not self.drawn))
        for finding in examined.findings:
            key = (finding.check, finding.output)
            self.failing[key].append(finding.spec)
            kept = self.findings.get(key)
            if kept is None or (kept.during and not finding.during):  # keep the one of the case itself
                self.findings[key] = replace(finding, after=number)
        for tally in examined.tallies:
            where = (tally.output, tally.dtype)
            old = self.tallies.get(where)
            self.tallies[where] = old.merge(tally) if old else tally

    def _of_case(self, examined: Examined) -> Seen:
        ways, operators, notes = examined.ways, examined.operators, examined.notes
        return Seen.of(examined.spec, OPS[self.kernel.op], examined.layouts, ways, operators, notes)

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

    def report(
        self,
        findings: Iterable[Finding],
        seconds: float,
        work: Work,
        diagnoses: tuple[Diagnosis, ...] = (),
        outside: str = "",
    ) -> Report:
        """Return the report, with these findings for those that were collected, and what explains them."""
        lacking = (*self._lacking(), *self._falling_back())
        failed = self.cases - self.compared
        if failed and "signature" not in {check.name for check in self.checks}:
            self.skipped["outputs", "none was returned that can be compared; the check signature says why"] = failed
        return make_report(
            self.kernel,
            self.settings,
            {"isolation": self.runner.note} | self._secret(),
            cases=self.cases,
            seconds=seconds,
            seconds_in_kernel=self.seconds,
            findings=condition.each(condition.of_finding, self.kernel, sorted((*findings, *lacking), key=_check)),
            tallies=condition.each(condition.of_tally, self.kernel, sorted(self.tallies.values(), key=self._position)),
            checks=tuple(self._result(check) for check in self.checks),
            skipped=(*skips(self.skipped, self.too_slow, timed=bool(self.pace.seen)), *self._stated()),
            layouts=dict(sorted(self.layouts.items())),
            detectable=tuple(sorted((one.detectable(*key) for key, one in self.detected.items()), key=self._position)),
            interrupted=self.interrupted,
            diagnoses=diagnoses,
            outside=outside,
            coverage=Coverage(
                self.planned,
                self.corners,
                self.corners_done,
                self.refused,
                self.compared,
                dict(self.outputs),
                self.ended,
                self.pairs.met if self.pairs else 0,
                self.possible,
            ),
            seen=self.saw,
            work=work,
        )

    def _secret(self) -> dict[str, str]:
        """Return the seed that made all cases of an untrusted run, which nobody knew before it."""
        return {"seed": str(self.settings.seed)} if self.settings.untrusted else {}

    def _lacking(self) -> Iterator[Finding]:
        """Yield the outputs that a forward returns in some cases only; note those that the kernel never returns."""
        forward = OPS[self.kernel.op].forward is None and "signature" in {check.name for check in self.checks}
        for name, specs in self.without.items():
            # nothing is saved of an empty x, nor by BatchNorm in evaluation
            saved = [spec for spec in specs if spec.training and 0 not in spec.shape]
            if forward and saved and self.outputs[name]:
                self.failed["signature"] += len(saved)
                message = (
                    f"{name}: expected in all cases or in none, but the kernel returns it in {self.outputs[name]} "
                    f"and not in {len(saved)}, as this one, which alone shows nothing"
                )
                yield Finding(self.kernel.name, "signature", name, "fail", message, saved[0], cases=len(saved))
            else:
                self.skipped[f"output {name}", f"{self.kernel.name} does not return it"] = len(specs)

    def _falling_back(self) -> Iterator[Finding]:
        """Yield the norm operators of torch that ran inside a kernel which must be its own."""
        for name, specs in self.calling.items() if self.settings.require_own else ():
            self.failed["honesty"] += len(specs)
            message = (
                f"it falls back to {name} in {len(specs)} of {count(self.cases, 'case')}; --require-own forbids it"
            )
            yield Finding(self.kernel.name, "honesty", None, "fail", message, specs[0], cases=len(specs))

    def _stated(self) -> Iterator[Skip]:
        """Yield the limits that the kernel states, each with the number of cases that it leaves out."""
        counts = Counter(self.limits[one.wording] for one in self.raised if one.wording in self.limits)
        yield from (Skip("cases", reason, count, limit=True) for reason, count in counts.items())

    def _result(self, check: Check) -> CheckResult:
        name = check.name
        held, broken = self.held[name, True], self.held[name, False]
        counts = (self.looked[name], self.failed[name], held, held + broken)
        return CheckResult(name, check.summary, *counts, *(("", True) if self.looked[name] else self._no_data(check)))

    def _no_data(self, check: Check) -> tuple[str, bool]:
        """Return why a check had nothing to look at, and whether the kernel offers what it needs."""
        if not self.cases:
            return "no case ran", True
        if check.name == "crash" and not self.runner.isolated:
            return f"the kernel does not run in a process of its own; isolation {self.runner.note}", False
        if not self.compared:
            return f"the kernel returned no output that can be compared in {count(self.cases, 'case')}", True
        lacking = check.lacks(self.kernel, self.outputs)
        return lacking or f"nothing to look at in {count(self.cases, 'case')}", not lacking and not self.kernel.only

    def _position(self, one: Tally | Detectable) -> tuple[int, int, int]:
        names = [tensor.name for tensor in OPS[self.kernel.op].outputs]
        check = _check(one) if isinstance(one, Detectable) else 0
        return check, names.index(one.output), list(FORMATS).index(one.dtype)


def _check(one: Finding | Detectable) -> int:
    return list(CHECKS).index(one.check)


def make_report(kernel: Kernel, settings: Settings, facts: dict[str, str], **found: Any) -> Report:
    """Return the report of a run: who the kernel is and where it ran, with `found`, the other fields of Report."""
    return Report(
        kernel=kernel.name,
        op=kernel.op,
        target=kernel.target,
        backend=kernel.backend,
        contract=kernel.contract,
        settings=settings,
        environment=environment(settings.device) | facts,
        bind=kernel.bind,
        only=kernel.only,
        **found,
    )
