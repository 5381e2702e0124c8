"""Refuses a run inside another: by a file that starts one as it is imported, or by a kernel as it is called.

A child process imports the user's file again. A run started there would start a child too, and so on without end.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from types import FrameType

from verify_norm.core.errors import UsageError, visible

VARIABLE = "VERIFY_NORM_INSIDE"  # of the environment: tells commands what starts them
INHERITED = os.environ.get(VARIABLE, "")
GUARD = "put it under `if __name__ == '__main__':`"
BETWEEN = ("verify_norm", "typer", "click", "contextlib", "threading", "concurrent")  # between a user's call and here
PATIENCE = 30.0  # seconds for another thread to import a module, unless it waits for the thread that waits here
_inside: ContextVar[str] = ContextVar("inside", default="")
_sealed = ""


def importing(where: str) -> str:
    """Return the words for the import of a user's file or module."""
    return f"{where} is imported; {GUARD}"


@contextmanager
def inside(what: str) -> Iterator[None]:
    """Refuse runs in this block, and in threads and commands that it starts; `what` says in words what it does."""
    what, before = visible(what), os.environ.get(VARIABLE)
    _follow_threads()
    token, os.environ[VARIABLE] = _inside.set(what), what
    try:
        yield
    finally:
        _inside.reset(token)
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


@cache
def _follow_threads() -> None:
    """From now on a thread that is started inside a block is inside too, as long as it lives."""
    start = threading.Thread.start

    @wraps(start)
    def started(thread: threading.Thread) -> None:
        if what := _inside.get():
            thread.run = partial(_run_inside, what, thread.run)  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = started  # type: ignore[method-assign, assignment]


def _run_inside(what: str, run: Callable[[], None]) -> None:
    _inside.set(what)  # a thread begins in a context of its own
    run()


def seal(what: str) -> None:
    """Refuse runs in this process, in all its threads, from now on, and in commands that it starts."""
    global _sealed
    _sealed = os.environ[VARIABLE] = visible(what)


def refuse(kernel: object = None) -> None:
    """Raise UsageError if a run starts inside another, or of a kernel whose module is still being imported.

    `kernel` is a callable, or a target as "package.module:attr".
    """
    what = _inside.get() or _sealed
    if not what and _half(module := _module(kernel), wait=isinstance(kernel, str)):
        what = importing(module)
    if what:
        raise UsageError(f"{_caller()} starts a run while {what}")
    if INHERITED:
        raise UsageError(f"this command is started while {INHERITED}")


def _module(kernel: object) -> str:
    return kernel.rpartition(":")[0] if isinstance(kernel, str) else str(getattr(kernel, "__module__", None))


def _half(module: str, *, wait: bool) -> bool:
    """Return whether a module is still being imported; `wait` if another thread may be about to end that."""
    own, frame = False, sys._getframe()
    while frame.f_back is not None and not own:
        frame = frame.f_back
        own = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == module
    end = time.monotonic() + PATIENCE * (wait and not own)
    while half := getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False):
        if time.monotonic() >= end:
            break
        time.sleep(0.01)
    return bool(half)


def _caller() -> str:
    """Return the file and line of the user's call; "a thread" where a thread itself makes the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame = frame.f_back
    return "a thread" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
