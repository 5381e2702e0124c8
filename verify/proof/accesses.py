"""The operations on memory: what a program reads and writes, and where it may."""

from typing import Any

import numpy as np

from verify_norm.proof.integers import BITS, Maybe, Undecided
from verify_norm.proof.memory import Buffer, NotProved, Pointer, Values
from verify_norm.proof.stages import Stage, joined
from verify_norm.proof.ttir import Operation
from verify_norm.proof.turns import PLACES, Turns

Value = Any  # Num, Values, Pointer, an array of bool, or a Maybe


class Accesses(Turns):
    """The part of a machine that loads and stores; `waited` says that the launch before it has ended."""

    waited: bool

    def _at(self, stage: Stage, op: Operation) -> Stage:
        raise NotImplementedError

    def _tt_load(self, op: Operation, pointer: Pointer, mask: Value = None, other: Values | None = None) -> Value:
        pointer = Pointer(pointer.buffer, pointer.offset.map(lambda a: np.broadcast_to(a, op.type.shape)))
        self._early(pointer.buffer, op)
        if op.type.element in BITS:
            raise NotProved("reach", f"integers are read from {pointer.buffer.name}", op.at)
        if isinstance(mask, Maybe) and pointer.buffer.kind == "tile":
            return self._ahead(op, pointer, mask, other)
        self._allowed(pointer.buffer, op)
        if pointer.buffer.kind == "line":
            return self._load_lines(op, pointer, mask, other)
        return self._load(op, pointer, self._active(op.type.shape, mask), other)

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
        return Values(v, bad, self._at(stage, op), op.type.element)

    def _tt_store(self, op: Operation, pointer: Pointer, values: Values, mask: Value = None) -> None:
        buffer = pointer.buffer
        active = self._active(pointer.offset.c.shape, mask)
        self._early(buffer, op, stores=True)
        if not isinstance(values, Values):
            raise NotProved("reach", f"integers are written to {buffer.name}", op.at)
        self._allowed(buffer, op, stores=True)
        if buffer.kind == "line":
            index, _ = buffer.line(pointer.offset, active, 1, op.at)
        else:
            index = buffer.locate(pointer.offset, active, op.at)
        if self.again is not None:
            return self._repeated(buffer, index, values, op)
        buffer.store(index, values, active, op.at)
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

    def _active(self, shape: tuple[int, ...], mask: Value) -> Any:
        if isinstance(mask, Maybe):
            raise Undecided(f"a mask by {mask.why}")
        if mask is not None and not isinstance(mask, np.ndarray):
            raise Undecided("a mask of numbers")
        return np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)

    def _early(self, buffer: Buffer, op: Operation, *, stores: bool = False) -> None:
        if not self.waited and (stores or buffer.of_this_call or self.launch.first):
            raise NotProved("memory", f"{buffer.name} is used before the wait for the launch before", op.at)
