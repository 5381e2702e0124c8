"""Calls a kernel as in use: it sees no judge on its stack, among the modules, in the environment, or in torch's modes.

A kernel may be right only where it finds that it is tested. What it can look at is without end; this hides what it
looks at first, as submissions that look for their harness do (gpu-mode).
"""

import contextvars
import functools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from verify_norm.running.state_access import set_inference_mode

JUDGES = ("verify_norm", "pytest", "_pytest", "hypothesis", "pluggy")  # packages of a test
KERNELS = "verify_norm.kernels"  # which are in use too
VARIABLES = ("PYTEST_", "VERIFY_NORM_", "HYPOTHESIS_")  # how their names in the environment begin
USUAL = ["python"]  # sys.argv


Function = Callable[..., Any]


def alone(function: Function, timed: Callable[[Function], Function] = lambda function: function) -> Function:
    """Return the function as it is called in use: in a thread, whose stack begins with it, and beside no judge.

    What `timed` makes of a function, such as a clock, does not see what that takes.
    """
    run = timed(lambda call: _thread().submit(contextvars.copy_context().run, call).result())

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        _thread().submit(_as_here, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _gpu()).result()
        with hidden():
            return run(functools.partial(function, *args, **kwargs))

    return called


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the judge's modules, arguments and variables in this block; what is imported in it stays."""
    modules = {name: module for name, module in list(sys.modules.items()) if _judges(name)}
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    arguments = sys.argv[:]
    for name in modules:
        del sys.modules[name]
    for name in variables:
        del os.environ[name]
    sys.argv[:] = USUAL
    try:
        yield
    finally:
        sys.argv[:] = arguments
        os.environ.update(variables)
        sys.modules.update(modules)


@functools.cache  # of some thousand modules, before each call
def _judges(name: str) -> bool:
    return name.partition(".")[0] in JUDGES and not name.startswith(KERNELS)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return the thread of these calls. It starts in an empty context: else `loading.nested` stays on its stack."""
    pool = ThreadPoolExecutor(1)
    contextvars.Context().run(pool.submit, int).result()
    return pool


def _gpu() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _as_here(inference: bool, grad: bool, gpu: int | None) -> None:
    """Set the state of torch that each thread has for itself; no block ends it."""
    if torch.is_inference_mode_enabled() != inference:
        set_inference_mode(inference)
    torch.set_grad_enabled(grad)
    if gpu is not None:
        torch.cuda.set_device(gpu)
