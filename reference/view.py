"""How the algebra sees an operator's arrays: the axes that one mean covers, and the axes that one weight serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64, or complex128 under the complex step
Shape = int | Sequence[int] | None  # a normalized_shape: the last dimensions of x, or None for the last one


@dataclass(frozen=True, slots=True)
class View:
    """A reshaping of x: every normalization reduces over `axes`, every weight gradient over `shared`.

    Parameters
    ----------
    shape : shape of the data, (M, N) for rows, (B, G, C/G, S) for groups.
    axes : axes of `shape` that one mean covers, `count` elements.
    shared : axes of `shape` that one weight serves, `repeats` elements.
    affine : shape in which weight and bias broadcast against the data.
    data : shape of x, y, dy and dx outside.
    parameter : shape of weight, bias and their gradients outside.
    statistic : shape of mean and rstd outside.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    shared: tuple[int, ...]
    affine: tuple[int, ...]
    data: tuple[int, ...]
    parameter: tuple[int, ...]
    statistic: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many elements share one mean."""
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def repeats(self) -> int:
        """How many elements share one weight."""
        return math.prod(self.shape[axis] for axis in self.shared)

    def weight(self, weight: Array | None) -> Array | None:
        """Return a weight or bias in a shape that broadcasts against the data; None stays None."""
        return None if weight is None else weight.reshape(self.affine)


def rows(x: Array, normalized_shape: Shape) -> View:
    """View x as rows (M, N), one for the last dimensions `normalized_shape`.

    Raises
    ------
    ValueError : `x` does not end with `normalized_shape`, or a row would be empty.

    >>> rows(np.zeros((2, 3, 4)), (3, 4)).shape
    (2, 12)
    >>> rows(np.zeros((2, 3, 4)), 5)
    Traceback (most recent call last):
    ValueError: normalized_shape: expected the last dimensions of x's shape (2, 3, 4), got (5,)
    """
    last = x.shape[-1:] if normalized_shape is None else normalized_shape
    tail = (last,) if isinstance(last, int) else tuple(last)
    if not tail or x.shape[x.ndim - len(tail) :] != tail:
        raise ValueError(f"normalized_shape: expected the last dimensions of x's shape {x.shape}, got {tail}")
    M, N = math.prod(x.shape[: x.ndim - len(tail)]), math.prod(tail)
    if N == 0:
        raise ValueError(f"normalized_shape: expected at least one element a row, got {tail}")
    return View((M, N), axes=(1,), shared=(0,), affine=(1, N), data=x.shape, parameter=tail, statistic=(M,))


def groups(x: Array, num_groups: int) -> View:
    """View x (B, C, *spatial) as groups (B, G, C/G, S) of C/G channels and S positions.

    Raises
    ------
    ValueError : `x` has no channels, their number is not a multiple of `num_groups`, or a group would be empty.

    >>> groups(np.zeros((2, 6, 5, 5)), 3).shape
    (2, 3, 2, 25)
    """
    B, C, S = channels_of(x)
    if num_groups < 1 or C % num_groups:
        raise ValueError(f"{C} channels cannot be divided into {num_groups} groups")
    if C * S == 0:
        raise ValueError(f"x: expected at least one element a group, got the shape {x.shape}")
    G, D = num_groups, C // num_groups
    return View(
        (B, G, D, S), axes=(2, 3), shared=(0, 3), affine=(1, G, D, 1), data=x.shape, parameter=(C,), statistic=(B, G)
    )


def channels_of(x: Array) -> tuple[int, int, int]:
    """Return (B, C, S) of x (B, C, *spatial), S the number of positions; raise ValueError where x has no channels.

    >>> channels_of(np.zeros((2, 6, 5, 5)))
    (2, 6, 25)
    """
    if x.ndim < 2:
        raise ValueError(f"x: expected the shape (B, C, *spatial), got {x.shape}")
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


def shaped(change: Array | None, argument: Array | None, name: str, shape: tuple[int, ...]) -> Array:
    """Return the change of an argument in `shape`; 0 where it is None.

    Raises
    ------
    ValueError : a change of an argument that is None, or that has another shape; the message begins with `name`.

    >>> shaped(np.ones(6), np.zeros(6), "tweight", (1, 3, 2, 1)).shape
    (1, 3, 2, 1)
    """
    if change is None:
        return np.zeros(shape)
    if argument is None:
        raise ValueError(f"{name}: expected None because the argument that it changes is None, got an array")
    if change.shape != argument.shape:
        raise ValueError(f"{name}: expected the shape {argument.shape}, got {change.shape}")
    return change.reshape(shape)
