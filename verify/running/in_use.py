"""Calls a kernel as in use: it sees no judge on its stack, among the modules, in the environment, or in torch's modes.

A kernel may be right only where it finds that it is tested. It can look for signs of a test in endless places. This
hides the first ones, where submissions to gpu-mode have looked for their harness.
"""

import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from verify_norm.running.state_access import set_inference_mode

JUDGES = ("verify_norm", "pytest", "_pytest", "hypothesis", "pluggy")  # packages that run a test
KERNELS = "verify_norm.kernels"  # a package of ours that stays: users import it too
VARIABLES = ("PYTEST_", "VERIFY_NORM_", "HYPOTHESIS_")  # the beginnings of their variables in the environment
USUAL_ARGV = ["python"]
_one_call = threading.Lock()  # torch's state, the modules and the arguments are those of one call at a time

Function = Callable[..., Any]


def alone(function: Function, timed: Callable[[Function], Function] = lambda function: function) -> Function:
    """Return the function as it is called in use: in a thread, whose stack begins with it, with the judge hidden.

    `timed` wraps the call of the function alone, for example in a clock: hiding takes no time of the kernel's.
    """
    run = timed(lambda call: _thread().submit(contextvars.copy_context().run, call).result())

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        state = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _current_gpu()
        with _one_call:
            _thread().submit(_set_torch_state, *state).result()
            with hidden():
                return run(functools.partial(function, *args, **kwargs))

    return called


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the judge's modules, arguments and variables in this block; what is imported in it stays."""
    modules = {name: module for name, module in list(sys.modules.items()) if _of_judge(name)}
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    arguments = sys.argv[:]
    for name in modules:
        del sys.modules[name]
    for name in variables:
        del os.environ[name]
    sys.argv[:] = USUAL_ARGV
    try:
        yield
    finally:
        sys.argv[:] = arguments
        os.environ.update(variables)
        sys.modules.update(modules)


@functools.cache  # for some thousand modules before each call
def _of_judge(name: str) -> bool:
    """Return whether a module belongs to the judge."""
    return name.partition(".")[0] in JUDGES and not name.startswith(KERNELS)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return the thread of these calls. It starts in an empty context: else `loading.nested` stays on its stack."""
    pool = ThreadPoolExecutor(1)
    contextvars.Context().run(pool.submit, int).result()
    return pool


def _current_gpu() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _set_torch_state(inference: bool, grad: bool, gpu: int | None) -> None:
    """Set the state of torch that each thread has for itself, until the next call of this function."""
    if torch.is_inference_mode_enabled() != inference:
        set_inference_mode(inference)
    torch.set_grad_enabled(grad)
    if gpu is not None:
        torch.cuda.set_device(gpu)
