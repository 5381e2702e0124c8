"""The corpus: a file with the worst cases that a hunt found, a replay line each. Later runs start with them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from verify_norm.core.errors import UsageError
from verify_norm.core.files import write
from verify_norm.core.kernel import Kernel
from verify_norm.core.serial import read_spec, spec_text
from verify_norm.core.spec import CaseSpec

MOST = 40  # cases of one kernel


def load(path: str | Path, kernel: Kernel) -> tuple[CaseSpec, ...]:
    """Return the cases of `kernel` in the file, in its order; none if there is no file.

    Raises UsageError if the file cannot be read or a line is not a case.
    """
    return tuple(spec for name, op, spec in _lines(Path(path)) if (name, op) == (kernel.name, kernel.op))


def save(path: str | Path, kernel: Kernel, specs: Iterable[CaseSpec]) -> int:
    """Put these cases before the kernel's cases in the file; return how many it has now, MOST at most.

    The cases of other kernels stay. The file is written whole or not at all. Raises UsageError if it cannot be written,
    or is not a corpus.
    """
    lines = list(_lines(Path(path)))
    key = (kernel.name, kernel.op)
    before = [spec for name, op, spec in lines if (name, op) == key]
    kept = list(dict.fromkeys((*specs, *before)))[:MOST]
    of_others = [spec_text(name, spec, op) for name, op, spec in lines if (name, op) != key]
    of_kernel = [spec_text(kernel.name, spec, kernel.op) for spec in kept]
    write("".join(f"{line}\n" for line in (*of_others, *of_kernel)), str(path))
    return len(kept)


def _lines(path: Path) -> Iterator[tuple[str, str | None, CaseSpec]]:
    """Yield the kernel, the operator and the case of each line; nothing if there is no file. Raises UsageError."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a NUL
        raise UsageError(f"cannot read the corpus {path}: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield read_spec(line)
            except UsageError as error:
                raise UsageError(f"line {number} of the corpus {path}: {error}") from error
