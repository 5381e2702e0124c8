"""Errors: the exit statuses, a user's mistake as one line, any other error in one line. Standard library only."""

import difflib
import json
import linecache
import math
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

LIST = "verify-norm list"  # the command that lists kernels, operators and checks


class Exit(IntEnum):
    """The exit status of a command, and the verdict of a report. Of several verdicts the smallest above 0 counts."""

    PASS = 0
    FINDINGS = 1  # in a comparison: something got worse
    NOTHING = 2  # a usage error, or nothing was checked
    INCOMPLETE = 3  # no finding so far, but a part of what has to run did not run
    INTERNAL = 70  # an error of verify-norm itself: EX_SOFTWARE of sysexits.h


class UsageError(Exception):
    """The user asked for something impossible; the message is one line: what is wrong, and what would be right."""


class FindingsError(AssertionError):
    """A kernel has findings, or could not be checked; a test fails with it."""


class UnknownOpError(UsageError):
    """Neither the user, nor a declaration, nor a name says which operator a callable computes."""


def one_of(kind: str, name: str, names: Iterable[str], *, see: str = "") -> str:
    """Return `name` if it is among `names`; else raise a UsageError with at most three guesses which was meant.

    The error lists the names, or says that `see`, a command, shows them.
    """
    names = list(dict.fromkeys(names))
    if name in names:
        return name
    by_letters = {one.lower(): one for one in names}
    close = [by_letters[one] for one in difflib.get_close_matches(name.lower(), by_letters, n=3, cutoff=0.5)]
    close = [one for one in close if _likeness(name, one) > _likeness(name, close[0]) - 0.1]
    guess = f" (did you mean {alternatives(close)}?)" if close else ""
    known = f"{see} shows all {len(names)}" if see else f"there are: {', '.join(names)}"
    raise UsageError(f"unknown {kind} {quoted(name)}{guess}; {known}")


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other.lower(), name.lower()).ratio()


def alternatives(names: Sequence[str]) -> str:
    """Return names as alternatives, such as "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def texts(**given: object) -> None:
    """Raise UsageError for an argument that is not a string."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise UsageError(f"{name}: expected a text, got {quoted(value)}")


def number(name: str, value: object, least: float) -> None:
    """Raise UsageError unless an argument is a finite number of `least` or more, and an int if `least` is one."""
    whole = isinstance(least, int)
    if not isinstance(value, int if whole else (int, float)) or not least <= value < math.inf:
        words = "a whole number" if whole else "a number"
        raise UsageError(f"{name}: expected {words}, {least:g} or more, got {quoted(value)}")


def quoted(name: object, most: int = 60) -> str:
    """Return the repr of a value, at most `most` characters of it.

    >>> quoted("a" * 80, 10)
    "'aaaaaaaa…"
    """
    text = repr(name)
    return text if len(text) <= most else text[: most - 1] + "…"


def visible(text: str) -> str:
    r"""Return text as one line of printable characters; JSON's escapes stand for others, such as line ends.

    >>> print(visible("a\nb\x1b[31m\u202ec"))
    a\nb\u001b[31m\u202ec
    """
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


_PLACED = re.compile(r"at \d+:\d+:\n(?:.*\n)*?(?P<code>.*)\n *\^(?:\n(?P<why>.*))?")


def first_line(error: BaseException) -> str:
    """Return the first line of the message; without a message, the line of code that raised the error.

    Triton begins with a place and quotes code before it says why: the why, and the last line of the code.

    >>> first_line(ValueError("expected 2 values\\ngot 3"))
    'expected 2 values'
    >>> first_line(ValueError("at 2:4:\\ndef kernel(P):\\n    tl.store(P, v)\\n    ^\\nNameError('v is not defined')"))
    "NameError('v is not defined') in `tl.store(P, v)`"
    """
    text = _text(error)
    if placed := _PLACED.match(text):
        inner = error.__cause__  # met in a function that the kernel calls
        if inner is not None and _PLACED.match(str(inner)):
            return first_line(inner)
        why = placed["why"] or ("(no reason given)" if inner is None else one_line(inner))
        return f"{why} in `{placed['code'].strip()}`"
    if text:
        return text.splitlines()[0]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    code = linecache.getline(frame.tb_frame.f_code.co_filename, frame.tb_lineno).strip() if frame is not None else ""
    return code or "(no message)"


_MET = re.compile(r"got (\w+)\((['\"])(.*?)(?:\\n.*)?\2\)")  # so Dynamo quotes what code raises on fake tensors
SCRIPTED = "The following operation failed in the TorchScript interpreter."
_LAST = re.compile(r"(?:RuntimeError: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.*)")  # below TorchScript's traceback


def quoted_cause(error: BaseException) -> tuple[str, str] | None:
    """Return the type and first line of the error that torch.compile or TorchScript met in the kernel's code, or None.

    >>> of_dynamo = type("TorchRuntimeError", (RuntimeError,), {})
    >>> quoted_cause(of_dynamo("Dynamo failed: …: got ValueError('eps must be positive')"))
    ('ValueError', 'eps must be positive')
    >>> quoted_cause(RuntimeError(SCRIPTED + "\\nTraceback …\\nRuntimeError: AssertionError: only 2-D"))
    ('AssertionError', 'only 2-D')
    """
    said = _text(error)
    if type(error).__name__ == "TorchRuntimeError":
        return (found[1], found[3]) if (found := _MET.search(said)) else None
    lines = said.split("\n") if said.startswith(SCRIPTED) else []
    found = next(filter(None, map(_LAST.match, lines[::-1])), None)
    return (found[1], found[2]) if found else None


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # a class of the user's may have no text
        return ""


def one_line(error: BaseException) -> str:
    """Return the error's type and first line, such as "ValueError: expected 2 values"."""
    inner = quoted_cause(error)
    if inner and _text(error).startswith(SCRIPTED):
        return ": ".join(inner)
    return f"{type(error).__name__}: {': '.join(inner) if inner else first_line(error)}"
