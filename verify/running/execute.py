"""Calls a kernel on a case: binds arguments by name, poisons its allocations, and reads what it returns."""

import functools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch

from verify_norm.cases import contents, gpu_memory, make, transfer
from verify_norm.core import judge
from verify_norm.core.errors import one_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import overwritten
from verify_norm.core.run import Called, Case, Output, Run
from verify_norm.loading.returned import RefusedError, named
from verify_norm.running import argument_writes, guards, overlapping, packed, refusals
from verify_norm.running.interpreter.arithmetic import differs_on_gpu
from verify_norm.running.reading import content, read
from verify_norm.running.surroundings import able_to_judge, left

Watch = Callable[[], Sequence[str]]
REPLACES = "it replaces"  # a function of its judge

# What a call through a proxy puts into memory that nobody wrote; None: nothing, and no guards.
POISON: ContextVar[float | None] = ContextVar("poison", default=None)


@dataclass(slots=True)
class Clock:
    """Adds up the time inside the functions that it wraps."""

    seconds: float = 0.0
    now: Callable[[], float] = lambda: time.perf_counter()

    def around(self, function: Callable[..., Any] | None, device: str) -> Callable[..., Any] | None:
        """Return the same function, timed to the end of its work on the GPU."""
        if function is None:
            return None

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = self.now()
            try:
                result = function(*args, **kwargs)
                _settle(device)
                return result
            finally:
                self.seconds += self.now() - started

        timed.__dict__["untimed"] = untimed(function)
        return timed


def untimed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that clocks wrap."""
    inner: Callable[..., Any] = getattr(function, "untimed", function)
    return inner


def _settle(device: torch.device | str) -> None:
    """Wait for the work of a GPU, which else counts where the next one waits."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def execute(
    kernel: Kernel,
    case: Case,
    within: AbstractContextManager[None] | None = None,
    *,
    watch: Sequence[Watch] | None = None,
) -> Run:
    """Run `kernel` once and return the run; an exception of the kernel becomes the run's `problem`.

    The kernel's allocations are poisoned and guarded, unless it runs `within` another context. On a GPU the case's
    device is the current one, for a kernel and a CUDA graph are launched there; each thread has its own current device.
    With `watch` the run also says what the call did to its judge; what is in it puts functions back, and returns which,
    before anything is judged.
    """
    device = torch.device(case.device)
    with warnings.catch_warnings(), _current(device):
        # a warning is no failure, even if the caller turns warnings into errors
        warnings.simplefilter("ignore")
        _settle(device)
        clock = time.process_time if device.type == "cpu" and not kernel.remote else time.perf_counter
        started = clock()  # of the processor's time, if there is but one process: others slow no case down
        given = argument_writes.Arguments(case.arguments)
        called = call(kernel, case, within, watch)
        told: dict[str, Any] = {
            "limits": called.limits,
            "effects": called.effects,
            "differs_on_gpu": called.differs_on_gpu,
        }
        told |= {"evasions": called.evasions, "at_return": called.at_return}
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, **told)
        damage = (*given.damage(writable(kernel, case)), *called.damage)
        values = _values(called, case, kernel)
        seconds = clock() - started
        judged = {name: _judged(output, case, name) for name, output in values.items()}
        told |= {"operators": called.operators}
        told |= {"returned": _present(called.outputs), "seconds": seconds}
        return Run(kernel, case, judged, damage, called.overlaps, **told)


def results(kernel: Kernel, case: Case, within: AbstractContextManager[Any] | None = None) -> Run:
    """Run `kernel` once as `execute` does, for the values of its outputs: most further runs compare nothing else.

    The kernel's allocations are poisoned and guarded, but nobody looks at the guards, at its arguments, or at what it
    changes of the process, but for what this tool's next calls depend on.
    """
    if kernel.remote:
        return execute(kernel, case, within)
    device = torch.device(case.device)
    with warnings.catch_warnings(), _current(device):
        warnings.simplefilter("ignore")
        unseen, watching = _unseen(within or guards.PoisonEmpty(case.poison)), able_to_judge(gpu=device.type == "cuda")
        called = _call(kernel, case, unseen, watching, told=False)
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, limits=called.limits)
        judged = {name: _judged(output, case, name) for name, output in _values(called, case, kernel).items()}
        return Run(kernel, case, judged, returned=_present(called.outputs))


@contextmanager
def _unseen(within: AbstractContextManager[Any]) -> Iterator[None]:
    """Return a context that does not say what it saw."""
    with within:
        yield


def call(
    kernel: Kernel, case: Case, within: AbstractContextManager[None] | None = None, watch: Sequence[Watch] | None = None
) -> Called:
    """Call the kernel in this process, or through a proxy in its own, and return what the call gave."""
    if kernel.remote:
        assert kernel.run is not None
        token = POISON.set(None if within else case.poison)
        try:
            answered: Called = kernel.run(**bound(kernel, case))
            return answered
        except RefusedError as refusal:  # of a mode here: an answer raises none
            return Called(problem=str(refusal), refused=True)
        finally:
            POISON.reset(token)
    differs_on_gpu.clear()
    effects, replaced = list[str](), list[str]()
    watching = _watching(kernel, case, effects, replaced, watch or ())
    called = _call(kernel, case, within, watching, told=watch is not None)
    evasions = (*called.evasions, *((None, f"{REPLACES} {name}") for name in replaced))
    return replace(called, differs_on_gpu=tuple(sorted(differs_on_gpu)), effects=tuple(effects), evasions=evasions)


@contextmanager
def _watching(
    kernel: Kernel, case: Case, effects: list[str], replaced: list[str], watch: Sequence[Watch]
) -> Iterator[None]:
    """Put back what the call in this block changes, and enter it in lists, before anything else is done."""
    with left(effects, case.arguments, writable(kernel, case)):
        try:
            yield
        finally:
            replaced += (name for put_back in watch for name in put_back())


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is torch's current one: without a guard, launches and captures go to that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _call(
    kernel: Kernel,
    case: Case,
    within: AbstractContextManager[None] | None,
    watching: AbstractContextManager[None],
    *,
    told: bool,
) -> Called:
    assert kernel.run is not None, "registry.load sets run"
    device, begun = torch.device(case.device), False
    with _ctrl_c() as pressed:
        try:
            with within or guards.PoisonEmpty(case.poison) as made, watching:
                begun = True
                returned = kernel.run(**bound(kernel, case))
            returned = (_written(kernel, case) or None) if returned is None else returned
            outputs, evasions = read(returned, case.op) if told else (named(returned, case.op), ())
        except RefusedError as refusal:
            return Called(problem=str(refusal), refused=True)
        except BaseException as error:  # sys.exit() or a kernel's own KeyboardInterrupt would end the tool
            if not begun or pressed or gpu_memory.taken_by_others(error, device):  # not the kernel's error
                raise
            return _raised(case, error)
    if not isinstance(outputs, str):
        elsewhere = [name for name, value in outputs.items() if value is not None and value.device != device]
        outputs = f"{elsewhere[0]} is on {outputs[elsewhere[0]].device}, expected {device}" if elsewhere else outputs
    if isinstance(outputs, str):
        return Called(problem=outputs, evasions=evasions)
    at_return = content(outputs) if told else {}
    damage = tuple(made.damage(outputs)) if made else ()
    overlaps = tuple(overlapping.overlaps(outputs, case.arguments))
    ran = made.operators.names if made else ()
    return Called(outputs, damage=damage, overlaps=overlaps, operators=ran, evasions=evasions, at_return=at_return)


def _states(case: Case) -> list[str]:
    return [tensor.name for tensor in case.op.inputs if tensor.role == "state"]


def writable(kernel: Kernel, case: Case) -> list[str]:
    """Return the arguments that a call may change."""
    return [*_states(case), *(argument for _, argument in inplace(kernel))]


def _raised(case: Case, error: BaseException) -> Called:
    """Return the call of a kernel that raised, with the limits that its words speak of."""
    problem, on_cpu = one_line(error), torch.device(case.device).type == "cpu"
    if refusals.INTERPRETED in problem:
        return Called(problem=f"it does not take CPU tensors ({problem})", refused=True)
    return Called(problem=problem, limits=refusals.limits(error, on_cpu=on_cpu))


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C makes longer: it tells the user's KeyboardInterrupt from one that the kernel raises."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return

    def note(number: int, frame: Any) -> None:
        pressed.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _written(kernel: Kernel, case: Case) -> dict[str, Any]:
    """Return the arguments that hold the outputs of a kernel which overwrites them and returns nothing.

    Where an output may overwrite one of several, it is in the first.
    """
    return {output: case.arguments[given] for output, given in reversed(inplace(kernel)) if given in case.arguments}


def inplace(kernel: Kernel) -> list[tuple[str, str]]:
    """Return what the contract lets the kernel overwrite, as (output, argument)."""
    return overwritten(kernel.contract)


def bound(kernel: Kernel, case: Case) -> dict[str, Any]:
    """Return the case's arguments that the kernel's signature names; all of them for **kwargs."""
    assert kernel.run is not None
    asks = kernel.autograd and case.op.forward is not None
    return make.named(kernel.run, {**case.arguments, "frozen": case.spec.frozen} if asks else case.arguments)


def _present(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if value is not None}


def _values(called: Called, case: Case, kernel: Kernel) -> dict[str, Output | None]:
    """Return the outputs with their values, in the memory of a device that judges them, or in the host's."""
    outputs = {**called.outputs} | {name: case.arguments[name] for name in _states(case)}  # changed in place
    some = _present(outputs)
    typed = [packed.values(name, value, case.spec, case.op, kernel.contract) for name, value in some.items()]
    types, tensors = [dtype for dtype, _ in typed], [tensor for _, tensor in typed]
    judge = make.judge_of(case.spec, case.op, case.device)
    held = transfer.values(tensors) if judge is None else [contents.to_float64(tensor, judge) for tensor in tensors]
    read = {name: Output(dtype, got.shape, got, None) for name, dtype, got in zip(some, types, held, strict=True)}
    return {name: read.get(name) for name in outputs}


def _judged(output: Output | None, case: Case, name: str) -> Output | None:
    """Return the output with its errors, where the case has the truth."""
    expected = case.expected.get(name)
    if output is None or expected is None:
        return output
    got = output.got
    extent = next(tensor.extent for tensor in case.op.outputs if tensor.name == name)
    if extent in ("statistic", "block", "one") and got.size == expected.value.size:
        got = got.reshape(expected.value.shape)  # (M, 1) and (*leading, 1) are accepted for (M,), () for (1,)
    ratio = judge.ratio(got, expected) if got.shape == expected.value.shape else None
    return Output(output.dtype, output.shape, got, ratio)
