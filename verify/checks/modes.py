"""Modes: the same inputs with gradients recorded or not, in evaluation, compiled, under autocast, by other settings."""

import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations import wrapping
from verify_norm.checks.relations.equations import Equation, compared
from verify_norm.checks.relations.mode_table import (
    AUTOCAST,
    BARE,
    INSIDE,
    LOWERED,
    OF_MODULES,
    WIDER,
    WITHIN,
    Mode,
    in_mode,
    modes_of,
)
from verify_norm.checks.relations.rerun import cheap, lasting, rerun
from verify_norm.checks.relations.two_runs import Difference, beyond, differences, steady
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.run import Expected, Run
from verify_norm.running import captures
from verify_norm.running.surroundings import changed

NARROW = "bfloat16"  # what autocast may round to
SOFT = 4  # half ulps of NARROW that four factors of an element may be off by: x, weight, a sum of squares and its root
UNTYPED = "; a tensor that is made without a dtype has that type"
# What torch and kernels say where they cannot run in a mode: numpy() on a leaf, autograd under no_grad, no backward; a
# tensor that a class of the kernel's, the graph of its backward, or a checkpoint holds beyond vmap. A mistake in Python
# is none.
DECLINED = re.compile(
    r"(?!(Name|UnboundLocal|Attribute|Type|Key|Index|ZeroDivision|Import|ModuleNotFound)Error\b)"
    r".*(grad|detach|leaf variable|inference mode|deterministic|being vmapped|checkpoint)",
    re.IGNORECASE | re.DOTALL,
)


def _looks(run: Run) -> bool:
    return "modes" in run.case.spec.further and cheap(run) and not _elsewhere(run.kernel)


def _elsewhere(kernel: Kernel, _: Collection[str] = ()) -> str:
    """Return why no mode of a kernel can be tried; "" if one can."""
    if kernel.remote and kernel.autograd:
        return "untrusted: its forward pass, which runs in the mode, is in the kernel's process"
    return ""


@check(looks=_looks, lacks=_elsewhere)
def modes(run: Run) -> Iterator[Finding | NoData | Tried]:
    """The same inputs give the same bits whether gradients are recorded or not, and in evaluation.

    A case tries one mode, or all that cost about a call: no_grad, inference_mode, a module after eval(), on a GPU the
    replay of a CUDA graph, in a forward each set of inputs that require gradients, in a backward by autograd parameters
    and inputs that are another layer's results. A copy of a module gives the same bits too: by copy, by pickle, or by
    state_dict. A kernel may refuse a mode in words about gradients, and need not be capturable. Under torch.compile,
    with deterministic algorithms and with other numbers of threads an output must be within its bound; so must the
    sample of a batch of data, of parameters or of all tensors under torch.func.vmap, and in every mode an output of a
    kernel that torch.compile makes, since it makes another program for each. What Dynamo cannot trace runs as usual;
    what raises under vmap is refused. With float64 as torch's default type an output may be float64, and to raise is to
    refuse; where torch may multiply matrices in TF32, sums of products may be as coarse. Under autocast an output may
    have another type: it must be within the bound of its type or of bfloat16, the coarser one. A call leaves
    the settings of a mode as it found them, not as they usually are, and no hook on an argument. What gives other bits
    in the usual mode too is left to `determinism`.
    """
    tried, differing = list[Tried](), list[Difference]()
    for mode in modes_of(run):
        for item in _differing(run, mode):
            if isinstance(item, Tried):
                tried.append(item)
            else:
                differing.append(item)
        if any(way.ended for way in tried):
            differing.clear()  # no further call would tell whether the kernel is steady
            break
    yield from tried
    if all(way.refused for way in tried):
        yield NoData()
    if differing and steady(run):
        for difference in differing:
            yield finding(run, "modes", difference.output, difference.words, index=difference.index)


def _differing(run: Run, mode: Mode) -> Iterator[Difference | Tried]:
    """Yield the mode, what differs in it, and what a call does there that it does not usually; nothing of no module."""
    of_layer = mode is INSIDE and run.kernel.autograd  # where torch may choose another path by another layout
    cast = mode is AUTOCAST
    bounded = mode in WITHIN or of_layer or captures.in_use()
    within = (lambda case: nullcontext()) if mode in BARE else None
    inside = list[str]()
    watched = run if mode in BARE else replace(run, kernel=_noting(run.kernel, inside))
    switched = replace(run, kernel=_promising(in_mode(mode, watched), mode))
    call = partial(rerun, switched, within=within, truth=cast or bounded, whole=True)
    threads = threading.enumerate()
    result = call()
    if result.refused or (not cast and DECLINED.match(result.problem or "")):
        if mode not in OF_MODULES:
            yield Tried(mode.words, ended=not all(thread.is_alive() for thread in threads), refused=True)
        return
    yield Tried(mode.words, result.operators)
    if mode is WIDER:
        result = _taken_for_usual(run, result)
    if cast:
        yield from _cast(run, result)
    else:
        compare, why = beyond if bounded else differences, UNTYPED if mode is WIDER else ""
        for difference in compare(run, result, ("as usual", str(mode))):
            yield replace(difference, words=difference.words + why)
    yield from _changed_besides(run, mode, result, call)
    usual = {changed(effect) for effect in run.effects}
    for effect in dict.fromkeys(inside):
        if changed(effect) not in usual:
            yield Difference(None, f"{mode} {effect}; a call must leave it as it found it")


def _changed_besides(run: Run, mode: Mode, result: Run, call: Callable[[], Run]) -> Iterator[Difference]:
    """Yield what a call in a mode changes besides its outputs, and does not as usual: memory, and the process.

    `call` makes such a call once more.
    """
    usual = {damage.buffer for damage in run.damage}
    damaged = {damage.buffer: damage for damage in result.damage if damage.buffer not in usual}
    for buffer, damage in damaged.items():
        yield Difference(damage.output, f"{mode} it writes to {buffer}: {damage.count} bytes are changed")
    if mode in BARE:  # torch itself changes the process
        return
    # A forward alone may record how it moves the running statistics: they are right, and no backward asks for more.
    recorded = {f"{tensor.name}.requires_grad" for tensor in run.case.op.inputs if tensor.role == "state"}
    known = recorded.union(damaged)
    new = [effect for effect in result.effects if effect not in run.effects and changed(effect) not in known]
    for effect in lasting(new, call):
        yield Difference(None, f"{mode} {effect}; a call must leave it as it was")


def _noting(kernel: Kernel, words: list[str]) -> Kernel:
    """Return the kernel, whose calls add to `words` what they leave other than they found it of a mode's settings."""
    noted = partial(wrapping.noting, words=words)
    run, forward = kernel.run, kernel.forward_run
    return replace(kernel, run=run and noted(run), forward_run=forward and noted(forward))


def _promising(kernel: Kernel, mode: Mode) -> Kernel:
    """Return the kernel with what it promises in a mode: of lowered precision, matrix products as coarse as TF32."""
    if mode is LOWERED and kernel.contract.products == "float32":
        return replace(kernel, contract=replace(kernel.contract, products="tf32"))
    return kernel


def _taken_for_usual(usual: Run, run: Run) -> Run:
    """Return the run with outputs of float64 taken for outputs of their usual types: no precision is lost."""
    outputs = dict(run.outputs)
    for name, output in run.outputs.items():
        of_usual = usual.outputs.get(name)
        if output is not None and output.dtype == "float64" and of_usual is not None:
            outputs[name] = replace(output, dtype=of_usual.dtype)
    return replace(run, outputs=outputs)


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
        ratio = Equation("", name, output.got, expected.value, _cast_bound(output.dtype, expected)).ratio
        if ratio.max(initial=0.0) > 1:
            index = judge.worst(ratio)
            got, want = float(output.got[index]), float(expected.value[index])
            words = f"{AUTOCAST.words} {element(name, index)} is {got:.9g}, expected {want:.9g}"
            yield Difference(name, f"{words} within the bound of {NARROW}", index, int(np.sum(ratio > 1)))


def _cast_bound(dtype: str, expected: Expected) -> Array:
    """Return the bound of an output that has this type under autocast; inf where nothing is judged."""
    types = (NARROW, dtype, expected.dtype)  # of these the coarsest one, where numbers are subnormal too
    bounds = [judge.allowed(Expected(expected.value, expected.delta, each)) for each in types]
    bound = reduce(np.maximum, bounds) + SOFT * FORMATS[NARROW].u * np.abs(expected.value)
    largest = min(FORMATS[each].largest for each in types)
    small = judge.judged(expected) & (np.abs(expected.value) + bound < largest)
    return np.where(small, bound, np.inf)
