"""The memory of a call: each buffer's elements as values of the field, and which of them are written, read and garbage.

In a symbolic run a buffer of one row's `unit` elements for each row of x holds the rows of one program: an address
there has to be rows·unit·p + c, with c within those rows. Any other buffer has a fixed size, and its addresses no p.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify_norm.proof.field import Field
from verify_norm.proof.integers import Bools, Ints, Num
from verify_norm.proof.stages import Stage, joined, unknown
from verify_norm.proof.ttir import Line

NOWHERE = Line("", 0)


class NotProved(Exception):  # noqa: N818  (a result, not a fault)
    """What stands in the way of a proof: of memory, meaning, rounding or reach, in which line, and why."""

    def __init__(self, what: str, why: str, at: Line = NOWHERE) -> None:
        super().__init__(f"{why} ({at})" if at.line else why)
        self.what, self.why, self.at = what, why, at


@dataclass(slots=True)
class Values:
    """Floats: elements of the field, where they are garbage (the number of a reason, or 0), and their stage."""

    v: Field
    bad: NDArray[np.int16]
    stage: Stage
    element: str

    def map(self, function: Any) -> "Values":
        """Return the values with both arrays changed alike, as a broadcast does."""
        return Values(function(self.v), function(self.bad), self.stage, self.element)


@dataclass(slots=True)
class Pointer:
    """Addresses within a buffer."""

    buffer: "Buffer"
    offset: Num

    def map(self, function: Any) -> "Pointer":
        """Return the addresses with their offsets changed, as a broadcast does."""
        return Pointer(self.buffer, self.offset.map(function))


class Buffer:
    """One allocation, as `role` an "input", an "output" or "scratch"; `slope` is how far it moves with p.

    Where programs share tiles, one `of_lines` has `count` elements of each program: parts, each of a line a program.
    """

    def __init__(self, name: str, role: str, count: int, slope: int, stage: Stage | None, v: Field | None) -> None:
        self.name, self.role, self.slope = name, role, slope
        self.stages = [] if stage is None else [stage]  # of what was stored, and in `which` that of each element
        self.which = np.zeros(count, np.int16)
        self.v = np.zeros(count, np.uint64) if v is None else v.reshape(-1).copy()
        self.bad = np.zeros(count, np.int16)
        self.written = np.full(count, v is not None)
        self.stored = np.zeros(count, np.bool_)
        self.at, self.dtype, self.of_lines, self.unit = NOWHERE, "", False, 0
        self.of_this_call = False
        self.begin()

    @property
    def kind(self) -> str:
        """Return what has elements of its own in it: each "tile", each program a "line", or the "call" alone."""
        return "tile" if self.slope else "line" if self.of_lines else "call"

    def spoil(self, reason: int) -> None:
        """Let torch write what this proof does not follow; raises NotProved if it is an input."""
        if self.role == "input":
            raise NotProved("memory", f"torch writes to the input {self.name}")
        self.bad[:], self.written[:], self.of_this_call = reason, True, True

    def fill(self) -> None:
        """Fill it with zeros, as torch does; raises NotProved if it is an input."""
        if self.role == "input":
            raise NotProved("memory", f"torch writes to the input {self.name}")
        self.v[:], self.bad[:], self.written[:], self.which[:], self.stages = 0, 0, True, 0, [Stage("0")]
        self.of_this_call = True

    def begin(self) -> None:
        """Begin a launch: what its programs read and write has to be apart."""
        self.read_now = np.zeros(len(self.v), np.bool_)
        self.written_now = np.zeros(len(self.v), np.bool_)

    def locate(self, offset: Num, active: Bools, at: Line) -> Ints:
        """Return the elements at the addresses of active lanes, in order; raises NotProved if one may be outside."""
        c, p, *others = (np.broadcast_to(part, active.shape)[active] for part in offset)
        if (p != self.slope).any() or any(part.any() for part in others):
            raise NotProved("memory", f"an address in {self.name} that does not move by its program's rows", at)
        outside = (c < 0) | (c >= len(self.v))
        if outside.any():
            first = int(c[outside][0])
            where = f"element {first} of {len(self.v)}" if not self.slope else f"element {first} of a program's rows"
            raise NotProved("memory", f"an address beyond {self.name}: {where}, of {int(outside.sum())} lanes", at)
        return np.asarray(c)

    def line(self, offset: Num, active: Bools, lines: int, at: Line) -> tuple[Ints, Ints]:
        """Return the elements at the addresses of active lanes, and of which of `lines` lines; raises NotProved.

        Of G = 1 + lines·w + v programs the i-th of these lines has the number lines·w + i. Part k of a buffer begins at
        k·unit·G, so column j of that line is at k·unit·G + unit·(lines·w + i) + j: v has the factor k·unit.
        """
        c, p, q, w, v = (np.broadcast_to(part, active.shape)[active] for part in offset)
        if not len(c):
            return c, c
        self.unit = self.unit or max(int(w[0]) // lines - int(v[0]), 1)
        lane, column = np.divmod(c - v, self.unit)
        moves = (w == lines * (self.unit + v)) & (v % self.unit == 0) & (p == 0) & (q == 0)
        if not moves.all() or len(self.v) % self.unit:
            raise NotProved("memory", f"an address in {self.name} that does not move by lines of the programs", at)
        outside = (lane < 0) | (lane >= lines) | (v < 0) | (v >= len(self.v))
        if outside.any():
            raise NotProved("memory", f"an address beyond {self.name}: no line of a program", at)
        return np.asarray(v + column), np.asarray(lane)

    def load(self, index: Ints, at: Line) -> tuple[Field, NDArray[np.int16], Bools]:
        """Return values, garbage, and which elements nothing has written."""
        if self.written_now[index].any():
            raise NotProved("memory", f"{self.name} is read in the launch that writes it", at)
        self.read_now[index] = True
        return self.v[index], self.bad[index], ~self.written[index]

    def stage(self, index: Ints | slice) -> Stage:
        """Return what these elements are, by the rules."""
        found = [self.stages[k] for k in np.unique(self.which[index])] if self.stages else []
        return reduce(joined, found) if found else unknown(f"{self.name} holds nothing")

    def store(self, index: Ints, values: Values, active: Bools, at: Line) -> None:
        """Write values, each element once in a call; raises NotProved."""
        if self.role == "input":
            raise NotProved("memory", f"the input {self.name} is written", at)
        if len(np.unique(index)) != len(index) or self.stored[index].any():
            raise NotProved("memory", f"an element of {self.name} is written twice", at)
        if self.read_now[index].any():
            raise NotProved("memory", f"{self.name} is written in the launch that reads it", at)
        self.v[index] = np.broadcast_to(values.v, active.shape)[active]
        self.bad[index] = np.broadcast_to(values.bad, active.shape)[active]
        self.written[index] = self.stored[index] = self.written_now[index] = True
        if values.stage not in self.stages:
            self.stages.append(values.stage)
        self.which[index] = self.stages.index(values.stage)
        self.at, self.of_this_call = at, True
