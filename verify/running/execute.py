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
from verify_norm.running.reading import Evasions, output_bytes, read
from verify_norm.running.surroundings import left, restoring_judge

Watch = Callable[[], Sequence[str]]  # puts back functions that the kernel has replaced, and returns their names
REPLACES = "it replaces"  # begins the words about such a function

# What a call through a proxy writes into the memory that the kernel allocates; None: nothing, and no guards.
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
                _synchronize(device)
                return result
            finally:
                self.seconds += self.now() - started

        timed.__dict__["untimed"] = untimed(function)
        return timed


def untimed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a clock wraps; a function without a clock as it is."""
    wrapped: Callable[..., Any] = getattr(function, "untimed", function)
    return wrapped


def _synchronize(device: torch.device | str) -> None:
    """Wait for the work of a GPU: otherwise its time counts in the next call that waits."""
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
    device is the current one, where kernels and CUDA graphs are launched; each thread has its own current device.
    With `watch` the run also says what the call did to its judge (`Run.evasions`, `Run.at_return`). The functions in
    `watch` are called right after the kernel, before anything is judged.
    """
    device = torch.device(case.device)
    with warnings.catch_warnings(), _current(device):
        # a warning is no failure, even if the caller turns warnings into errors
        warnings.simplefilter("ignore")
        _synchronize(device)
        # Where all work is in this process, its processor time: other processes do not lengthen it.
        clock = time.process_time if device.type == "cpu" and not kernel.remote else time.perf_counter
        started = clock()
        arguments = argument_writes.Arguments(case.arguments)
        called = call(kernel, case, within, watch)
        observed: dict[str, Any] = {
            name: getattr(called, name) for name in ("limits", "effects", "differs_on_gpu", "evasions", "at_return")
        }
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, **observed)
        damage = (*arguments.damage(writable(kernel, case)), *called.damage)
        values = _values(called, case, kernel)
        seconds = clock() - started
        judged = {name: _judged(output, case, name) for name, output in values.items()}
        return Run(
            kernel,
            case,
            judged,
            damage,
            called.overlaps,
            operators=called.operators,
            returned=_present(called.outputs),
            seconds=seconds,
            **observed,
        )


def results(kernel: Kernel, case: Case, within: AbstractContextManager[Any] | None = None) -> Run:
    """Run `kernel` once as `execute` does, but only for the values of its outputs: most further runs compare these.

    The kernel's allocations are poisoned and guarded. The guards, the arguments and the state of the process are not
    compared with those before the call. Only that part of the state is restored that this tool's next calls depend on.
    """
    if kernel.remote:
        return execute(kernel, case, within)
    device = torch.device(case.device)
    with warnings.catch_warnings(), _current(device):
        warnings.simplefilter("ignore")
        without_guards = _yielding_none(within or guards.PoisonEmpty(case.poison))
        called = _call(kernel, case, without_guards, restoring_judge(gpu=device.type == "cuda"), observing=False)
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, limits=called.limits)
        judged = {name: _judged(output, case, name) for name, output in _values(called, case, kernel).items()}
        return Run(kernel, case, judged, returned=_present(called.outputs))


@contextmanager
def _yielding_none(context: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context, but do not yield what it yields, such as the guards of allocations."""
    with context:
        yield


def call(
    kernel: Kernel, case: Case, within: AbstractContextManager[None] | None = None, watch: Sequence[Watch] | None = None
) -> Called:
    """Call the kernel, in this process or through a proxy in a process of its own, and return what the call gave."""
    if kernel.remote:
        assert kernel.run is not None
        token = POISON.set(None if within else case.poison)
        try:
            answer: Called = kernel.run(**bound(kernel, case))
            return answer
        except RefusedError as refusal:  # raised by a mode in this process, never by the proxy
            return Called(problem=str(refusal), refused=True)
        finally:
            POISON.reset(token)
    differs_on_gpu.clear()
    effects, replaced = list[str](), list[str]()
    restoring_state = _restoring_state(kernel, case, effects, replaced, watch or ())
    called = _call(kernel, case, within, restoring_state, observing=watch is not None)
    evasions = (*called.evasions, *((None, f"{REPLACES} {name}") for name in replaced))
    return replace(called, differs_on_gpu=tuple(sorted(differs_on_gpu)), effects=tuple(effects), evasions=evasions)


@contextmanager
def _restoring_state(
    kernel: Kernel, case: Case, effects: list[str], replaced: list[str], watch: Sequence[Watch]
) -> Iterator[None]:
    """Put back what the call in this block changes, and add the changes to `effects` and `replaced`, in words."""
    with left(effects, case.arguments, writable(kernel, case)):
        try:
            yield
        finally:
            for put_back in watch:
                replaced += put_back()


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is torch's current device, where launches and captures go."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _call(
    kernel: Kernel,
    case: Case,
    within: AbstractContextManager[None] | None,
    restoring_state: AbstractContextManager[None],
    *,
    observing: bool,
) -> Called:
    """Call the kernel in this process. `observing` adds its evasions, and the bytes of its outputs at return."""
    assert kernel.run is not None, "registry.load sets run"
    device, begun = torch.device(case.device), False
    evasions: Evasions = ()
    with _noting_ctrl_c() as pressed:
        try:
            with within or guards.PoisonEmpty(case.poison) as allocations, restoring_state:
                begun = True
                returned = kernel.run(**bound(kernel, case))
            if returned is None:
                returned = _overwritten_outputs(kernel, case) or None
            if observing:
                outputs, evasions = read(returned, case.op)
            else:
                outputs = named(returned, case.op)
        except RefusedError as refusal:
            return Called(problem=str(refusal), refused=True)
        except BaseException as error:  # sys.exit() or a kernel's own KeyboardInterrupt would end the tool
            if not begun or pressed or gpu_memory.taken_by_others(error, device):  # no error of the kernel
                raise
            return _raised(case, error)
    problem = outputs if isinstance(outputs, str) else _on_another_device(outputs, device)
    if isinstance(outputs, str) or problem is not None:
        return Called(problem=problem, evasions=evasions)
    return Called(
        outputs,
        damage=tuple(allocations.damage(outputs)) if allocations else (),
        overlaps=tuple(overlapping.overlaps(outputs, case.arguments)),
        operators=allocations.operators.names if allocations else (),
        evasions=evasions,
        at_return=output_bytes(outputs) if observing else {},
    )


def _on_another_device(outputs: Mapping[str, Any], device: torch.device) -> str | None:
    """Return in words the first output that is not on this device; None if there is none."""
    for name, value in outputs.items():
        if value is not None and value.device != device:
            return f"{name} is on {value.device}, expected {device}"
    return None


def _states(case: Case) -> list[str]:
    return [tensor.name for tensor in case.op.inputs if tensor.role == "state"]


def writable(kernel: Kernel, case: Case) -> list[str]:
    """Return the arguments that a call may change."""
    return [*_states(case), *(argument for _, argument in inplace(kernel))]


def _raised(case: Case, error: BaseException) -> Called:
    """Return the call of a kernel that raised an error, with the limits that the error's message states."""
    problem, on_cpu = one_line(error), torch.device(case.device).type == "cpu"
    if refusals.INTERPRETED in problem:
        return Called(problem=f"it does not take CPU tensors ({problem})", refused=True)
    return Called(problem=problem, limits=refusals.limits(error, on_cpu=on_cpu))


@contextmanager
def _noting_ctrl_c() -> Iterator[list[int]]:
    """Yield a list that gets an entry at each Ctrl-C: a kernel may raise KeyboardInterrupt by itself, too."""
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


def _overwritten_outputs(kernel: Kernel, case: Case) -> dict[str, Any]:
    """Return, by output, the arguments that a kernel overwrites which returns nothing.

    An output that may overwrite one of several arguments is in the first of them that the case has.
    """
    pairs = [(output, argument) for output, argument in inplace(kernel) if argument in case.arguments]
    return {output: case.arguments[argument] for output, argument in reversed(pairs)}  # the first one counts


def inplace(kernel: Kernel) -> list[tuple[str, str]]:
    """Return what the contract lets the kernel overwrite, as (output, argument)."""
    return overwritten(kernel.contract)


def bound(kernel: Kernel, case: Case) -> dict[str, Any]:
    """Return the case's arguments that the kernel's signature names; all of them for **kwargs.

    A backward by torch's autograd also takes `frozen`, the names of the inputs that need no gradient.
    """
    assert kernel.run is not None
    arguments = dict(case.arguments)
    if kernel.autograd and case.op.forward is not None:
        arguments["frozen"] = case.spec.frozen
    return make.named(kernel.run, arguments)


def _present(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if value is not None}


def _values(called: Called, case: Case, kernel: Kernel) -> dict[str, Output | None]:
    """Return the outputs with their values as float64, in the memory of the device that judges them, or the host's."""
    outputs = {**called.outputs} | {name: case.arguments[name] for name in _states(case)}  # changed in place
    present = _present(outputs)
    unpacked = [packed.values(name, value, case.spec, case.op, kernel.contract) for name, value in present.items()]
    types, tensors = [dtype for dtype, _ in unpacked], [tensor for _, tensor in unpacked]
    judge = make.judge_of(case.spec, case.op, case.device)
    arrays = transfer.values(tensors) if judge is None else [contents.to_float64(tensor, judge) for tensor in tensors]
    read = {name: Output(dtype, got.shape, got, None) for name, dtype, got in zip(present, types, arrays, strict=True)}
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
