"""Runs a kernel on a case: the call, its outputs as float64, and their errors."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from verify_norm.cases import contents, make, transfer
from verify_norm.core import judge, promises
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.run import Called, Case, Output, Run
from verify_norm.running import argument_writes, guards, packed
from verify_norm.running.calling import Watch, call, call_here, states, writable
from verify_norm.running.clock import synchronize
from verify_norm.running.compilation import METER
from verify_norm.running.surroundings import quiet, restoring_judge


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
    with quiet(), _current(device):
        synchronize(device)
        # Where all work is in this process, its processor time: other processes do not lengthen it.
        clock = time.process_time if device.type == "cpu" and not kernel.remote else time.perf_counter
        started, compiled = clock(), METER.total.seconds
        arguments = argument_writes.Arguments(case.arguments)
        called = call(kernel, case, within, watch)
        observed: dict[str, Any] = {
            name: getattr(called, name)
            for name in ("limits", "effects", "differs_on_gpu", "beyond", "evasions", "at_return")
        }
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, **observed)
        damage = (*arguments.damage(writable(kernel, case)), *called.damage)
        values = _values(called, case, kernel)
        seconds = max(clock() - started - (METER.total.seconds - compiled), 0.0)
        case = _promoted(case, kernel.contract, values.get("y"))
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
    with quiet(), _current(torch.device(case.device)):
        called = unjudged(kernel, case, within)
        if called.problem is not None:
            return Run(kernel, case, {}, problem=called.problem, refused=called.refused, limits=called.limits)
        values = _values(called, case, kernel)
        case = _promoted(case, kernel.contract, values.get("y"))
        judged = {name: _judged(output, case, name) for name, output in values.items()}
        return Run(kernel, case, judged, returned=_present(called.outputs))


def unjudged(kernel: Kernel, case: Case, within: AbstractContextManager[Any] | None = None) -> Called:
    """Call a kernel of this process as `results` does, and return the outputs as they are."""
    device = torch.device(case.device)
    with quiet(), _current(device):
        without_guards = _yielding_none(within or guards.PoisonEmpty(case.poison))
        return call_here(kernel, case, without_guards, restoring_judge(gpu=device.type == "cuda"), observing=False)


@contextmanager
def _yielding_none(context: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context, but do not yield what it yields, such as the guards of allocations."""
    with context:
        yield


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is torch's current device, where launches and captures go."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _present(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if value is not None}


def _values(called: Called, case: Case, kernel: Kernel) -> dict[str, Output | None]:
    """Return the outputs with their values as float64, in the memory of the device that judges them, or the host's."""
    outputs = {**called.outputs} | {name: case.arguments[name] for name in states(case)}  # changed in place
    present = _present(outputs)
    unpacked = [packed.values(name, value, case.spec, case.op, kernel.contract) for name, value in present.items()]
    types, tensors = [dtype for dtype, _ in unpacked], [tensor for _, tensor in unpacked]
    judge = make.judge_of(case.spec, case.op, case.device)
    arrays = transfer.values(tensors) if judge is None else [contents.to_float64(tensor, judge) for tensor in tensors]
    read = {name: Output(dtype, got.shape, got, None) for name, dtype, got in zip(present, types, arrays, strict=True)}
    return {name: read.get(name) for name in outputs}


def _promoted(case: Case, contract: Contract, y: Output | None) -> Case:
    """Return the case whose y has the type that the kernel's has, where two types are right."""
    expected = promises.promoted(case.expected, None if y is None else y.dtype, contract, case.spec)
    return case if expected is case.expected else replace(case, expected=expected)


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
