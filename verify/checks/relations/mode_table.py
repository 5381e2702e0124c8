"""The modes in which the check `modes` runs a kernel once more, which of them a case tries, and the kernel in one."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import torch

from verify_norm.cases import further_runs, make
from verify_norm.checks.relations import wrapping
from verify_norm.checks.relations.graphs import graph_of
from verify_norm.core import ways
from verify_norm.core.kernel import Kernel
from verify_norm.core.run import Run
from verify_norm.loading import copies, gradients, module_calls
from verify_norm.running import captures
from verify_norm.running.captures import Function
from verify_norm.running.clock import untimed

# Numbers of torch's threads, of which a case tries two: where a sum is a tree over them, each shape of it may be wrong.
THREADS = (3, 6, 2, 5, 12, 7)


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode in which a case runs once more: in words, and as a decorator, given the type of device.

    `number` is a number that a case has chosen: the mode is the same.
    """

    words: str
    wrap: Callable[[Function, str], Function] = field(compare=False)
    number: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return its words, as messages have them."""
        return self.words if self.number is None else f"{self.words} ({self.number})"


def _of_copies(words: str, copy: Callable[..., Any]) -> Mode:
    """Return the mode in which copies of modules run in their place."""
    copying = partial(module_calls.copying, copy)
    return Mode(words, lambda function, device: wrapping.of_modules(function, copying))


def _of_batch(words: str, names: Collection[str] | None) -> Mode:
    """Return the mode in which these inputs, or all tensors, have a batch under torch.func.vmap."""
    return Mode(words, lambda function, device: wrapping.batched(function, of=names))


NO_GRAD = Mode(ways.NO_GRAD, lambda function, device: torch.no_grad()(function))
INFERENCE = Mode(ways.INFERENCE, lambda function, device: torch.inference_mode()(wrapping.made_there(function)))
AUTOCAST = Mode(ways.AUTOCAST, lambda function, device: torch.autocast(device, torch.bfloat16)(function))
COMPILED = Mode(ways.COMPILED, lambda function, device: captures.traced(function))
EVALUATING, UNTRACKED = (
    Mode(words, lambda function, device: wrapping.of_modules(function, module_calls.evaluating))
    for words in (ways.EVALUATING, ways.UNTRACKED)
)
COPIES = tuple(map(_of_copies, ways.COPIES, (copies.deep, copies.shallow, copies.saved, copies.loaded)))
OF_MODULES = (EVALUATING, UNTRACKED, *COPIES)  # refused by what is no module
DETERMINISTIC = Mode(ways.DETERMINISTIC, lambda function, device: wrapping.deterministically()(function))
THREADED = Mode(ways.THREADED, lambda function, device: wrapping.in_threads(THREADS[0])(function))
WIDER = Mode(ways.WIDER, lambda function, device: wrapping.refusing(wrapping.default_dtype(torch.float64)(function)))
LOWERED = Mode(ways.LOWERED, lambda function, device: wrapping.matmul_precision("high")(function))
# Without its clock, which waits for the GPU: CUDA captures no wait.
REPLAYED = Mode(ways.REPLAYED, lambda function, device: captures.replayed(untimed(function)))
OF_VMAP = tuple(map(_of_batch, ways.OF_VMAP, (wrapping.DATA, None, ways.PARAMETERS)))
UNRECORDED = Mode(ways.UNRECORDED, lambda function, device: _requiring(ways.LEAVES, False, function))
UNTRAINED = Mode(ways.UNTRAINED, lambda function, device: _requiring(ways.PARAMETERS, False, function))
INSIDE = Mode(ways.INSIDE, lambda function, device: _requiring(ways.LEAVES, True, wrapping.made_there(function)))
OF_LEAVES = (UNRECORDED, UNTRAINED, INSIDE)
WITHIN = (COMPILED, DETERMINISTIC, THREADED, LOWERED, *OF_VMAP, WIDER)  # another order of sums may be right there
LASTING = (DETERMINISTIC, THREADED, WIDER, LOWERED)  # settings of a process, which hold in a backward by autograd too
BARE = (COMPILED, REPLAYED)  # torch allocates as usual: a capture holds what a mode of torch's dispatcher does
MODES = {
    mode.words: mode
    for mode in (NO_GRAD, INFERENCE, AUTOCAST, EVALUATING, UNTRACKED, *COPIES, REPLAYED, *OF_LEAVES, *WITHIN)
}


def modes_of(run: Run) -> tuple[Mode, ...]:
    """Return those of the modes that the case names in which its kernel can be tried."""
    case = run.case
    gpu = torch.device(case.device).type == "cuda"
    offered = ways.offered(case.op, autograd=run.kernel.autograd, gpu=gpu)["mode"]
    numbers = further_runs.from_variant(case.spec, THREADS)[:2]
    named: list[Mode] = []
    for name in ways.taken(case.spec, "mode", offered):
        if not ways.fits(name, case.spec):
            continue
        mode = MODES.get(name) or _leaves(ways.sets_of_leaves()[name])
        named += _threaded(numbers) if mode is THREADED else (mode,)
    return tuple(mode for mode in named if _possible(mode, run))


def _possible(mode: Mode, run: Run) -> bool:
    """Return whether a kernel can be tried in a mode."""
    if mode in BARE and run.damage:  # in such a mode no guard zone stops what it writes
        return False
    if run.kernel.remote and mode in (*BARE, *OF_VMAP):  # a mode of this process does not reach the kernel's
        return False
    if mode is COMPILED and captures.MISROUTES and run.kernel.autograd:
        return not graph_of(run, run.case.arguments).has_functions()
    of_leaves = mode in OF_LEAVES or mode.words not in MODES
    return not (run.kernel.contract.inplace and (mode in OF_VMAP or of_leaves))  # torch refuses to overwrite these


def _threaded(numbers: Collection[int]) -> tuple[Mode, ...]:
    """Return the mode with each of these numbers of threads."""

    def of(number: int) -> Mode:
        return replace(THREADED, wrap=lambda function, device: wrapping.in_threads(number)(function), number=number)

    return tuple(map(of, numbers))


def _leaves(names: tuple[str, ...]) -> Mode:
    """Return the mode in which these inputs, and no others, require gradients."""
    return Mode(ways.leaves(names), lambda function, device: _requiring(names, True, function))


def _requiring(names: Collection[str], recorded: bool, function: Function) -> Function:
    """Return the function, called with these inputs as leaves that require gradients, and parameters as a module's."""

    @wraps(function)
    def run(**given: Any) -> Any:
        for name in names:
            if given.get(name) is not None:
                leaf = given[name].detach().requires_grad_()
                given[name] = torch.nn.Parameter(leaf) if name in ways.PARAMETERS else leaf
        with torch.set_grad_enabled(recorded):
            return function(**given)

    return run


def in_mode(mode: Mode, run: Run) -> Kernel:
    """Return the kernel in a mode; where torch's autograd makes a backward, it runs in a lasting mode alone."""
    kernel, device = run.kernel, torch.device(run.case.device).type
    if not kernel.autograd or mode in LASTING:
        assert kernel.run is not None
        return replace(kernel, run=mode.wrap(kernel.run, device))
    assert kernel.forward_run is not None
    inside = mode is INSIDE  # which the leaves make, not the forward
    function = kernel.forward_run if inside else mode.wrap(kernel.forward_run, device)
    backward = gradients.backward(partial(make.call, function), run.case.op, inside=inside)
    return replace(kernel, run=lambda **given: backward(given))
