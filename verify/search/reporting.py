"""Makes the report of what a run has collected."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from verify_norm.checks import CHECKS, condition
from verify_norm.checks.check import Check
from verify_norm.core.case_words import count
from verify_norm.core.coverage import Coverage
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.tally import CheckResult, Detectable, Skip, Tally
from verify_norm.core.work import Work
from verify_norm.running.environment import environment
from verify_norm.search.collector import Collector
from verify_norm.search.left_out import skips


def report(
    state: Collector,
    findings: Iterable[Finding],
    seconds: float,
    work: Work,
    diagnoses: tuple[Diagnosis, ...] = (),
    outside: str = "",
) -> Report:
    """Return the report, with these findings for those that were collected, and what explains them."""
    lacking = (*_lacking(state), *_falling_back(state))
    position = partial(_position, state)
    not_compared = state.cases - state.compared
    if not_compared and "signature" not in {check.name for check in state.checks}:
        state.skipped["outputs", "none was returned that can be compared; the check signature says why"] = not_compared
    return make_report(
        state.kernel,
        state.settings,
        {"isolation": state.runner.note} | _secret(state),
        cases=state.cases,
        seconds=seconds,
        seconds_in_kernel=state.seconds,
        findings=condition.each(condition.of_finding, state.kernel, sorted((*findings, *lacking), key=_check)),
        tallies=condition.each(condition.of_tally, state.kernel, sorted(state.tallies.values(), key=position)),
        checks=tuple(_result(state, check) for check in state.checks),
        skipped=(*skips(state.skipped, state.too_slow, timed=bool(state.pace.seen)), *_stated(state)),
        layouts=dict(sorted(state.layouts.items())),
        detectable=tuple(sorted((one.detectable(*key) for key, one in state.detected.items()), key=position)),
        interrupted=state.interrupted,
        diagnoses=diagnoses,
        outside=outside,
        coverage=Coverage(
            planned=state.planned,
            corners=state.corners,
            corners_done=state.corners_done,
            refused=state.refused,
            compared=state.compared,
            outputs=dict(state.outputs),
            ended=state.ended,
            pairs=state.pairs.met if state.pairs else 0,
            possible=state.possible,
        ),
        seen=state.contents,
        work=work,
    )


def _secret(state: Collector) -> dict[str, str]:
    """Return the seed that made all cases of an untrusted run, which nobody knew before it."""
    return {"seed": str(state.settings.seed)} if state.settings.untrusted else {}


def _lacking(state: Collector) -> Iterator[Finding]:
    """Yield the outputs that a forward returns in some cases only; note those that the kernel never returns."""
    forward = OPS[state.kernel.op].forward is None and "signature" in {check.name for check in state.checks}
    for name, specs in state.not_returned.items():
        # nothing is saved of an empty x, nor by BatchNorm in evaluation
        saved = [spec for spec in specs if spec.training and 0 not in spec.shape]
        if forward and saved and state.outputs[name]:
            state.failed["signature"] += len(saved)
            message = (
                f"{name}: expected in all cases or in none, but the kernel returns it in {state.outputs[name]} "
                f"and not in {len(saved)}, as this one, which alone shows nothing"
            )
            yield Finding(state.kernel.name, "signature", name, "fail", message, saved[0], cases=len(saved))
        else:
            state.skipped[f"output {name}", f"{state.kernel.name} does not return it"] = len(specs)


def _falling_back(state: Collector) -> Iterator[Finding]:
    """Yield the norm operators of torch that ran inside a kernel which must be its own."""
    if not state.settings.require_own:
        return
    for name, specs in state.falling_back.items():
        state.failed["honesty"] += len(specs)
        message = f"it falls back to {name} in {len(specs)} of {count(state.cases, 'case')}; --require-own forbids it"
        yield Finding(state.kernel.name, "honesty", None, "fail", message, specs[0], cases=len(specs))


def _stated(state: Collector) -> Iterator[Skip]:
    """Yield the limits that the kernel states, each with the number of cases that it leaves out."""
    reasons = Counter(state.limits[one.wording] for one in state.raised if one.wording in state.limits)
    for reason, cases in reasons.items():
        yield Skip("cases", reason, cases, limit=True)


def _result(state: Collector, check: Check) -> CheckResult:
    """Return in how many cases a check looked, failed, and saw a property held that the kernel does not promise."""
    name = check.name
    looked, held, broken = state.looked[name], state.held[name, True], state.held[name, False]
    no_data, offered = ("", True) if looked else _no_data(state, check)
    return CheckResult(name, check.summary, looked, state.failed[name], held, held + broken, no_data, offered)


def _no_data(state: Collector, check: Check) -> tuple[str, bool]:
    """Return why a check had nothing to look at, and whether the kernel offers what it needs."""
    if not state.cases:
        return "no case ran", True
    if check.name == "crash" and not state.runner.isolated:
        return f"the kernel does not run in a process of its own; isolation {state.runner.note}", False
    if not state.compared:
        return f"the kernel returned no output that can be compared in {count(state.cases, 'case')}", True
    lacking = check.lacks(state.kernel, state.outputs)
    if lacking:
        return lacking, False
    return f"nothing to look at in {count(state.cases, 'case')}", not state.kernel.only


def _position(state: Collector, one: Tally | Detectable) -> tuple[int, int, int]:
    """Return what sorts by check, then by output and by type, each in the order of its table."""
    names = [tensor.name for tensor in OPS[state.kernel.op].outputs]
    check = _check(one) if isinstance(one, Detectable) else 0
    return check, names.index(one.output), list(FORMATS).index(one.dtype)


def _check(one: Finding | Detectable) -> int:
    """Return the place of its check in the table of checks."""
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
