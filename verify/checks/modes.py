"""Modes: the same inputs with gradients recorded or not, in evaluation, compiled, under autocast, by other settings."""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import make, turns
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations import wrapping
from verify_norm.checks.relations.equations import Equation, compared
from verify_norm.checks.relations.rerun import Difference, beyond, cheap, differences, element, rerun, steady
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.run import Expected, Run
from verify_norm.core.spec import Kernel
from verify_norm.loading import gradients, modules
from verify_norm.running import captures
from verify_norm.running.captures import Function

NARROW = "bfloat16"  # what autocast may round to
SOFT = 4  # half ulps of NARROW that four factors of an element may be off by: x, weight, a sum of squares and its root
PARAMETERS = ("weight", "bias")  # of a module
FEW = 2**8  # elements of x: a case of so few tries all modes
# What torch and kernels say where they cannot run in a mode: numpy() on a leaf, autograd under no_grad, no backward.
DECLINED = re.compile(r"grad|detach|leaf variable|inference mode|deterministic", re.IGNORECASE)
THREADS = 3  # of torch: more than a search uses, and no power of two


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode in which a case runs once more: in words, and as a decorator, given the type of device."""

    words: str
    wrap: Callable[[Function, str], Function]


NO_GRAD = Mode("under torch.no_grad()", lambda function, device: torch.no_grad()(function))
INFERENCE = Mode(
    "under torch.inference_mode()", lambda function, device: torch.inference_mode()(wrapping.made_there(function))
)
AUTOCAST = Mode("under autocast", lambda function, device: torch.autocast(device, torch.bfloat16)(function))
COMPILED = Mode("under torch.compile", lambda function, device: captures.traced(function))
EVALUATING = Mode(
    "in evaluation, after eval()", lambda function, device: wrapping.of_modules(function, modules.evaluating)
)
COPIED = Mode(
    "in a copy.deepcopy of the module", lambda function, device: wrapping.of_modules(function, modules.copying)
)
DETERMINISTIC = Mode("with deterministic algorithms", lambda function, device: wrapping.deterministically()(function))
THREADED = Mode(f"with {THREADS} threads of torch", lambda function, device: wrapping.in_threads(THREADS)(function))
REPLAYED = Mode("in a CUDA graph with new values", lambda function, device: captures.replayed(function))
BATCHED = Mode("under torch.func.vmap", lambda function, device: wrapping.batched(function, every=False))
ALL_BATCHED = Mode(
    "under torch.func.vmap of all tensors", lambda function, device: wrapping.batched(function, every=True)
)
IN_TURN = (BATCHED, ALL_BATCHED)  # a small case tries one of them
WITHIN = (COMPILED, DETERMINISTIC, THREADED, *IN_TURN)  # where a kernel may choose another order of its sums
BARE = (COMPILED, REPLAYED)  # torch allocates as usual: a capture holds what a mode of torch's dispatcher does


def _looks(run: Run) -> bool:
    return "modes" in run.case.spec.further and cheap(run) and not _elsewhere(run.kernel)


def _elsewhere(kernel: Kernel, _: Collection[str] = ()) -> str:
    """Return why no mode of a kernel can be tried; "" if one can."""
    remote = kernel.later is not None and kernel.autograd
    return "untrusted: its forward pass, which runs in the mode, is in the kernel's process" if remote else ""


@check(looks=_looks, lacks=_elsewhere)
def modes(run: Run) -> Iterator[Finding | NoData | Tried]:
    """The same inputs give the same bits whether gradients are recorded or not, and in evaluation.

    A case tries one mode: no_grad, inference_mode, a module after eval(), on a GPU the replay of a CUDA graph, in a
    forward each set of inputs that require gradients. A deep copy of a module gives the same bits too. A kernel may
    refuse a mode in words about gradients, and need not be capturable. Under torch.compile, with deterministic
    algorithms and with other numbers of threads an output must be within its bound; so must the sample of a batch under
    torch.func.vmap. What Dynamo cannot trace runs as usual; what raises under vmap is refused.
    Under autocast an output may have another type: it must be within the bound of its type or of bfloat16, the coarser
    one. What gives other bits in the usual mode too is left to `determinism`.
    """
    tried = [mode for mode in _modes(run) if mode is not None]
    found = [one for mode in tried for one in _differing(run, mode)]
    yield from (one for one in found if isinstance(one, Tried))
    seen = [one for one in found if isinstance(one, Difference)]
    if not any(isinstance(one, Tried) for one in found):
        yield NoData()
    if seen and steady(run):
        for difference in seen:
            yield finding(run, "modes", difference.output, difference.words, index=difference.index)


def _differing(run: Run, mode: Mode) -> Iterator[Difference | Tried]:
    """Yield the mode, unless it is refused; what differs in it, and what a call does there that it does not usually."""
    cast = mode is AUTOCAST
    within = (lambda case: nullcontext()) if mode in BARE else None
    other = rerun(replace(run, kernel=in_mode(mode, run)), within=within, truth=cast or mode in WITHIN)
    if other.refused or (not cast and DECLINED.search(other.problem or "")):
        if mode in (BATCHED, ALL_BATCHED):
            yield Tried(f"{mode.words} (refused)")
        return
    yield Tried(mode.words, other.operators)
    compare = beyond if mode in WITHIN else differences
    yield from _cast(run, other) if cast else compare(run, other, ("as usual", mode.words))
    damaged = {d.buffer: d for d in other.damage if d.buffer not in {seen.buffer for seen in run.damage}}
    for name, damage in damaged.items():
        yield Difference(damage.output, f"{mode.words} it writes to {name}: {damage.count} bytes are changed")
    if mode in BARE:  # torch itself changes the process
        return
    for effect in other.effects:
        if effect not in run.effects and effect.partition(" ")[0] not in damaged:
            yield Difference(None, f"{mode.words} {effect}; a call must leave it as it was")


def _modes(run: Run) -> tuple[Mode | None, ...]:
    """Return the mode that the case's variant stands for, and in a small case others; None if torch forbids it."""
    op, own, spec = run.case.op, not run.kernel.autograd, run.case.spec
    options: tuple[Mode | None, ...] = (None if spec.dtype == "float16" else AUTOCAST, DETERMINISTIC)  # one 16-bit type
    if torch.device(run.case.device).type == "cpu":
        options = (*options, THREADED)
    if own:
        options = (NO_GRAD, INFERENCE, *options)
    if not (op.forward and own):
        options = (*options, COPIED)
        if op.view != "channels":  # BatchNorm evaluates something else
            options = (*options, EVALUATING)
    if run.kernel.later is None:
        options = (*options, *[COMPILED] * 3)  # often: Dynamo takes other paths than a call
        if not _overwrites(run):  # in 16 bits torch's own norms round once more there, between x̂ and the weight
            wide = {spec.dtype, spec.weight_dtype} <= {"float32", None}
            options = (*options, *((BATCHED, ALL_BATCHED) if wide else (None, None)))
    if own and run.kernel.later is None and torch.device(run.case.device).type == "cuda":
        options = (*options, REPLAYED)
    if not op.forward:  # a backward is called where nothing is recorded
        options = (*options, *_sets_of_leaves(run))
    chosen = turns.variant(spec, options)
    if chosen in BARE and run.damage:  # what it writes to is not guarded there
        chosen = None
    others = options if prod(spec.shape) <= FEW else ()
    left_out = {*BARE, *IN_TURN} - {turns.variant(spec, IN_TURN, after=options)}
    return (chosen, *(mode for mode in others if mode is not chosen and mode not in left_out))


def _overwrites(run: Run) -> bool:
    """Return whether the kernel may overwrite an argument."""
    return bool(run.kernel.contract.inplace) or any(tensor.role == "state" for tensor in run.case.op.inputs)


def _sets_of_leaves(run: Run) -> tuple[Mode, ...]:
    """Return a mode for each set of inputs that require gradients; none if torch forbids to overwrite a leaf.

    Three more: nothing is recorded, as in a checkpoint's first run, where all of them do, and in the evaluation of what
    has been trained, where weight and bias do; and x is what another layer returns.
    """
    if _overwrites(run):
        return ()
    own = run.case.op.trained_inputs
    names = [n for n in ("x", "residual", "weight", "bias", *own) if run.case.arguments.get(n) is not None]
    count = len(names)
    sizes = range(count, 0, -1) if count < 5 else (count, count - 1, 1)  # all of 5 and more would be 31 sets
    leaves = tuple(_leaves(some) for size in sizes for some in combinations(names, size))
    parameters = tuple(name for name in names if name in PARAMETERS)
    unrecorded = (_leaves(some, False) for some in dict.fromkeys((tuple(names), parameters)) if some)
    result = "where x requires a gradient and is another layer's result"
    inside = Mode(result, lambda function, device: _requiring(names, True, wrapping.made_there(function), device))
    return (*leaves, *unrecorded, inside)


def _leaves(names: tuple[str, ...], recorded: bool = True) -> Mode:
    """Return the mode in which these inputs, and no others, require gradients."""
    words = f"where {', '.join(names)} alone require{'s' * (len(names) == 1)} a gradient"
    return Mode(words if recorded else f"under torch.no_grad() {words}", partial(_requiring, names, recorded))


def _requiring(names: Collection[str], recorded: bool, function: Function, device: str) -> Function:
    """Return the function, called with these inputs as leaves that require gradients, and parameters as a module's."""

    @wraps(function)
    def run(**given: Any) -> Any:
        for name in names:
            if given.get(name) is not None:
                leaf = given[name].detach().requires_grad_()
                given[name] = torch.nn.Parameter(leaf) if name in PARAMETERS else leaf
        with torch.set_grad_enabled(recorded):
            return function(**given)

    return run


def in_mode(mode: Mode, run: Run) -> Kernel:
    """Return the kernel in a mode; where torch's autograd makes a backward, its forward alone runs in the mode."""
    kernel, device = run.kernel, torch.device(run.case.device).type
    if not kernel.autograd:
        assert kernel.run is not None
        return replace(kernel, run=mode.wrap(kernel.run, device))
    assert kernel.forward_run is not None
    backward = gradients.backward(partial(make.call, mode.wrap(kernel.forward_run, device)), run.case.op)
    return replace(kernel, run=lambda **given: backward(given))


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
        bound = reduce(np.maximum, bounds) + SOFT * FORMATS[NARROW].u * np.abs(expected.value)
        largest = min(FORMATS[dtype].largest for dtype in types)
        small = judge.judged(expected) & (np.abs(expected.value) + bound < largest)
        ratio = Equation("", name, output.got, expected.value, np.where(small, bound, np.inf)).ratio
        if ratio.max(initial=0.0) > 1:
            index = judge.worst(ratio)
            got, want = float(output.got[index]), float(expected.value[index])
            words = f"{AUTOCAST.words} {element(name, index)} is {got:.9g}, expected {want:.9g}"
            yield Difference(name, f"{words} within the bound of {NARROW}", index, int(np.sum(ratio > 1)))
