"""Calls a kernel on a case: binds arguments by name, poisons what it allocates, and reads back what it returns."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verify_norm import guards, judge, memory
from verify_norm.spec import Case, Kernel, Op, Output, Run

NEEDS_GPU = re.compile(r"\b(cuda|gpu)\b|is_cuda|cpu tensor\?|active drivers", re.IGNORECASE)


class RefusedError(Exception):
    """What an adapter raises where a case is none that the callable takes, which only calling it could tell."""


@dataclass(slots=True)
class Clock:
    """Adds up the time spent inside the functions it is put around."""

    seconds: float = 0.0

    def around(self, function: Callable[..., Any] | None, device: str) -> Callable[..., Any] | None:
        """The same function, timed, and waiting for the GPU where it runs on one."""
        if function is None:
            return None

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                result = function(*args, **kwargs)
                if device != "cpu":
                    torch.cuda.synchronize(device)
                return result
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def execute(kernel: Kernel, case: Case, within: AbstractContextManager[None] | None = None) -> Run:
    """Run `kernel` once. What it raises becomes the run's `problem`, never an exception here.

    What it allocates is poisoned and guarded, unless it is to run `within` something else.
    """
    assert kernel.run is not None, "registry.load sets run"
    given, begun = guards.Arguments(case.arguments), False
    try:
        with within or guards.PoisonEmpty(case.poison) as made, warnings.catch_warnings():
            begun = True
            warnings.simplefilter("ignore")  # a warning is no failure, even where the caller makes warnings errors
            returned = kernel.run(**bound(kernel, case))
        outputs = named(returned, case.op)
    except RefusedError as refusal:
        return Run(kernel, case, {}, problem=str(refusal), refused=True)
    except (Exception, SystemExit) as error:  # sys.exit() would end the tool, as if all were well
        if not begun:  # nothing of the kernel's
            raise
        problem = f"{type(error).__name__}: {_first_line(error)}"
        if NEEDS_GPU.search(problem) and _on_cpu(case):
            return Run(kernel, case, {}, problem=f"it does not take CPU tensors ({problem})", refused=True)
        return Run(kernel, case, {}, problem=problem)
    if isinstance(outputs, str):
        return Run(kernel, case, {}, problem=outputs)
    states = _states(case.op)
    writable = [*states, *(argument for _, argument in inplace(kernel))]
    damage = (*given.damage(writable), *(made.damage(outputs) if made else ()))
    overlaps = tuple(guards.overlaps(outputs, case.arguments))
    returned = {name: value for name, value in outputs.items() if value is not None}
    outputs |= {name: case.arguments[name] for name in states}  # changed in place, whatever is returned
    values = {name: _output(value, case, name) for name, value in outputs.items()}
    return Run(kernel, case, values, damage, overlaps, returned=returned)


def inplace(kernel: Kernel) -> list[tuple[str, str]]:
    """What the contract lets the kernel overwrite: (output, argument)."""
    return [(output, argument) for output, _, argument in (pair.partition(":") for pair in kernel.contract.inplace)]


def bound(kernel: Kernel, case: Case) -> dict[str, Any]:
    """Those of the case's arguments that the kernel's signature names; all of them for **kwargs."""
    assert kernel.run is not None
    asks = kernel.autograd and case.op.forward is not None
    offered = {**case.arguments, "frozen": case.spec.frozen} if asks else dict(case.arguments)
    parameters = inspect.signature(kernel.run).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def named(returned: Any, op: Op) -> dict[str, Any] | str:
    """The returned values by output name, or what is wrong with them."""
    names = [tensor.name for tensor in op.outputs]
    if isinstance(returned, Mapping):
        unknown = [name for name in returned if name not in names]
        if unknown:
            return f"it returned {', '.join(map(str, unknown))}; {op.name} has {', '.join(names)}"
        found = dict(returned)
    else:
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        if len(values) > len(names):
            return f"it returned {len(values)} values; {op.name} has {len(names)}: {', '.join(names)}"
        found = dict(zip(names, values, strict=False))
    for name, value in found.items():
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name} is a {type(value).__name__}, not a tensor"
    return found


def _states(op: Op) -> list[str]:
    return [tensor.name for tensor in op.inputs if tensor.role == "state"]


def _output(value: torch.Tensor | None, case: Case, name: str) -> Output | None:
    if value is None:
        return None
    expected = case.expected.get(name)
    got = memory.to_float64(value)
    shape, ratio = tuple(value.shape), None
    if expected is not None:
        extent = next(tensor.extent for tensor in case.op.outputs if tensor.name == name)
        if extent in ("statistic", "one") and got.size == expected.value.size:
            got = got.reshape(expected.value.shape)  # (M, 1) and (*leading, 1) are as good as (M,), () as (1,)
        if got.shape == expected.value.shape:
            ratio = judge.ratio(got, expected)
    return Output(memory.dtype_name(value), shape, got, ratio)


def _first_line(error: BaseException) -> str:
    """What it says; where it says nothing, the line that raised it, as `assert x.is_cuda` needs no words."""
    lines = str(error).strip().splitlines()
    if lines:
        return lines[0]
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    line = linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno).strip() if at is not None else ""
    return line or "(no message)"


def _on_cpu(case: Case) -> bool:
    return all(value.is_cpu for value in case.arguments.values() if isinstance(value, torch.Tensor))


def worst(ratio: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The index of the largest ratio."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
