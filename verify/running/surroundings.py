"""What a call must leave as it is, besides memory: state of the whole process, and what its arguments are."""

import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

SIGNALS = [name for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
SUBNORMAL = np.array(2.0**-149, np.float32)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _replace(kept: Any, values: Any) -> None:
    """Give a list or a mapping its values back."""
    kept.clear()
    kept.extend(values) if isinstance(kept, list) else kept.update(values)


def _refilter(filters: list[Any]) -> None:
    _replace(warnings.filters, filters)
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as warnings itself says that they have changed


def _default_device() -> torch.device:
    """Return torch's default device, which torch 2.6 cannot tell once `set_default_device(None)` has been called."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS}


def _handle(handlers: Mapping[str, Any]) -> None:
    """Set handlers of signals; those that Python has not set, and in another thread than the main one, stay."""
    for name, handler in handlers.items():
        with suppress(ValueError, TypeError):
            signal.signal(getattr(signal, name), handler)


def _function_modes() -> int:
    """Return how many of torch's function modes are on, but for that of the default device."""
    return sum(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def _stack(depth: Callable[[], int], pop: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def restore(before: int) -> None:
        while depth() > before:
            pop()

    return depth, restore


State = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # how to read it, how to put it back
STATE: State = {  # modes come first: what reads the rest would meet them
    "the number of torch's function modes": _stack(_function_modes, _pop_mode),
    "the number of torch's dispatch modes": _stack(torch._C._len_torch_dispatch_stack, _python_dispatch._pop_mode),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.is_autocast_enabled('cpu')": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "torch.is_autocast_enabled('cuda')": (
        lambda: torch.is_autocast_enabled("cuda"),
        lambda on: torch.set_autocast_enabled("cuda", on),
    ),
    "torch.is_anomaly_enabled()": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    **{
        f"torch.get_autocast_dtype('{device}')": (
            partial(torch.get_autocast_dtype, device),
            partial(torch.set_autocast_dtype, device),
        )
        for device in ("cpu", "cuda")
    },
    "torch.is_autocast_cache_enabled()": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_default_device()": (
        _default_device,
        # A default that is set, even to the CPU, sends every call of torch through Python.
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.get_float32_matmul_precision()": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch.are_deterministic_algorithms_enabled()": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        lambda only: torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=only),
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": _attribute(
        torch.utils.deterministic, "fill_uninitialized_memory"
    ),
    "torch.is_warn_always_enabled()": (torch.is_warn_always_enabled, torch.set_warn_always),
    **{
        f"torch.backends.cudnn.{name}": _attribute(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    **{
        f"torch.backends.cuda.matmul.{name}": _attribute(torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    },
    "torch.backends.mkldnn.enabled": (
        lambda: torch.backends.mkldnn.enabled,
        lambda on: torch.backends.mkldnn.set_flags(on),
    ),
    "the processor's keeping of subnormal numbers": (
        lambda: bool((SUBNORMAL * np.float32(1)) > 0),
        lambda kept: torch.set_flush_denormal(not kept),
    ),
    "numpy.geterr()": (np.geterr, lambda state: np.seterr(**state)),
    "numpy.get_printoptions()": (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    "torch's print options": (
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options),
    ),
    "the working folder": (os.getcwd, os.chdir),
    "the handlers of signals": (_handlers, _handle),
    "sys.gettrace()": (sys.gettrace, sys.settrace),
    "sys.getprofile()": (sys.getprofile, sys.setprofile),
    "gc.callbacks": (lambda: list(gc.callbacks), lambda kept: _replace(gc.callbacks, kept)),
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc.get_threshold()": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "sys.getrecursionlimit()": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the level of the root logger": _attribute(logging.root, "level"),
    "logging.disable()": _attribute(logging.root.manager, "disable"),
    "os.environ": (lambda: dict(os.environ), lambda variables: _replace(os.environ, variables)),
    "warnings.filters": (lambda: list(warnings.filters), _refilter),
}
# What a module may change when it is first imported, as within the first call of a kernel.
OF_IMPORTS = ("os.environ", "warnings.filters", "sys.getrecursionlimit()", "the level of the root logger", "gc.")
_CUDA: State = {
    "the current CUDA device": (torch.cuda.current_device, torch.cuda.set_device),
    "the current CUDA stream": (torch.cuda.current_stream, torch.cuda.set_stream),
}


class Surroundings:
    """The state of the process and of a call's arguments before it, of which some are `writable`."""

    def __init__(self, arguments: Mapping[str, Any], writable: Collection[str] = ()) -> None:
        self._writable = writable
        self._tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._facts = {name: _facts(tensor) for name, tensor in self._tensors.items()}
        on_gpu = any(tensor.is_cuda for tensor in self._tensors.values())
        self._known = STATE | _CUDA if on_gpu else STATE
        self._state = {name: read() for name, (read, _) in self._known.items()}

    def changes(self) -> tuple[str, ...]:
        """Put the state of the process back, and return in words what had changed."""
        return (*self._of_process(), *self._of_arguments())

    def _of_process(self) -> Iterator[str]:
        for name, (read, restore) in self._known.items():
            before, now = self._state[name], read()
            if now != before:
                restore(before)
                yield f"{name} {_difference(before, now)}"

    def _of_arguments(self) -> Iterator[str]:
        for name, tensor in self._tensors.items():
            now = _facts(tensor)
            changed = [fact for fact, before in self._facts[name].items() if before != now[fact]]
            if changed == ["_version"]:
                if name not in self._writable:
                    versions = f"changes from {self._facts[name]['_version']} to {now['_version']}"
                    yield f"{name} is written to: torch's count of its versions {versions}"
                continue
            for fact in changed:
                if fact != "_version":  # what changes all else counts as a version too
                    yield f"{name}.{fact} changes from {self._facts[name][fact]} to {now[fact]}"


@contextmanager
def left(words: list[str], arguments: Mapping[str, Any], writable: Collection[str] = ()) -> Iterator[None]:
    """Put back what a call in this block changes, and add to a list in words what that was."""
    before = Surroundings(arguments, writable)
    try:
        yield
    finally:
        words += before.changes()


def _difference(before: Any, now: Any) -> str:
    """Return in words how a state has changed; of many entries only those that differ."""
    if isinstance(before, list):
        return f"has {len(now)} entries, of which {sum(entry not in before for entry in now)} are new"
    if isinstance(before, dict):
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        before, now = ({name: state.get(name) for name in names} for state in (before, now))
    return f"changes from {before} to {now}"


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a call must leave of a tensor besides its values."""
    return {
        "requires_grad": tensor.requires_grad,
        "grad": None if not tensor.is_leaf or tensor.grad is None else "a tensor",
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride()": tensor.stride(),
        "data_ptr()": tensor.data_ptr(),
        "_version": tensor._version,
        "_backward_hooks": len(tensor._backward_hooks or ()),
    }
