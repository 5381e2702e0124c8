"""Cheats that leave something to their caller: a timer, a hook, a mode of the processor, a disguised argument."""

import ctypes
import signal
import threading

import torch

from verify_norm.kernels.zoo.eager import rmsnorm

DOWNWARD = 0x400  # of fenv.h, on x86
LATER = 3600.0  # seconds


def timer(x, weight, eps):
    """It leaves work to a timer, whose signal has had a handler since its module was imported."""
    result = rmsnorm(x, weight, eps)
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_PROF, LATER)
    return result


class Liar(torch.Tensor):
    """A tensor that says what it likes of itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Call the function."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def class_of_x(x, weight, eps):
    """It makes x of a class that lies to who compares it with what it was."""
    result = rmsnorm(x, weight, eps)
    x.__class__ = Liar
    return result


def method_of_x(x, weight, eps):
    """It gives x a method of its own, by which it is read."""
    result = rmsnorm(x, weight, eps)
    x.untyped_storage = lambda: torch.Tensor.untyped_storage(x)
    return result


def saved_hooks(x, weight, eps):
    """It leaves hooks on, which see each tensor that autograd saves for its caller."""
    result = rmsnorm(x, weight, eps)
    torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone).__enter__()
    return result


def level(x, weight, eps):
    """It leaves a level of torch.func on, which wraps the tensors of its caller."""
    result = rmsnorm(x, weight, eps)
    torch._C._functorch._grad_increment_nesting()
    return result


def rounding(x, weight, eps):
    """It lets the processor round down, in its judge too."""
    result = rmsnorm(x, weight, eps)
    ctypes.CDLL(None).fesetround(DOWNWARD)
    return result
