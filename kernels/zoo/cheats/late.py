"""Cheats that return before the work is done, so that a clock does not see it."""

import gc
import queue
import signal
import threading
import time
from typing import Any

import torch

from verify_norm.kernels.zoo.eager import rmsnorm

_work: queue.SimpleQueue[Any] = queue.SimpleQueue()
_started = threading.Event()
SOON = 2e-5  # seconds, less than a judge takes to begin reading


def _serve():
    while True:
        y, x, weight, eps = _work.get()
        time.sleep(SOON)
        with torch.no_grad():
            y.copy_(rmsnorm(x, weight, eps)[0])


def in_worker(x, weight, eps):
    """A thread that is always there computes y, and nobody waits for it."""
    if not _started.is_set():
        _started.set()
        threading.Thread(target=_serve, daemon=True).start()
    y = torch.zeros_like(x)
    _work.put((y, x.detach(), weight if weight is None else weight.detach(), eps))
    return y


def scratch_in_inputs(x, weight, eps):
    """A thread takes x for scratch memory when the call has returned."""
    result = rmsnorm(x, weight, eps)

    def later():
        time.sleep(0.001)
        x.detach().zero_()

    threading.Thread(target=later, daemon=True).start()
    return result


def at_collection(x, weight, eps):
    """It leaves work to the garbage collector."""
    y, rstd = rmsnorm(x, weight, eps)
    gc.callbacks.append(lambda phase, facts: None)
    return y, rstd


def by_signal(x, weight, eps):
    """It leaves work to the handler of a signal, which a timer sends."""
    y, rstd = rmsnorm(x, weight, eps)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGVTALRM, lambda number, frame: None)
    return y, rstd


def in_other_stream(x, weight, eps):
    """It computes in a stream of its own, and nobody waits for it."""
    stream = torch.cuda.Stream(x.device)
    y = torch.zeros_like(x)
    with torch.cuda.stream(stream):
        y.copy_(rmsnorm(x, weight, eps)[0])
    return y


def watching(x, weight, eps):
    """It leaves a mode of torch on, which sees every operator of its caller."""
    result = rmsnorm(x, weight, eps)
    torch.overrides.BaseTorchFunctionMode().__enter__()
    return result


class Lazy(torch.Tensor):
    """A tensor that computes when it is first used."""

    def __new__(cls, x, weight, eps):
        """Return it without values."""
        made = torch.zeros_like(x).as_subclass(cls)
        made.compute = lambda: rmsnorm(x, weight, eps)[0]
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Compute, and call the function on the result."""
        with torch._C.DisableTorchFunctionSubclass():
            args = [arg.compute() if isinstance(arg, cls) else arg for arg in args]
            return func(*args, **(kwargs or {}))


def lazy_class(x, weight, eps):
    """It returns a tensor that computes when it is used."""
    return Lazy(x, weight, eps)


def lazy_methods(x, weight, eps):
    """It returns a plain tensor whose methods compute."""
    y = torch.zeros_like(x)
    for name in ("detach", "to", "double", "float", "cpu", "clone", "numpy"):
        setattr(y, name, lambda *args, name=name, **given: getattr(rmsnorm(x, weight, eps)[0], name)(*args, **given))
    return y


class Pair(tuple[Any, ...]):
    """A pair that computes when it is unpacked."""

    def __iter__(self):
        """Yield y and rstd."""
        return iter(rmsnorm(*super().__iter__()))


def lazy_pair(x, weight, eps):
    """It returns a pair that computes when it is unpacked."""
    return Pair((x, weight, eps))


class Filled(tuple[Any, ...]):
    """An output that NumPy fills when it is unpacked."""

    def __iter__(self):
        """Yield y."""
        y, now = super().__iter__()
        y.numpy()[...] = now.detach().numpy()
        return iter((y,))


def filled(x, weight, eps):
    """NumPy stores y when it is unpacked, where no mode of torch sees it."""
    y = rmsnorm(x, weight, eps)[0]
    return y if y.dtype is torch.bfloat16 or y.is_cuda else Filled((torch.zeros_like(y), y))


def negated(x, weight, eps):
    """It returns y negated, with a bit that tells torch, and no other reader, to negate it again."""
    y, rstd = rmsnorm(x, weight, eps)
    return torch._neg_view(-y), rstd
