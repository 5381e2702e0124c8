"""Classes of numbers, and shapes of given sizes: rows and length, or samples, groups, channels and positions."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Any

from verify_norm.core import geometry
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec


@dataclass(frozen=True, slots=True)
class Classes:
    """Numbers in classes: each holds the numbers up to its bound and above the one before; the last has no bound.

    >>> rows = Classes("rows", (1, 16), ((0, 1), (4, 9), (66,)))
    >>> rows.names, rows.of(9)
    (('rows ≤ 1', 'rows ≤ 16', 'rows > 16'), 'rows ≤ 16')
    """

    of_what: str
    bounds: tuple[float, ...]
    examples: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = *(f"{self.of_what} ≤ {bound:g}" for bound in self.bounds), f"{self.of_what} > {self.bounds[-1]:g}"
        object.__setattr__(self, "names", names)

    def of(self, number: float) -> str:
        """Return the class of a number."""
        return self.names[bisect_left(self.bounds, number)]

    def items(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield each class with its examples."""
        return zip(self.names, self.examples, strict=True)


# Examples are powers of two and others, divisible by a vector's length and not; they have factors, for higher ranks.
# Those of N and of channels are also sizes of models, less than an octave apart: a threshold between two shows.
_SAMPLES = Classes("samples", (0, 1, 4), ((0,), (1,), (2, 3), (5, 17)))
_CHANNELS = Classes("channels", (1, 16), ((1,), (2, 3, 4, 7, 8, 16), (20, 33, 48, 64, 65, 96, 128)))
_POSITIONS = Classes("positions", (1, 63, 1023), ((1,), (6, 12, 35, 49), (64, 144, 196, 210, 784), (1024, 1225)))
_SHORT, _USUAL = (2, 3, 7, 12, 20, 31), (64, 80, 100, 128, 192, 256, 257, 320, 384, 512, 640, 768, 896, 1024)
_LONG = (1025, 1152, 1280, 1536, 1600, 2049, 2304, 2560, 2880, 3072, 3584, 4096, 4100, 5120, 6144, 7168)
SIZES = {
    "rows": (
        Classes(
            "rows", (0, 1, 16, 64), ((0,), (1,), (4, 6, 9, 15), (18, 32, 40, 63, 64), (66, 96, 128, 131, 170, 256))
        ),
        Classes("N", (1, 31, 1024), ((1,), _SHORT, _USUAL, _LONG)),
    ),
    "groups": (
        _SAMPLES,
        Classes("groups", (1, 8), ((1,), (2, 3, 4, 5, 6, 8), (12, 16, 24, 32))),
        Classes("C/G", (1, 16), ((1,), (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16), (20, 30, 40))),
        _POSITIONS,
    ),
    "channels": (_SAMPLES, _CHANNELS, _POSITIONS),
    "instances": (_SAMPLES, _CHANNELS, Classes("positions", (63, 1023), _POSITIONS.examples[1:])),  # of 1, x̂ is 0
}


def instances(op: Op) -> bool:
    """Return whether each channel of each sample is normalized alone, as InstanceNorm does."""
    return op.view == "groups" and "num_groups" not in op.attrs


def classes(op: Op) -> tuple[Classes, ...]:
    """Return the classes of the sizes that an operator's shapes have; InstanceNorm's are those of channels."""
    return SIZES["instances" if instances(op) else op.view]


def sizes(spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """Return the numbers of a case that the operator has classes for, in that order.

    >>> from verify_norm.core.ops import OPS
    >>> sizes(CaseSpec((2, 6, 5, 4), num_groups=3), OPS["groupnorm_fwd"])
    (2, 3, 2, 20)
    """
    if op.view == "rows":
        affine = geometry.affine_shape(spec, op)
        return prod(spec.shape[: len(spec.shape) - len(affine)]), prod(affine)
    samples, channels, *space = spec.shape
    if "num_groups" not in op.attrs:
        return samples, channels, prod(space)
    groups = geometry.groups(spec, op)
    return samples, groups, channels // groups, prod(space)


def shaped(numbers: tuple[int, ...], leading: int, inner: int, op: Op) -> Mapping[str, Any] | None:
    """Return the fields of a spec with these sizes: shape, and normalized_ndim or num_groups. None if none has them.

    Of rows, `leading` dimensions hold the rows and `inner` are normalized; of groups and channels, `inner` dimensions
    hold the positions.
    """
    if op.view == "rows":
        outer, normalized = _split(numbers[0], leading), _split(numbers[1], inner)
        if outer is None or normalized is None:
            return None
        return {"shape": outer + normalized, "normalized_ndim": inner}
    space = _split(numbers[-1], inner)
    if space is None:
        return None
    if "num_groups" not in op.attrs:
        return {"shape": (*numbers[:2], *space)}
    samples, groups, width, _ = numbers
    return {"shape": (samples, groups * width, *space), "num_groups": groups}


def _split(number: int, parts: int) -> tuple[int, ...] | None:
    """Return a number as a product of `parts` factors, the larger of two last; None if there is none.

    >>> _split(12, 2), _split(7, 2), _split(1, 0)
    ((3, 4), (1, 7), ())
    """
    if parts == 0:
        return () if number == 1 else None
    if parts == 1:
        return (number,)
    first = next(d for d in range(isqrt(number), 0, -1) if number % d == 0) if number else 2
    rest = _split(number // first, parts - 1)
    return None if rest is None else (first, *rest)
