"""The operations on floats: each value in the field, where it is garbage, and its stage."""

import re
from typing import Any

import numpy as np

from verify_norm.proof import field as f
from verify_norm.proof.integers import Num, Undecided, alike
from verify_norm.proof.memory import NotProved, Values
from verify_norm.proof.stages import QUOTIENTS, Stage, reduction, unknown
from verify_norm.proof.ttir import Block, Line, Operation, Type
from verify_norm.proof.world import Launch, World

FLOATING: dict[str, Any] = {
    "arith.addf": "add",
    "arith.subf": "sub",
    "arith.mulf": "mul",
    "arith.divf": "div",
    "tt.precise_divf": "div",
}
ROOTS = {"__nv_rsqrtf": "rsqrt", "__nv_sqrtf": "sqrt", "__nv_fsqrt_rn": "sqrt", "__nv_frsqrt_rn": "rsqrt"}


class Floats:
    """The part of a machine that computes with floats."""

    world: World
    launch: Launch

    def _arith_sitofp(self, op: Operation, a: Num) -> Values:
        numbers = np.unique(alike(a.c))
        if not a.plain or len(numbers) != 1:
            raise Undecided("a float that depends on the program")
        value = float(numbers[0])
        if float(np.float32(value)) != value:
            raise Undecided(f"{value:g}, which float32 does not hold")
        return self._constant(value, op.type)

    def _cast(self, op: Operation, a: Values) -> Values:
        stage, element = a.stage, op.type.element
        if "rounding" in op.text and "to_nearest_even" not in op.text:
            raise NotProved("rounding", f"a conversion that does not round to nearest:{op.text.split(':')[0]}", op.at)
        if op.name == "arith.truncf" and stage.kind not in ("UNKNOWN", "0"):
            again = stage.narrow and stage.narrow != element
            stage = unknown(f"{stage.kind} is rounded twice") if again else stage._replace(narrow=element)
        return Values(a.v, a.bad, self._at(stage, op), element)

    def _float(self, op: Operation, a: Values, b: Values) -> Values:
        operator = FLOATING[op.name]
        bad = np.where(a.bad > 0, a.bad, b.bad)
        if operator == "div":
            v = f.mul(a.v, f.inverse(b.v))
            if (b.v == 0).any():
                bad = np.where((b.v == 0) & (bad == 0), self.world.reason("a division by 0", op.at), bad)
        else:
            v = {"add": f.add, "sub": f.sub, "mul": f.mul}[operator](a.v, b.v)
        same = a.v.shape == b.v.shape and bool((a.v == b.v).all())
        stage = self.world.rules.binary(operator, a.stage, b.stage, element=a.element, same=same)
        if stage.kind in QUOTIENTS and operator in ("div", "mul"):
            bad = self._compared(v, bad, stage.kind, op)
        return Values(v, bad, self._at(stage, op), a.element)

    def _compared(self, v: f.Field, bad: Any, kind: str, op: Operation) -> Any:
        """Return which elements are garbage: also those that are the quantity of that name of no row."""
        wrong = ~np.isin(v, self.world.truth[kind]) & (bad == 0)
        name = {"MEAN": "the mean", "VAR": "the variance", "VAR+EPS": "var + eps"}.get(kind, kind)
        return np.where(wrong, self.world.reason(f"not {name} of a row", op.at), bad) if wrong.any() else bad

    def _root(self, op: Operation, a: Values) -> Values:
        bad = self._compared(a.v, a.bad, "VAR+EPS", op)
        v = f.root(np.where(bad > 0, 0, a.v))
        reciprocal = "rsqrt" in f"{op.name} {op.text}"
        stage = self.world.rules.binary(
            "rsqrt" if reciprocal else "sqrt", a.stage, Stage(""), element=a.element, same=False
        )
        return Values(f.inverse(v) if reciprocal else v, bad, self._at(stage, op), a.element)

    def _tt_extern_elementwise(self, op: Operation, *operands: Values) -> Values:
        symbol = re.search(r'symbol = "(\w+)"', op.text)
        if symbol is None or symbol[1] not in ROOTS:
            raise NotProved(
                "reach", f"the function {symbol[1] if symbol else op.text[:30]} is not one that is read", op.at
            )
        return self._root(op, *operands)

    def _math_fma(self, op: Operation, a: Values, b: Values, c: Values) -> Values:
        product = Operation("arith.mulf", [], [], "", op.type, "", op.at)
        return self._float(Operation("arith.addf", [], [], "", op.type, "", op.at), self._float(product, a, b), c)

    def _tt_reduce(self, op: Operation, *operands: Values) -> list[Values]:
        if not _adds(op.regions[0], len(operands)) or not all(isinstance(a, Values) for a in operands):
            raise NotProved("reach", "a reduction that is not a sum", op.at)
        axis = axis_of(op)
        size, results = operands[0].v.shape[axis], []
        threads = 32 * self.launch.warps
        each = -(-operands[0].v[..., 0].size // threads)
        last = axis == operands[0].v.ndim - 2
        for a in operands:
            stage = a.stage
            if size > 1 and stage.kind != "0":
                summed = self.world.rules.binary("add", stage, stage, element=a.element, same=True)
                deep = stage.depth + reduction(size, each, threads, last=last)
                stage = summed if summed.kind == "UNKNOWN" else summed._replace(depth=deep)
            results.append(Values(f.total(a.v, axis), a.bad.max(axis), self._at(stage, op), a.element))
        return results

    def _constant(self, value: float, kind: Type) -> Values:
        if not np.isfinite(value):
            why = f"the constant {value}"
            return self._filled(kind, 0, self.world.reason(why, Line("", 0)), unknown(why))
        stage, v = self.world.constants(value) or (unknown(f"the constant {value:g}"), f.of(value))
        return self._filled(kind, v, 0, stage)

    def _filled(self, kind: Type, v: int, bad: int, stage: Stage) -> Values:
        shape = (*kind.shape, 1)
        return Values(np.full(shape, v, np.uint64), np.full(shape, bad, np.int16), stage, kind.element)

    def _at(self, stage: Stage, op: Operation) -> Stage:
        return stage._replace(at=op.at) if stage.kind == "UNKNOWN" and not stage.at.line else stage


def axis_of(op: Operation) -> int:
    """Return the axis that an operation names; 0 if it names none."""
    match = re.search(r"axis = (\d+)", op.text)
    return int(match[1]) if match else 0


def literal(text: str, element: str, at: Line) -> float:
    """Return the number that a constant's text is; raises NotProved."""
    if text.startswith("0x"):
        kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(element)
        bits = int(text, 16)
        if kind is None:
            return float(np.array(bits << 16, np.uint32).view(np.float32))
        return float(np.array(bits, f"u{np.dtype(kind).itemsize}").view(kind))
    try:
        return float(np.float32(text)) if element != "f64" else float(text)
    except ValueError as error:
        raise NotProved("reach", f"the constant {text} is not read", at) from error


def _adds(block: Block, count: int) -> bool:
    """Return whether a reduction's block adds each value to its own partner, and does nothing else."""
    *sums, last = block.operations
    summands = {op.results[0]: set(op.operands) for op in sums if op.name == "arith.addf"}
    pairs = [{block.arguments[k], block.arguments[k + count]} for k in range(count)]
    return len(summands) == len(sums) == count and [summands.get(name) for name in last.operands] == pairs
