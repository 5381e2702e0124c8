"""Replays a certificate: a second, smaller reading of its TTIR, which shares no code with the prover.

Each value's meaning and depth are those that the certificate claims. This checks every step of them against `STEPS`,
runs every program of a few numbers of rows in another prime field, with other data, counts what is written where, and
compares sums over N, roots and outputs with the operator's formulas. It knows nothing of symbols and contracts: it does
not repeat that M = 1, R, R + 1 and 2R − 1 (with R rows a program) stand for every M, nor which contract depths give.
"""

import hashlib
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from verify_norm.proof.sample import P, Sample, inverse, root

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
add ΣDY DY ΣDY|add ΣDY ΣDY ΣDY
"""
UNCENTRED = "mul X X ΣXC²|mul X RSTD XHAT|div X STD XHAT|mul X W·RSTD W·XHAT"
ENDS = {"y": "Y W·XHAT XHAT", "mean": "MEAN", "rstd": "RSTD", "residual_out": "X", "dx": "DX DX+DH"} | {
    "dweight": "ΣDY·X",
    "dbias": "ΣDY DY",
}
KINDS = {"x": "X", "residual": "RESIDUAL", "residual_out": "X", "weight": "W", "bias": "B", "dy": "DY"} | {
    "dresidual_out": "DH",
    "mean": "MEAN",
    "rstd": "RSTD",
}
FLOAT = {"arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div", "tt.precise_divf": "div"}
ROOT = {"math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "tt.precise_sqrt": "sqrt"}
MIDWAY = ("XHAT", "X")  # what may be rounded to a narrower type before it is used; the contract says so
SHORT = "add sub mul div rem min max and or xor select"
NAME, TYPE = re.compile(r"%[\w$.-]+(?:#\d+)?"), re.compile(r"(?:tensor<((?:\d+x)*))?(!tt\.ptr|bf16|f\d+|i\d+)")
ASM = {"prefetch": "", "griddepcontrol": "", "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;": "bf16"} | {
    "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;": "bf16",
    "cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;": "f16",
}


class Rejected(Exception):  # noqa: N818
    """What a certificate claims and a replay does not find."""


def check(certificate: dict[str, Any]) -> str:
    """Return what was replayed, in one line; raises Rejected."""
    if certificate.get("schema") != 1 or not certificate.get("proved"):
        raise Rejected("it is no certificate of schema 1")
    try:
        return _replayed(certificate)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
        raise Rejected(f"it cannot be replayed: {type(error).__name__}: {error}") from error


def _replayed(certificate: dict[str, Any]) -> str:
    sizes = []
    for digest, kernel in certificate["kernels"].items():
        if hashlib.sha256(kernel["ttir"].encode()).hexdigest() != digest:
            raise Rejected(f"the TTIR of {kernel['name']} is not what its hash says")
    for form in certificate["forms"]:
        r, inputs = form["rows"], form["call"]["inputs"]
        shape = next(inputs[name]["shape"] for name in ("x", "residual_out") if name in inputs)
        fixed = 0 if r else shape[0] * certificate["fixed"].get("groups", 1)
        for m in sorted({1, r, r + 1, 2 * r - 1}) if r else [fixed]:
            _Replay(certificate, form["call"], m, r).run()
            sizes.append(m)
    return f"replayed for M = {', '.join(map(str, sizes))}; {len(certificate['values'])} values"


class _Replay:
    """One call with M rows: its data, its buffers, and the launches."""

    def __init__(self, certificate: dict[str, Any], call: Any, m: int, rows: int) -> None:
        self.c, self.call, self.m, self.rows = certificate, call, m, rows
        self.data = Sample(certificate, m)
        text = STEPS + "|" + ("" if self.data.centred else UNCENTRED)
        steps = [tuple(step.split()) for step in text.replace("\n", "|").split("|") if step.strip()]
        steps += [(s[0], s[2], s[1], s[3]) for s in steps if len(s) == 4 and s[0] in ("add", "mul")]
        self.steps = {s[:3]: s[3] for s in steps}
        self.single = {"X": "ΣX", "G": "ΣG", "DY": "ΣDY"}
        self.buffers: dict[int, dict[str, Any]] = {}

    def number(self, value: Any) -> Any:
        """Return a recorded number at this M."""
        return value["times M"] * self.m + value["plus"] if isinstance(value, dict) else value

    def buffer(self, place: Any, v: Any = None, kind: str = "") -> dict[str, Any]:
        """Return a buffer: values, how often each element was written, and labels of what was stored."""
        if place["buffer"] not in self.buffers:
            item = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}[place["dtype"]]
            size = self.number(place["bytes"]) // item
            data = np.zeros(size, np.uint64) if v is None else v.reshape(-1).copy()
            if len(data) != size:
                raise Rejected(f"a buffer has {size} elements, not {len(data)}")
            fresh = {"v": data, "clean": np.full(size, v is not None), "count": np.zeros(size, np.int64)}
            fresh |= {"labels": [(kind, 0)], "which": np.zeros(size, np.int16), "given": v is not None}
            self.buffers[place["buffer"]] = fresh
        return self.buffers[place["buffer"]]

    def run(self) -> None:
        """Replay the call; raises Rejected."""
        for name, place in self.call["inputs"].items():
            fused = name == "x" and "residual" in self.call["inputs"]
            self.buffer(place, self.data.inputs[name], "X0" if fused else KINDS[name])
        for event in self.call["events"]:
            if "zeros" in event:
                fresh = self.buffer(event["zeros"])
                fresh["clean"][:], fresh["labels"][0] = True, ("0", 0)
                continue
            kernel = self.c["kernels"][event["launch"]]
            arguments = [self._argument(value) for value in event["arguments"]]
            x, y, z = (-(-self.m // self.rows), 1, 1) if self.rows else event["grid"]
            for buffer in self.buffers.values():
                buffer["read"], buffer["now"] = np.zeros(len(buffer["v"]), bool), np.zeros(len(buffer["v"]), bool)
            names, body = _parsed(kernel["ttir"])
            for k in range(x * y * z):
                pid = (k % x, k // x % y, k // (x * y))
                env = dict(zip(names, arguments, strict=True))
                _Program(self, kernel["name"], event["warps"], {"pid": pid, "grid": (x, y, z)}, env).block(body)
        for name, place in self.call["outputs"].items():
            buffer = self.buffers[place["buffer"]]
            if (buffer["count"] != 1).any() or not buffer["clean"].all():
                raise Rejected(f"M = {self.m}: an element of {name} is not written once, with a value")
            if (buffer["v"] != self.data.outputs[name].reshape(-1)).any():
                raise Rejected(f"M = {self.m}: {name} is not the operator's")
            for k in np.unique(buffer["which"]):
                if buffer["labels"][k][0] not in ENDS[name].split():
                    raise Rejected(f"{name} holds {buffer['labels'][k][0]}")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, dict) and "buffer" in value:
            return (self.buffer(value), np.asarray(self.number(value["offset"])))
        return value if isinstance(value, float) else np.asarray(self.number(value))


@lru_cache
def _parsed(ttir: str) -> tuple[list[str], list[Any]]:
    """Return the parameters of a kernel, and its operations: (results, name, operands, text, blocks)."""
    lines = [re.sub(r"\s+loc\([^\"]*\)$", "", line).strip() for line in ttir.splitlines()]
    head = next(i for i, line in enumerate(lines) if line.startswith("tt.func"))
    rest = lines[head + 1 :]
    return re.findall(r"(%[\w$.-]+): ", lines[head]), _operations(rest)


def _operations(rest: list[str]) -> list[Any]:
    """Return the operations up to the closing brace, which is left in front of the rest."""
    found: list[Any] = []
    while rest and not rest[0].startswith("}"):
        line, blocks = rest.pop(0), []
        if line.startswith("^"):
            found.append(([], "^", NAME.findall(line), "", []))
            continue
        opened = line.endswith("{")
        while opened:
            blocks.append(_operations(rest))
            closing = rest.pop(0)
            opened = closing.endswith("{")
            line += closing.lstrip("}") if not opened else ""
        left, _, right = line.partition(" = ") if re.match(r"%[^(]* = ", line) else ("", "", line)
        name, counted = re.match(r'"?([\w.]+)', right), re.match(r"(%[\w$.-]+):(\d+)$", left)
        results = [f"{counted[1]}#{i}" for i in range(int(counted[2]))] if counted else NAME.findall(left)
        bare = re.sub(r"<?\{[^{}]*\}>?", "", re.sub(r'"(?:[^"\\]|\\.)*"', "", right, count=2))
        targets = re.findall(r"(%[\w$.-]+) = ", bare)
        operands = [n for n in NAME.findall(bare.split(" : ")[0]) if n not in targets]
        found.append((results, name[1] if name else "", operands, right, [targets, *blocks]))
    return found


class _Program:
    """One program of a launch, whose floats carry the labels that the certificate claims."""

    def __init__(self, replay: _Replay, kernel: str, warps: int, place: dict[str, Any], env: dict[str, Any]) -> None:
        self.r, self.kernel, self.threads, self.place, self.env = replay, kernel, 32 * warps, place, env
        self.env |= {k: self.constant(v) for k, v in env.items() if isinstance(v, float)}

    def block(self, operations: list[Any]) -> list[Any]:
        """Run operations; return what they yield."""
        for results, name, operands, text, blocks in operations:
            given = [self.env[n] for n in operands] if name != "^" else []
            if name in ("scf.yield", "tt.reduce.return"):
                return given
            if name in ("tt.return", "^"):
                continue
            made = self.step(name, given, text, blocks, results)
            self.env.update(zip(results, made if isinstance(made, list) else [made], strict=False))
        return []

    def constant(self, value: float, shape: Any = ()) -> dict[str, Any]:
        """Return a float that a kernel is given."""
        label, v = self.r.data.constants.get(float(np.float32(value)), self.r.data.constants.get(value, ("?", 0)))
        return {"v": np.full(shape, v, np.uint64), "clean": np.full(shape, label != "?"), "label": label, "depth": 0}

    def claimed(self, results: list[str], v: Any, clean: Any, label: str, depth: int) -> dict[str, Any]:
        """Return a float with the claim of the certificate, if the step from `label` and `depth` allows it."""
        claim = self.r.c["values"].get(f"{self.kernel} {results[0]}", {"depth": {}})["depth"]
        if depth > claim.get(label, claim.get(self.r.single.get(label, ""), -1)):
            raise Rejected(f"{results[0]} of {self.kernel} is {label} at depth {depth}; the certificate says {claim}")
        return {"v": v, "clean": clean, "label": label, "depth": depth}

    def step(self, name: str, given: list[Any], text: str, blocks: list[Any], results: list[str]) -> Any:
        """Return what one operation makes."""
        kind = TYPE.findall(text.split(" : ")[-1].rpartition("->")[2].rpartition(" to ")[2])
        shape = tuple(int(size) for size in kind[0][0].split("x") if size) if kind else ()
        if name in FLOAT or name in ROOT:
            narrow = [a["label"] for a in given if a.get("narrow") and a["label"] not in MIDWAY]
            if narrow or kind[0][1] != "f32":
                raise Rejected(f"{results[0]} of {self.kernel}: {narrow or kind[0][1]}, not in float32")
            return self.float(FLOAT.get(name) or ROOT[name], given, results)
        if name == "tt.reduce":
            head, *sums, last = blocks[1]
            pairs = [{*head[2][k :: len(given)]} for k in range(len(given))]
            added = {one[0][0]: set(one[2]) for one in sums if one[1] == "arith.addf"}
            if len(added) != len(sums) or [added.get(one) for one in last[2]] != pairs:
                raise Rejected(f"{results[0]} of {self.kernel} is no sum")
            return self.reduce(given, text, results)
        if name in ("tt.load", "tt.store"):
            return self.memory(name, given, results)
        if name == "scf.for":
            values = given[3:]
            for i in range(int(given[0]), int(given[1]), int(given[2])):
                self.env.update(zip(blocks[0], [np.asarray(i), *values], strict=True))
                values = self.block(blocks[1])
            return values
        if name == "scf.if":
            chosen = blocks[1] if bool(given[0]) else blocks[2] if len(blocks) > 2 else []
            return self.block(chosen)
        if name == "tt.elementwise_inline_asm":
            if not any(part in text for part in ASM):
                raise Rejected(f"unknown assembly: {text[:60]}")
            return {**given[0]} if given and isinstance(given[0], dict) else np.asarray(0)
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            return np.asarray(self.place["pid" if "id" in name else "grid"]["xyz".index(text.split()[1])])
        if name == "arith.constant":
            return self.literal(text, shape, kind[0][1])
        if name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"):
            return self.shaped(name, given[0], text, shape)
        if name in ("arith.extf", "arith.truncf"):
            made = self.claimed(results, given[0]["v"], given[0]["clean"], given[0]["label"], given[0]["depth"])
            return made | {"narrow": given[0].get("narrow", False) or name == "arith.truncf"}
        if name == "arith.select" and isinstance(given[1], dict):
            c, a, b = given
            label = b["label"] if a["label"] == "0" else a["label"]
            v, clean = np.where(c, a["v"], b["v"]), np.where(c, a["clean"], b["clean"])
            return self.claimed(results, v, clean, label, max(a["depth"], b["depth"]))
        return self.integer(name, given, text)

    def integer(self, name: str, given: list[Any], text: str) -> Any:
        """Return what an operation on integers, conditions and addresses makes."""
        if name == "tt.make_range":
            return np.arange(*(int(re.findall(rf"{end} = (\d+)", text)[0]) for end in ("start", "end")))
        if name == "tt.addptr":
            return (given[0][0], given[0][1] + given[1])
        if name == "arith.sitofp":
            return self.constant(float(np.unique(given[0]).item()), np.shape(given[0]))
        if name in ("arith.extsi", "arith.extui", "arith.trunci", "tt.ptr_to_int"):
            return given[0] if not isinstance(given[0], tuple) else given[0][1]
        if name == "arith.cmpi":
            tests = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal"}
            return getattr(np, (tests | {"ne": "not_equal"})[text.split()[1].strip(",")[-2:]])(*given)
        named = "add subtract multiply floor_divide remainder minimum maximum bitwise_and bitwise_or bitwise_xor where"
        functions = dict(
            zip(
                ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "select"],
                named.split(),
                strict=True,
            )
        )
        if (short := re.sub(r"(si|ui|i)$", "", name.partition(".")[2])) not in functions:
            raise Rejected(f"{name} is not known here")
        return getattr(np, functions[short])(*given)

    def float(self, operator: str, given: list[Any], results: list[str]) -> Any:
        """Return what an operation on floats makes, by a step that is allowed."""
        a, b = given if len(given) > 1 else (given[0], given[0])
        x, y = a["v"], b["v"]
        if operator in ("sqrt", "rsqrt"):
            clean = a["clean"] & np.isin(x, self.r.data.truth["VAR+EPS"])
            v = root(np.where(clean, x, 0))
            return self.claimed(results, v if operator == "sqrt" else inverse(v), clean, self.label(operator, a, b), 0)
        v = {"add": lambda: x + y, "sub": lambda: x + (_P - y), "mul": lambda: x * y}.get(
            operator, lambda: x * inverse(y)
        )
        zero = operator == "add" and "0" in (a["label"], b["label"])
        label = (b if a["label"] == "0" else a)["label"] if zero else self.label(operator, a, b)
        deep = max(a["depth"], b["depth"])
        square = label == "ΣXC²" and operator == "mul"
        if square and not np.array_equal(x, y):
            raise Rejected(f"{results[0]} of {self.kernel} is no square")
        summed = operator == "add" and label.startswith("Σ") and not zero
        depth = deep + 1 if summed else 1 if operator == "mul" and label.startswith("Σ") else deep
        depth = depth if zero or label.startswith("Σ") or label in ("MEAN", "VAR", "VAR+EPS", "C1", "C2") else 0
        made, clean = v() % _P, a["clean"] & b["clean"]
        if label in ("MEAN", "VAR", "C1", "C2") and operator in ("mul", "div"):
            clean = clean & np.isin(made, self.r.data.truth[label])
        return self.claimed(results, made, clean, label, depth)

    def label(self, operator: str, a: Any, b: Any) -> str:
        """Return what a step makes; raises Rejected if no step is allowed."""
        made = self.r.steps.get((operator, a["label"], b["label"]))
        if made is None:
            raise Rejected(f"{operator} of {a['label']} and {b['label']} in {self.kernel} is no step of the derivation")
        return made

    def reduce(self, given: list[Any], text: str, results: list[str]) -> list[Any]:
        """Return sums along an axis."""
        axis, made = int(re.findall(r"axis = (\d+)", text)[0]), []
        for name, a in zip(results, given, strict=True):
            size, last = a["v"].shape[axis], axis == a["v"].ndim - 1
            own = min(size, max(1, -(-a["v"].size // self.threads)))
            own = min(own, max(8, -(-size // self.threads))) if last else own
            depth = own - 1 + math.ceil(math.log2(-(-size // own))) if size > 1 and a["label"] != "0" else 0
            label = self.label("add", a, a) if size > 1 and a["label"] != "0" else a["label"]
            v, clean = a["v"].sum(axis=axis, dtype=np.uint64) % _P, a["clean"].all(axis)
            made.append(self.claimed([name], v, clean, label, a["depth"] + depth))
        return made

    def memory(self, name: str, given: list[Any], results: list[str]) -> Any:
        """Return what a load makes; write what a store does. Nothing is read and written in one launch."""
        (buffer, address), *others = given
        value = others.pop(0) if name == "tt.store" else None
        mask = others.pop(0) if others else np.asarray(True)
        mask = np.broadcast_to(mask, np.shape(address))
        at = np.asarray(address)[mask]
        if ((at < 0) | (at >= len(buffer["v"]))).any():
            raise Rejected(f"{self.kernel}: an address is outside of its buffer")
        if value is not None:
            buffer["v"][at], buffer["clean"][at] = (np.broadcast_to(value[k], mask.shape)[mask] for k in ("v", "clean"))
            np.add.at(buffer["count"], at, 1)
            buffer["now"][at] = True
            buffer["labels"].append((value["label"], value["depth"]))
            buffer["which"][at] = len(buffer["labels"]) - 1
            if buffer["given"] or buffer["read"][at].any() or (buffer["count"][at] > 1).any():
                raise Rejected(f"{self.kernel}: a place is written that is read, an input, or written before")
            return None
        if buffer["now"][at].any():
            raise Rejected(f"{self.kernel}: a place is read in the launch that writes it")
        buffer["read"][at] = True
        v, clean = np.zeros(mask.shape, np.uint64), np.zeros(mask.shape, bool)
        v[mask], clean[mask] = buffer["v"][at], buffer["clean"][at]
        if others:
            v, clean = np.where(mask, v, others[0]["v"]), np.where(mask, clean, others[0]["clean"])
        found = [buffer["labels"][k] for k in np.unique(buffer["which"][at])] or [("0", 0)]
        labels = {label for label, _ in found} - {"0"}
        if len(labels) > 1:
            raise Rejected(f"{self.kernel}: {' and '.join(sorted(labels))} are read at once")
        return self.claimed(results, v, clean, (labels or {"0"}).pop(), max(depth for _, depth in found))

    def literal(self, text: str, shape: Any, element: str) -> Any:
        """Return a constant."""
        word = re.findall(r"arith\.constant (?:dense<)?([^ >]+)", text)[0]
        if word in ("true", "false"):
            return np.full(shape, word == "true")
        if element.startswith("i"):
            return np.full(shape, int(word), np.int64)
        return self.constant(float(word), shape) if not word.startswith("0x") else self.constant(math.nan, shape)

    def shaped(self, name: str, value: Any, text: str, shape: Any) -> Any:
        """Return a value in another shape."""
        axis = int((re.findall(r"axis = (\d+)", text) or [0])[0])

        def turn(a: Any) -> Any:
            return (
                np.expand_dims(a, axis)
                if name == "tt.expand_dims"
                else (np.reshape(a, shape) if name == "tt.reshape" else np.broadcast_to(a, shape))
            )

        if isinstance(value, dict):
            return {**value, "v": turn(value["v"]), "clean": turn(value["clean"])}
        return (value[0], turn(value[1])) if isinstance(value, tuple) else turn(value)
