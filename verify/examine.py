"""One kernel on one case, under the checks that are asked for: all that this tells, as small frozen data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from verify_norm import cases, data, judge, memory
from verify_norm.checks import CHECKS
from verify_norm.dtypes import FORMATS
from verify_norm.execute import Clock, execute, worst
from verify_norm.ops import OPS
from verify_norm.report.model import Tally
from verify_norm.sensitivity import Sensitivity, looks, sensitivities
from verify_norm.spec import CaseSpec, Finding, Kernel, Observed, Power, Run
from verify_norm.ulp import UlpStats

NO_ROOM = "the GPU has no room for its tensors and the checks' own"


@dataclass(frozen=True, slots=True)
class Examined:
    """What the checks say of one case: it crosses from the process of the kernel to ours, and lies in the journal.

    `looked` names the checks that had something to look at, `left_out` those for which the GPU had no room.
    `unsupported` is the reason why the kernel was not run. `near` names the tensors whose rows were to be far apart,
    and had no room. `dead` tells that the process can run nothing more, since the kernel has broken its CUDA context;
    `hung`, that the kernel did not come back.
    """

    spec: CaseSpec
    unsupported: str | None = None
    left_out: tuple[str, ...] = ()
    tallies: tuple[Tally, ...] = ()
    findings: tuple[Finding, ...] = ()
    looked: tuple[str, ...] = ()
    powers: tuple[tuple[str, float], ...] = ()
    observed: tuple[tuple[str, bool], ...] = ()
    layouts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    sensed: tuple[Sensitivity, ...] = ()
    seconds: float = 0.0  # inside the kernel
    dead: bool = False
    hung: bool = False

    @property
    def ratio(self) -> float:
        """The largest error/bound of any output."""
        return max((tally.ratio for tally in self.tallies), default=0.0)


def examine(
    kernel: Kernel,
    spec: CaseSpec,
    checks: tuple[str, ...],
    device: str,
    announce: Callable[[str], None] = lambda _: None,
) -> Examined:
    """Run `kernel` on the case that `spec` describes, and what `checks` names on what it returns.

    `announce` is told the name of each check before it begins. Nothing that the kernel raises is raised here, nor what
    a full GPU makes us raise. Raises ValueError where the spec is not one of the operator.
    """
    with suppress(torch.OutOfMemoryError):  # not the kernel's, which is the run's problem
        return _examine(kernel, spec, checks, device, announce)
    torch.cuda.empty_cache()
    return Examined(spec, unsupported=NO_ROOM)


def _examine(
    kernel: Kernel, spec: CaseSpec, checks: tuple[str, ...], device: str, announce: Callable[[str], None]
) -> Examined:
    reason = kernel.unsupported(spec) if kernel.unsupported else None
    if reason is not None:
        return Examined(spec, unsupported=reason)
    memory.release(device)
    op, clock = OPS[kernel.op], Clock()
    run, forward_run = (clock.around(function, device) for function in (kernel.run, kernel.forward_run))
    ran = execute(replace(kernel, run=run, forward_run=forward_run), cases.make(spec, op, kernel.contract, device))
    if ran.refused:
        return Examined(spec, unsupported=ran.problem)
    dead = ran.problem is not None and _dead(device)
    said, left_out = [], []
    for name in checks:
        if CHECKS[name].looks(ran):
            announce(name)
            try:
                said.append((name, tuple(CHECKS[name].function(ran))))
            except torch.OutOfMemoryError:
                left_out.append(name)
    return Examined(
        spec,
        tallies=tuple(tally for name in ran.outputs if (tally := _tally(ran, name)) is not None),
        findings=tuple(item for _, items in said for item in items if isinstance(item, Finding)),
        looked=tuple(name for name, _ in said),
        left_out=tuple(left_out),
        powers=tuple((name, item.smallest) for name, items in said for item in items if isinstance(item, Power)),
        observed=tuple((name, item.held) for name, items in said for item in items if isinstance(item, Observed)),
        layouts=tuple(f"{t.name} {_layout(ran, t.name)}" for t in op.inputs if t.role != "saved"),
        near=tuple(t.name for t in op.inputs if t.role != "saved" and _near(ran, t.name)),
        missing=tuple(t.name for t in op.outputs if ran.problem is None and t.name not in ran.outputs),
        sensed=sensitivities(ran) if looks(ran) else (),
        seconds=clock.seconds,
        dead=dead or _dead(device),
    )


def _layout(run: Run, name: str) -> str:
    """The layout that a tensor has got: "far" takes more memory than there may be."""
    layout, tensor = data.layout_of(run.case.spec, name), run.case.arguments[name]
    near = layout == "far" and (tensor is None or tensor.is_contiguous())
    return "contiguous" if near else layout


def _near(run: Run, name: str) -> bool:
    """Whether its rows would be far apart, had there been room."""
    fallen = data.layout_of(run.case.spec, name) == "far" != _layout(run, name)
    return fallen and run.case.arguments[name] is not None and memory.spreads(run.case.arguments[name].shape)


def _dead(device: str) -> bool:
    """Whether CUDA has failed in a way that every later call repeats."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _tally(run: Run, name: str) -> Tally | None:
    """One output's errors; None where there is nothing to compare."""
    output, expected = run.outputs[name], run.case.expected[name]
    if output is None or expected is None or output.ratio is None:
        return None
    judged = judge.judged(expected)
    largest = float(output.ratio.max(initial=0.0))
    return Tally(
        name,
        expected.dtype,
        cases=1,
        elements=output.got.size,
        unjudged=int(output.got.size - np.count_nonzero(judged)),
        ulp=UlpStats.of(output.got[judged], expected.value[judged], FORMATS[expected.dtype]),
        ratio=largest,
        worst=run.case.spec if largest > 0 else None,
        index=worst(output.ratio) if largest > 0 else None,
    )
