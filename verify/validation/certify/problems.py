"""What the references are certified on: small and large shapes, every option, offsets from 0 to 10⁶ times the scale."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verify_norm.core.dtypes import Array

OFFSETS = (0.0, 1.0, 1e2, 1e4, 1e6)  # times the scale; at 10⁶ a float32 mean would be wrong in the first digit of xc
EPSILONS = (1e-12, 1e-5, 1e-1)  # far below the variance, usual, a tenth of it
FULL = 32  # up to this number of elements of x every entry of the Jacobian is compared; above, random directions

Values = dict[str, Any]  # arrays by name, None for what is not given


@dataclass(frozen=True)
class Problem:
    """One point at which derivatives are taken.

    `args` are the arguments of the forward pass by name, `tangents` a change of each. `index`, of the shape (rows, n)
    of x as normalized rows, holds for each element the number of its parameter, without the reference's own View.
    """

    op: str
    family: str
    args: Values
    tangents: Values
    dy: Array
    options: dict[str, Any]
    index: np.ndarray[Any, np.dtype[np.intp]] = field(repr=False)

    @property
    def centred(self) -> bool:
        """Whether the operator subtracts a mean."""
        return self.op != "rmsnorm"

    @property
    def small(self) -> bool:
        """Whether every entry of the Jacobian is compared."""
        return self.dy.size <= FULL


@dataclass(frozen=True)
class Setup:
    """What a problem is drawn from: x has the deviation `scale` and `offset` times that as its mean.

    `given` are the parameters that are not None; `ndim` dimensions of rows, or `groups` of channels, are normalized.
    """

    family: str
    shape: tuple[int, ...]
    offset: float = 0.0
    scale: float = 1.0
    eps: float = 1e-5
    given: tuple[str, ...] = ("weight", "bias")
    ndim: int = 1
    groups: int = 2
    weight_offset: float = 0.0


def setups(op: str) -> Iterator[Setup]:
    """Yield the setup of every problem of one operator."""
    grouped = op == "groupnorm"
    small, wide = ((2, 4, 3), (3, 6, 2, 5)) if grouped else ((2, 6), (4, 37))
    for offset, eps, shape in itertools.product(OFFSETS, EPSILONS, (small, wide)):
        yield Setup(f"offset {offset:g}", shape, offset, eps=eps)
    yield Setup("no weight", small, 1.0, given=("bias",))
    yield Setup("no bias", small, 1.0, given=("weight",))
    yield Setup("x alone", small, 1.0, given=())
    yield Setup("scale 2⁻²⁰", small, 10.0, scale=2.0**-20, eps=1e-12)
    if grouped:
        yield Setup("one group", (2, 3, 2), groups=1)
        yield Setup("a group a channel", (2, 3, 4), groups=3)
        yield Setup("no spatial dimensions", (3, 6), groups=2)
    else:
        yield Setup("normalized_shape of 2", (2, 2, 3), ndim=2)
        yield Setup("normalized_shape of 3", (2, 3, 4), ndim=3)
    if not grouped:
        yield Setup("weight_offset 1", small, weight_offset=1.0)
    yield Setup("long rows", (2, 4, 130) if grouped else (3, 257), 1.0)


def every(op: str, seed: int = 0) -> Iterator[Problem]:
    """Yield all problems of one operator, the same for the same seed."""
    return (draw(op, setup, seed) for setup in setups(op))


def draw(op: str, setup: Setup, seed: int = 0) -> Problem:
    """Return the problem of one setup, its values drawn from the seed, the family and the shape."""
    shape = setup.shape
    rng = np.random.default_rng([seed, *setup.family.encode(), *shape])
    options: dict[str, Any] = {"eps": setup.eps}
    if op == "groupnorm":
        affine, n = shape[1:2], math.prod(shape[1:]) // setup.groups
        channels = np.repeat(np.arange(shape[1]), math.prod(shape[2:]))
        index = np.tile(channels, shape[0]).reshape(-1, n)
        options["num_groups"] = setup.groups
    else:
        affine = shape[-setup.ndim :]
        n = math.prod(affine)
        index = np.tile(np.arange(n), math.prod(shape) // n).reshape(-1, n)
        options["normalized_shape"] = affine
    if op == "rmsnorm" or setup.weight_offset:  # few functions of LayerNorm have an argument for it
        options["weight_offset"] = setup.weight_offset
    args: Values = {"x": (rng.normal(size=shape) + setup.offset) * setup.scale}
    tangents: Values = {"x": rng.normal(size=shape) * setup.scale}
    for name in ("weight",) if op == "rmsnorm" else ("weight", "bias"):
        value, change = rng.normal(size=affine) + 0.5, rng.normal(size=affine)
        args[name], tangents[name] = (value, change) if name in setup.given else (None, None)
    return Problem(op, setup.family, args, tangents, rng.normal(size=shape), options, index)
