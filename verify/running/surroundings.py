"""What a call must leave as it is, besides memory: state of the whole process, and what its arguments are."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

SUBNORMAL = np.array(2.0**-149, np.float32)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


State = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # how to read it, how to put it back
STATE: State = {
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
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_default_device()": (torch.get_default_device, torch.set_default_device),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.get_float32_matmul_precision()": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch.get_deterministic_debug_mode()": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    **{
        f"torch.get_autocast_dtype('{device}')": (
            partial(torch.get_autocast_dtype, device),
            partial(torch.set_autocast_dtype, device),
        )
        for device in ("cpu", "cuda")
    },
    "torch.is_autocast_cache_enabled()": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    **{
        f"torch.backends.cuda.matmul.{name}": _attribute(torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    },
    **{
        f"torch.backends.cudnn.{name}": _attribute(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    "the processor's keeping of subnormal numbers": (
        lambda: bool((SUBNORMAL * np.float32(1)) > 0),
        lambda kept: torch.set_flush_denormal(not kept),
    ),
    "gc.isenabled()": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "numpy.geterr()": (np.geterr, lambda state: np.seterr(**state)),
    "the working folder": (os.getcwd, os.chdir),
}
_CUDA: State = {
    "the current CUDA device": (torch.cuda.current_device, torch.cuda.set_device),
    "the current CUDA stream": (torch.cuda.current_stream, torch.cuda.set_stream),
}


class Surroundings:
    """The state of the process and of a call's arguments before it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
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
                yield f"{name} changes from {before} to {now}"

    def _of_arguments(self) -> Iterator[str]:
        for name, tensor in self._tensors.items():
            for (fact, before), now in zip(self._facts[name].items(), _facts(tensor).values(), strict=True):
                if before != now:
                    yield f"{name}.{fact} changes from {before} to {now}"


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a call must leave of a tensor besides its values."""
    return {
        "requires_grad": tensor.requires_grad,
        "grad": None if not tensor.is_leaf or tensor.grad is None else "a tensor",
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride()": tensor.stride(),
        "data_ptr()": tensor.data_ptr(),
    }
