"""The memory of a replayed call: what is where, and which launch wrote it."""

from typing import Any

import numpy as np

from verify_norm.proof.replay.derivation import GARBAGE, floats
from verify_norm.proof.replay.reading import Rejected

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
READ, INPUT = 1, 2  # what no launch may write, as numbers that are added
SPAN = 2**40  # addresses of a buffer: the first element has the one in their middle


class Memory:
    """Buffers, one after the other: values, in which launch each was written, and which ones no launch may write."""

    def __init__(self, call: Any) -> None:
        given = [one for event in call["events"] for one in (*event.get("arguments", ()), event.get("zeros"))]
        places = [*call["inputs"].values(), *call["outputs"].values(), *(one for one in given if isinstance(one, dict))]
        sizes = {place["buffer"]: place["bytes"] // ITEM[place["dtype"]] for place in places}
        self.sizes = np.array([sizes.get(k, 0) for k in range(max(sizes) + 2)])  # the last has none
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.values = np.full(self.sizes.sum(), floats(0, GARBAGE))
        self.when, self.kept = np.zeros((2, len(self.values)), int)

    def address(self, place: Any) -> int:
        """Return where a recorded tensor begins."""
        return int(place["buffer"] * SPAN + SPAN // 2 + place["offset"])

    def fill(self, place: Any, v: Any, label: int, kept: int) -> None:
        """Fill a buffer as the caller does, or as torch does with zeros; raises Rejected if that changes one in use."""
        at = slice(self.starts[place["buffer"]], self.starts[place["buffer"]] + self.sizes[place["buffer"]])
        if (self.when[at] | self.kept[at]).any() or np.prod(place["shape"]) != self.sizes[place["buffer"]]:
            raise Rejected("a buffer is filled in part, or is an input, or one that a launch has used")
        self.values[at], self.kept[at] = floats(np.reshape(v, -1), label), kept

    def index(self, at: Any) -> Any:
        """Return the elements at addresses; raises Rejected if one is outside of its buffer."""
        buffer, element = np.divmod(at, SPAN)
        element -= SPAN // 2
        if ((element < 0) | (element >= self.sizes[buffer])).any():
            raise Rejected("an address is outside of its buffer")
        return self.starts[buffer] + element

    def read(self, place: dict[str, Any], at: Any) -> Any:
        """Return what is there; raises Rejected if this launch writes it, or the launch before may still do so."""
        at = self.index(at)
        early = not place["waited"] and (place["launch"] == 1 or (self.kept[at] < INPUT).any())
        if early or (self.when[at] == place["launch"]).any():
            raise Rejected("a place is read that this launch writes, or the launch before, for which it does not wait")
        self.kept[at] |= READ
        return self.values[at]

    def write(self, place: dict[str, Any], at: Any, values: Any) -> None:
        """Store values, each in a place that nothing has read or written, nor the caller given; raises Rejected."""
        at = self.index(at)
        if not place["waited"] or len(np.unique(at)) != len(at) or (self.when[at] | self.kept[at]).any():
            raise Rejected("a place is written that is an input, read, or written before, or too early")
        self.values[at], self.when[at] = values, place["launch"]

    def output(self, place: Any) -> Any:
        """Return all of a buffer that launches have written; raises Rejected."""
        at = slice(self.starts[place["buffer"]], self.starts[place["buffer"]] + self.sizes[place["buffer"]])
        if not self.when[at].all():
            raise Rejected("an element of an output is not written")
        return self.values[at]
