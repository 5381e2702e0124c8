"""Runs a kernel in a process of its own, so that a crash, an exit or a hang costs one case and no more.

A fork server that has imported torch makes a new process in some hundredths of a second. The kernel travels by its
name: what cannot be imported, as a function made in a test, runs in the calling process, and the report says so.
"""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

import pebble

from verify_norm import interpreter, registry
from verify_norm.examine import Examined, examine
from verify_norm.spec import CaseSpec, Finding, Kernel

MEMORY = 0.5  # of the machine's: what a kernel may allocate on the CPU
HANGS = "it has not come back"
_STAGE = 64  # bytes: the longest name of a check
GRACE = 3.0  # seconds after its time limit, a child whose parent is gone ends itself


T = TypeVar("T")


class LostError(Exception):
    """The child ended, or did not come back: the message says how."""


@dataclass(slots=True)
class InProcess:
    """Runs the kernel here: nothing protects the caller from it."""

    kernel: Kernel
    device: str
    note: str = "none: a crash of the kernel ends the run"

    def examine(self, spec: CaseSpec, checks: tuple[str, ...], timeout: float) -> Examined:
        """`examine.examine`, without a time limit."""
        return examine(self.kernel, spec, checks, self.device)

    def call(self, function: Callable[..., T], timeout: float, *args: Any) -> T:
        """`function(kernel, *args)`, without a time limit. Raises what it raises."""
        return function(self.kernel, *args)

    def fresh(self) -> bool:
        """Whether what follows runs in a new process: never."""
        return False

    def close(self) -> None:
        """Nothing is held."""


class Isolated:
    """Runs the kernel in a child, which is replaced where the kernel has ended or broken it."""

    note = "a process of its own"

    def __init__(self, kernel: Kernel, device: str) -> None:
        self._kernel = kernel
        self._context = context()
        self._stage = _Stage(tempfile.NamedTemporaryFile(prefix="verify-norm-"))  # noqa: SIM115
        self._sent = pickle.dumps(replace(kernel, run=None, forward_run=None)), device, self._stage.file.name
        self._pool: pebble.ProcessPool | None = None

    def examine(self, spec: CaseSpec, checks: tuple[str, ...], timeout: float) -> Examined:
        """As `InProcess.examine`; a crash or a hang becomes a finding of the check "crash".

        A check may run the kernel again near the case. If the kernel is lost there, the other checks are tried without.
        """
        lost: list[Finding] = []
        while True:
            examined = self._once(spec, checks, timeout)
            if isinstance(examined, Examined):
                looked = (*examined.looked, "crash") if "crash" in checks or lost else examined.looked
                return replace(examined, looked=looked, findings=(*examined.findings, *lost))
            during = self._stage.read()
            where = f", in a further run near this case that the check {during} makes" if during else ""
            name = self._kernel.name
            lost.append(Finding(name, "crash", None, "error", examined + where, spec, during=during or None))
            checks = tuple(check for check in checks if check != during)
            if not during or examined.startswith(HANGS):
                return Examined(spec, findings=tuple(lost), looked=("crash",), hung=examined.startswith(HANGS))

    def call(self, function: Callable[..., T], timeout: float, *args: Any) -> T:
        """`function(kernel, *args)` in the child. Raises what it raises, and LostError where it does not come back.

        `function` is one that a module defines.
        """
        if self._pool is None:
            self._pool = pebble.ProcessPool(1, initializer=_begin, initargs=self._sent, context=self._context)
        self._stage.write("")
        future = self._pool.schedule(_call, args=(function, timeout, *args), timeout=timeout)
        try:
            result: T = future.result()
        except TimeoutError:
            raise LostError(f"{HANGS} after {timeout:.3g} s") from None
        except pebble.ProcessExpired as error:
            raise LostError(_ending(error.exitcode)) from None
        return result

    def _once(self, spec: CaseSpec, checks: tuple[str, ...], timeout: float) -> Examined | str:
        """What the child says, or how it ended."""
        try:
            examined = self.call(_examine, timeout, spec, checks)
        except LostError as lost:
            return str(lost)
        if examined.dead:
            self.fresh()
        return examined

    def fresh(self) -> bool:
        """Let what follows run in a new process."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None
        return True

    def close(self) -> None:
        """End the child."""
        self.fresh()
        self._stage.file.close()


class _Stage:
    """Which check the child is at, in a file that both map, so that the parent can read it when the child is gone."""

    def __init__(self, file: Any) -> None:
        file.truncate(_STAGE)
        self.file, self._map = file, mmap.mmap(file.fileno(), _STAGE)

    def write(self, name: str) -> None:
        self._map[:] = name.encode().ljust(_STAGE, b"\0")

    def read(self) -> str:
        return self._map[:].rstrip(b"\0").decode()


def runner(kernel: Kernel, device: str, *, isolate: bool) -> InProcess | Isolated:
    """Where to run the kernel: in a child if that is wanted, and the kernel can be found there by its name."""
    if not isolate:
        return InProcess(kernel, device)
    if not kernel.target:
        return InProcess(kernel, device, "none: the kernel is no attribute of a module that could be imported again")
    try:
        return Isolated(kernel, device)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return InProcess(kernel, device, f"none: {error}")


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        hint = ", as where the memory was exhausted" if name == "SIGKILL" else ""
        return f"it ended its process by {name}{hint}"
    return f"it ended its process with exit status {status}"


class _Process(ForkServerProcess):
    """A child that does not import the caller's script again, which need not be guarded against that."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 — multiprocessing's name
        with _no_main():
            return ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


def context() -> ForkServerContext:
    """For processes that are made fast, from a server that has imported what they need."""
    made = _Context()
    made.set_forkserver_preload(["verify_norm.preload"])
    return made


@contextmanager
def _no_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)


_child: tuple[Kernel, str, _Stage] | None = None


def _begin(sent: bytes, device: str, stage: str) -> None:
    """In the child: load the kernel, and see to it that the child neither outlives nor outgrows the run."""
    global _child
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(2, 1)  # what a kernel prints is no part of the report
    if device == "cpu":
        interpreter.enable()
        resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY * _memory()), resource.RLIM_INFINITY))
    _child = registry.ready(pickle.loads(sent)), device, _Stage(open(stage, "r+b"))  # noqa: SIM115


def _call(function: Callable[..., T], timeout: float, *args: Any) -> T:
    """In the child: `function` of the kernel. An alarm that nobody handles ends even a loop that never meets Python."""
    assert _child is not None
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE)
    try:
        return function(_child[0], *args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _examine(kernel: Kernel, spec: CaseSpec, checks: tuple[str, ...]) -> Examined:
    """In the child: as `examine.examine`."""
    assert _child is not None
    _, device, stage = _child
    return examine(kernel, spec, checks, device, stage.write)


def _memory() -> int:
    """Bytes of memory that this process may have."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(physical, int(text)) if text.isdigit() else physical
