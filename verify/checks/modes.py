"""Modes: the same inputs where torch records gradients or does not, in evaluation, and under autocast."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verify_norm.cases import turns
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import Equation, compared
from verify_norm.checks.relations.rerun import Difference, cheap, differences, element, rerun, steady
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.spec import Case, Expected, Finding, NoData, Run, Tried
from verify_norm.loading import modules
from verify_norm.running.guards import PoisonEmpty

NARROW = "bfloat16"  # what autocast may round to
# What torch and kernels say where they cannot run in a mode: numpy() on a leaf, autograd under no_grad, no backward.
DECLINED = re.compile(r"grad|detach|leaf variable|inference tensor", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode in which a case runs once more: its name, in words, how it is entered, and what requires a gradient."""

    name: str
    words: str
    enter: Callable[[str], AbstractContextManager[Any]]  # from a type of device
    leaves: tuple[str, ...] = ()


def _recording(device: str) -> AbstractContextManager[Any]:
    return torch.enable_grad()


DIFFERENTIABLE, AFFINE = ("x", "residual", "weight", "bias"), ("weight", "bias")
AUTOCAST = Mode("autocast", "under autocast", lambda device: torch.autocast(device, torch.bfloat16))
MODES = (
    Mode("no_grad", "under torch.no_grad()", lambda device: torch.no_grad()),
    Mode("inference_mode", "under torch.inference_mode()", lambda device: torch.inference_mode()),
    AUTOCAST,
)
EVALUATION = Mode("eval()", "in evaluation, after eval()", lambda device: modules.evaluating())
# A forward alone: a backward is called where nothing is recorded.
OF_FORWARDS = (
    Mode("gradients of all inputs", "where all inputs require a gradient", _recording, DIFFERENTIABLE),
    Mode("gradients of weight and bias", "where only weight and bias require a gradient", _recording, AFFINE),
    Mode("gradients of x", "where only x requires a gradient", _recording, ("x",)),
    EVALUATION,
)


def _looks(run: Run) -> bool:
    return "modes" in run.case.spec.further and cheap(run) and not run.kernel.autograd


@check(looks=_looks)
def modes(run: Run) -> Iterator[Finding | NoData | Tried]:
    """The same inputs give the same bits whether gradients are recorded or not, and in evaluation.

    A case tries one mode: no_grad, inference_mode, and in a forward inputs that require gradients, and a module after
    eval(). A kernel may refuse a mode in words about gradients. Under autocast an output may have another type: it must
    be within the bound of its type or of bfloat16, the coarser one. What gives other bits in the usual mode too is left
    to `determinism`.
    """
    op = run.case.op
    of_forwards = OF_FORWARDS[:-1] if op.view == "channels" else OF_FORWARDS  # BatchNorm evaluates something else
    some = MODES if op.forward else MODES + of_forwards
    mode = turns.variant(run.case.spec, some)
    overwrites = run.kernel.contract.inplace or any(t.role == "state" for t in op.inputs)
    if mode.leaves and (overwrites or all(run.case.arguments.get(name) is None for name in mode.leaves)):
        yield NoData()  # torch forbids to overwrite a leaf, or there is none
        return
    cast = mode is AUTOCAST
    entered: list[Any] = []
    other = rerun(run, within=lambda case: _within(mode, case, entered), truth=cast)
    if (not cast and DECLINED.search(other.problem or "")) or (mode is EVALUATION and entered == [[]]):
        yield NoData()  # it refuses the mode, or no module ran
        return
    yield Tried(mode.name, other.operators)
    found = list(_cast(run, other) if cast else differences(run, other, ("as usual", mode.words)))
    if found and steady(run):
        for difference in found:
            yield finding(run, "modes", difference.output, difference.words, index=difference.index)


@contextmanager
def _within(mode: Mode, case: Case, entered: list[Any]) -> Iterator[Any]:
    for name in mode.leaves:
        tensor = case.arguments.get(name)
        if tensor is not None:
            tensor.requires_grad_()
    with mode.enter(torch.device(case.device).type) as state, PoisonEmpty(case.poison) as made:
        entered.append(state)
        yield made


def _cast(usual: Run, run: Run) -> Iterator[Difference]:
    """Yield the outputs beyond the bound of their type, or of bfloat16, under autocast alone."""
    if run.problem is not None:
        yield Difference(None, f"{AUTOCAST.words} it fails: {run.problem}")
        return
    right = {
        name
        for name, (output, _) in compared(usual).items()
        if output.ratio is not None and output.ratio.max(initial=0) <= 1
    }
    for name, output in run.outputs.items():
        expected = run.case.expected.get(name)
        if output is None or expected is None or name not in right:
            continue
        if output.got.shape != expected.value.shape or output.dtype not in FORMATS:
            yield Difference(name, f"{AUTOCAST.words} {name} is {output.dtype} {output.shape}")
            continue
        types = (NARROW, output.dtype, expected.dtype)  # of these the coarser one, where numbers are subnormal too
        bounds = [judge.allowed(Expected(expected.value, expected.delta, dtype)) for dtype in types]
        bound = np.maximum.reduce(bounds)
        largest = min(FORMATS[dtype].largest for dtype in types)
        small = judge.judged(expected) & (np.abs(expected.value) + bound < largest)
        ratio = Equation("", name, output.got, expected.value, np.where(small, bound, np.inf)).ratio
        if ratio.max(initial=0.0) > 1:
            index = judge.worst(ratio)
            got, want = float(output.got[index]), float(expected.value[index])
            words = f"{AUTOCAST.words} {element(name, index)} is {got:.9g}, expected {want:.9g}"
            yield Difference(name, f"{words} within the bound of {NARROW}", index, int(np.sum(ratio > 1)))
