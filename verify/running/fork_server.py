"""Starts processes fast, from a server that has imported torch, and asks them: a process may end, or never answer."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, TypeVar

GRACE = 3.0  # seconds after its time limit in which a call ends its process itself, if nobody else has
T = TypeVar("T")


class EndedError(Exception):
    """The process has ended by itself; the message says how."""


class Child:
    """A process that answers one request after another, with all that it starts."""

    def __init__(self, context: ForkServerContext) -> None:
        from verify_norm.running import child  # which imports torch: the server may do so at the same time

        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=child.serve, args=(theirs,))
        self._process.start()
        theirs.close()
        atexit.register(self.close)  # before multiprocessing waits for it

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid or 0

    def ask(self, seconds: float, function: Callable[..., T], *args: Any, more: Callable[[], float] = lambda: 0.0) -> T:
        """Return `function(*args)` of the process, and raise what it raises; raises TimeoutError and EndedError.

        `function` is a module's attribute. After its seconds it has those that `more` returns, again and again. After a
        TimeoutError the process still works: `close` it.
        """
        with suppress(ConnectionError):  # of a process that has ended: its answer says how
            self._channel.send((function, args))
        result: T = self.answer(seconds, more)
        return result

    def answer(self, seconds: float, more: Callable[[], float] = lambda: 0.0) -> Any:
        """Return or raise the answer to the last request; raises TimeoutError and EndedError as `ask`."""
        try:
            while not (ready := wait([self._channel, self._process.sentinel], seconds)):
                if (seconds := more()) <= 0:
                    raise TimeoutError
            if self._channel not in ready and not self._channel.poll():  # what it started may keep the channel open
                raise EOFError
            returned, value = self._channel.recv()
        except (EOFError, ConnectionError):
            self._process.join(GRACE)
            raise EndedError(ending(self._process.exitcode)) from None
        if not returned:
            raise value
        return value

    def kill(self) -> None:
        """Kill the process and what it has started, perhaps while another thread waits for its answer."""
        for kill in (os.killpg, os.kill):  # it leads a group of its own, once it has begun
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and wait for its end."""
        atexit.unregister(self.close)
        self.kill()
        self._process.join()
        self._channel.close()


def end_with_caller(end: Callable[[], object] = lambda: os._exit(1)) -> None:
    """End this process, or what `end` ends, once the one that asked for it has ended, even where that was killed.

    A process of a pool waits for work at a pipe that the others of its pool hold open too.
    """
    caller = parent_process()
    if caller is not None:
        threading.Thread(target=lambda: (wait([caller.sentinel]), end()), daemon=True).start()


def ending(status: int | None) -> str:
    """Return in words how a process has ended, given its exit status; None: it has not."""
    if status is None:
        return "it closed its channel and ran on"
    if status < 0:
        name = signal.Signals(-status).name
        hint = ", for example when memory is exhausted" if name == "SIGKILL" else ""
        return f"it ended its process by {name}{hint}"
    return f"it ended its process with exit status {status}"


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; processes that are started in it never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_starting = threading.Lock()  # for what a start changes here: `__main__`, and the server's state
_ahead: dict[str, str | None] | None = None  # what a server that has started no process yet was told of the environment


class _Process(ForkServerProcess):
    """A child in the caller's environment, not the server's, that does not import the caller's script again.

    So the script needs no `if __name__` guard.
    """

    environment: dict[str, str]

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 — multiprocessing's name
        global _ahead
        with _starting, no_main():
            if any(os.environ.get(name) != value for name, value in (_ahead or {}).items()):
                end_server()
            _ahead = None
            _ensure_server()
            process_obj.environment = dict(os.environ)
            return ForkServerProcess._Popen(process_obj)

    def run(self) -> None:
        """Call the target, in the environment that the caller had when it started this process."""
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


def context(preload: str) -> ForkServerContext:
    """Return a context whose processes start fast, from a server that has imported the module `preload`."""
    made = _Context()
    made.set_forkserver_preload([preload])
    return made


def start_ahead(preload: str, **variables: str | None) -> None:
    """Start the server now, so that it imports `preload` while this process imports what it needs itself.

    It gets this process's environment, with the variables that this process will set, or will not have (None): what it
    imports depends on them. If one of them is another when the first process starts, the server is started again.
    """
    global _ahead
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        with _starting, no_main():
            forkserver.set_forkserver_preload([preload])
            _ensure_server()
        _ahead = variables
    finally:
        _set(before)
    atexit.register(_end_unused)


def _set(variables: Mapping[str, str | None]) -> None:
    """Set these variables of the environment, and delete those that are None."""
    for name, value in variables.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _ensure_server() -> None:
    resource_tracker.ensure_running()  # it unblocks the signal
    with without_interrupts():
        forkserver.ensure_running()  # Ctrl-C is for this process alone, which ends the server and its children


def end_server() -> None:
    """End the server at once, if it runs: while it imports, it would not see that nobody needs it."""
    server: Any = forkserver._forkserver  # multiprocessing waits for its end
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


def _end_unused() -> None:
    if _ahead is not None:
        end_server()


@contextmanager
def no_main() -> Iterator[None]:
    """Hide the caller's script in this block: a process that is started in it does not run it again."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)
