"""The state of a process that a call must leave: how each part is read, and how it is put back."""

import _signal  # type: ignore[import-not-found]
import builtins
import ctypes
import decimal
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

SIGNALS = {number: getattr(number, "name", f"signal {number}") for number in signal.valid_signals()}
STANDARD = {int(handler): handler for handler in signal.Handlers}
TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL, "ITIMER_PROF": signal.ITIMER_PROF}
SUBNORMAL = np.array(2.0**-149, np.float32)
ONE, LITTLE = np.float64(1), np.float64(2.0**-60)
# Flags of torch that are read and set in pairs, besides those with a line of their own.
NAMED = ("cudnn_", "deterministic_", "mkldnn_enabled", "warnAlways", "cublas_allow_tf32", "onednn_allow_tf32")
FLAGS = [name[5:] for name in dir(torch._C) if name.startswith("_get_") and hasattr(torch._C, f"_set_{name[5:]}")]
HOOKS = [name for name, held in vars(module).items() if name.startswith("_global_") and isinstance(held, dict)]
SWITCHES = [name for name in FLAGS if not name.startswith(NAMED)]
_environment: tuple[dict[Any, Any], dict[str, str]] = {}, {}
State = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # how to read it, how to put it back


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


def _variables() -> dict[str, str]:
    """Return the variables of the environment, which are decoded anew only where they are others than before."""
    global _environment
    encoded = getattr(os.environ, "_data", os.environ)  # to decode all of them takes longer than the rest of STATE
    if _environment[0] != encoded:
        _environment = dict(encoded), dict(os.environ)
    return _environment[1]


def _handlers() -> dict[str, Any]:
    """Return the handlers of all signals; signal.getsignal makes enums, which is most of what a look at STATE takes."""
    found = zip(SIGNALS.values(), map(_signal.getsignal, SIGNALS), strict=True)
    return {name: STANDARD[handler] if type(handler) is int else handler for name, handler in found}


def _handle(handlers: Mapping[str, Any]) -> None:
    """Set handlers of signals; those that Python has not set, and in another thread than the main one, stay."""
    for number, name in SIGNALS.items():
        if signal.getsignal(number) is not (handler := handlers[name]):
            with suppress(ValueError, TypeError, OSError):
                signal.signal(number, handler)


def _timers() -> tuple[str, ...]:
    return tuple(name for name, number in TIMERS.items() if signal.getitimer(number)[0] > 0)


def _disarm(before: tuple[str, ...]) -> None:
    """Stop the timers that were not set; one that was stopped has lost its time."""
    for name in set(_timers()) - {*before}:
        signal.setitimer(TIMERS[name], 0)


def _affinity() -> State:
    """Return the processors that the calling thread may use, where the system tells."""
    if not hasattr(os, "sched_setaffinity"):
        return {}
    allowed = lambda: sorted(os.sched_getaffinity(0)), lambda processors: os.sched_setaffinity(0, processors)
    return {"os.sched_getaffinity(0)": allowed}


def _decimal() -> dict[str, Any]:
    context = decimal.getcontext()
    return {name: getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")}


def _rounds_to_nearest() -> bool:
    return bool(ONE + LITTLE == ONE == ONE - LITTLE)


def _round_to_nearest(before: bool) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).fesetround(0)  # FE_TONEAREST, the same on every machine that torch runs on


def _hooks() -> State:
    """Return the hooks of saved tensors, where torch tells them: 2.6 does not."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:
        return {}

    def unhook(before: Any) -> None:
        while (now := top(True)) is not None and now != before:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    return {"torch.autograd.graph's hooks of saved tensors": (lambda: top(True), unhook)}


def _infer(on: bool) -> None:
    """Set inference mode for the rest of the thread's life, as a block that is never left does."""
    _kept.append(torch._C._InferenceMode(on))


_kept: list[Any] = []


def _switches() -> State:
    """Return those flags of torch that are True or False."""
    pairs = {n: (getattr(torch._C, f"_get_{n}"), getattr(torch._C, f"_set_{n}")) for n in SWITCHES}
    found: State = {}
    for name, (read, put) in pairs.items():
        with suppress(TypeError, RuntimeError):
            if isinstance(read(), bool):
                found[f"torch._C._get_{name}()"] = read, put
    return found


def _listed(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: list(getattr(owner, name)), lambda values: _replace(getattr(owner, name), values)


def _module_hooks() -> dict[str, dict[Any, Any]]:
    return {name: dict(getattr(module, name)) for name in HOOKS}


def _hook(hooks: Mapping[str, dict[Any, Any]]) -> None:
    for name, held in hooks.items():
        _replace(getattr(module, name), held)


def _function_modes() -> int:
    """Return how many of torch's function modes are on, but for that of the default device."""
    return sum(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def _stack(depth: Callable[[], int], pop: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def restore(before: int) -> None:
        while depth() > before:
            pop()

    return depth, restore


STATE: State = {  # modes come first: what reads the rest would meet them
    "the number of torch's function modes": _stack(_function_modes, _pop_mode),
    "the number of torch's dispatch modes": _stack(torch._C._len_torch_dispatch_stack, _python_dispatch._pop_mode),
    "the number of torch.func's levels": _stack(
        torch._C._functorch.get_dynamic_layer_stack_depth, torch._C._functorch.pop_dynamic_layer_stack
    ),
    "the level of torch.autograd.forward_ad": _stack(lambda: forward_ad._current_level, forward_ad.exit_dual_level),
    **_hooks(),
    "torch.is_inference_mode_enabled()": (torch.is_inference_mode_enabled, _infer),
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
    **_switches(),
    "torch.autograd.is_multithreading_enabled()": (
        torch._C._is_multithreading_enabled,
        torch._C._set_multithreading_enabled,
    ),
    "the global hooks of torch.nn.Module": (_module_hooks, _hook),
    "torch.backends.mkldnn.enabled": (
        lambda: torch.backends.mkldnn.enabled,
        lambda on: torch.backends.mkldnn.set_flags(on),
    ),
    "the processor's keeping of subnormal numbers": (
        lambda: bool((SUBNORMAL * np.float32(1)) > 0),
        lambda kept: torch.set_flush_denormal(not kept),
    ),
    "the processor's rounding to nearest": (_rounds_to_nearest, _round_to_nearest),
    "numpy.geterr()": (np.geterr, lambda state: np.seterr(**state)),
    "numpy.get_printoptions()": (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    "torch's print options": (
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options),
    ),
    "the working folder": (os.getcwd, os.chdir),
    "decimal.getcontext()": (_decimal, lambda values: decimal.setcontext(decimal.Context(**values))),
    **_affinity(),
    "the handlers of signals": (_handlers, _handle),
    "the timers of signals": (_timers, _disarm),
    "sys.gettrace()": (sys.gettrace, sys.settrace),
    "sys.getprofile()": (sys.getprofile, sys.setprofile),
    "threading.gettrace()": (threading.gettrace, threading.settrace),
    "threading.getprofile()": (threading.getprofile, threading.setprofile),
    **{
        f"{owner.__name__}.{name}": _attribute(owner, name)
        for owner, names in (
            (sys, ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
            (threading, ("excepthook",)),
            (builtins, ("__import__",)),
        )
        for name in names
    },
    "sys.getswitchinterval()": (sys.getswitchinterval, sys.setswitchinterval),
    "sys.argv": _listed(sys, "argv"),
    "sys.path": _listed(sys, "path"),
    "sys.meta_path": _listed(sys, "meta_path"),
    "gc.callbacks": _listed(gc, "callbacks"),
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc.get_threshold()": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "sys.getrecursionlimit()": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the level of the root logger": _attribute(logging.root, "level"),
    "logging.disable()": _attribute(logging.root.manager, "disable"),
    "os.environ": (_variables, lambda variables: _replace(os.environ, variables)),
    "warnings.filters": (lambda: list(warnings.filters), _refilter),
}
# What changes the judge's own calls of torch and NumPy: modes, the state of a thread, defaults, and arithmetic.
OF_JUDGE: State = {
    name: STATE[name]
    for name in (
        *list(STATE)[: list(STATE).index("torch.is_anomaly_enabled()")],
        *("torch.get_default_dtype()", "torch.get_default_device()", "numpy.geterr()"),
        *("the processor's keeping of subnormal numbers", "the processor's rounding to nearest"),
    )
}
# What a module may change when it is first imported, for example within the first call of a kernel.
OF_IMPORTS = (
    *("os.environ", "warnings.filters", "sys.getrecursionlimit()", "sys.path", "sys.meta_path", "gc."),
    "the level of the root logger",
)
CUDA: State = {
    "the current CUDA device": (torch.cuda.current_device, torch.cuda.set_device),
    # Without an index, torch asks the driver each time whether there is a device.
    "the current CUDA stream": (lambda: torch.cuda.current_stream(torch.cuda.current_device()), torch.cuda.set_stream),
}
