"""What is to be proved of a kernel, and what has been shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verify_norm.proof.memory import NotProved
from verify_norm.proof.stages import Stage, joined
from verify_norm.proof.truth import Size
from verify_norm.proof.ttir import Line


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is fixed: the operator, types, eps, the offset of the weight, and the length of a row, or groups of one."""

    op: str
    dtype: str
    eps: float
    offset: float
    columns: int
    groups: int = 0
    positions: int = 0

    def size(self, m: int) -> Size:
        """Return the extents of m rows, or samples of groups."""
        return Size(m * max(self.groups, 1), self.columns, self.groups, self.positions)


@dataclass(slots=True)
class Proved:
    """What has been shown of a call.

    outputs, failures : the stage of each output, or why it is not proved
    values : the line, meaning and depth of each value
    limits : the largest M whose numbers fit into their types, by line; arguments have none
    degree : of the polynomials that have to vanish
    runs : how many programs stand for all
    rows : of the largest run: what a quotient is compared with
    lines : of programs that share the tiles, that one turn of a loop over these lines adds
    """

    outputs: dict[str, Stage] = field(default_factory=dict)
    failures: dict[str, NotProved] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[Line, float] = field(default_factory=dict)
    degree: int = 0
    runs: int = 0
    rows: int = 0
    lines: int = 1

    def add(self, other: "Proved") -> None:
        """Add what has been shown of a call for other M."""
        for name, stage in other.outputs.items():
            self.outputs[name] = joined(self.outputs.get(name, stage), stage)
        for name, value in other.values.items():
            self.note(name, value["line"], value["depth"])
        self.failures |= other.failures
        self.limited(other.limits)
        self.degree, self.rows = max(self.degree, other.degree), max(self.rows, other.rows)
        self.runs, self.lines = self.runs + other.runs, max(self.lines, other.lines)

    def limited(self, limits: Mapping[Line, float]) -> None:
        """Add the largest M that lines allow."""
        self.limits |= {at: min(limit, self.limits.get(at, limit)) for at, limit in limits.items()}

    def note(self, name: str, line: str, meanings: Mapping[str, int]) -> None:
        """Add what a value is, with the depth of each meaning."""
        depths = self.values.setdefault(name, {"line": line, "depth": {}})["depth"]
        for kind, depth in meanings.items():
            depths[kind] = max(depth, depths.get(kind, 0))
