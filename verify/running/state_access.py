"""How each part of a process's state is read, and how it is put back."""

import _signal  # type: ignore[import-not-found]
import ctypes
import decimal
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

Access: TypeAlias = tuple[Callable[[], Any], Callable[[Any], Any]]  # read the value, put a value back
State: TypeAlias = dict[str, Access]  # by the name that messages have for this part of the state

SIGNALS = {number: getattr(number, "name", f"signal {number}") for number in signal.valid_signals()}
STANDARD_HANDLERS = {int(handler): handler for handler in signal.Handlers}
TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL, "ITIMER_PROF": signal.ITIMER_PROF}
SUBNORMAL = np.array(2.0**-149, np.float32)
ONE, TINY = np.float64(1), np.float64(2.0**-60)
MODULE_HOOKS = [n for n, value in vars(module).items() if n.startswith("_global_") and isinstance(value, dict)]
# Flags of torch, each with a function that reads it and one that sets it, besides those that `state` names one by one.
FLAGS = [name[5:] for name in dir(torch._C) if name.startswith("_get_") and hasattr(torch._C, f"_set_{name[5:]}")]
NAMED = ("cudnn_", "deterministic_", "mkldnn_enabled", "warnAlways", "cublas_allow_tf32", "onednn_allow_tf32")
UNNAMED_FLAGS = [name for name in FLAGS if not name.startswith(NAMED)]

_environment: tuple[dict[Any, Any], dict[str, str]] = {}, {}  # as encoded, as decoded
_inference_modes: list[Any] = []  # when one of them is freed, its mode ends


def attribute(owner: Any, name: str) -> Access:
    """Return the access to an attribute."""
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def list_contents(owner: Any, name: str) -> Access:
    """Return the access to the contents of a list, which stays the same object."""
    return lambda: list(getattr(owner, name)), lambda values: refill(getattr(owner, name), values)


def stack_depth(depth: Callable[[], int], pop: Callable[[], Any]) -> Access:
    """Return the access to the depth of a stack: what a call has pushed is popped."""

    def restore(before: int) -> None:
        while depth() > before:
            pop()

    return depth, restore


def refill(container: Any, values: Any) -> None:
    """Replace the contents of a list or a mapping in place."""
    container.clear()
    if isinstance(container, list):
        container.extend(values)
    else:
        container.update(values)


def set_warning_filters(filters: list[Any]) -> None:
    """Replace the filters of warnings, and let `warnings` know, which caches them."""
    refill(warnings.filters, filters)
    warnings._filters_mutated()  # type: ignore[attr-defined]


def default_device() -> torch.device:
    """Return torch's default device: the CPU where torch 2.6 raises an error, after `set_default_device(None)`."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def environment_variables() -> dict[str, str]:
    """Return the variables of the environment. They are decoded again only after a change: decoding is slow."""
    global _environment
    encoded = getattr(os.environ, "_data", os.environ)
    if _environment[0] != encoded:
        _environment = dict(encoded), dict(os.environ)
    return _environment[1]


def signal_handlers() -> dict[str, Any]:
    """Return the handlers of all signals, by name; `signal.getsignal` is slow, because it makes an enum of each."""
    handlers = {}
    for number, name in SIGNALS.items():
        handler = _signal.getsignal(number)
        handlers[name] = STANDARD_HANDLERS[handler] if type(handler) is int else handler
    return handlers


def set_signal_handlers(handlers: Mapping[str, Any]) -> None:
    """Set the handlers of signals. In a thread other than the main one, and where Python cannot set one, it stays."""
    for number, name in SIGNALS.items():
        if signal.getsignal(number) is not handlers[name]:
            with suppress(ValueError, TypeError, OSError):
                signal.signal(number, handlers[name])


def running_timers() -> tuple[str, ...]:
    """Return the names of the timers of signals that are set."""
    return tuple(name for name, number in TIMERS.items() if signal.getitimer(number)[0] > 0)


def stop_other_timers(before: tuple[str, ...]) -> None:
    """Stop the timers that were not set before. One that was stopped cannot be set again: its time is lost."""
    for name in set(running_timers()) - set(before):
        signal.setitimer(TIMERS[name], 0)


def affinity() -> State:
    """Return the access to the processors that the calling thread may use; none on a system that does not tell."""
    if not hasattr(os, "sched_setaffinity"):
        return {}

    def read() -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def restore(processors: list[int]) -> None:
        os.sched_setaffinity(0, processors)

    return {"os.sched_getaffinity(0)": (read, restore)}


def decimal_context() -> dict[str, Any]:
    """Return the arguments of `decimal.Context` that make the current context."""
    context = decimal.getcontext()
    return {name: getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")}


def rounds_to_nearest() -> bool:
    """Return whether the processor rounds to nearest: upward 1 + 2⁻⁶⁰ is not 1, downward 1 − 2⁻⁶⁰ is not."""
    return bool(ONE + TINY == ONE == ONE - TINY)


def round_to_nearest(_before: bool) -> None:
    """Let the processor round to nearest, whatever the mode before was: nothing here works in another one."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).fesetround(0)  # FE_TONEAREST, the same on every machine that torch runs on


def keeps_subnormals() -> bool:
    """Return whether the processor keeps subnormal numbers, and does not flush them to 0."""
    return bool((SUBNORMAL * np.float32(1)) > 0)


def saved_tensor_hooks() -> State:
    """Return the access to the topmost hooks of saved tensors; none for torch 2.6, which does not tell them."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:
        return {}

    def restore(before: Any) -> None:
        while (hooks := top(True)) is not None and hooks != before:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    return {"torch.autograd.graph's hooks of saved tensors": (lambda: top(True), restore)}


def set_inference_mode(on: bool) -> None:
    """Set inference mode for the rest of the thread's life, as a block that is never left does."""
    _inference_modes.append(torch._C._InferenceMode(on))


def boolean_flags() -> State:
    """Return the access to those of UNNAMED_FLAGS that are True or False."""
    flags: State = {}
    for name in UNNAMED_FLAGS:
        read, restore = getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}")
        with suppress(TypeError, RuntimeError):
            if isinstance(read(), bool):
                flags[f"torch._C._get_{name}()"] = read, restore
    return flags


def module_hooks() -> dict[str, dict[Any, Any]]:
    """Return a copy of torch.nn.Module's global hooks, by the name of their table."""
    return {name: dict(getattr(module, name)) for name in MODULE_HOOKS}


def set_module_hooks(hooks: Mapping[str, dict[Any, Any]]) -> None:
    """Replace torch.nn.Module's global hooks."""
    for name, table in hooks.items():
        refill(getattr(module, name), table)


def function_modes() -> int:
    """Return how many of torch's function modes are on, without that of the default device."""
    return sum(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
