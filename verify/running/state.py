"""The state of a process that a call must leave as it is: its parts, each with how it is read and put back."""

import builtins
import decimal
import gc
import logging
import os
import sys
import threading
import warnings
from functools import partial

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.overrides import _pop_mode
from torch.utils import _python_dispatch

from verify_norm.running import state_access as access
from verify_norm.running.state_access import State

MODES: State = {
    "the number of torch's function modes": access.stack_depth(access.function_modes, _pop_mode),
    "the number of torch's dispatch modes": access.stack_depth(
        torch._C._len_torch_dispatch_stack, _python_dispatch._pop_mode
    ),
    "the number of torch.func's levels": access.stack_depth(
        torch._C._functorch.get_dynamic_layer_stack_depth, torch._C._functorch.pop_dynamic_layer_stack
    ),
    "the level of torch.autograd.forward_ad": access.stack_depth(
        lambda: forward_ad._current_level, forward_ad.exit_dual_level
    ),
    **access.saved_tensor_hooks(),
    "torch.is_inference_mode_enabled()": (torch.is_inference_mode_enabled, access.set_inference_mode),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.is_autocast_enabled('cpu')": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "torch.is_autocast_enabled('cuda')": (
        lambda: torch.is_autocast_enabled("cuda"),
        lambda on: torch.set_autocast_enabled("cuda", on),
    ),
}
STATE: State = {
    **MODES,  # first: reading and restoring the others call torch, which a mode may change
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
        access.default_device,
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
    "torch.utils.deterministic.fill_uninitialized_memory": access.attribute(
        torch.utils.deterministic, "fill_uninitialized_memory"
    ),
    "torch.is_warn_always_enabled()": (torch.is_warn_always_enabled, torch.set_warn_always),
    **{
        f"torch.backends.cudnn.{name}": access.attribute(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    **{
        f"torch.backends.cuda.matmul.{name}": access.attribute(torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    },
    **access.boolean_flags(),
    "torch.autograd.is_multithreading_enabled()": (
        torch._C._is_multithreading_enabled,
        torch._C._set_multithreading_enabled,
    ),
    "the global hooks of torch.nn.Module": (access.module_hooks, access.set_module_hooks),
    "torch.backends.mkldnn.enabled": (
        lambda: torch.backends.mkldnn.enabled,
        lambda on: torch.backends.mkldnn.set_flags(on),
    ),
    "the processor's keeping of subnormal numbers": (
        access.keeps_subnormals,
        lambda keep: torch.set_flush_denormal(not keep),
    ),
    "the processor's rounding to nearest": (access.rounds_to_nearest, access.round_to_nearest),
    "numpy.geterr()": (np.geterr, lambda state: np.seterr(**state)),
    "numpy.get_printoptions()": (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    "torch's print options": (
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options),
    ),
    "the working folder": (os.getcwd, os.chdir),
    "decimal.getcontext()": (access.decimal_context, lambda values: decimal.setcontext(decimal.Context(**values))),
    **access.affinity(),
    "the handlers of signals": (access.signal_handlers, access.set_signal_handlers),
    "the timers of signals": (access.running_timers, access.stop_other_timers),
    "sys.gettrace()": (sys.gettrace, sys.settrace),
    "sys.getprofile()": (sys.getprofile, sys.setprofile),
    "threading.gettrace()": (threading.gettrace, threading.settrace),
    "threading.getprofile()": (threading.getprofile, threading.setprofile),
    **{
        f"{owner.__name__}.{name}": access.attribute(owner, name)
        for owner, names in (
            (sys, ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
            (threading, ("excepthook",)),
            (builtins, ("__import__",)),
        )
        for name in names
    },
    "sys.getswitchinterval()": (sys.getswitchinterval, sys.setswitchinterval),
    "sys.argv": access.list_contents(sys, "argv"),
    "sys.path": access.list_contents(sys, "path"),
    "sys.meta_path": access.list_contents(sys, "meta_path"),
    "gc.callbacks": access.list_contents(gc, "callbacks"),
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc.get_threshold()": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "sys.getrecursionlimit()": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the level of the root logger": access.attribute(logging.root, "level"),
    "logging.disable()": access.attribute(logging.root.manager, "disable"),
    "os.environ": (access.environment_variables, lambda variables: access.refill(os.environ, variables)),
    "warnings.filters": (lambda: list(warnings.filters), access.set_warning_filters),
}
# The part of STATE that the judge's own calls of torch and NumPy depend on: modes, defaults and arithmetic.
OF_JUDGE: State = MODES | {
    name: STATE[name]
    for name in (
        "torch.get_default_dtype()",
        "torch.get_default_device()",
        "numpy.geterr()",
        "the processor's keeping of subnormal numbers",
        "the processor's rounding to nearest",
    )
}
# The part of STATE to which the check `modes` gives other values than usual.
OF_MODES: State = MODES | {
    name: STATE[name]
    for name in (
        "torch.are_deterministic_algorithms_enabled()",
        "torch.get_num_threads()",
        "torch.get_default_dtype()",
        "torch.get_float32_matmul_precision()",
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
