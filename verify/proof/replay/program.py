"""Runs programs of a launch: each element of a float is one of the field, with the label that its steps make.

Programs run together: the first axis of each value is theirs, of length 1 where the value is the same in all.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from verify_norm.proof.replay.derivation import FLOATS, GARBAGE, Derivation, floats
from verify_norm.proof.replay.memory import SPAN
from verify_norm.proof.replay.reading import TYPE, Operation, Rejected, assembly
from verify_norm.proof.replay.sample import P, inverse, root

_P = np.uint64(P)
FLOAT = {"arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div", "tt.precise_divf": "div"}
FLOAT |= {"math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "tt.precise_sqrt": "sqrt"}
FLOAT |= {"__nv_rsqrtf": "rsqrt", "__nv_frsqrt_rn": "rsqrt", "__nv_sqrtf": "sqrt", "__nv_fsqrt_rn": "sqrt"}
NUMPY = """slt less|sle less_equal|sgt greater|sge greater_equal|ult less|ule less_equal|ugt greater|uge greater_equal
eq equal|ne not_equal|addi add|subi subtract|muli multiply|divsi floor_divide|divui floor_divide|remsi remainder
remui remainder|minsi minimum|maxsi maximum|minui minimum|maxui maximum|andi bitwise_and|ori bitwise_or|xori bitwise_xor
extsi positive|trunci positive|index_cast positive"""
INTEGER = {name: getattr(np, long) for name, long in (one.split() for one in NUMPY.replace("\n", "|").split("|"))}
INTEGER |= {"extui": lambda a: a + 0, "addptr": np.add, "ptr_to_int": np.positive}
INTEGER |= {"select": lambda chosen, a, b: np.where(_as_deep(chosen, a.ndim), a, b)}
ASM = {  # that widens two numbers of a type, or changes no value
    "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;": "bf16",
    "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;": "bf16",
    "{ .reg .b16 low, high; .reg .b32 turned; prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned; "
    "cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }": "f16",
    "griddepcontrol.wait; // dummy $0": "",
    "griddepcontrol.launch_dependents; // dummy $0": "",
    "{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; "
    "@first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }": "",
}


def _as_deep(a: Any, ndim: int) -> Any:
    """Return a with axes of length 1 at its end."""
    return a.reshape(a.shape + (1,) * (ndim - a.ndim))


class Programs:
    """Some programs of a launch: `place` is their numbers, grid, launch and threads, and whether they have `waited`."""

    def __init__(self, kernel: str, place: dict[str, Any], call: Any, env: dict[str, Any]) -> None:
        self.kernel, self.place, self.call, self.env = kernel, place, call, env
        self.count = len(place["tt.get_program_id"][0])
        self.steps: Derivation = call.steps

    def block(self, operations: list[Operation]) -> list[Any]:
        """Run operations; return what they yield."""
        for op in operations:
            given = [self.env[name] for name in op.operands]
            if op.name in ("scf.yield", "tt.reduce.return"):
                return given
            if op.name not in ("tt.return", "^"):
                made = self.step(op, given)
                for name, one in zip(op.results, made if isinstance(made, list) else [made], strict=False):
                    self.env[name] = one
                    if one.dtype == FLOATS:
                        self.steps.claimed(f"{self.kernel} {name}", one)
        return []

    def step(self, op: Operation, given: list[Any]) -> Any:
        """Return what one operation makes."""
        name = re.findall(r'symbol = "(\w+)"', op.text)[0] if op.name == "tt.extern_elementwise" else op.name
        if name in FLOAT:
            return self.floating(FLOAT[name], op.element, given[0], given[-1])
        special = SPECIAL.get(name)
        return special(self, op, *given) if special else self.integer(op, given)

    def integer(self, op: Operation, given: list[Any]) -> Any:
        """Return what an operation on integers, conditions or addresses makes, or a choice."""
        name = op.text.split()[1].strip(",") if op.name == "arith.cmpi" else op.name.partition(".")[2]
        natural = name.startswith(("div", "rem", "u")) or name.endswith("ui")
        if natural and any(np.any(np.asarray(one) < 0) for one in given):
            raise Rejected(f"{op.name} of a negative number")
        made = INTEGER[name](*given)
        if made.dtype != bool and op.element[0] == "i" and np.any(np.abs(made) >= 2 ** (int(op.element[1:]) - 1)):
            raise Rejected(f"{op.results} of {self.kernel} overflows {op.element}")
        if name == "addptr" and np.any(made // SPAN != given[0] // SPAN):
            raise Rejected(f"{op.results} of {self.kernel} is an address of another buffer")
        return made

    def floating(self, operator: str, element: str, a: Any, b: Any) -> Any:
        """Return what an operation on floats makes: its label says whether that is a step of the derivation."""
        label = self.steps.tables[operator][a["label"], b["label"]]
        if operator in ("sqrt", "rsqrt"):
            v = root(a["v"]) if operator == "sqrt" else inverse(root(a["v"]))
        else:
            y = inverse(b["v"]) if operator == "div" else _P - b["v"] if operator == "sub" else b["v"]
            v = (a["v"] * y if operator in ("mul", "div") else a["v"] + y) % _P
        if element != "f32":  # there a residual may be added, which is one rounding
            label = self.steps.rounded(np.where(np.isin(label, (0, self.steps.codes["X"])), label, GARBAGE), element)
        return floats(v, label, self.steps.deep(operator, label, a, b))

    def reduce(self, op: Operation, *given: Any) -> list[Any]:
        """Return sums along an axis, in a thread's elements and then in a tree over threads."""
        (block,), axis, made = op.blocks, 1 + op.number("axis"), []
        added = {one.results[0]: set(one.operands) for one in block[1:-1] if one.name == "arith.addf"}
        pairs = [{*block[0].targets[k :: len(given)]} for k in range(len(given))]
        if len(added) != len(block) - 2 or [added.get(one) for one in block[-1].operands] != pairs:
            raise Rejected(f"{op.results} of {self.kernel} is no sum")
        for a in given:
            size, threads = a.shape[axis], self.place["threads"]
            own = min(size, -(-a[0].size // threads))
            own = min(own, max(8, -(-size // threads))) if axis == a.ndim - 1 else own
            terms = self.steps.tables["add"][a["label"], a["label"]] if size > 1 else a["label"]
            label = terms.max(axis)
            alike = np.all((terms == 0) | (terms == np.expand_dims(label, axis)), axis) & (op.element == "f32")
            deep = a["depth"].max(axis) + own - 1 + math.ceil(math.log2(-(-size // own)))
            made.append(floats(a["v"].sum(axis) % _P, np.where(alike, label, GARBAGE), np.where(label, deep, 0)))
        return made

    def load(self, op: Operation, at: Any, mask: Any = True, other: Any = None) -> Any:
        """Return what is read; what lies beyond the mask is garbage, or `other`."""
        other = floats(0, GARBAGE) if other is None else other
        at, mask, other = np.broadcast_arrays(at, mask, other)
        made = other.copy()
        made[mask] = self.call.memory.read(self.place, at[mask])
        return made

    def store(self, op: Operation, at: Any, value: Any, mask: Any = True) -> list[Any]:
        """Write what a store does."""
        each = (self.count, *at.shape[1:])  # also what all write alike
        at, value, mask = (np.broadcast_to(one, each) for one in (at, value, mask))
        self.call.memory.write(self.place, at[mask], value[mask])
        return []

    def loop(self, op: Operation, start: Any, stop: Any, step: Any, *_: Any) -> list[Any]:
        """Run every turn of a loop."""
        return self.apart(-(-(stop - start) // step), lambda some, turns: some.turns(op, turns))

    def turns(self, op: Operation, number: int) -> list[Any]:
        """Run so many turns of a loop."""
        start, _, step, *values = (self.env[name] for name in op.operands)
        for k in range(number):
            self.env |= zip(op.targets, [start + k * step, *values], strict=True)
            values = self.block(op.blocks[0])
        return values

    def branch(self, op: Operation, condition: Any) -> list[Any]:
        """Run what a condition chooses."""
        return self.apart(condition, lambda some, yes: some.block(op.blocks[not yes]) if yes or op.blocks[1:] else [])

    def apart(self, key: Any, run: Callable[..., list[Any]]) -> list[Any]:
        """Run the programs of each value of a key apart; return what they make, in the order of the programs."""
        key, made, order, waited = np.broadcast_to(key, self.count), list[list[Any]](), list[int](), list[bool]()
        if (key == key[0]).all():
            return run(self, key[0])
        for value in np.unique(key):
            at = np.flatnonzero(key == value)
            place = self.place | {"tt.get_program_id": [one[at] for one in self.place["tt.get_program_id"]]}
            env = {name: one[at] if len(one) == self.count else one for name, one in self.env.items()}
            some = Programs(self.kernel, place, self.call, env)
            made.append([np.broadcast_to(one, (len(at), *one.shape[1:])) for one in run(some, value)])
            order, waited = [*order, *at], [*waited, some.place["waited"]]
        self.place["waited"] = all(waited)
        return [np.concatenate(parts)[np.argsort(order)] for parts in zip(*made, strict=True)]

    def inlined(self, op: Operation, *given: Any) -> Any:
        """Return what known assembly makes; raises Rejected."""
        wide = ASM[assembly(op.text).pop()]
        if wide and [one for _, one in TYPE.findall(op.text.split(" : ")[-1])] != [wide, "f32"]:
            raise Rejected(f"{op.results} of {self.kernel} widens another type than {wide}")
        self.place["waited"] |= "griddepcontrol.wait" in op.text
        return given[0] if wide else np.zeros(1, int)

    def constant(self, op: Operation) -> Any:
        """Return a constant."""
        word = re.findall(r"arith\.constant (?:dense<)?([^ >]+)", op.text)[0]
        if op.element == "i1" or word in ("true", "false"):
            return np.full((1, *op.shape), word == "true")
        if op.element[0] == "i":
            return np.full((1, *op.shape), int(word))
        return np.full((1, *op.shape), self.call.real(math.nan if word.startswith("0x") else float(word)))

    def converted(self, _: Operation, a: Any) -> Any:
        """Return integers as floats."""
        once, where = np.unique(a, return_inverse=True)
        return np.array([self.call.real(float(one)) for one in once])[where].reshape(a.shape)


SPECIAL: dict[str, Any] = {  # operations, but those on floats or integers alone
    "tt.expand_dims": lambda _, op, a: np.expand_dims(a, 1 + op.number("axis")),
    **dict.fromkeys(
        ("tt.splat", "tt.broadcast"),
        lambda _, op, a: np.broadcast_to(_as_deep(a, 1 + len(op.shape)), (len(a), *op.shape)),
    ),
    **dict.fromkeys(("tt.reshape", "tt.unsplat"), lambda _, op, a: np.reshape(a, (len(a), *op.shape))),
    "tt.make_range": lambda _, op: np.arange(op.number("start"), op.number("end"))[None],
    **dict.fromkeys(
        ("tt.get_program_id", "tt.get_num_programs"),
        lambda some, op: some.place[op.name]["xyz".index(op.text.split()[1])],
    ),
    "arith.constant": Programs.constant,
    **dict.fromkeys(("arith.sitofp", "arith.uitofp"), Programs.converted),
    "arith.extf": lambda _, op, a: a,
    "arith.truncf": lambda some, op, a: floats(a["v"], some.steps.rounded(a["label"], op.element), a["depth"]),
    "math.fma": lambda some, op, a, b, c: some.floating("add", op.element, some.floating("mul", op.element, a, b), c),
    "tt.reduce": Programs.reduce,
    "tt.load": Programs.load,
    "tt.store": Programs.store,
    "tt.elementwise_inline_asm": Programs.inlined,
    "scf.for": Programs.loop,
    "scf.if": Programs.branch,
}
