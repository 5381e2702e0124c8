"""Calls a kernel on a case: binds arguments by name, poisons its allocations, and reads what it returns."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from verify_norm.cases import gpu_memory, make
from verify_norm.core.errors import one_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import overwritten
from verify_norm.core.run import Called, Case
from verify_norm.loading.returned import RefusedError, named
from verify_norm.running import guards, overlapping, refusals
from verify_norm.running.interpreter import loads
from verify_norm.running.interpreter.arithmetic import differs_on_gpu
from verify_norm.running.reading import Evasions, output_bytes, read
from verify_norm.running.surroundings import left

Watch = Callable[[], Sequence[str]]  # puts back functions that the kernel has replaced, and returns their names
REPLACES = "it replaces"  # begins the words about such a function

# What a call through a proxy writes into the memory that the kernel allocates; None: nothing, and no guards.
POISON: ContextVar[float | None] = ContextVar("poison", default=None)


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
    loads.beyond.clear()
    effects, replaced = list[str](), list[str]()
    restoring_state = _restoring_state(kernel, case, effects, replaced, watch or ())
    called = call_here(kernel, case, within, restoring_state, observing=watch is not None)
    evasions = (*called.evasions, *((None, f"{REPLACES} {name}") for name in replaced))
    differ, beyond = tuple(sorted(differs_on_gpu)), tuple(loads.beyond.values())
    return replace(called, differs_on_gpu=differ, beyond=beyond, effects=tuple(effects), evasions=evasions)


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


def call_here(
    kernel: Kernel,
    case: Case,
    within: AbstractContextManager[None] | None,
    restoring_state: AbstractContextManager[None],
    *,
    observing: bool,
) -> Called:
    """Call a kernel of this process. `observing` adds its evasions, and the bytes of its outputs at return."""
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


def states(case: Case) -> list[str]:
    """Return the inputs that a call changes in place, and that are outputs too."""
    return [tensor.name for tensor in case.op.inputs if tensor.role == "state"]


def writable(kernel: Kernel, case: Case) -> list[str]:
    """Return the arguments that a call may change."""
    return [*states(case), *(argument for _, argument in inplace(kernel))]


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
