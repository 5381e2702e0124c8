"""Replays a certificate, with no code of the prover.

Each value's meaning and depth are those that the certificate claims. This makes every step of them by `STEPS`, runs
every program of a few numbers of rows in another prime field, with other data, keeps account of what is written where,
compares outputs with the operator's formulas, and the depths with the contract. It knows no symbols: it does not repeat
that M = 1, R, R + 1 and 2R − 1 (with R rows a program) stand for every M.
"""

import hashlib
import json
import re
from typing import Any

import numpy as np

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.known import read as contract_of
from verify_norm.core.promises import arithmetic
from verify_norm.proof.replay.derivation import KEEPS, STEPS, SUMS, UNCENTRED, Value, joined
from verify_norm.proof.replay.reading import Operation, Rejected, read
from verify_norm.proof.replay.sample import ROOT, P, powers, sample

TYPES = {"float32": ("f32", 4), "bfloat16": ("bf16", 2), "float16": ("f16", 2)}  # with bytes
CELL = np.array((-1, "?", 0, 0), [("v", int), ("label", object), ("depth", int), ("used", int)])  # of a new buffer
READ, INPUT = -1, -2  # how an element is used, if not by the launch of that number, which wrote it, or not at all: 0
ALIKE = ("scf.if", "scf.for", "arith.sitofp", "arith.uitofp")  # of numbers that programs have to have in common
ALL, NOTHING = Value(np.full(1, True)), Value(np.full(1, -1), "0")  # a mask, and what lies beyond one: garbage
FIELD: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": lambda a, b: a * powers(b, -1)}
FIELD |= {"sqrt": lambda a, _: powers(a, ROOT), "rsqrt": lambda a, _: powers(a, -ROOT)}
FLOATS = """add arith.addf|sub arith.subf|mul arith.mulf|div arith.divf tt.precise_divf|sqrt math.sqrt tt.precise_sqrt
__nv_sqrtf __nv_fsqrt_rn|rsqrt math.rsqrt __nv_rsqrtf __nv_frsqrt_rn"""
INTEGERS = """less slt ult|less_equal sle ule|greater sgt ugt|greater_equal sge uge|equal eq|not_equal ne|add addi
|subtract subi|multiply muli|floor_divide divsi divui|remainder remsi remui|minimum minsi minui|maximum maxsi maxui
|bitwise_and andi|bitwise_or ori|bitwise_xor xori|positive extsi trunci index_cast|int64 extui"""
FLOATING, NUMPY = ({key: row.split()[0] for row in t.split("|") for key in row.split()[1:]} for t in (FLOATS, INTEGERS))


class Apart(Exception):  # noqa: N818
    """Programs that run together and do not do the same."""


def spread(shape: tuple[int, ...], *values: Value) -> list[Any]:
    """Return what each lane of a shape has of values, which are of that rank or scalars, in each program."""
    most = (*shape, max(one.v.shape[-1] for one in values))
    return [np.broadcast_to(one.v, {1: most, len(most): most}[one.v.ndim]) for one in values]


class Call:
    """One call with m rows, or samples of groups, by a number of programs that share tiles, or by one for each tile.

    While some programs run, `env` has their values, `waited` says whether they have waited for the launch before, and
    `stores` are what they will write. The last axis of each value has the programs, or 1 where all have the same.
    """

    def __init__(self, certificate: dict[str, Any], form: Any, m: int, programs: int) -> None:
        self.certificate, self.fixed, self.m, self.programs = certificate, certificate["fixed"], m, programs
        self.contract, self.depths = Contract(**contract_of(certificate["contract"])), dict[str, int]()
        self.inputs, self.outputs, self.floats = sample(certificate, m)
        self.buffers, tiles, op = dict[str, Any](), -(-m // (form["rows"] or m)), certificate["op"]
        self.grid, self.g, self.narrow = [form["each"] * tiles, 1, 1], programs or tiles, TYPES[self.fixed["dtype"]][0]
        self.call = json.loads(json.dumps(form["call"]), object_hook=self.known)
        self.midway = {("XHAT", TYPES.get(str(self.contract.xhat), ("",))[0])}  # rounded before it is used, and to what
        self.midway |= {("X", self.narrow)} if op.startswith("add_") and self.contract.residual == "rounded" else set()
        lines = (STEPS + UNCENTRED * ("rmsnorm" in op)).splitlines()
        rows = [(line.split()[0], *step.split()[-3:]) for line in lines for step in line.split("|")]
        self.steps = {(operator, a, b): made for operator, a, b, made in rows}
        self.steps |= {(operator, b, a): made for operator, a, b, made in rows if operator in ("add", "mul")}

    def known(self, one: dict[str, Any]) -> Any:
        """Return a number of the call, or a place of it, whose buffer this makes."""
        if "buffer" in one:
            self.buffers[f"&{one['buffer']}"] = np.full(one["bytes"] // TYPES[one["dtype"]][1], CELL)
        return one.get("times M", 0) * self.m + one.get("times G", 0) * self.g + one["plus"] if "plus" in one else one

    def replay(self) -> None:
        """Replay the call; raises Rejected."""
        for name, place in self.call["inputs"].items():
            self.fill(place, *self.inputs[name], INPUT)
        for number, event in enumerate(self.call["events"], 1):
            if "zeros" in event:
                self.fill(event["zeros"], np.zeros(event["zeros"]["shape"], int), "0", 0)
            else:
                self.launch(number, event)
        for name in self.certificate["outputs"]:
            (want, labels), place = self.outputs[name], self.call["outputs"][name]
            found = self.buffers[f"&{place['buffer']}"]
            dtype = "float32" if name in ("mean", "rstd") else self.fixed["dtype"]
            kinds = {mark * (dtype != "float32") + label for label in labels.split() for mark in ("", "~")}
            if place["dtype"] != dtype or (found["used"] <= 0).any() or not kinds.issuperset(found["label"]):
                raise Rejected(f"M = {self.m}: an element of {name} is not written once, as {labels} of {dtype}")
            if not np.array_equal(found["v"], want.reshape(-1) % P):
                raise Rejected(f"M = {self.m}: {name} is not the operator's")
        for label, products in SUMS.items():
            n = self.m * self.fixed.get("positions", 1) if label.startswith("ΣDY") else self.fixed["N"]
            depth = min(self.depths.get(label, 0), n - (not products))  # no term meets more: a 0 is exact
            # where programs share tiles because they are told so, there are more turns than the host makes
            if not self.programs and depth > arithmetic(self.contract, self.fixed["dtype"]).terms(n, products=products):
                raise Rejected(f"M = {self.m}: depth {depth} of {label} is more than the contract's")

    def fill(self, place: Any, v: Any, label: str, used: int) -> None:
        """Fill a buffer as the caller does, or as torch does with zeros; raises Rejected."""
        all_of = np.arange(self.buffers[f"&{place['buffer']}"].size).reshape(np.empty(place["shape"]).shape)
        self.write(f"&{place['buffer']}", all_of.ravel(), Value(v.reshape(all_of.size) % P, label), used)

    def launch(self, number: int, event: Any) -> None:
        """Run every program of a launch, as many at a time as take the same branches."""
        self.number, self.size, self.threads = number, event.get("grid", self.grid), 32 * event["warps"]
        self.kernel, names, body = self.certificate["kernels"][event["launch"]]
        rest = np.array_split(np.indices(self.size[::-1]).reshape(3, -1), np.prod(self.size) // 32 + 1, axis=1)
        for some in rest:
            given, self.stores, self.waited = [*map(self.given, event["arguments"])], list[Any](), not event["early"]
            self.env = dict(zip([*names, *"zyx"], [*given, *map(Value, some)], strict=True))
            try:
                self.block(body)
                for store in self.stores:
                    self.write(*store)
            except Apart:
                rest += np.array_split(some, 2, axis=1)

    def given(self, one: Any, shape: tuple[int, ...] = ()) -> Value:
        """Return what programs are given, or a constant: a pointer, an integer, a condition or a float."""
        if isinstance(one, dict):
            return Value(np.full(1, one["offset"]), f"&{one['buffer']}")
        v, label = self.floats.get(float(np.float32(one)), (-1, "?")) if isinstance(one, float) else (one, "")
        return Value(np.full((*shape, 1), v), label)

    def block(self, operations: list[Operation]) -> Any:
        """Run operations; return what they yield."""
        for op in operations:
            given = [self.env[name] for name in op.operands]
            self.waited |= op.name == "wait"
            if op.name in ("scf.yield", "tt.return"):
                return given
            if any((one.label == "?" or op.name in ALIKE) and (one.v != one.v[..., :1]).any() for one in given[:3]):
                raise Apart
            run: Any = OPERATIONS.get(op.name) or getattr(Call, op.name.replace(".", "_"), Call.integer)
            made = run(self, op, *given)
            for name, one in zip(op.results, [made] if isinstance(made, Value) else made or [], strict=False):
                self.env[name] = one
                if one.v.shape[:-1] != op.shape and not op.name.startswith("scf."):
                    raise Rejected(f"{name} of {self.kernel} has another shape than its type")
                self.claimed(f"{self.kernel} {name}", one)
        return []

    def integer(self, op: Operation, *given: Value) -> Value:
        """Return what an operation on integers or conditions makes."""
        name = op.word if op.name == "arith.cmpi" else op.name.removeprefix("arith.")
        natural = name.startswith(("div", "rem", "u")) or name.endswith("ui")
        if any(one.label or one.v.shape[:-1] != op.shape or (natural and (one.v < 0).any()) for one in given):
            raise Rejected(f"{op.name} of a negative number, or of what is no integer")
        v = getattr(np, NUMPY[name])(*(one.v for one in given))
        if v.dtype != bool and (np.abs(v) >= 2 ** (int(op.elements[-1][1:]) - 1)).any():
            raise Rejected(f"{op.results} of {self.kernel} overflows {op.elements[-1]}")
        return Value(v)

    def floating(self, op: Operation, operator: str, a: Value, b: Value) -> Value:
        """Return what an operation on floats makes."""
        bad = (a.v < 0) | (b.v < 0) | ((b.v == 0) & (operator in ("div", "sqrt", "rsqrt")))
        v = np.where(bad | (a.v.shape[:-1] != b.v.shape[:-1]), -1, FIELD[operator](a.v, b.v) % P)
        return Value(v, *self.made(operator, op.elements[-1], a, b))

    def rounded(self, label: str, element: str) -> str:
        """Return the label of what is rounded: to the type of the outputs, or as the contract says."""
        stays = label in ("0", "?") or (label, element) in self.midway
        return label if stays else "~" + label.lstrip("~") if element == self.narrow else "?"

    def made(self, operator: str, element: str, a: Value, b: Value) -> tuple[str, int]:
        """Return the label and the depth of what an operation makes.

        A product is the first rounding of its sum; what adds zeros is exact; in 16 bits a residual may be added.
        """
        if operator == "add" and "0" in (a.label, b.label):
            return (a if b.label == "0" else b)[1:]
        label, deepest = self.steps.get((operator, a.label, b.label), "?"), max(a.depth, b.depth)
        label = label if element == "f32" else self.rounded(label if label == "X" else "?", element)
        return label, (1 if operator == "mul" else deepest + 1) if "Σ" in label else deepest * (label in KEEPS)

    def claimed(self, name: str, value: Value) -> None:
        """Raise Rejected if the certificate does not claim what a float is."""
        if value.label[:1] not in "&0?":
            one, claim = value.label.lstrip("~"), self.certificate["values"].get(name, {"depth": {}})["depth"]
            if value.depth > claim.get(one, claim.get(f"Σ{one}", -1)):
                raise Rejected(f"{name} is {one}, depth {value.depth}, and claimed as {claim}")
            self.depths[one] = max(value.depth, self.depths.get(one, 0))

    def arith_select(self, _: Operation, chosen: Value, a: Value, b: Value) -> Value:
        """Return a where it is chosen, else b."""
        label = a.label if chosen.v.all() else joined({a.label, b.label}) if chosen.v.any() else b.label
        return Value(np.where(chosen.v, *spread(a.v.shape[:-1], a, b)), label, max(a.depth, b.depth))

    def tt_reduce(self, op: Operation, *given: Value) -> list[Value]:
        """Return sums along an axis, in a thread's elements and then in a tree over threads."""
        ((head, *sums, last),), axis, made = op.blocks, op.numbers["axis"], []
        pairs = [("arith.addf", {*head.operands[k :: len(given)]}) for k in range(len(given))]
        if [(s.name, set(s.operands)) for s in sums] != pairs or [s.results[0] for s in sums] != last.operands:
            raise Rejected(f"{op.results} of {self.kernel} is no sum")
        for a in given:
            size, each = a.v.shape[:-1][axis], -(-a.v[..., 0].size // self.threads)
            own = min(size, each, max(8, -(-size // self.threads)) if axis == a.v.ndim - 2 else size)
            label = self.made("add", op.elements[-1], a, a)[0] if size > 1 else a.label
            depth = (a.depth + own - 1 + (-(-size // own) - 1).bit_length()) * (label != "0")
            made.append(Value(np.where((a.v < 0).any(axis), -1, a.v.sum(axis) % P), label, depth))
        return made

    def tt_load(self, _: Operation, at: Value, mask: Value = ALL, other: Value = NOTHING) -> Value:
        """Return what is read; raises Rejected if this launch writes it, or the launch before may still do so."""
        buffer, (place, there, v) = self.buffers[at.label], spread(at.v.shape[:-1], at, mask, other)
        found, made = buffer[index := place[there]], np.array(v)
        early = not self.waited and (self.number == 1 or (found["used"] != INPUT).any())
        if early or (index < 0).any() or (found["used"] == self.number).any():
            raise Rejected("a place is read that is outside, or that this launch writes, or the one before, too early")
        buffer["used"][index[found["used"] == 0]], made[there] = READ, found["v"]
        return Value(made, joined({other.label, *found["label"].tolist()}), found["depth"].max(initial=other.depth))

    def tt_store(self, _: Operation, at: Value, value: Value, mask: Value = ALL) -> None:
        """Note what the programs will write."""
        place, there, v, _ = spread(at.v.shape[:-1], at, mask, value, self.env["x"])
        self.stores.append((at.label, place[there], value._replace(v=v[there]), self.number, self.waited))

    def write(self, name: str, index: Any, value: Value, used: int, waited: bool = True) -> None:
        """Write elements, each of which nothing has read or written, nor the caller given; raises Rejected."""
        buffer = self.buffers[name]
        if not waited or (index < 0).any() or (np.diff(np.sort(index)) == 0).any() or buffer["used"][index].any():
            raise Rejected("a place is written that is outside, an input, read or written before, or too early")
        buffer["v"][index], buffer["label"][index], buffer["depth"][index], buffer["used"][index] = *value, used

    def scf_for(self, op: Operation, start: Value, stop: Value, step: Value, *values: Value) -> Any:
        """Run every turn of a loop."""
        for k in range(start.v[0], stop.v[0], step.v[0]):
            self.env |= zip(op.targets, [Value(np.full(1, k)), *values], strict=True)
            values = self.block(op.blocks[0])
        return values


OPERATIONS: dict[str, Any] = {  # of one line, but those on integers alone
    "tt.splat tt.broadcast": lambda _, op, a: a._replace(v=spread(op.shape, a)[0]),
    "tt.expand_dims": lambda _, op, a: a._replace(v=np.expand_dims(a.v, range(a.v.ndim)[op.numbers["axis"]])),
    "tt.reshape tt.unsplat": lambda _, op, a: a._replace(v=a.v.reshape(*op.shape, a.v.shape[-1])),
    "tt.make_range": lambda _, op: Value(np.arange(op.numbers["start"], op.numbers["end"])[:, None]),
    "tt.get_program_id": lambda run, op: run.env[op.word],
    "tt.get_num_programs": lambda run, op: run.given(run.size["xyz".index(op.word)]),
    "tt.addptr": lambda _, op, a, b: a._replace(v=a.v + {"": b.v}[b.label]),
    "tt.ptr_to_int": lambda _, op, a: Value(a.v),
    "arith.constant": lambda run, op: run.given(json.loads(re.sub("^0x.*", "NaN", op.word)), op.shape),
    "arith.sitofp arith.uitofp": lambda run, op, a: run.given({"f32": float(*{*a.v.flat})}[op.elements[-1]], op.shape),
    "arith.extf": lambda _, op, a: a,
    "arith.truncf": lambda run, op, a: a._replace(label=run.rounded(a.label, op.elements[-1])),
    "math.fma": lambda run, op, a, b, c: run.floating(op, "add", run.floating(op, "mul", a, b), c),
    "scf.if": lambda run, op, condition: run.block([*op.blocks, []][not condition.v[0]]),
    "widen.bf16 widen.f16": lambda _, op, a: {f"{op.name} f32": a}[f"widen.{' '.join(op.elements)}"],
    "nothing wait": lambda *_: None,
    " ".join(FLOATING): lambda run, op, *given: run.floating(op, FLOATING[op.name], given[0], given[-1]),
}
OPERATIONS = {name: run for names, run in OPERATIONS.items() for name in names.split()}


def check(certificate: dict[str, Any]) -> str:
    """Return what was replayed, in one line; raises Rejected."""
    sizes = list[int]()
    reached = re.fullmatch("(add_)?(layer|rms)norm_(fwd|bwd)|groupnorm_fwd", str(certificate.get("op")))
    if not reached or certificate.get("schema") != 1 or not all(map(certificate.get, ("proved", "forms", "outputs"))):
        raise Rejected("it is no certificate of schema 1 that has forms and outputs, of an operator that proofs reach")
    try:
        if any(hashlib.sha256(one["ttir"].encode()).hexdigest() != key for key, one in certificate["kernels"].items()):
            raise Rejected("the TTIR of a kernel is not what its hash says")
        kernels = {key: (one["name"], *read(one["ttir"])) for key, one in certificate["kernels"].items()}
        for form in certificate["forms"]:
            r = form["rows"]
            sizes += (few := sorted({1, r, r + 1, 2 * r - 1}) if r else [int(form["M"].removeprefix("M = "))])
            # and, where programs share tiles, so many rows in so few programs that one has two tiles
            for m, programs in [(m, 0) for m in few] + [(r + 1, 1), (2 * r + 1, 2)] * bool(form.get("programs")):
                Call(certificate | {"kernels": kernels}, form, m, programs).replay()
        return f"replayed for M = {', '.join(map(str, sizes))}; {len(certificate['values'])} values"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, UsageError) as error:
        raise Rejected(f"it cannot be replayed: {type(error).__name__}: {error}") from error
