"""The operations on memory: what a program reads and writes, and where it may."""

from typing import Any

import numpy as np

from verify_norm.proof.integers import BITS, Apart, Maybe, Undecided
from verify_norm.proof.memory import Buffer, NotProved, Pointer, Values
from verify_norm.proof.stages import Stage, joined
from verify_norm.proof.ttir import Line, Operation
from verify_norm.proof.turns import PLACES, Turns

Value = Any  # Num, Values, Pointer, an array of bool, or a Maybe


class Accesses(Turns):
    """The part of a machine that loads and stores; `waited` says that the launch before it has ended.

    `pending` are the stores, made when all operations have run.
    """

    waited: bool
    pending: list[tuple[Buffer, Any, Values, Any, Line]]

    def _at(self, stage: Stage, op: Operation) -> Stage:
        raise NotImplementedError

    def _tt_load(self, op: Operation, pointer: Pointer, mask: Value = None, other: Values | None = None) -> Value:
        offset = pointer.offset.map(lambda a: np.broadcast_to(a, (*op.type.shape, a.shape[-1])))
        pointer = Pointer(pointer.buffer, offset)
        self._early(pointer.buffer, op)
        if op.type.element in BITS:
            raise NotProved("reach", f"integers are read from {pointer.buffer.name}", op.at)
        if isinstance(mask, Maybe) and pointer.buffer.kind == "tile":
            return self._ahead(op, pointer, mask, other)
        self._allowed(pointer.buffer, op)
        if pointer.buffer.kind == "line":
            return self._load_lines(op, pointer, mask, other)
        active = self._active(pointer, mask, () if other is None else other.v.shape)
        return self._load(op, pointer, active, other)

    def _load(self, op: Operation, pointer: Pointer, active: Any, other: Values | None) -> Values:
        """Return what is read where lanes are active; in the others `other`, or garbage."""
        shape, buffer, reason = active.shape, pointer.buffer, self.world.reason
        v, bad = np.zeros(shape, np.uint64), np.zeros(shape, np.int16)
        index = buffer.locate(pointer.offset, active, op.at)
        v[active], bad[active], missing = buffer.load(index, op.at)
        if missing.any():
            bad[active] = np.where(missing, reason(f"{buffer.name} is read before it is written", op.at), bad[active])
        stage = buffer.stage(index) if active.any() else Stage("0")
        if not active.all():
            if other is None:
                bad[~active] = reason("lanes beyond the mask hold garbage: the load has no `other`", op.at)
            else:
                v[~active], bad[~active] = (np.broadcast_to(a, shape)[~active] for a in (other.v, other.bad))
                stage = joined(stage, other.stage)
        return Values(v, bad, self._at(self._common(stage, v), op), op.type.element)

    def _tt_store(self, op: Operation, pointer: Pointer, values: Values, mask: Value = None) -> None:
        buffer = pointer.buffer
        self._early(buffer, op, stores=True)
        if not isinstance(values, Values):
            raise NotProved("reach", f"integers are written to {buffer.name}", op.at)
        active = self._active(pointer, mask, values.v.shape, self.pid[0].c.shape)
        self._allowed(buffer, op, stores=True)
        if buffer.kind == "line":
            index, _ = buffer.line(pointer.offset, active, 1, op.at)
        else:
            index = buffer.locate(pointer.offset, active, op.at)
        if self.again is not None:
            return self._repeated(buffer, index, values, op)
        self.pending.append((buffer, index, values, active, op.at))
        if self.inside:
            self.stored.append((buffer, index, values))
        return None

    def _allowed(self, buffer: Buffer, op: Operation, *, stores: bool = False) -> None:
        """Raise NotProved where M is a symbol and these programs cannot use a buffer apart from each other."""
        if not self.world.rows or buffer.kind in PLACES[self.launch.way, self.inside][stores]:
            return
        if stores and buffer.kind == "call" and self.launch.way != "whole":
            raise NotProved("memory", f"{buffer.name}, which all programs share, is written by each of them", op.at)
        where = "in" if self.inside else "outside of"
        verb = "written" if stores else "read"
        raise NotProved("reach", f"{buffer.name} is {verb} {where} the loop whose bounds depend on the rows", op.at)

    def _common(self, stage: Stage, v: Any) -> Stage:
        """Return what values are; raises Apart where they may differ from program to program."""
        if stage.kind == "UNKNOWN" and v.shape[-1] > 1:
            raise Apart
        return stage

    def _active(self, pointer: Pointer, mask: Value, *shapes: tuple[int, ...]) -> Any:
        """Return which lanes are active, in each of the programs that a pointer, a mask, or one of these shapes has."""
        if isinstance(mask, Maybe):
            raise Undecided(f"a mask by {mask.why}")
        if mask is not None and not isinstance(mask, np.ndarray):
            raise Undecided("a mask of numbers")
        there = np.ones(1, np.bool_) if mask is None else mask
        return np.broadcast_to(there, np.broadcast_shapes(pointer.offset.c.shape, there.shape, *shapes))

    def _early(self, buffer: Buffer, op: Operation, *, stores: bool = False) -> None:
        if not self.waited and (stores or buffer.of_this_call or self.launch.first):
            raise NotProved("memory", f"{buffer.name} is used before the wait for the launch before", op.at)
