"""One kernel on one case: runs the checks and returns their results."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf

import torch

from verify_norm.cases import agreement, gpu_memory, make, placement
from verify_norm.checks import honesty
from verify_norm.checks.relations.rerun import slow
from verify_norm.core.contract import Contract
from verify_norm.core.errors import one_line
from verify_norm.core.finding import Finding, Note, Observed, OverProbable, SmallestError, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import layout_of
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.loading.functions import Functions, remembered
from verify_norm.running.calling import Watch
from verify_norm.running.clock import Clock
from verify_norm.running.compilation import METER
from verify_norm.running.execute import execute
from verify_norm.running.patience import LostError, Time, types
from verify_norm.running.runners import Runner
from verify_norm.running.surroundings import left
from verify_norm.search.answers import ask
from verify_norm.search.examined import NO_ROOM, Examined

PAUSES = 0.0, 2.0, 10.0  # seconds before a case is examined again, while another process disturbs the GPU
CROWDED = "CUDA fails while other processes hold most of the GPU's memory"


def examine_in(
    runner: Runner,
    spec: CaseSpec,
    checks: tuple[str, ...],
    timeout: float,
    contract: Contract | None = None,
    *,
    left: float = inf,
    rerun_seconds: float = inf,
) -> Examined:
    """Return `examine` of the runner's kernel; in a child process, a crash or a hang becomes a finding "crash".

    A check may run the kernel again, near the case. If it crashes there, the other checks run without that check. If a
    call of this tool fails in CUDA, a new process examines the case again, up to three times.
    The case may take `timeout` seconds, and more where the kernel may build; `left` are the seconds of the run, and
    `rerun_seconds` those that one further run of a large case may take.
    """
    crashes, compiling = list[Finding](), list[str]()
    pauses = iter(PAUSES)
    while True:
        try:
            given = spec, checks, runner.device, runner.announce, contract, rerun_seconds
            examined = runner.call(examine, Time(timeout, types(spec), _compared, left), *given)
        except LostError as error:
            during = runner.stage()
            where = f", in a further run near this case that the check {during} makes" if during else ""
            message = f"{error}{where}{error.measured}"
            if error.compiling and not during:
                return Examined(spec, unsupported=str(error))
            if error.compiling:
                compiling.append(during)
            elif not error.late:
                found = Finding(runner.kernel.name, "crash", None, "error", message, spec, during=during or None)
                crashes.append(found)
            checks = tuple(check for check in checks if check != during)
            if not during or (error.hung and not error.compiling):
                return Examined(spec, findings=tuple(crashes), looked=("crash",) if crashes else (), hung=error.hung)
            continue
        except RuntimeError as error:  # of CUDA, in a call of ours: what another process does to the GPU may cause it
            crowded, pause = isinstance(error, gpu_memory.CrowdedError), next(pauses, None)
            may_pass = crowded or gpu_memory.failed_in_cuda(error)
            if may_pass and pause is not None and runner.fresh():
                time.sleep(pause)
                continue
            if crowded:
                return Examined(spec, unsupported=f"{CROWDED}: {error}")
            raise
        if examined.dead:
            runner.fresh()
        looked, findings = examined.looked, (*examined.findings, *crashes)
        if runner.isolated and ("crash" in checks or crashes):
            looked = (*looked, "crash")
        return replace(examined, looked=looked, findings=findings, slow=(*examined.slow, *compiling))


def _compared(examined: Examined) -> bool:
    """Return whether an output was compared, so that the kernel did not just refuse the case."""
    return bool(examined.tallies)


def examine(
    kernel: Kernel,
    spec: CaseSpec,
    checks: tuple[str, ...],
    device: str,
    announce: Callable[[str], None] = lambda _: None,
    contract: Contract | None = None,
    rerun_seconds: float = inf,
) -> Examined:
    """Run `kernel` on the case of `spec`, and these checks on its outputs, under its own contract or another.

    `announce` is called with the name of each check before it begins. Exceptions of the kernel, and a full GPU, are
    results. Raises ValueError if the spec does not fit the operator.
    """
    kernel = replace(kernel, contract=contract or kernel.contract)
    METER.watch()
    before, examined = METER.total, None
    with gpu_memory.WhereItFits():  # our tensors: an error of the kernel's own is a problem of its run
        functions = remembered() if "honesty" in checks else None
        try:
            examined = _examine(kernel, spec, checks, device, announce, rerun_seconds, functions)
        except Exception as error:
            names = functions.replaced() if functions else ()
            if names:
                found = tuple(honesty.replaced(kernel, spec, names))  # so this tool itself went wrong
                examined = Examined(spec, findings=found, looked=("honesty",))
            elif gpu_memory.full(error):
                raise
            elif _dead(device):  # what a kernel broke may show in our own next call
                message = f"it breaks the CUDA context of its process: {one_line(error)}"
                found = (Finding(kernel.name, "crash", None, "error", message, spec),)
                examined = Examined(spec, findings=found, looked=("crash",), dead=True)
            elif gpu_memory.taken_by_others(error, torch.device(device)):
                raise gpu_memory.CrowdedError(one_line(error)) from error
            else:
                raise
    if examined is None:
        torch.cuda.empty_cache()
        return Examined(spec, unsupported=NO_ROOM)
    if not examined.dead:
        gpu_memory.release(device)
    return replace(examined, compiled=METER.total - before)


def _examine(
    kernel: Kernel,
    spec: CaseSpec,
    checks: tuple[str, ...],
    device: str,
    announce: Callable[[str], None],
    rerun_seconds: float,
    functions: Functions | None,
) -> Examined:
    """Return `examine`; `functions` are those that a verdict rests on, None if `honesty` does not run."""
    if (reason := kernel.refuses(spec)) is not None:
        return Examined(spec, unsupported=reason)
    if make.judge_of(spec, OPS[kernel.op], device) is not None:
        agreement.require(kernel.op, device)
    op, clock = OPS[kernel.op], Clock()
    run, forward_run = (clock.around(function, device) for function in (kernel.run, kernel.forward_run))
    case = make.case(spec, op, kernel.contract, device)
    watch = _watch(functions, spec) if functions else None
    ran = execute(replace(kernel, run=run, forward_run=forward_run), case, watch=watch)
    if ran.refused:
        return Examined(spec, unsupported=ran.problem)
    ran = replace(ran, rerun_seconds=rerun_seconds)
    tallies = [_tally(ran, name) for name in ran.outputs]  # before a further run may break the context of the device
    with left([], case.arguments) if spec.further else nullcontext():  # further runs put back but a part of it
        answers = ask(ran, checks, announce)
    if functions and "honesty" in spec.further:
        answers.items += [("honesty", item) for item in honesty.replaced(kernel, spec, functions.replaced())]
    tried = answers.of(Tried)
    probable = {item.output: item.ratio for _, item in answers.of(OverProbable)}
    given = [tensor.name for tensor in op.inputs if tensor.role != "saved"]
    return Examined(
        spec,
        problem=ran.problem,
        limits=ran.limits,
        tallies=tuple(replace(tally, probable=probable.get(tally.output)) for tally in tallies if tally is not None),
        findings=tuple(item for _, item in answers.of(Finding)),
        looked=tuple(answers.looked),
        left_out=tuple(answers.left_out),
        slow=tuple(name for name in slow(ran) if name in checks),
        detectable=tuple(answers.of(SmallestError)),
        observed=tuple((name, item.held) for name, item in answers.of(Observed)),
        ways=tuple(dict.fromkeys((name, item.words) for name, item in tried)),
        operators=tuple(sorted({*ran.operators, *chain.from_iterable(item.operators for _, item in tried)})),
        notes=tuple(item.words for _, item in answers.of(Note)),
        layouts=tuple(f"{name} {_layout(ran, name)}" for name in given),
        near=tuple(name for name in given if _near(ran, name)),
        missing=tuple(t.name for t in op.outputs if ran.problem is None and t.name not in ran.outputs),
        seconds=clock.running,
        dead=_dead(device) or any(item.ended for _, item in tried),
    )


def _watch(functions: Functions, spec: CaseSpec) -> Sequence[Watch]:
    """Return what puts functions back after the call: all of them in a case that names honesty, else those not ours."""
    if "honesty" not in spec.further:
        return (partial(functions.replaced, ours=False),)
    of_torch = Functions(of_torch=True)  # torch.compile in a further run replaces some of torch's
    return functions.replaced, of_torch.replaced


def _layout(run: Run, name: str) -> str:
    """Return the layout that a tensor has: without memory for "far" it is contiguous."""
    layout, tensor = layout_of(run.case.spec, name), run.case.arguments[name]
    near = layout == "far" and (tensor is None or tensor.is_contiguous())
    return "contiguous" if near else layout


def _near(run: Run, name: str) -> bool:
    """Return whether a tensor is contiguous for lack of memory, although its layout is "far"."""
    fallen = layout_of(run.case.spec, name) == "far" != _layout(run, name)
    return fallen and run.case.arguments[name] is not None and placement.spreads(run.case.arguments[name].shape)


def _dead(device: str) -> bool:
    """Return whether every later CUDA call fails too."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _tally(run: Run, name: str) -> Tally | None:
    """Return the errors of one output; None if there is nothing to compare."""
    output, expected = run.outputs[name], run.case.expected[name]
    if output is None or expected is None or output.ratio is None:
        return None
    return Tally.of(name, output, expected, run.case.spec)
