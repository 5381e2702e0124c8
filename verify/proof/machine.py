"""Runs programs of a kernel's TTIR on values of the field: integers exactly, floats with their stages.

Programs run together: the last axis of each array is theirs, of length 1 where all of them have the same.
"""

import re
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np

from verify_norm.proof import integers
from verify_norm.proof.accesses import Accesses
from verify_norm.proof.floats import FLOATING, Floats, axis_of, literal
from verify_norm.proof.integers import BITS, Maybe, Num, Undecided, alike, num
from verify_norm.proof.memory import NotProved, Pointer, Values
from verify_norm.proof.stages import joined
from verify_norm.proof.ttir import Block, Line, Operation, Type
from verify_norm.proof.turns import Ahead
from verify_norm.proof.world import Launch, World

OVER_ROWS, MOST = ("ΣDY·X", "ΣDY"), 2**31 - 1  # sums over rows, and the largest depth that they are noted with
FLOATS = ("f16", "bf16", "f32", "f64")
WIDEN = {  # assembly that converts two packed numbers of 16 bits to float32, and their type
    "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;": "bf16",
    "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;": "bf16",
    "{ .reg .b16 low, high; .reg .b32 turned; prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned; "
    "cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }": "f16",
}
WAIT = "griddepcontrol.wait; // dummy $0"
NOTHING = (  # assembly that changes no value
    "griddepcontrol.launch_dependents; // dummy $0",
    "{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; "
    "@first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
)
Value = Any  # Num, Values, Pointer, an array of bool, or a Maybe


class Machine(Floats, Accesses):
    """Runs some programs of a launch. The method `_x_y`, or the one that `ALIKE` names, runs the operation x.y."""

    def __init__(self, world: World, launch: Launch, pid: tuple[Num, ...]) -> None:
        self.world, self.launch, self.pid = world, launch, pid
        self.waited, self.pending = not launch.early, []
        parameters = launch.program.parameters
        if len(parameters) != len(launch.arguments):
            raise NotProved("reach", f"{launch.program.name} takes {len(parameters)} arguments, not those recorded")
        self.env: dict[str, Value] = {}
        for (name, kind), value in zip(parameters, launch.arguments, strict=True):
            self.env[name] = self._argument(value, kind)

    def run(self) -> None:
        """Run the programs; raises NotProved, or Apart before anything is written."""
        self._block(self.launch.program.body)
        if not self.waited:
            raise NotProved("memory", "a launch that begins early does not wait for the one before it")
        for buffer, index, values, active, at in self.pending:
            buffer.store(index, values, active, at)

    def _argument(self, value: Value, kind: Type) -> Value:
        if isinstance(value, float) and kind.element in FLOATS:
            return self._constant(value, kind)
        if isinstance(value, Num) and kind.element == "i1":
            return np.atleast_1d(value.c.astype(np.bool_))
        if isinstance(value, Num):
            self._fits(value, kind.element, Line("", 0))
        return value.map(np.atleast_1d) if isinstance(value, (Num, Pointer)) else value

    def _block(self, block: Block) -> list[Value]:
        for op in block.operations:
            if op.name in ("scf.yield", "tt.reduce.return"):
                return [self.env[name] for name in op.operands]
            if op.name == "tt.return":
                break
            operands = [self.env[name] for name in op.operands]
            known = self.launch.known.get(id(op))
            # Only the second run of a turn may take what was loaded before: it reads what the first run did.
            reusable = op.name != "tt.load" or self.again is not None
            if known is not None and reusable and all(map(is_, known[0], operands)):
                results = known[1]
            else:
                results = self._results(op, operands)
                if op.name not in EFFECTS:
                    self.launch.known[id(op)] = operands, results
            self.env.update(zip(op.results, results, strict=False))
        return []

    def _results(self, op: Operation, operands: list[Value]) -> list[Value]:
        """Run one operation; raises NotProved."""
        method = getattr(self, f"_{ALIKE.get(op.name, op.name).replace('.', '_')}", None)
        if method is None:
            raise NotProved("reach", UNREAD.get(op.name, f"the operation {op.name} is not one that is read"), op.at)
        try:
            result = method(op, *operands)
        except Undecided as error:
            raise NotProved("reach", str(error), op.at) from error
        except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:  # operands of another kind
            raise NotProved("reach", f"{op.name} of these operands is not read", op.at) from error
        results = result if isinstance(result, list) else [result]
        self._note(op, results)
        return results

    def _note(self, op: Operation, results: list[Value]) -> None:
        """Note what floats are, and for which M numbers fit into their types."""
        for name, value in zip(op.results, results, strict=False):
            if isinstance(value, Num) and op.type.element in BITS and op.name not in SPREADS:
                self._fits(value, op.type.element, op.at)
            if isinstance(value, (Values, Ahead)):
                meanings = self.world.notes.setdefault(f"{self.launch.program.name} {name}", (op.at, {}))[1]
                kind = value.stage.kind
                grows = self.world.tiles is not None and kind in OVER_ROWS
                meanings[kind] = max(MOST if grows else value.stage.depth, meanings.get(kind, 0))
                if isinstance(value, Ahead):
                    meanings["0"] = 0  # beyond the last tile

    def _fits(self, value: Num, element: str, at: Line) -> None:
        """Note up to which M a number fits into its type; raises NotProved if it does for none."""
        try:
            limit = integers.most_rows(value, element, self.world.rows, self.world.beyond)
        except Undecided as error:
            raise NotProved("memory", str(error), at) from error
        self.world.limits[at] = min(limit, self.world.limits.get(at, limit))

    # control

    def _scf_for(self, op: Operation, start: Num, stop: Num, step: Num, *carried: Value) -> list[Value]:
        if not (start.plain and stop.plain and step.plain):
            return self._turns(op, start, stop, step, list(carried))
        values, body = list(carried), op.regions[0]
        turns = [len(range(*one)) for one in np.broadcast(start.c, stop.c, step.c)]
        for k in range(int(alike(np.array(turns)))):
            self.env.update(zip(body.arguments, [num(start.c + k * step.c), *values], strict=True))
            values = self._block(body)
        return values

    def _scf_if(self, op: Operation, condition: Value) -> list[Value]:
        if isinstance(condition, np.ndarray):
            then, otherwise = op.regions if len(op.regions) > 1 else (*op.regions, Block([]))
            return self._block(then if alike(condition) else otherwise)
        if not isinstance(condition, Maybe):
            raise Undecided("a branch on a number")
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
        return num([0])

    # integers, shapes and pointers

    def _arith_constant(self, op: Operation) -> Value:
        found = re.match(r"\s*(?:\{[^}]*\} )?(?:dense<)?([^>:\s]+)>?", op.text)
        text = found[1] if found else ""
        shape, element = op.type
        if element == "i1" or text in ("true", "false"):
            return np.full((*shape, 1), text in ("true", "1", "-1"))
        if element in BITS:
            return num(np.full((*shape, 1), int(text), np.int64))
        return self._constant(literal(text, element, op.at), op.type)

    def _tt_get_program_id(self, op: Operation) -> Num:
        return self.pid["xyz".index(op.text.split()[0])]

    def _tt_get_num_programs(self, op: Operation) -> Num:
        return self.launch.grid["xyz".index(op.text.split()[0])].map(np.atleast_1d)

    def _tt_make_range(self, op: Operation) -> Num:
        bounds = dict(re.findall(r"(start|end) = (\d+)", op.text))
        return num(np.arange(int(bounds["start"]), int(bounds["end"]))[:, None])

    def _tt_expand_dims(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.expand_dims(a, axis_of(op)))

    def _tt_broadcast(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.broadcast_to(a, (*op.type.shape, a.shape[-1])))

    def _tt_reshape(self, op: Operation, value: Value) -> Value:
        return _mapped(value, lambda a: np.reshape(a, (*op.type.shape, a.shape[-1])))

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
        if name in BITWISE:
            if not a.plain or not b.plain:
                raise Undecided(f"{name} of a number that depends on the program")
            return num(BITWISE[name](a.c, b.c))
        smaller = integers.compare(f"{name[3]}le", a, b)
        if isinstance(smaller, Maybe):
            raise Undecided(f"a minimum by {smaller.why}")
        take = smaller if name.startswith("min") else ~smaller
        return Num(*(np.where(take, x, y) for x, y in zip(a, b, strict=True)))

    def _arith_cmpi(self, op: Operation, a: Value, b: Value) -> Value:
        predicate = op.text.split(",")[0].strip()
        for operand in (a, b):
            if isinstance(operand, Maybe):
                return integers.undecided(operand.why, op.type.shape)
        if isinstance(a, np.ndarray):
            return np.asarray({"eq": np.equal, "ne": np.not_equal}[predicate](a, b))
        return integers.compare(predicate, a, b)

    def _arith_select(self, op: Operation, condition: Value, a: Value, b: Value) -> Value:
        if not isinstance(condition, np.ndarray):
            raise Undecided(f"a choice by {condition.why if isinstance(condition, Maybe) else 'a number'}")
        condition = np.broadcast_to(condition, (*op.type.shape, condition.shape[-1]))
        if isinstance(a, Values):
            v, bad = np.where(condition, a.v, b.v), np.where(condition, a.bad, b.bad)
            if condition.all():
                stage = a.stage
            elif not condition.any():
                stage = b.stage
            else:
                stage = joined(a.stage, b.stage)
            return Values(v, bad, self._at(self._common(stage, v), op), a.element)
        if isinstance(a, Num):
            return Num(*(np.where(condition, x, y) for x, y in zip(a, b, strict=True)))
        if isinstance(a, np.ndarray):
            return np.where(condition, a, b)
        raise Undecided("a choice between pointers")


# Operations whose results depend on more than their operands, or that have effects.
EFFECTS = ("tt.get_program_id", "tt.store", "tt.elementwise_inline_asm", "scf.for", "scf.if")
SPREADS = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape")  # values that fitted before
BITWISE = {"andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor}
INTEGERS = "addi subi muli divsi remsi divui remui minsi maxsi minui maxui andi ori xori"
ALIKE = {
    **dict.fromkeys(FLOATING, "float"),
    **dict.fromkeys(("math.sqrt", "math.rsqrt", "tt.precise_sqrt"), "root"),
    **dict.fromkeys(("arith.extf", "arith.truncf"), "cast"),
    **dict.fromkeys(("arith.extsi", "arith.trunci", "arith.index_cast", "tt.unsplat"), "same"),
    **dict.fromkeys((f"arith.{n}" for n in INTEGERS.split()), "integer"),
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


def _writes(block: Block) -> bool:
    """Return whether a block may change memory, or has an operation that is not read."""
    for op in block.operations:
        if op.asm:
            writes = op.asm not in NOTHING
        else:
            writes = op.name.startswith(("tt.store", "tt.atomic", "tt.call", "scf.while"))
        if writes or any(_writes(region) for region in op.regions):
            return True
    return False
