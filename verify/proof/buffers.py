"""The numbers and the buffers of a call, where M is a symbol or one number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verify_norm.proof import field as f
from verify_norm.proof.integers import Num, add, mul, num
from verify_norm.proof.memory import Buffer, NotProved, Pointer
from verify_norm.proof.shapes import Affine
from verify_norm.proof.shown import Configuration
from verify_norm.proof.stages import Stage
from verify_norm.proof.truth import Truth

ITEM = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
# The stage of each input's elements.
KINDS = {
    "x": "X",
    "residual": "RESIDUAL",
    "residual_out": "X",
    "weight": "W",
    "bias": "B",
    "dy": "DY",
    "dresidual_out": "DH",
    "mean": "MEAN",
    "rstd": "RSTD",
}


@dataclass(frozen=True, slots=True)
class Symbols:
    """M in one run.

    `valid` is the number of rows that exist in the run, `rows` that of a tile where p is a symbol, else 0. `m` is M,
    `grid` the number of programs, `each` that of a tile. `tiles` is how many tiles programs share, if they do;
    M ≥ rows·p + beyond·q; `last` says that no tile follows.
    """

    valid: int
    rows: int
    m: Num
    grid: Any
    each: int = 1
    tiles: Num | None = None
    beyond: int = 1
    last: bool = False

    def number(self, value: int | Affine, programs: Num | None = None) -> Num:
        """Return a recorded number, where this number of programs share the tiles."""
        if not isinstance(value, Affine):
            return num(value)
        of = self.m if value.of == "M" else programs
        assert of is not None
        return add(mul(of, num(value.slope)), num(value.base))


class Memory:
    """The buffers of a call, by the number of their storage."""

    def __init__(self, config: Configuration, known: Truth, call: Mapping[str, Any], at: Symbols) -> None:
        self.config, self.known, self.at = config, known, at
        self.buffers: dict[int, Buffer] = {}
        for name, place in call["inputs"].items():
            if name in known.inputs:
                fused = name == "x" and config.op.startswith("add_")
                kind = "X0" if fused else KINDS[name]
                self._new(name, "input", place, Stage(kind, degree=1, roots=kind == "RSTD"), known.inputs[name])
        for name, place in call["outputs"].items():
            if place["buffer"] in self.buffers:
                raise NotProved("reach", f"{name} shares the memory of {self.buffers[place['buffer']].name}")
            self._new(name, "output", place, None, None)

    def argument(self, value: Any, programs: Num) -> Any:
        """Return an argument of a launch: a pointer, an integer, or a float."""
        if isinstance(value, dict):
            return Pointer(self.buffer(value), self.at.number(value["offset"], programs))
        return value if isinstance(value, float) or value is None else self.at.number(value, programs)

    def buffer(self, place: Mapping[str, Any]) -> Buffer:
        """Return the buffer of a recorded tensor; one that no argument has is scratch memory."""
        if place["buffer"] not in self.buffers:
            self._new(f"a buffer of {place['dtype']}", "scratch", place, None, None)
        buffer = self.buffers[place["buffer"]]
        if buffer.dtype != place["dtype"]:
            raise NotProved("dtype", f"{buffer.name}, of {buffer.dtype}, is taken for {place['dtype']}")
        return buffer

    def _new(self, name: str, role: str, place: Mapping[str, Any], stage: Stage | None, v: f.Field | None) -> None:
        item, size = ITEM.get(place["dtype"], 1), place["bytes"]
        slope, lines = 0, isinstance(size, Affine) and size.of == "G"
        if isinstance(size, Affine):
            if size.base or size.slope % item:
                raise NotProved("reach", f"{name} has a size that is not a multiple of the rows, or of the programs")
            slope = size.slope // item
        if lines:
            count = slope
        elif slope:
            count = slope * self.at.valid
        else:
            count = size // item
        if v is not None and v.size != count:
            raise NotProved("reach", f"{name} has {count} elements, not {v.size}")
        moves = 0 if lines else slope * self.at.rows
        self.buffers[place["buffer"]] = buffer = Buffer(name, role, count, moves, stage, v)
        buffer.dtype, buffer.of_lines = place["dtype"], lines
