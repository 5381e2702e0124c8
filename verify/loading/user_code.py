"""The user's code that runs while a kernel is loaded: it neither ends this process nor passes for an error of ours."""

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb
from typing import NoReturn

from verify_norm.core.errors import UsageError, one_line

OTHERS = frozenset({"verify_norm", "torch", "triton", "numpy"}) | sys.stdlib_module_names


@contextmanager
def staying() -> Iterator[None]:
    """Make os._exit in this block raise SystemExit, since exit status 0 of a file would be a pass; show a segfault."""
    pid, leave, running = os.getpid(), os._exit, True

    def exit_(status: int) -> NoReturn:
        if running and os.getpid() == pid:  # a child that was forked here ends as it wants to
            raise SystemExit(status)
        leave(status)

    os._exit = exit_
    shown = faulthandler.is_enabled()
    with suppress(Exception):  # standard error may be no file
        faulthandler.enable(all_threads=False)
    try:
        yield
    finally:
        running = False  # what kept the name has the function as it was
        os._exit = leave
        if not shown:
            faulthandler.disable()


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Make a UsageError of what the user's code raises when it is looked at in this block, such as in __getattr__."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if not (place := line_of(error)):
            raise
        raise UsageError(f"{name} raises {one_line(error)} when it is looked at ({place})") from error


def line_of(error: BaseException, file: str = "") -> str:
    """Return the last line of the user's code in a traceback, as "ops.py, line 3"; "" if there is none.

    With a `file` it is the last line of that file, whose name it has: what the file imports may fail further down.
    """
    place = ""
    for frame, number in walk_tb(error.__traceback__):
        path, module = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
        if file and path.absolute() == Path(file).absolute():
            place = f"{file}, line {number}"
        elif not file and module.partition(".")[0] not in OTHERS:
            place = f"{path.name}, line {number}"
    return place
