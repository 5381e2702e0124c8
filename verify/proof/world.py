"""What the programs of a call share: the rules, the truth, and what has been noted of their values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verify_norm.proof.field import Field, P
from verify_norm.proof.integers import Num
from verify_norm.proof.memory import NotProved
from verify_norm.proof.stages import Rules, Stage
from verify_norm.proof.ttir import Line, Program


@dataclass
class World:
    """What a run takes place in.

    `truth` has, for each quotient, the values it may have; `constants` the stage and the element of each float that a
    kernel may be given; `rows` is how many rows a tile has, where p is a symbol, and M ≥ rows·p + beyond·q. `notes` are
    the line of each value, and the depth of each of its meanings. `tiles` are those that programs share; of the `last`
    one no program has another turn.
    """

    rules: Rules
    truth: Mapping[str, Field]
    constants: Callable[[float], tuple[Stage, int] | None]
    rows: int
    m: Num
    draw: np.random.Generator
    beyond: int = 1
    tiles: Num | None = None
    last: bool = False
    shares: Field | None = None
    reasons: list[tuple[str, Line]] = field(default_factory=lambda: [("", Line("", 0))])
    limits: dict[Line, float] = field(default_factory=dict)
    notes: dict[str, tuple[Line, dict[str, int]]] = field(default_factory=dict)

    def reason(self, why: str, at: Line) -> int:
        """Return the number of a reason why elements are garbage."""
        if (why, at) not in self.reasons:
            self.reasons.append((why, at))
        return self.reasons.index((why, at))

    def share(self, lines: int) -> Field:
        """Return a random number for each line that programs leave; raises NotProved."""
        if self.shares is None:
            self.shares = self.draw.integers(1, P, lines, dtype=np.uint64)
        if len(self.shares) != lines:
            raise NotProved("reach", "loops that read different numbers of lines at a time")
        return self.shares


@dataclass
class Launch:
    """A launch: its kernel, arguments in the order of the parameters, grid and warps.

    It may begin `early`, before the launch before it ends; that of the `first` one may still write the call's inputs.
    `way` is what its programs are where M is a symbol: "tiles" one or several of each tile, "shared" some that share
    the tiles, "whole" as many for every M. `known` has the last operands of an operation, and what it made of them: its
    programs, and the turns of a loop, share what they all compute.
    """

    program: Program
    arguments: list[Any]
    grid: tuple[Num, ...]
    warps: int
    early: bool
    first: bool
    way: str = ""
    known: dict[int, tuple[list[Any], list[Any]]] = field(default_factory=dict)
