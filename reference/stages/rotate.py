"""A rotation behind the norm: rotary position embedding (RoPE; Su et al., 2021) of the first R elements of each row.

Pairs (a, b) of elements turn by the angle whose cosine and sine are given, and what follows the first R stays as it is:

    a' = a·cos − b·sin      b' = b·cos + a·sin

A pair is (zᵢ, zᵢ₊R/₂) in the style "neox", of Llama and Qwen, and (z₂ᵢ, z₂ᵢ₊₁) in the style "interleaved", of GPT-J.
`cos` and `sin` have one row of R/2 numbers a token: (…, R/2) for x (…, H, N), whose H heads a token shares, and
(M, R/2) for x (M, N). They are constants, and any numbers: tables in 16 bits are no rotations to the last digit.

**Backward.** The transposed map, the rotation by the opposite angle of a right table:

    da = da'·cos + db'·sin      db = db'·cos − da'·sin

**Errors.** With the terms of z and the roundings of a product and a sum, of each of whose terms a kernel may fold what
stands before it, w·cos and b·cos, as modulate:

    δa' = |cos|·δa + |sin|·δb + γ(4)(|cos|(size a + δa) + |sin|(size b + δb))
    δda = |cos|·lost + |sin|·lost of b + γ(2)(|cos||da'|⁺ + |sin||db'|⁺)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.stages.stage import Approximate, Inputs, Pulled
from verify_norm.reference.view import Array


class Turn(NamedTuple):
    """The map y = c·z + s·z[:, partner], of rows of z: 1 and 0 where nothing turns."""

    c: Array
    s: Array
    partner: Any  # the column of the other element of the pair

    def __call__(self, z: Array) -> Array:
        """Return the rows turned."""
        own, other = self.products(z)
        return own + other

    def products(self, z: Array) -> tuple[Array, Array]:
        """Return both products of each sum."""
        return self.c * z, self.s * z[:, self.partner]

    @property
    def transposed(self) -> Turn:
        """The transposed map."""
        return Turn(self.c, self.s[:, self.partner], self.partner)

    @property
    def magnitudes(self) -> Turn:
        """The map of absolute values."""
        return Turn(np.abs(self.c), np.abs(self.s), self.partner)

    @property
    def turns(self) -> Any:
        """Which columns turn at all."""
        return self.partner != np.arange(len(self.partner))


@dataclass(frozen=True, slots=True)
class Rotate:
    """Turns pairs of elements.

    >>> given = {"cos": np.array([[0.0]]), "sin": np.array([[1.0]])}
    >>> Rotate("neox").value(np.array([[1.0, 2.0, 5.0]]), given).tolist()
    [[-2.0, 1.0, 5.0]]
    """

    style: str = "neox"
    name: str = "rotate"
    inputs: tuple[str, ...] = ("cos", "sin")
    linear: bool = True
    of_x: bool = False
    trained: bool = False

    def turn(self, z: Array, given: Inputs) -> Turn:
        """Return the map of the rows of z.

        Raises
        ------
        ValueError : cos and sin have no row for each token, or more columns than half of z's.
        """
        M, N = z.shape
        half = given["cos"].shape[-1] if given["cos"].shape else 0
        if given["cos"].shape != given["sin"].shape or 2 * half > N:
            shapes = f"{given['cos'].shape} and {given['sin'].shape}"
            raise ValueError(f"cos and sin: expected one shape of at most {N // 2} columns, got {shapes}")
        column = np.arange(N)
        if self.style == "neox":
            angle, first = column % max(half, 1), column < half
            partner = np.where(first, column + half, column - half)
        else:
            angle, first = column // 2, column % 2 == 0
            partner = np.where(first, column + 1, column - 1)
        turns = column < 2 * half
        if not half:
            return Turn(np.ones((1, N)), np.zeros((1, N)), column)
        angle = np.where(turns, angle, 0)
        cos, sin = (_rows(given[name], half, M)[:, angle] for name in ("cos", "sin"))
        sign = np.where(first, -1.0, 1.0)
        return Turn(np.where(turns, cos, 1.0), np.where(turns, sign * sin, 0.0), np.where(turns, partner, column))

    def value(self, z: Array, given: Inputs) -> Array:
        """Return the rows turned."""
        return self.turn(z, given)(z)

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return how far y moves where each element of z moves by `off`."""
        return self.turn(z, given).magnitudes(np.broadcast_to(off, z.shape))

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return δy without what δz makes of it: nothing where nothing turns."""
        turn = self.turn(z.value, given).magnitudes
        most = z.size + np.broadcast_to(z.delta, z.value.shape)
        terms = turn(most)
        own = a.gamma(4) * terms + 4 * a.tiny * (1.0 + turn.c) + sum(map(a.between, turn.products(most)))
        return np.where(turn.turns, finite_below(own, terms, a.huge_between), 0.0)

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return the terms of both elements of a pair."""
        return self.turn(z.value, given).magnitudes(np.broadcast_to(z.size, z.value.shape))

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return dz, by the transposed map."""
        return self.turn(dy, given).transposed(dy), {}

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return δdz."""
        turn = self.turn(dy, given).transposed.magnitudes
        lost = np.broadcast_to(lost, dy.shape)
        most = np.abs(dy) + lost
        terms = turn(most)
        own = a.gamma(2) * terms + 3 * a.tiny + sum(map(a.between, turn.products(most)))
        own = np.where(turn.turns, own, 0.0)
        return Pulled(finite_below(turn(lost) + own, terms, a.huge_between), {})


def _rows(table: Array, half: int, M: int) -> Array:
    """Return a row of cos or sin for each of M rows: a token's serves its heads, one after another."""
    S = table.size // half
    if (M % S) if S else M:
        raise ValueError(f"cos and sin: expected rows that divide {M} rows of x, got {table.shape}")
    wide = np.broadcast_to(table.reshape(S, 1, half), (S, M // max(S, 1), half))
    return wide.reshape(M, half)
