"""The smallest size at which two kernels differ: a scan of sizes, then a bisection; the other choices are fixed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from verify_norm.core.geometry import refusal, row_length
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.model import Axis

ROWS = {"cpu": 16, "cuda": 128}  # at least, in a scan over N: a row alone has equal bits by luck
ELEMENTS = 2**16  # of x, unless the case has more rows
LONGEST, MOST = 8194, 258  # limits of N and M in a scan: the last sizes are 8193 and 257


def onset(differs: Callable[[int], bool | None], known: int) -> tuple[int, int | None]:
    """Return the smallest size at which `differs` is true, and the largest below at which it is false, None if none.

    At the size `known` it is true. `differs` is None for a size that cannot be tried. First come 1, 2, 4, … and the
    neighbours of each, since blocks begin there, up to the first that differs; then halves of what is left.

    >>> onset(lambda n: n > 700, 1025), onset(lambda n: True, 3)
    ((701, 700), (1, None))
    """
    below, since = 0, known
    for size in _sizes(known):
        found = differs(size)
        if found:
            since = size
            break
        if found is False:
            below = size
    while since - below > 1:
        middle = (since + below) // 2
        found = differs(middle)
        if found is None:
            break
        if found:
            since = middle
        else:
            below = middle
    return since, below or None


def scan(op: Op, dtypes: tuple[str, ...], device: str) -> tuple[CaseSpec, ...]:
    """Return plain cases of every size 2ᵏ and 2ᵏ + 1, in every type: of N, and for a backward pass of M.

    The corner table has few long rows of each type. Two orders of one sum often round alike, so it takes many rows of
    a length to tell that kernels differ from it on.
    """
    base = CaseSpec((3, 4, 2) if op.view == "groups" else (3, 8), further=())
    if "num_groups" in op.attrs:
        base = replace(base, num_groups=2)
    limits: dict[Axis, int] = {"N": LONGEST}
    if op.forward:
        limits["M"] = MOST
    found: list[CaseSpec] = []
    for axis, limit in limits.items():
        for size in _sizes(limit):
            spec = resized(base, op, axis, size, device) if size.bit_count() <= 2 else None
            if spec is not None and not refusal(spec, op):
                found += [replace(spec, dtype=dtype, seed=size) for dtype in dtypes]
    return tuple(found)


def _sizes(limit: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 5, 7, 8, 9, 15, … below the limit."""
    near = {2**k + step for k in range(limit.bit_length() + 1) for step in (-1, 0, 1)}
    yield from sorted(size for size in near if 0 < size < limit)


def size_of(spec: CaseSpec, op: Op, axis: Axis) -> int:
    """Return N, the length of a row or group, or M, the number of rows or samples."""
    if axis == "N":
        return row_length(spec, op)
    return prod(spec.shape[: len(spec.shape) - spec.normalized_ndim]) if op.view == "rows" else spec.shape[0]


def resized(spec: CaseSpec, op: Op, axis: Axis, size: int, device: str) -> CaseSpec | None:
    """Return the case with that N or M; None where its channels allow none, or where BatchNorm has no rows."""
    if op.view == "channels":
        return replace(spec, shape=(size, spec.shape[1])) if axis == "N" else None
    if op.view == "rows":
        inner = row_length(spec, op) if axis == "M" else size
        rows = size if axis == "M" else _rows(size_of(spec, op, "M"), size, device)
        return replace(spec, shape=(rows, inner), normalized_ndim=1)
    if axis == "M":
        return replace(spec, shape=(size, *spec.shape[1:]))
    of_group = row_length(spec, op) // max(prod(spec.shape[2:]), 1)  # channels
    if not of_group or size % of_group:
        return None
    return replace(spec, shape=(*spec.shape[:2], size // of_group))


def _rows(rows: int, length: int, device: str) -> int:
    """Return how many rows of this length a scan takes, at least those that the case has."""
    return max(rows, min(ROWS[device.partition(":")[0]], ELEMENTS // length))
