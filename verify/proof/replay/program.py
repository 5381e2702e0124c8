"""Runs one program of a launch: each float has an element of the field, and the label and depth that are claimed."""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from verify_norm.proof.replay.reading import TYPE, Operation, Rejected, assembly
from verify_norm.proof.replay.sample import P, Sample, inverse, root

_P = np.uint64(P)
STEPS = """
add X0 RESIDUAL X|add X X ΣX|add ΣX X ΣX|add ΣX ΣX ΣX|div ΣX N MEAN|mul ΣX 1/N MEAN|sub X MEAN XC|mul XC XC ΣXC²
div 1 N 1/N|add ΣXC² ΣXC² ΣXC²|div ΣXC² N VAR|mul ΣXC² 1/N VAR|add VAR EPS VAR+EPS|sqrt VAR+EPS VAR+EPS STD
div 1 STD RSTD|rsqrt VAR+EPS VAR+EPS RSTD|mul XC RSTD XHAT|div XC STD XHAT|add W OFFSET W+|add W 1 W+
mul XHAT W W·XHAT|mul XHAT W+ W·XHAT|mul W RSTD W·RSTD|mul W+ RSTD W·RSTD|mul XC W·RSTD W·XHAT
add W·XHAT B Y|mul DY W G|mul DY W+ G|mul G XHAT ΣGX|add ΣGX ΣGX ΣGX|div ΣGX N C1
mul ΣGX 1/N C1|add G G ΣG|add ΣG G ΣG|add ΣG ΣG ΣG|div ΣG N C2|mul ΣG 1/N C2|mul XHAT C1 X·C1|add X·C1 C2 C2+X·C1
sub G C2+X·C1 G−C2−X·C1|sub G C2 G−C2|sub G−C2 X·C1 G−C2−X·C1|sub G X·C1 G−X·C1|sub G−X·C1 C2 G−C2−X·C1
mul RSTD G−C2−X·C1 DX|mul RSTD G−X·C1 DX|add DX DH DX+DH|mul DY XHAT ΣDY·X|add ΣDY·X ΣDY·X ΣDY·X|add DY DY ΣDY
add ΣDY DY ΣDY|add ΣDY ΣDY ΣDY"""
UNCENTRED = "|mul X X ΣXC²|mul X RSTD XHAT|div X STD XHAT|mul X W·RSTD W·XHAT"
SUM_OF = {"X": "ΣX", "G": "ΣG", "DY": "ΣDY"}  # of one term a sum is the term
KEEPS = ("MEAN", "VAR", "VAR+EPS", "C1", "C2")  # has the depth of its sum
MIDWAY = ("XHAT", "X")  # what may be rounded before it is used, if the contract says so
FLOAT = {"arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div", "tt.precise_divf": "div"}
ROOT = {"math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "tt.precise_sqrt": "sqrt"}
ROOT |= {"__nv_rsqrtf": "rsqrt", "__nv_frsqrt_rn": "rsqrt", "__nv_sqrtf": "sqrt", "__nv_fsqrt_rn": "sqrt"}
NUMPY = """slt less|sle less_equal|sgt greater|sge greater_equal|ult less|ule less_equal|ugt greater|uge greater_equal
eq equal|ne not_equal|addi add|subi subtract|muli multiply|divsi floor_divide|divui floor_divide|remsi remainder
remui remainder|minsi minimum|maxsi maximum|minui minimum|maxui maximum|andi bitwise_and|ori bitwise_or|xori bitwise_xor
select where"""
INTEGER = {name: getattr(np, long) for name, long in (one.split() for one in NUMPY.replace("\n", "|").split("|"))}
SAME = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.ptr_to_int", "tt.unsplat")
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


def steps(centred: bool) -> dict[tuple[str, ...], str]:
    """Return what the operation of two labels makes, by the derivation."""
    rows = [row.split() for row in (STEPS.replace("\n", "|") + "|" * centred + UNCENTRED * (not centred)).split("|")]
    found = {tuple(row[:3]): row[3] for row in rows if row}
    return found | {(o, b, a): made for (o, a, b), made in found.items() if o in ("add", "mul")}


class Real(NamedTuple):
    """Floats: elements of the field, which of them are no garbage, label, depth, and the type they were rounded to."""

    v: Any
    clean: Any
    label: str
    depth: int
    narrow: str = ""


class Program:
    """One program: `place` is its number, grid, launch and threads; `found` the depths, and what is rounded midway."""

    def __init__(self, kernel: str, place: dict[str, Any], data: Sample, claims: Any, found: Any) -> None:
        self.kernel, self.place, self.data, self.claims = kernel, place, data, claims
        self.depths, self.midway = found
        self.steps, self.env = steps(data.centred), dict[str, Any]()

    def block(self, operations: list[Operation]) -> list[Any]:
        """Run operations; return what they yield."""
        for op in operations:
            given = [self.env[name] for name in op.operands]
            if op.name in ("scf.yield", "tt.reduce.return"):
                return given
            if op.name not in ("tt.return", "^"):
                made = self.step(op, given)
                made = made if isinstance(made, list) else [made]
                self.env |= {n: self.claimed(n, one) for n, one in zip(op.results, made, strict=False)}
        return []

    def claimed(self, name: str, value: Any) -> Any:
        """Return a value if the certificate claims what a float is."""
        if isinstance(value, Real):
            claim = self.claims.get(f"{self.kernel} {name}", {"depth": {}})["depth"]
            if value.depth > claim.get(value.label, claim.get(SUM_OF.get(value.label), -1)):
                raise Rejected(f"{name} of {self.kernel} is {value.label}, depth {value.depth}, and claimed as {claim}")
            self.depths[value.label] = max(value.depth, self.depths.get(value.label, 0))
        return value

    def step(self, op: Operation, given: list[Any]) -> Any:
        """Return what one operation makes."""
        shape, element = op.type()
        name = re.findall(r'symbol = "(\w+)"', op.text)[0] if op.name == "tt.extern_elementwise" else op.name
        if name in FLOAT or name in ROOT:
            return self.floats(FLOAT.get(name) or ROOT[name], element, given)
        if name == "math.fma":
            return self.floats("add", element, [self.floats("mul", element, given[:2]), given[2]])
        if op.name == "tt.reduce":
            return self.reduce(op, element, given)
        if op.name in ("tt.load", "tt.store"):
            return (self.load if op.name == "tt.load" else self.store)(*given)
        if op.name == "scf.for":
            values = given[3:]
            for i in range(*map(int, given[:3])):
                self.env |= zip(op.targets, [np.asarray(i), *values], strict=True)
                values = self.block(op.blocks[0])
            return values
        if op.name == "scf.if":
            return self.block(op.blocks[0] if bool(given[0]) else op.blocks[1] if len(op.blocks) > 1 else [])
        if op.name == "tt.elementwise_inline_asm":
            wide = ASM[assembly(op.text).pop()]
            if wide and [one for _, one in TYPE.findall(op.text.split(" : ")[-1])] != [wide, "f32"]:
                raise Rejected(f"{op.results} of {self.kernel} widens another type than {wide}")
            return given[0] if wide else np.asarray(0)
        if op.name in ("tt.get_program_id", "tt.get_num_programs"):
            return np.asarray(self.place[op.name]["xyz".index(op.text.split()[1])])
        if op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"):
            return _mapped(given[0], lambda a: _turned(a, op, shape))
        if op.name in ("arith.extf", "arith.truncf"):
            (a,) = given
            if op.name == "arith.truncf" and a.narrow not in ("", element):
                raise Rejected(f"{self.kernel}: {a.label} is rounded twice")
            return a._replace(narrow=element if op.name == "arith.truncf" else a.narrow)
        if op.name == "arith.select" and isinstance(given[1], Real):
            return _chosen(*given)
        return self.constant(op, shape, element) if op.name == "arith.constant" else self.integer(op, element, given)

    def integer(self, op: Operation, element: str, given: list[Any]) -> Any:
        """Return what an operation on integers, conditions and addresses makes."""
        if op.name == "tt.make_range":
            return np.arange(op.number("start"), op.number("end"))
        if op.name == "tt.addptr":
            return (given[0][0], given[0][1] + given[1])
        if op.name == "arith.sitofp":
            return self.real(float(np.unique(given[0]).item()), np.shape(given[0]))
        name = op.text.split()[1].strip(",") if op.name == "arith.cmpi" else op.name.removeprefix("arith.")
        if op.name not in SAME and name not in INTEGER:
            raise Rejected(f"{op.name} is not known here")
        natural = name.startswith(("div", "rem", "u")) or name.endswith("ui")
        if natural and any(np.any(np.asarray(one) < 0) for one in given):
            raise Rejected(f"{op.name} of a negative number")
        made = INTEGER[name](*given) if name in INTEGER else given[0][1] if op.name == "tt.ptr_to_int" else given[0]
        if made.dtype != bool and element[0] == "i" and np.any(np.abs(made) >= 2 ** (int(element[1:]) - 1)):
            raise Rejected(f"{op.results} of {self.kernel} overflows {element}")
        return made

    def label(self, operator: str, element: str, a: Real, b: Real) -> str:
        """Return what a step makes; raises Rejected if no step is allowed."""
        made, midway = self.steps.get((operator, a.label, b.label)), [one for one in (a, b) if one.narrow]
        if made is None or (element != "f32" and made != "X") or any(one.label not in MIDWAY for one in midway):
            what = f"{operator} of {a.label}{a.narrow} and {b.label}{b.narrow} in {element}"
            raise Rejected(f"{what}, in {self.kernel}, is no step of the derivation")
        self.midway |= {(one.label, one.narrow) for one in midway}
        return made

    def floats(self, operator: str, element: str, given: list[Any]) -> Real:
        """Return what an operation on floats makes, by a step that is allowed."""
        a, b = given if len(given) > 1 else (given[0], given[0])
        if operator == "add" and "0" in (a.label, b.label):
            one = b if a.label == "0" else a
            return Real((a.v + b.v) % _P, a.clean & b.clean, one.label, one.depth, one.narrow)
        label, x = self.label(operator, element, a, b), a.v
        clean, deep = a.clean & b.clean, max(a.depth, b.depth)
        if operator in ("sqrt", "rsqrt"):
            clean = clean & np.isin(x, self.data.truth["VAR+EPS"])
            v = root(np.where(clean, x, 0))
            return Real(v if operator == "sqrt" else inverse(v), clean, label, 0)
        if label == "ΣXC²" and operator == "mul" and not np.array_equal(x, b.v):
            raise Rejected(f"{self.kernel}: a product of two values is no square")
        y = inverse(b.v) if operator == "div" else _P - b.v if operator == "sub" else b.v
        v = (x * y if operator in ("mul", "div") else x + y) % _P
        if label in ("MEAN", "VAR", "C1", "C2"):
            clean = clean & np.isin(v, self.data.truth[label])
        first = 1 if operator == "mul" else deep + 1  # a product is the first rounding of its sum
        depth = first if label[0] == "Σ" else deep if label in KEEPS else 0
        return Real(v, clean, label, depth, "" if element == "f32" else element)

    def reduce(self, op: Operation, element: str, given: list[Any]) -> list[Any]:
        """Return sums along an axis, in a thread's elements and then in a tree over threads."""
        (block,), axis, made = op.blocks, op.number("axis"), []
        added = {one.results[0]: set(one.operands) for one in block[1:-1] if one.name == "arith.addf"}
        pairs = [{*block[0].targets[k :: len(given)]} for k in range(len(given))]
        if len(added) != len(block) - 2 or [added.get(one) for one in block[-1].operands] != pairs:
            raise Rejected(f"{op.results} of {self.kernel} is no sum")
        for a in given:
            size, last = a.v.shape[axis], axis == a.v.ndim - 1
            own = min(size, max(1, -(-a.v.size // self.place["threads"])))
            own = min(own, max(8, -(-size // self.place["threads"]))) if last else own
            a = a._replace(v=a.v.sum(axis=axis, dtype=np.uint64) % _P, clean=a.clean.all(axis))
            if size > 1 and a.label != "0":
                depth = a.depth + own - 1 + math.ceil(math.log2(-(-size // own)))
                a = a._replace(label=self.label("add", element, a, a), depth=depth, narrow="")
            made.append(a)
        return made

    def load(self, pointer: Any, mask: Any = True, other: Real | None = None) -> Real:
        """Return what is read; what lies beyond the mask is garbage, or `other`."""
        buffer, at = pointer
        mask = np.broadcast_to(mask, np.shape(at))
        found, v, clean = (
            buffer.read(self.place["launch"], at[mask]),
            np.zeros(at.shape, np.uint64),
            np.zeros(at.shape, bool),
        )
        v[mask], clean[mask] = found.v, found.clean
        return _chosen(mask, found._replace(v=v, clean=clean), other or Real(v, clean, "0", 0))

    def store(self, pointer: Any, value: Real, mask: Any = True) -> None:
        """Write what a store does."""
        mask = np.broadcast_to(mask, np.shape(pointer[1]))
        v, clean = (np.broadcast_to(one, mask.shape)[mask] for one in (value.v, value.clean))
        pointer[0].write(self.place["launch"], pointer[1][mask], value._replace(v=v, clean=clean))

    def constant(self, op: Operation, shape: Any, element: str) -> Any:
        """Return a constant."""
        word = re.findall(r"arith\.constant (?:dense<)?([^ >]+)", op.text)[0]
        if word in ("true", "false"):
            return np.full(shape, word == "true")
        if element[0] == "i":
            return np.full(shape, int(word), np.int64)
        return self.real(math.nan if word.startswith("0x") else float(word), shape)

    def real(self, value: float, shape: Any = ()) -> Real:
        """Return a float that a kernel is given."""
        known = self.data.constants
        label, v = known.get(float(np.float32(value)), known.get(value, ("UNKNOWN", 0)))
        return Real(np.full(shape, v, np.uint64), np.full(shape, label != "UNKNOWN"), label, 0)


def joined(labels: Any) -> str:
    """Return the label of values of which each has one of these; raises Rejected."""
    found = {SUM_OF.get(one, one) if SUM_OF.get(one) in labels else one for one in labels if one != "0"}
    if len(found) > 1:
        raise Rejected(f"a value is {' and '.join(sorted(found))} at once")
    return found.pop() if found else "0"


def _chosen(mask: Any, a: Real, b: Real) -> Real:
    v, clean = np.where(mask, a.v, b.v), np.where(mask, a.clean, b.clean)
    if np.all(mask) or not np.any(mask):
        return (a if np.all(mask) else b)._replace(v=v, clean=clean)
    return Real(v, clean, joined({a.label, b.label}), max(a.depth, b.depth), a.narrow or b.narrow)


def _mapped(value: Any, turn: Any) -> Any:
    if isinstance(value, Real):
        return value._replace(v=turn(value.v), clean=turn(value.clean))
    return (value[0], turn(value[1])) if isinstance(value, tuple) else turn(value)


def _turned(a: Any, op: Operation, shape: Any) -> Any:
    if op.name == "tt.expand_dims":
        return np.expand_dims(a, op.number("axis"))
    return np.reshape(a, shape) if op.name == "tt.reshape" else np.broadcast_to(a, shape)
