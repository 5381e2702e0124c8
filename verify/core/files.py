"""Files that are written whole or not at all, and never over what somebody else wrote."""

import os
import re
import stat
import sys
from contextlib import suppress
from uuid import uuid4

from verify_norm.core.errors import UsageError

JSON = ("{\n", "[\n", "[{\n", "[]")  # how the files begin that we write
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # opens a file that does not exist


def write(text: str, path: str) -> None:
    """Write text to a file, as UTF-8; raises UsageError if that fails.

    A regular file is replaced whole or not at all, in its mode and where a link leads. A pipe, a device or an open
    descriptor, such as /dev/stdout, is written into.
    """
    data = text.encode("utf-8", "backslashreplace")  # lone surrogates are escaped, as in JSON
    try:
        descriptor = _descriptor(path)
        if descriptor is not None or (os.path.exists(path) and not os.path.isfile(path)):
            sys.stdout.flush()  # it may lead to the same file
            with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
                file.write(data)
        else:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _descriptor(path: str) -> int | None:
    """Return the number of the open file that a path stands for, such as /dev/stdout or /dev/fd/3; None for others."""
    for _ in range(40):  # links, as many as Linux follows
        if opened := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", os.path.abspath(path)):
            return int(opened[1])
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _replace(target: str, data: bytes) -> None:
    """Write a new file beside the target, and rename it: at any time the target is the old file or the new one."""
    temporary = _beside(target)
    try:
        with open(os.open(temporary, NEW, 0o666), "wb") as file:
            file.write(data)
            if os.path.exists(target):
                old = os.stat(target)
                with suppress(OSError):  # only root may give a file to others
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _beside(target: str) -> str:
    """Return the name of a file that does not exist yet, in the folder of another."""
    return os.path.join(os.path.dirname(target), f".verify-norm-{uuid4().hex}.part")


def writable(path: str, ours: tuple[str, ...] = JSON) -> None:
    """Raise UsageError, before a run, if its report cannot be written there; "" and "-" are no files.

    A file that does not begin as one of `ours` is kept: the name may be a slip, such as that of the kernel's own file.
    """
    if path in ("", "-"):
        return
    if reason := _unwritable(path, ours):
        raise UsageError(f"cannot write {path}: {reason}")


def _unwritable(path: str, ours: tuple[str, ...]) -> str:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        return f"it is a {'disk' if stat.S_ISBLK(mode) else 'socket'}; expected a file, a pipe or a terminal"
    if _descriptor(path) is not None:
        return ""
    if os.path.exists(path) and not os.access(path, os.W_OK):
        return "Permission denied"
    if not stat.S_ISREG(mode):
        return ""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return f"no writable folder {folder}"
    if not _begins(path, ours):
        return "it is a file of something else; remove it, or name another file"
    return _no_new_file(os.path.realpath(path))


def _no_new_file(target: str) -> str:
    """Return why no file can be made beside the target; to root, os.access allows too much, such as a file in /proc."""
    trial = _beside(target)
    try:
        os.close(os.open(trial, NEW, 0o666))
        os.unlink(trial)
    except OSError as error:
        return f"no file can be made in {os.path.dirname(target)}: {error.strerror}"
    return ""


def _begins(path: str, ours: tuple[str, ...]) -> bool:
    """Return whether a file begins as one of `ours`, is empty or does not exist."""
    try:
        with open(path, "rb") as file:
            beginning = file.read(64).lstrip(b"\xef\xbb\xbf \r\n")
    except OSError:
        return not os.path.exists(path)
    return not beginning or beginning.startswith(tuple(text.encode() for text in ours))
