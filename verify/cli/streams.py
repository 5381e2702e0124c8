"""Standard output and standard error, such that no reader, disk or encoding ends the command."""

import codecs
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PLAIN = str.maketrans(
    {"×": "x", "±": "+/-", "·": "*", "½": "1/2", "∞": "inf", "≤": "<=", "≥": ">=", "→": "->", "…": "...", "√": "sqrt"}
    | dict.fromkeys("–—−", "-")
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("“”", '"')
    | {
        "✓": "ok",
        "✗": "X",
        "Σ": "sum",
        "σ": "sigma",
        "μ": "mu",
        "δ": "delta",
        "ε": "eps",
        "Φ": "Phi",
        "∂": "d",
        "⟨": "<",
        "⟩": ">",
        "ᵀ": "^T",
    }
    | {"\u0302": "^", "\u0307": "'", "ẋ": "x'", "ẏ": "y'", "ṙ": "r'"}
)
RAISED = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")


class Stream:
    """A standard stream. Once a write fails, it writes nowhere; `failed` says why, unless its reader has gone."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.failed = stream, ""

    def write(self, text: str) -> int:
        """Write text; return its length."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            self.failed = error.strerror or str(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what is still in its buffer goes there too
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def standard() -> Iterator[Stream]:
    """Let the block write to such streams; yield standard output.

    What an encoding lacks is spelled out: known symbols as in ASCII, others as escapes.
    """
    codecs.register_error("verify-norm", spelled)
    for number in (0, 1, 2):  # a closed one would be the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    streams = [Stream(stream or open(os.devnull, "w", encoding="utf-8")) for stream in before]  # noqa: SIM115
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="verify-norm")
    sys.stdout, sys.stderr = streams
    try:
        yield streams[0]
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before


def spelled(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that an encoding lacks, and where to go on: an error handler of codecs.

    >>> codecs.register_error("verify-norm", spelled)
    >>> "10⁻³ ± 2 × x̂ – ü".encode("ascii", "verify-norm").decode()
    '10^-3 +/- 2 x x^ - \\\\xfc'
    """
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    text = RAISED.sub(lambda found: "^" + unicodedata.normalize("NFKD", found[0]).replace("−", "-"), text)
    text = "".join(c.translate(PLAIN) for c in text)
    return text.encode("ascii", "backslashreplace").decode(), error.end
