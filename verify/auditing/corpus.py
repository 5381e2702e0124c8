"""The corpus: a file of the worst cases that were found, a replay line each, which later runs run first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from verify_norm.bind import UsageError
from verify_norm.report.json import read_spec, spec_text, write
from verify_norm.spec import CaseSpec, Kernel

MOST = 40  # cases of one kernel


def load(path: str | Path, kernel: Kernel) -> tuple[CaseSpec, ...]:
    """The cases of `kernel` in the file, in its order; none where there is no file.

    Raises UsageError where the file cannot be read or a line of it is no case.
    """
    return tuple(spec for name, op, spec in _lines(Path(path)) if (name, op) == (kernel.name, kernel.op))


def save(path: str | Path, kernel: Kernel, specs: Iterable[CaseSpec]) -> int:
    """Put these cases before those that the file has of `kernel`, and leave other kernels' as they are.

    Of one kernel no more than MOST cases are kept; returns how many there are now. The file is written whole or not at
    all; raises UsageError where that cannot be done, or where the file is no corpus.
    """
    lines = list(_lines(Path(path)))
    key = (kernel.name, kernel.op)
    mine = [*specs, *(spec for name, op, spec in lines if (name, op) == key)]
    kept = list(dict.fromkeys(mine))[:MOST]
    others = [spec_text(name, spec, op) for name, op, spec in lines if (name, op) != key]
    write("".join(line + "\n" for line in (*others, *(spec_text(*key[:1], spec, key[1]) for spec in kept))), str(path))
    return len(kept)


def _lines(path: Path) -> Iterable[tuple[str, str | None, CaseSpec]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the corpus {path}: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield read_spec(line)
            except UsageError as error:
                raise UsageError(f"line {number} of the corpus {path}: {error}") from error
