"""Refuses a run inside another: by a file that starts one as it is imported, or by a kernel as it is called.

A child process imports the user's file again. A run started there would start a child too, and so on without end.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from verify_norm.core.errors import UsageError, visible

VARIABLE = "VERIFY_NORM_INSIDE"  # of the environment: tells commands what starts them
INHERITED = os.environ.get(VARIABLE, "")
GUARD = "put it under `if __name__ == '__main__':`"
BETWEEN = ("verify_norm", "typer", "click", "contextlib")  # packages between a user's call and here
_inside: ContextVar[str] = ContextVar("inside", default="")
_sealed = ""


def importing(where: str) -> str:
    """Return the words for the import of a user's file or module."""
    return f"{where} is imported; {GUARD}"


@contextmanager
def inside(what: str) -> Iterator[None]:
    """Refuse runs in this block, and in commands that it starts; `what` says in words what it does."""
    what, before = visible(what), os.environ.get(VARIABLE)
    token, os.environ[VARIABLE] = _inside.set(what), what
    try:
        yield
    finally:
        _inside.reset(token)
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def seal(what: str) -> None:
    """Refuse runs in this process, in all its threads, from now on, and in commands that it starts."""
    global _sealed
    _sealed = os.environ[VARIABLE] = visible(what)


def refuse(kernel: object = None) -> None:
    """Raise UsageError if a run starts inside another, or of a callable whose module is still being imported."""
    module = getattr(kernel, "__module__", None)
    half = getattr(getattr(sys.modules.get(str(module)), "__spec__", None), "_initializing", False)
    if what := _inside.get() or _sealed or (importing(str(module)) if half else ""):
        raise UsageError(f"{_caller()} starts a run while {what}")
    if INHERITED:
        raise UsageError(f"this command is started while {INHERITED}")


def _caller() -> str:
    """Return the file and line of the user's call."""
    frame: FrameType | Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
