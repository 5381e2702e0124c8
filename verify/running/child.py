"""What runs in the process of a kernel: it answers requests of the process that started it, one after another."""

import fcntl
import gc
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]  # so an error keeps its lines
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

import torch

from verify_norm.core.kernel import Kernel
from verify_norm.loading import functions, nested, registry
from verify_norm.loading.targets import reach
from verify_norm.running import stacks
from verify_norm.running.compilation import METER
from verify_norm.running.fork_server import GRACE
from verify_norm.running.interpreter import patch

MEMORY = 0.5  # share of the machine's memory that a kernel may allocate on the CPU
# The page that both processes see during a call: the name of a check, the seconds of compilation, and a byte by which
# the parent asks the call to end.
STAGE = 64  # bytes
SECONDS = struct.Struct("d")
END = STAGE + SECONDS.size
PAGE = END + 1
T = TypeVar("T")

_kernel: tuple[Kernel, mmap.mmap] | None = None  # and the page that the parent process sees


def serve(parent: Connection) -> None:
    """Call each function that the parent sends, and answer with (True, its result) or (False, its exception).

    It ends when the parent closes the channel. The process leads a group of its own: who kills the group kills all that
    the process has started.
    """
    os.setpgid(0, 0)
    gc.freeze()  # no collection of this process walks through torch
    _end_with_caller()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends this process
    while True:
        try:
            request = parent.recv_bytes()
        except EOFError:
            return
        try:
            function, args = pickle.loads(request)
            answer = ForkingPickler.dumps((True, function(*args)))
        except BaseException as error:
            answer = ForkingPickler.dumps((False, ExceptionWithTraceback(error, error.__traceback__)))
        parent.send_bytes(answer)


def _end_with_caller() -> None:
    """Let Linux kill this process once the caller's has ended, also in a call that never returns.

    The fork server, whose child it is, does not end before it. The sentinel is a pipe that the caller's process alone
    can write to; its end is an event of that pipe.
    """
    caller = multiprocessing.parent_process()
    if caller is None or not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(caller.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(caller.sentinel, fcntl.F_SETFL, fcntl.fcntl(caller.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if not caller.is_alive():  # before there was this signal
        os._exit(1)


def load(device: str, target: str, record: bytes, page: str, stack: str) -> None:
    """Limit memory and signals, load the kernel, open the device; raises UsageError, or RuntimeError of the device."""
    global _kernel
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(2, 1)  # the kernel's output is not part of the report
    if device == "cpu":
        patch.enable()
        resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY * memory()), resource.RLIM_INFINITY))
    else:
        torch.set_num_threads(1)  # what is on the CPU is small, and threads of several processes hinder each other
    with open(page, "r+b") as file:
        shared = mmap.mmap(file.fileno(), PAGE)
    stacks.answer(stack)
    where = target.rpartition(":")[0]
    nested.seal(nested.importing(where))
    functions.remember(functions.Functions())
    reach(where)  # for what the kernel imports when it is called
    _kernel = registry.received(target, record), shared
    torch.empty(1, device=device)
    nested.seal(f"the kernel {target} runs")


def call(function: Callable[..., T], timeout: float, *args: Any) -> tuple[T, float]:
    """Return `function(kernel, *args)` and its seconds. After `timeout` an alarm ends even a loop outside of Python."""
    assert _kernel is not None
    kernel, page = _kernel
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE)
    started, before = time.perf_counter(), METER.total.seconds
    METER.tell = lambda seconds: SECONDS.pack_into(page, STAGE, seconds - before)
    try:
        return function(kernel, *args), time.perf_counter() - started
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def announce(name: str) -> None:
    """Tell the parent process which check begins; do nothing outside a child."""
    if _kernel is not None:
        _kernel[1][:STAGE] = name.encode().ljust(STAGE, b"\0")


def asked_to_end() -> bool:
    """Return whether the parent process asks this call to end, and return what it has; False outside of a child."""
    return _kernel is not None and bool(_kernel[1][END])


def stage(page: mmap.mmap) -> str:
    """Return the check that a child has announced last in this call; "" if none."""
    return page[:STAGE].rstrip(b"\0").decode()


def compiled(page: mmap.mmap) -> float:
    """Return the seconds that a child has compiled in this call, as far as that has ended."""
    seconds: float = SECONDS.unpack_from(page, STAGE)[0]
    return seconds


def memory() -> int:
    """Return the bytes of memory that this machine, or its container, has."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical
