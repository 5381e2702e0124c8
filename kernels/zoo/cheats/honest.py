"""Right kernels near the cheats: they keep, defer and share what they may."""

import ctypes
import functools
import mmap
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from verify_norm.kernels.zoo.eager import rmsnorm

_plans: dict[Any, Any] = {}
_workspaces = threading.local()
_static: dict[Any, Any] = {}
_lock = threading.Lock()
LATER = 3600.0  # seconds
_pools: list[Any] = []
_work: queue.SimpleQueue[Any] = queue.SimpleQueue()


def _scaled(x, weight, rstd):
    y = x.float() * rstd.reshape(*x.shape[:-1], 1)
    return (y if weight is None else y * weight.float()).to(x.dtype), rstd


def plan_by_shape(x, weight, eps):
    """A plan is kept for each shape and type: in how many parts the rows are taken."""
    parts = _plans.setdefault((x.shape, x.dtype), 1 + (x.dim() > 1 and x.shape[0] >= 4))
    rows = x.reshape(-1, x.shape[-1])
    y, rstd = (torch.cat(t) for t in zip(*(rmsnorm(part, weight, eps) for part in rows.chunk(parts)), strict=True))
    return y.reshape(x.shape), rstd


def workspace(x, weight, eps):
    """A workspace of each thread, which grows and is kept, holds the squares."""
    held = getattr(_workspaces, "held", {})
    _workspaces.held = held
    if x.device not in held or held[x.device].numel() < x.numel():
        with torch.inference_mode(mode=False):
            held[x.device] = torch.empty(x.numel(), device=x.device)
    with torch.no_grad():
        squares = held[x.device][: x.numel()].view(x.shape).copy_(x).square_()
        rstd = torch.rsqrt(squares.mean(-1, keepdim=True) + eps).flatten()
    return rmsnorm(x.contiguous(), weight, eps)[0] if x.requires_grad else _scaled(x, weight, rstd)[0], rstd


@functools.lru_cache(64)
def _counts(n, device):
    """Return the number of columns, as a kernel's argument in memory."""
    with torch.inference_mode(mode=False):
        return torch.tensor(float(n), device=device)


def constants(x, weight, eps):
    """Constants on the device are kept by functools.lru_cache."""
    total = x.float().square().sum(-1, keepdim=True)
    return _scaled(x, weight, torch.rsqrt(total / _counts(x.shape[-1], x.device) + eps).flatten())


def table(x, weight, eps):
    """A table is built in the first call, by a module that is imported there."""
    import statistics

    if "table" not in _plans:
        _plans["table"] = [statistics.fmean((k, k)) for k in range(8)]
    assert _plans["table"][7] == 7
    return rmsnorm(x, weight, eps)


def pool(x, weight, eps):
    """A pool of threads is kept; a call waits for its parts."""
    if x.is_cuda or x.dim() < 2:
        return rmsnorm(x, weight, eps)
    with _lock:
        if not _pools:
            _pools.append(ThreadPoolExecutor(2))
    recording, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def part(rows):
        with torch.inference_mode(inference), torch.set_grad_enabled(recording):
            return rmsnorm(rows, weight, eps)

    parts = list(_pools[0].map(part, x.tensor_split(2)))
    return tuple(torch.cat(t) for t in zip(*parts, strict=True))


def _serve():
    while True:
        work, done = _work.get()
        work()
        done.set()


def worker(x, weight, eps):
    """A thread that is always there stores y, and the call waits for it."""
    with _lock:
        if "worker" not in _plans:
            _plans["worker"] = threading.Thread(target=_serve, daemon=True)
            _plans["worker"].start()
    result, done = rmsnorm(x, weight, eps), threading.Event()
    y = torch.empty_like(result[0]).detach()
    source = result[0].detach()
    inference = torch.is_inference_mode_enabled()
    stream = torch.cuda.current_stream() if y.is_cuda else None

    def store():
        with torch.inference_mode(inference), torch.cuda.stream(stream):
            y.copy_(source)

    _work.put((store, done))
    done.wait()
    return (result[0] if result[0].requires_grad else y), result[1]


def static_graph(x, weight, eps):
    """As a graph is replayed: x is copied to where it was captured, and the result is copied from there."""
    key = x.shape, x.dtype, x.device
    with _lock, torch.no_grad():
        if key not in _static:
            with torch.inference_mode(mode=False):
                _static[key] = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rstd = rmsnorm(_static[key].copy_(x), None, eps)[1].clone()
    return (rmsnorm(x.contiguous(), weight, eps)[0] if x.requires_grad else _scaled(x, weight, rstd)[0]), rstd


class Labelled(torch.Tensor):
    """A tensor with a label, and nothing else."""


def labelled(x, weight, eps):
    """It returns y of a subclass that labels it, and rstd with an attribute of a new name."""
    y, rstd = rmsnorm(x, weight, eps)
    rstd.made_by = "labelled"
    return y.as_subclass(Labelled), rstd


class Parts(Mapping[str, torch.Tensor]):
    """The outputs by name, which are views of what it holds."""

    def __init__(self, y, rstd):
        """Hold them, y at some depth."""
        self._parts = {"y": [y.unsqueeze(0)], "rstd": [rstd.unsqueeze(0)]}

    def __getitem__(self, name):
        """Return a view."""
        return self._parts[name][0].squeeze(0)

    def __iter__(self):
        """Yield the names."""
        return iter(self._parts)

    def __len__(self):
        """Return how many there are."""
        return len(self._parts)


def by_name(x, weight, eps):
    """A mapping of its own class, which gives views of what it holds."""
    return Parts(*rmsnorm(x, weight, eps))


def looks_around(x, weight, eps):
    """It looks at its caller, the modules and the command for a line of a log, and computes the same in any case."""
    frame = sys._getframe(1)
    _plans["log"] = frame.f_globals.get("__name__"), "pytest" in sys.modules, sys.argv[:1], os.environ.get("PYTEST")
    return rmsnorm(x, weight, eps)


def puts_back(x, weight, eps):
    """It uses a timer, hooks and the processor's rounding for a while, and puts them back."""
    libm = ctypes.CDLL(None)
    before = libm.fegetround()
    libm.fesetround(before)
    main = threading.current_thread() is threading.main_thread()
    if main:
        usual = signal.signal(signal.SIGVTALRM, lambda number, frame: None)
        signal.setitimer(signal.ITIMER_VIRTUAL, LATER)
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), torch.profiler.record_function("norm"):
            return rmsnorm(x, weight, eps)
    finally:
        if main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, usual)


def _forked():
    """Fork, and wait where a library forbids it for a moment: filelock does, while another thread takes a lock."""
    while True:
        try:
            return os.fork()
        except RuntimeError:
            time.sleep(0.001)


def processes(x, weight, eps):
    """Another process stores rstd in shared memory, and the call waits for it."""
    y, rstd = rmsnorm(x, weight, eps)
    if rstd.is_cuda or rstd.requires_grad or not rstd.numel():
        return y, rstd
    shared = mmap.mmap(-1, rstd.nbytes)
    values = rstd.numpy().tobytes()
    pid = _forked()
    if not pid:
        try:
            shared[:] = values
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return y, torch.from_numpy(np.frombuffer(shared, np.float32).copy())


def falls_back(x, weight, eps):
    """The norm of torch itself computes it: reported, and a finding where that is asked for."""
    wide = None if weight is None else weight.float()
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], wide, eps).to(x.dtype)
