"""Runs a kernel in its own process: a crash, an exit or a hang costs one case.

A fork server that has imported torch starts a process in some hundredths of a second. The child finds the kernel by its
target. A kernel without one, such as a function made in a test, runs in the calling process, and the report says so.
"""

import mmap
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter as now
from time import sleep
from typing import Any, TypeVar

from verify_norm.core.errors import UsageError, one_line
from verify_norm.core.kernel import Kernel
from verify_norm.loading import functions, nested, registry
from verify_norm.running import child, stacks
from verify_norm.running.fork_server import Child, EndedError, context
from verify_norm.running.patience import Known, LostError, Patience, Time

LOADING = 300.0  # seconds that the import of the kernel may take
SLICE = 1.0  # seconds: so often a call beyond its limit is asked whether it still compiles
# CUDA's errors for some seconds after a process whose kernel hung was killed, or while others hold the GPU's memory.
BUSY = ("busy or unavailable", "out of memory")
CLEARING = 60.0  # seconds that they may last
ENDING = 20.0  # seconds that a call may take to end after Ctrl-C
NO_TARGET = "the kernel is not an attribute of a module that can be imported"
T = TypeVar("T")


class StoppedError(BaseException):
    """Another thread has stopped the process that this one waits for. Not an Exception: no kernel has raised it."""


@dataclass(slots=True)
class InProcess:
    """Runs the kernel in this process, without protection from it."""

    kernel: Kernel
    device: str
    note: str = "none: a crash of the kernel ends the run"
    isolated: bool = False

    def announce(self, name: str) -> None:
        """Do nothing: nobody asks which check runs."""

    def stage(self) -> str:
        """Return "": this process needs no announcements."""
        return ""

    def call(self, function: Callable[..., T], time: Time, *args: Any) -> T:
        """Return `function(kernel, *args)`, without a time limit; raises what it raises."""
        with nested.inside(f"the kernel {self.kernel.name} runs"):
            return function(self.kernel, *args)

    def fresh(self) -> bool:
        """Return False: the next call runs in the same process."""
        return False

    def close(self) -> None:
        """Forget how the judge's functions were before the kernel ran."""
        functions.remember(None)


class Isolated:
    """Runs the kernel in a child process, and replaces a child that the kernel has ended or broken.

    `started` counts its processes, `starting` the seconds that their starts took. Several objects of one kernel share
    what is `known` of the times of its calls.
    """

    note = "a process of its own"
    isolated = True

    def __init__(self, kernel: Kernel, device: str, preload: str, known: Known | None = None) -> None:
        self.kernel, self.device = kernel, device
        self.started, self.starting = 0, 0.0
        self._preload, self._context = preload, context(preload)
        self._file, self._stacks = (tempfile.NamedTemporaryFile(prefix="verify-norm-") for _ in range(2))  # noqa: SIM115
        self._file.truncate(child.PAGE)
        self._page = mmap.mmap(self._file.fileno(), child.PAGE)  # what the child tells during a call
        self._stack = stacks.NOWHERE  # where a call was at its time limit
        self._compiling = 0.0  # seconds of a call up to which a compiler may have run that was seen there
        self._sent = registry.sent(kernel)
        self._child: Child | None = None
        self._patience = Patience(device, known or Known())
        self._stopped = False

    def another(self) -> "Isolated":
        """Return an object for one more child of the same kernel, which shares the times of its calls."""
        return Isolated(self.kernel, self.device, self._preload, self._patience.known)

    def call(self, function: Callable[..., T], time: Time, *args: Any) -> T:
        """Return `function(kernel, *args)` of the child; raises what it raises, and LostError if the child is lost.

        `function` is a module's attribute. Raises StoppedError once `stop` has been called.
        """
        if self._child is None:
            self._begin()
        self._page[:], self._compiling = bytes(child.PAGE), 0.0
        limit, longest = self._patience.limit(time), self._patience.longest(time)
        further = partial(self._further, limit, longest, now())
        try:
            result, seconds = self._ask(limit, child.call, function, longest, *args, ends=time.ends, more=further)
        except TimeoutError:
            lost = self._patience.lost(time, self._stack)
            self.fresh(hung=not lost.late and not lost.compiling)
            raise lost from None
        except EndedError as error:
            self.fresh()
            raise LostError(str(error)) from None
        self._patience.returned(time, seconds, result)
        returned: T = result
        return returned

    def _further(self, limit: float, longest: float, began: float) -> float:
        """Return the seconds that a call beyond its limit may still take, because it compiles or has compiled."""
        assert self._child is not None
        elapsed = now() - began
        self._stack = stacks.ask(self._child.pid, self._stacks.name, child.serve.__name__)
        compiled = child.compiled(self._page)
        allowed = limit + max(compiled, self._compiling)
        if self._stack.compiles:
            self._compiling = elapsed + SLICE  # when it is asked again
            allowed = max(limit + compiled, self._compiling)
        return min(allowed, longest) - elapsed

    def prepare(self) -> None:
        """Wait until the server of the processes has imported torch; in the main thread Ctrl-C may end the wait."""
        process = self._context.Process(target=int)
        process.start()
        process.join()

    def _ask(
        self,
        seconds: float,
        function: Callable[..., Any],
        *args: Any,
        ends: bool = False,
        more: Callable[[], float] = lambda: 0.0,
    ) -> Any:
        """Return `function(*args)` of the child; raises what it raises, EndedError, TimeoutError and StoppedError.

        After Ctrl-C a call that `ends` is asked to return what it has.
        """
        assert self._child is not None
        try:
            if not self._stopped:  # `stop` may have come before there was a child to kill
                return self._child.ask(seconds, function, *args, more=more)
        except EndedError:
            if not self._stopped:
                raise
        except KeyboardInterrupt:
            if ends:
                with suppress(EndedError, TimeoutError, KeyboardInterrupt):
                    self._page[child.END] = 1
                    return self._child.answer(ENDING)
            self.fresh()  # a late answer would be taken for that of the next request
            raise
        raise StoppedError

    def _begin(self) -> None:
        """Start a child that has loaded the kernel; raises UsageError if it cannot, though this process can."""
        began = now()
        self.prepare()
        try:
            while not self._loaded(began + CLEARING):
                self.fresh()
        except TimeoutError:
            why = f"it did not return within {LOADING:.3g} s"
        except (EndedError, UsageError) as error:
            why = str(error)
        except Exception:  # of the device
            self.fresh()  # the next call finds no child that has loaded nothing
            raise
        else:
            self.started += 1
            self.starting += now() - began
            return
        self.fresh()
        raise UsageError(f"{self.kernel.name} cannot be loaded in a process of its own: {why}")

    def _loaded(self, until: float) -> bool:
        """Start a child, and return whether it has loaded the kernel; False if the device is busy before `until`.

        Raises UsageError if the device is busy for longer, or the kernel cannot be loaded.
        """
        self._child = Child(self._context)
        try:
            self._ask(LOADING, child.load, self.device, *self._sent, self._file.name, self._stacks.name)
        except RuntimeError as error:
            if not any(words in str(error) for words in BUSY):
                raise
            if now() > until:
                raise UsageError(f"{self.device} takes no new process: {one_line(error)}") from error
            sleep(0.5)
            return False
        return True

    @property
    def announce(self) -> Callable[[str], None]:
        """What the child calls with the name of each check."""
        return child.announce

    def stage(self) -> str:
        """Return what the child announced last in this call, even if it crashed since; "" if nothing."""
        return child.stage(self._page)

    def fresh(self, *, hung: bool = False) -> bool:
        """Let the next call run in a new process, perhaps because this one has `hung`, and return True."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._patience.restart(hung=hung)
        return True

    def stop(self) -> None:
        """End the call that another thread waits for, and each later one, with StoppedError; `resume` ends that."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()

    def resume(self) -> None:
        """Let calls run again after `stop`, in a new process; no thread may wait for one."""
        if self._stopped:
            self._stopped = False
            self.fresh()

    def close(self) -> None:
        """End the child."""
        self.fresh()
        self._file.close()
        self._stacks.close()
