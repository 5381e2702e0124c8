"""Runs one program of a kernel's TTIR on values of the field: integers exactly, floats with their stages."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verify_norm.proof import field as f
from verify_norm.proof import integers
from verify_norm.proof.integers import BITS, Maybe, Num, Undecided, num
from verify_norm.proof.memory import Buffer, NotProved, Pointer, Values
from verify_norm.proof.stages import QUOTIENTS, Rules, Stage, joined, reduction, unknown
from verify_norm.proof.ttir import Block, Line, Operation, Program, Type

FLOATS = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
WIDEN = {  # assembly that converts two packed numbers of 16 bits to float32, and their type
    "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;": "bf16",
    "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;": "bf16",
    "{ .reg .b16 low, high; .reg .b32 turned; prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned; "
    "cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }": "f16",
}
WAIT, NOTHING = (
    "griddepcontrol.wait; // dummy $0",
    (
        "griddepcontrol.launch_dependents; // dummy $0",
        "{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; "
        "@first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
    ),
)
Value = Any  # Num, Values, Pointer, an array of bool, or a Maybe


@dataclass
class World:
    """What a run takes place in.

    `truth` has, for each quotient, the values it may have; `constants` the stage and the element of each float that a
    kernel may be given; `rows` is how many rows a program has, where p is a symbol. `notes` are the line of each value,
    and the depth of each of its meanings.
    """

    rules: Rules
    truth: Mapping[str, f.Field]
    constants: Callable[[float], tuple[Stage, int] | None]
    rows: int
    reasons: list[tuple[str, Line]] = field(default_factory=lambda: [("", Line("", 0))])
    limit: tuple[float, Line] = (float("inf"), Line("", 0))
    notes: dict[str, tuple[Line, dict[str, int]]] = field(default_factory=dict)

    def reason(self, why: str, at: Line) -> int:
        """Return the number of a reason why elements are garbage."""
        if (why, at) not in self.reasons:
            self.reasons.append((why, at))
        return self.reasons.index((why, at))


@dataclass
class Launch:
    """A launch: its kernel, arguments in the order of the parameters, warps, and whether it may begin early."""

    program: Program
    arguments: list[Value]
    grid: tuple[Num, ...]
    warps: int
    early: bool


class Machine:
    """One program of a launch. Method `_x_y` runs the operation x.y, or those of `ALIKE`."""

    def __init__(self, world: World, launch: Launch, pid: tuple[Num, ...]) -> None:
        self.world, self.launch, self.pid = world, launch, pid
        self.waited = not launch.early
        parameters = launch.program.parameters
        if len(parameters) != len(launch.arguments):
            raise NotProved("reach", f"{launch.program.name} takes {len(parameters)} arguments, not those recorded")
        self.env: dict[str, Value] = {}
        for (name, kind), value in zip(parameters, launch.arguments, strict=True):
            self.env[name] = self._argument(value, kind)

    def run(self) -> None:
        """Run the program; raises NotProved."""
        self._block(self.launch.program.body)
        if not self.waited:
            raise NotProved("memory", "a launch that begins early does not wait for the one before it")

    def _argument(self, value: Value, kind: Type) -> Value:
        if isinstance(value, float) and kind.element in FLOATS:
            return self._constant(value, kind)
        if isinstance(value, Num):
            self._fits(value, kind.element, Line("", 0))
        return value

    def _block(self, block: Block) -> list[Value]:
        for op in block.operations:
            if op.name in ("scf.yield", "tt.reduce.return"):
                return [self.env[name] for name in op.operands]
            if op.name == "tt.return":
                break
            method = getattr(self, f"_{ALIKE.get(op.name, op.name).replace('.', '_')}", None)
            if method is None:
                raise NotProved("reach", UNREAD.get(op.name, f"the operation {op.name} is not one that is read"), op.at)
            try:
                result = method(op, *(self.env[name] for name in op.operands))
            except Undecided as error:
                raise NotProved("reach", str(error), op.at) from error
            except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:  # operands of another kind
                raise NotProved("reach", f"{op.name} of these operands is not read", op.at) from error
            self._bind(op, result)
        return []

    def _bind(self, op: Operation, result: Value) -> None:
        results = result if isinstance(result, list) else [result]
        for name, one in zip(op.results, results, strict=False):
            self.env[name] = one
            if isinstance(one, Num) and op.type.element in BITS:
                self._fits(one, op.type.element, op.at)
            if isinstance(one, Values):
                meanings = self.world.notes.setdefault(f"{self.launch.program.name} {name}", (op.at, {}))[1]
                meanings[one.stage.kind] = max(one.stage.depth, meanings.get(one.stage.kind, 0))

    def _fits(self, value: Num, element: str, at: Line) -> None:
        self.world.limit = min(self.world.limit, (integers.most_rows(value, element, self.world.rows), at))

    # control

    def _scf_for(self, op: Operation, start: Num, stop: Num, step: Num, *carried: Value) -> list[Value]:
        if not (start.plain and stop.plain and step.plain):
            raise NotProved("reach", "a loop whose bounds depend on the number of rows", op.at)
        values, body = list(carried), op.regions[0]
        for i in range(int(start.c), int(stop.c), int(step.c)):
            self.env.update(zip(body.arguments, [num(i), *values], strict=True))
            values = self._block(body)
        return values

    def _scf_if(self, op: Operation, condition: Value) -> list[Value]:
        if not isinstance(condition, Maybe):
            regions = op.regions if len(op.regions) > 1 else [*op.regions, Block([])]
            return self._block(regions[0] if bool(condition) else regions[1])
        if op.results or any(_writes(region) for region in op.regions):
            raise NotProved("reach", f"a branch on {condition.why}", op.at)
        return []

    def _tt_elementwise_inline_asm(self, op: Operation, *operands: Value) -> Value:
        if op.asm == WAIT:
            self.waited = True
        elif WIDEN.get(op.asm) == getattr(operands[0] if operands else None, "element", ""):
            return Values(operands[0].v, operands[0].bad, operands[0].stage, "f32")
        elif op.asm not in NOTHING:
            raise NotProved("reach", f"assembly that is not read: {op.asm[:40]}", op.at)
        return num(0)

    # integers, shapes and pointers

    def _arith_constant(self, op: Operation) -> Value:
        found = re.match(r"\s*(?:\{[^}]*\} )?(?:dense<)?([^>:\s]+)>?", op.text)
        text = found[1] if found else ""
        shape, element = op.type
        if element == "i1" or text in ("true", "false"):
            return np.full(shape, text in ("true", "1", "-1"))
        if element in BITS:
            return num(np.full(shape, int(text), np.int64))
        return self._constant(_literal(text, element, op.at), op.type)

    def _constant(self, value: float, kind: Type) -> Values:
        found = self.world.constants(value)
        if not np.isfinite(value):
            why, stage, v = f"the constant {value}", unknown(f"the constant {value}"), 0
            return self._filled(kind, v, self.world.reason(why, Line("", 0)), stage)
        stage, v = found or (unknown(f"the constant {value:g}"), f.of(value))
        return self._filled(kind, v, 0, stage)

    def _filled(self, kind: Type, v: int, bad: int, stage: Stage) -> Values:
        return Values(np.full(kind.shape, v, np.uint64), np.full(kind.shape, bad, np.int16), stage, kind.element)

    def _tt_get_program_id(self, op: Operation) -> Num:
        return self.pid["xyz".index(op.text.split()[0])]

    def _tt_get_num_programs(self, op: Operation) -> Num:
        return self.launch.grid["xyz".index(op.text.split()[0])]

    def _tt_make_range(self, op: Operation) -> Num:
        bounds = dict(re.findall(r"(start|end) = (\d+)", op.text))
        return num(np.arange(int(bounds["start"]), int(bounds["end"])))

    def _tt_expand_dims(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.expand_dims(a, _axis(op)))

    def _tt_broadcast(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.broadcast_to(a, op.type.shape))

    def _tt_reshape(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.reshape(a, op.type.shape))

    def _same(self, op: Operation, value: Value) -> Value:
        if op.type.element == "i1":
            raise Undecided("a condition made of the last bit of a number")
        return value

    def _arith_extui(self, op: Operation, value: Value) -> Value:
        if isinstance(value, np.ndarray):
            return num(value.astype(np.int64))
        if (integers.bounds(value)[0] < 0).any():
            raise Undecided("a negative number that is taken for an unsigned one")
        return value

    def _tt_addptr(self, op: Operation, pointer: Pointer, offset: Num) -> Pointer:
        return Pointer(pointer.buffer, integers.add(pointer.offset, offset))

    def _tt_ptr_to_int(self, op: Operation, pointer: Pointer) -> Value:
        return integers.undecided("an address as a number")

    def _integer(self, op: Operation, a: Value, b: Value) -> Value:
        name = op.name.removeprefix("arith.")
        if isinstance(a, (np.ndarray, Maybe)):
            return integers.logical(name, a, b)
        if name in ("addi", "subi", "muli"):
            return {"addi": integers.add, "subi": integers.sub, "muli": integers.mul}[name](a, b)
        if name in ("divsi", "remsi", "divui", "remui"):
            return integers.divide(a, b, remainder=name.startswith("rem"), signed=name.endswith("si"))
        smaller = integers.compare("sle", a, b)
        if isinstance(smaller, Maybe):
            raise Undecided("a minimum that depends on the number of rows")
        take = smaller if name.startswith("min") else ~smaller
        return Num(*(np.where(take, getattr(a, part), getattr(b, part)) for part in "cpq"))

    def _arith_cmpi(self, op: Operation, a: Value, b: Value) -> Value:
        if isinstance(a, Maybe) or isinstance(b, Maybe):
            return a if isinstance(a, Maybe) else b
        predicate = op.text.split(",")[0].strip()
        if isinstance(a, np.ndarray):
            return np.asarray((a == b) if predicate == "eq" else (a != b))
        return integers.compare(predicate, a, b)

    def _arith_select(self, op: Operation, condition: Value, a: Value, b: Value) -> Value:
        if isinstance(condition, Maybe):
            raise Undecided(f"a choice by {condition.why}")
        if isinstance(a, Values):
            v, bad = np.where(condition, a.v, b.v), np.where(condition, a.bad, b.bad)
            stage = a.stage if condition.all() else b.stage if not condition.any() else joined(a.stage, b.stage)
            return Values(v, bad, self._at(stage, op), a.element)
        if isinstance(a, Num):
            return Num(*(np.where(condition, getattr(a, part), getattr(b, part)) for part in "cpq"))
        if isinstance(a, np.ndarray):
            return np.where(condition, a, b)
        raise Undecided("a choice between pointers")

    # floats

    def _arith_sitofp(self, op: Operation, a: Num) -> Values:
        if not a.plain or (a.c != a.c.flat[0]).any():
            raise Undecided("a float that depends on the program")
        value = float(a.c.flat[0])
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

    def _tt_reduce(self, op: Operation, *operands: Values) -> list[Value]:
        if not _adds(op.regions[0], len(operands)) or not all(isinstance(a, Values) for a in operands):
            raise NotProved("reach", "a reduction that is not a sum", op.at)
        axis = _axis(op)
        size, results = operands[0].v.shape[axis], []
        threads = 32 * self.launch.warps
        each = -(-operands[0].v.size // threads)
        last = axis == operands[0].v.ndim - 1
        for a in operands:
            stage = a.stage
            if size > 1 and stage.kind != "0":
                summed = self.world.rules.binary("add", stage, stage, element=a.element, same=True)
                deep = stage.depth + reduction(size, each, threads, last=last)
                stage = summed if summed.kind == "UNKNOWN" else summed._replace(depth=deep)
            results.append(Values(f.total(a.v, axis), a.bad.max(axis), self._at(stage, op), a.element))
        return list(results)

    # memory

    def _tt_load(self, op: Operation, pointer: Pointer, mask: Value = None, other: Values | None = None) -> Values:
        active = self._active(op.type.shape, mask)
        offset = pointer.offset.map(lambda a: np.broadcast_to(a, op.type.shape))
        buffer = pointer.buffer
        self._early(buffer, op)
        shape, reason = op.type.shape, self.world.reason
        v, bad = np.zeros(shape, np.uint64), np.zeros(shape, np.int16)
        index = buffer.locate(offset, active, op.at)
        if op.type.element in BITS:
            raise NotProved("reach", f"integers are read from {buffer.name}", op.at)
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
        shape = pointer.offset.c.shape
        active = self._active(shape, mask)
        self._early(pointer.buffer, op, stores=True)
        if not isinstance(values, Values):
            raise NotProved("reach", f"integers are written to {pointer.buffer.name}", op.at)
        index = pointer.buffer.locate(pointer.offset, active, op.at)
        pointer.buffer.store(index, values, active, op.at)

    def _active(self, shape: tuple[int, ...], mask: Value) -> Any:
        if isinstance(mask, Maybe):
            raise Undecided(f"a mask by {mask.why}")
        return np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)

    def _early(self, buffer: Buffer, op: Operation, *, stores: bool = False) -> None:
        if not self.waited and (stores or buffer.of_this_call):
            raise NotProved("memory", f"{buffer.name} is used before the wait for the launch before", op.at)

    def _at(self, stage: Stage, op: Operation) -> Stage:
        return stage._replace(at=op.at) if stage.kind == "UNKNOWN" and not stage.at.line else stage


FLOATING: dict[str, Any] = {
    "arith.addf": "add",
    "arith.subf": "sub",
    "arith.mulf": "mul",
    "arith.divf": "div",
    "tt.precise_divf": "div",
}
ROOTS = {"__nv_rsqrtf": "rsqrt", "__nv_sqrtf": "sqrt", "__nv_fsqrt_rn": "sqrt", "__nv_frsqrt_rn": "rsqrt"}
ALIKE = {
    **dict.fromkeys(FLOATING, "float"),
    **dict.fromkeys(("math.sqrt", "math.rsqrt", "tt.precise_sqrt"), "root"),
    **dict.fromkeys(("arith.extf", "arith.truncf"), "cast"),
    **dict.fromkeys(("arith.extsi", "arith.trunci", "arith.index_cast", "tt.unsplat"), "same"),
    **dict.fromkeys((f"arith.{n}" for n in "addi subi muli divsi remsi divui remui".split()), "integer"),
    **dict.fromkeys((f"arith.{n}" for n in "minsi maxsi minui maxui andi ori xori".split()), "integer"),
    "tt.splat": "tt.broadcast",
    "arith.uitofp": "arith.sitofp",
}
UNREAD = {
    "tt.atomic_rmw": "an atomic addition: its order, and so its rounding, differs from run to run",
    "tt.atomic_cas": "a lock: what another program has written is read",
    "scf.while": "a loop whose bounds cannot be read",
}


def _mapped(value: Value, function: Callable[[Any], Any]) -> Value:
    return function(value) if isinstance(value, np.ndarray) else value.map(function)


def _axis(op: Operation) -> int:
    found = re.search(r"axis = (\d+)", op.text)
    return int(found[1]) if found else 0


def _literal(text: str, element: str, at: Line) -> float:
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
    made = {s.results[0]: set(s.operands) for s in sums if s.name == "arith.addf"}
    pairs = [{block.arguments[k], block.arguments[k + count]} for k in range(count)]
    return len(made) == len(sums) == count and [made.get(name) for name in last.operands] == pairs


def _writes(block: Block) -> bool:
    """Return whether a block may change memory, or what is not read."""
    for op in block.operations:
        known = (
            op.asm in NOTHING if op.asm else not op.name.startswith(("tt.store", "tt.atomic", "tt.call", "scf.while"))
        )
        if not known or any(_writes(region) for region in op.regions):
            return True
    return False
