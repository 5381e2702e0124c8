"""Loops whose number of turns depends on M: over the tiles that programs share, and over the lines that they leave.

One turn stands for all. A turn of program w takes tile p, whatever the turns before it took; the loop's bounds have to
say that each tile is taken once. The turn is run twice: on sums that are 0, and on random ones. Both have to add the
same and to store the same; so each turn adds what its tile alone decides, and a sum over all turns is the sum over the
tiles. Only sums over rows may leave such a loop, and no rule does anything with them but to add them. The lines that
the programs leave are read likewise, a few of G at a time; all of them have what tile p added, each times a random
number, and the result has to be that of tile p times the sum of these numbers.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verify_norm.proof import field as f
from verify_norm.proof.integers import ZERO, Bools, Maybe, Num, Undecided, add, alike, bounds, compare, mul, num, sub
from verify_norm.proof.memory import Buffer, NotProved, Pointer, Values
from verify_norm.proof.stages import SUM_OF, Stage
from verify_norm.proof.ttir import Block, Operation
from verify_norm.proof.world import Launch, World

PLACES = {  # what programs may read and write where M is a symbol: of each tile, of each program a line, of the call
    ("tiles", False): (("tile", "call"), ("tile",)),
    ("shared", False): (("call",), ("line",)),  # before and after the loop over tiles
    ("shared", True): (("tile", "call"), ("tile",)),
    ("whole", False): (("call",), ("call",)),
    ("whole", True): (("line", "call"), ()),
}
SUMS = ("0", "DY", "ΣDY", "ΣDY·X")  # what may leave the loop: sums over rows


@dataclass(frozen=True, slots=True)
class Ahead:
    """Values of a tile that is not this turn's: at `offset` in lanes of `part` where `below` < 0, else `other`."""

    buffer: Buffer
    offset: Num
    below: Any
    part: Bools
    other: Values
    op: Operation

    @property
    def stage(self) -> Stage:
        """Return what the values are."""
        return self.buffer.stage(slice(None))

    def map(self, function: Any) -> "Ahead":
        """Return the values with all arrays changed alike, as a broadcast does."""
        turned = {name: getattr(self, name).map(function) for name in ("offset", "below", "other")}
        return replace(self, part=function(self.part), **turned)

    def at(self, tile: Num) -> "Ahead":
        """Return what these values of the tile of the program's number are of another tile."""
        return replace(self, offset=_moved(self.offset, tile), below=_moved(self.below, tile))

    def equals(self, other: Any) -> bool:
        """Return whether both are the same values."""
        return (
            isinstance(other, Ahead)
            and self.buffer is other.buffer
            and self.offset.equals(other.offset)
            and self.below.equals(other.below)
            and bool((self.part == other.part).all() and (self.other.v == other.other.v).all())
        )


def _moved(a: Num, tile: Num) -> Num:
    """Return a number with the program's number replaced by that of a tile."""
    return add(a._replace(w=np.zeros_like(a.w)), mul(tile, num(a.w)))


class Turns:
    """The part of a machine that runs such loops; `inside` says that one runs."""

    world: World
    launch: Launch
    env: dict[str, Any]
    pid: tuple[Num, ...]
    inside = False
    lines = 0  # that a turn of a loop over them reads
    stored: list[tuple[Buffer, Any, Values]]
    again: list[tuple[Buffer, Any, Values]] | None = None

    def _block(self, block: Block) -> list[Any]:
        raise NotImplementedError

    def _common(self, stage: Stage, v: Any) -> Stage:
        raise NotImplementedError

    def _load(self, op: Operation, pointer: Pointer, active: Any, other: Values | None) -> Values:
        raise NotImplementedError

    def _turns(self, op: Operation, start: Num, stop: Num, step: Num, carried: list[Any]) -> list[Any]:
        """Return what leaves a loop, by one turn of it; raises NotProved if its turns do not take each tile once."""
        if self.inside or self.launch.way not in ("shared", "whole"):
            raise NotProved("reach", "a loop whose bounds depend on the number of rows", op.at)
        outer, self.inside, self.stored = self.env, True, []
        lines = 0 if self.launch.way == "shared" else int(alike(step.c))
        if lines:
            self._of_lines(op, start, stop, step)
            self.env = {name: _spread(value, lines) for name, value in outer.items()}
            self.lines, counter = lines, num([0], w=lines)
        else:
            counter = num([0], p=self._of_tiles(op, start, stop, step))
        begun = [self._begun(value, op) for value in carried]
        first = self._turn(op, counter, begun)
        self.again = list(self.stored)
        sums = [self._random(value) if isinstance(value, Values) else value for value in first]
        given = [b if isinstance(c, Ahead) else s for b, c, s in zip(begun, carried, sums, strict=True)]
        second = self._turn(op, counter, given)
        if self.again:
            raise NotProved("meaning", "a turn of the loop stores less than the turn before", op.at)
        self.again, self.inside, self.env = None, False, outer
        return [
            self._left(op, a, x, y, z, bool(lines)) for a, x, y, z in zip(carried, first, given, second, strict=True)
        ]

    def _of_tiles(self, op: Operation, start: Num, stop: Num, step: Num) -> int:
        """Return what the counter of a loop over tiles counts a tile as; raises NotProved if it misses one."""
        each, tiles = int(np.asarray(start.w).flat[0]), self.world.tiles
        assert tiles is not None
        last = mul(sub(tiles, num(1)), num(each))
        ends = compare("slt", last, stop), compare("sle", stop, mul(tiles, num(each)))
        begins_at_program = each > 0 and start.equals(mul(self.pid[0], num(each)))
        steps_by_programs = step.equals(mul(self.launch.grid[0], num(each)))
        ends_behind_last = not any(isinstance(holds, Maybe) or not holds.all() for holds in ends)
        if not (begins_at_program and steps_by_programs and ends_behind_last):
            what = "expected every tile once: from the program's number to the number of tiles, by that of programs"
            raise NotProved("reach", f"the bounds of a loop over tiles; {what}", op.at)
        return each

    def _of_lines(self, op: Operation, start: Num, stop: Num, step: Num) -> None:
        """Raise NotProved if a loop does not take each line of the programs once."""
        if not start.equals(num(0)) or not step.plain or (step.c < 1).any() or not stop.equals(num(1, v=1)):
            what = "expected every line of the programs once: from 0 to the number of programs"
            raise NotProved("reach", f"the bounds of a loop over lines; {what}", op.at)

    def _turn(self, op: Operation, counter: Num, values: list[Any]) -> list[Any]:
        body = op.regions[0]
        self.env = {**self.env, **dict(zip(body.arguments, [counter, *values], strict=True))}
        return self._block(body)

    def _begun(self, value: Any, op: Operation) -> Any:
        """Return what the turn begins with: a sum is 0, and what is loaded ahead is that of its tile."""
        if isinstance(value, Ahead):
            here = value.at(num(0, p=1))
            low, high = bounds(here.below)
            if ((low < 0) & (high >= 0))[here.part].any():
                raise NotProved("reach", "what is loaded ahead has a mask that is not of rows", value.op.at)
            return self._load(value.op, Pointer(value.buffer, here.offset), here.part & (high < 0), here.other)
        if not isinstance(value, Values):
            raise NotProved("reach", "a number or an address that one turn of a loop leaves to the next", op.at)
        if value.v.any() or value.bad.any():
            raise NotProved("meaning", "a sum over tiles that does not begin with 0", op.at)
        return value

    def _random(self, value: Values) -> Values:
        """Return a sum that is as deep as one, and whatever else."""
        stage = value.stage._replace(kind=SUM_OF.get(value.stage.kind, value.stage.kind))
        v = self.world.draw.integers(1, f.P, value.v.shape, dtype=np.uint64)
        return replace(value, v=v, bad=np.zeros_like(value.bad), stage=stage)

    def _left(self, op: Operation, begun: Any, first: Any, given: Any, second: Any, lines: bool) -> Any:
        """Return what a loop leaves of a value; raises NotProved if it is no sum of what each turn adds."""
        if isinstance(begun, Ahead):
            following = begun.at(add(num(0, p=1), self.launch.grid[0]))
            if not following.equals(second) and not self.world.last:
                raise NotProved("meaning", "what a turn loads ahead is not what the next turn takes", op.at)
            return replace(begun, below=None)  # of a tile beyond the last: nothing can use it
        if not isinstance(second, Values) or first.v.shape != second.v.shape:
            raise NotProved("reach", "a value that is not of one kind in all turns of a loop", op.at)
        adds = (f.sub(second.v, given.v) == first.v).all() and (first.bad == second.bad).all()
        if not adds:
            raise NotProved(
                "meaning", "a turn of the loop adds what the turns before decide, not its tile alone", op.at
            )
        more = second.stage.depth - first.stage.depth
        stage = second.stage._replace(depth=first.stage.depth)
        stage = stage._replace(folds=stage.folds + more) if lines else stage._replace(turns=stage.turns + more)
        if stage.kind not in (*SUMS, "UNKNOWN"):
            raise NotProved("meaning", f"{stage.kind}, of one row, is added up over the tiles", op.at)
        return replace(first, stage=stage)

    def _repeated(self, buffer: Buffer, index: Any, values: Values, op: Operation) -> None:
        """Compare what the second run of a turn stores with the first; raises NotProved."""
        assert self.again is not None
        before, at, stored = self.again.pop(0) if self.again else (None, np.zeros(0), values)
        same = before is buffer and np.array_equal(at, index) and values.stage == stored.stage
        if not same or (values.v != stored.v).any() or (values.bad != stored.bad).any():
            raise NotProved("meaning", f"what is written to {buffer.name} depends on the turns before", op.at)

    def _ahead(self, op: Operation, pointer: Pointer, mask: Maybe, other: Values | None) -> Ahead:
        """Return what is loaded of another tile; raises Undecided, or NotProved if it may be outside of its buffer."""
        buffer, below = pointer.buffer, mask.below
        if below is None or other is None or self.launch.way != "shared" or buffer.role != "input":
            raise Undecided(f"a mask by {mask.why}")
        each = num(buffer.slope // self.world.rows)  # elements a row: the last of a row below M is below each·M
        part = mask.yes | mask.open
        room = sub(add(mul(add(below, self.world.m), each), sub(each, num(1))), pointer.offset)
        if (bounds(room)[0] < 0)[part].any() or (bounds(pointer.offset)[0] < 0)[part].any():
            raise NotProved("memory", f"an address beyond {buffer.name}, in a tile of another turn", op.at)
        return Ahead(buffer, pointer.offset, below, part, other, op)

    def _load_lines(self, op: Operation, pointer: Pointer, mask: Any, other: Values | None) -> Values:
        """Return lines of the programs, each times its share; a lane without a line is 0."""
        buffer = pointer.buffer
        yes = np.ones(1, np.bool_) if mask is None else mask.yes | mask.open if isinstance(mask, Maybe) else mask
        shape = np.broadcast_shapes(pointer.offset.c.shape, yes.shape)
        active = np.broadcast_to(yes, shape)
        index, lane = buffer.line(pointer.offset, active, self.lines, op.at)
        exists = lane == 0  # G is at least 1 + lines·w: of the others each has to be masked
        if isinstance(mask, Maybe) and mask.below is not None:
            _, *parts = below = Num(*(np.broadcast_to(one, shape)[active] for one in mask.below))
            exact = (below.c == lane - 1) & (parts[3] == -1) & ~np.any(parts[:3], axis=0)
            exists |= exact & np.broadcast_to(mask.open, shape)[active]
        if not exists.all():
            raise NotProved("memory", f"an address beyond {buffer.name}: a line of no program", op.at)
        if other is None or other.v.any() or other.bad.any():
            raise NotProved("meaning", f"lanes beyond the lines of {buffer.name} do not hold 0", op.at)
        v, bad = np.zeros(shape, np.uint64), np.zeros(shape, np.int16)
        values, bad[active], missing = buffer.load(index, op.at)
        v[active] = f.mul(values, self.world.share(self.lines)[lane])
        if missing.any():
            unwritten = self.world.reason(f"{buffer.name} is read before it is written", op.at)
            bad[active] = np.where(missing, unwritten, bad[active])
        stage = buffer.stage(index) if active.any() else Stage("0")
        return Values(v, bad, self._common(stage, v)._replace(degree=stage.degree + 1), op.type.element)


def _spread(value: Any, lines: int) -> Any:
    """Return a number with 1 + lines·w + v programs, where it had 1 + v."""
    if isinstance(value, Pointer):
        return Pointer(value.buffer, _spread(value.offset, lines))
    if isinstance(value, Maybe):
        return replace(value, below=_spread(value.below, lines))
    return value._replace(w=value.v * lines) if isinstance(value, Num) and value.v is not ZERO else value
