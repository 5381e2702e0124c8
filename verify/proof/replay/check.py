"""Replays a certificate, with no code of the prover.

Each value's meaning and depth are those that the certificate claims. This checks every step of them against `STEPS`,
runs every program of a few numbers of rows in another prime field, with other data, counts what is written where,
compares sums over N, roots and outputs with the operator's formulas, and the depths with the contract. It knows no
symbols: it does not repeat that M = 1, R, R + 1 and 2R − 1 (with R rows a program) stand for every M.
"""

import hashlib
from typing import Any

import numpy as np

from verify_norm.core.errors import UsageError
from verify_norm.core.known import read as contract_of
from verify_norm.core.ops import arithmetic
from verify_norm.core.spec import Contract
from verify_norm.proof.replay.program import ASM, Program, Real, joined
from verify_norm.proof.replay.reading import Rejected, assembly, read
from verify_norm.proof.replay.sample import Sample

ITEM, SHORT = {"float32": 4, "bfloat16": 2, "float16": 2}, {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
SUMS = {"MEAN": False, "VAR": True, "C1": True, "C2": False, "ΣDY·X": True, "ΣDY": False}  # of products or of terms


def check(certificate: dict[str, Any]) -> str:
    """Return what was replayed, in one line; raises Rejected."""
    if certificate.get("schema") != 1 or not certificate.get("proved"):
        raise Rejected("it is no certificate of schema 1")
    try:
        return _replayed(certificate)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration, UsageError) as error:
        raise Rejected(f"it cannot be replayed: {type(error).__name__}: {error}") from error


def _replayed(certificate: dict[str, Any]) -> str:
    sizes = []
    for digest, kernel in certificate["kernels"].items():
        if hashlib.sha256(kernel["ttir"].encode()).hexdigest() != digest:
            raise Rejected(f"the TTIR of {kernel['name']} is not what its hash says")
        if assembly(kernel["ttir"]) - ASM.keys():
            raise Rejected(f"{kernel['name']} has assembly that is not known")
    for form in certificate["forms"]:
        r, inputs = form["rows"], form["call"]["inputs"]
        shape = next(inputs[name]["shape"] for name in ("x", "residual_out") if name in inputs)
        for m in sorted({1, r, r + 1, 2 * r - 1}) if r else [shape[0]]:
            _Replay(certificate, form, m).run()
            sizes.append(m)
        for m, programs in ((r + 1, 1), (2 * r + 1, 2)) if form.get("programs") else ():  # turns in a loop over tiles
            _Replay(certificate, form, m, programs).run()
    return f"replayed for M = {', '.join(map(str, sizes))}; {len(certificate['values'])} values"


class Buffer:
    """One allocation: values, which of them are no garbage, in which launch each was written, and what as."""

    def __init__(self, size: int, given: Any, label: str) -> None:
        self.v = np.zeros(size, np.uint64) if given is None else given.reshape(-1).copy()
        if len(self.v) != size:
            raise Rejected(f"a buffer has {size} elements, not {len(self.v)}")
        self.clean, self.seen = np.full(size, given is not None), np.full(size, given is not None)
        self.when, self.which, self.stored = np.zeros(size, int), np.zeros(size, int), [Real(0, True, label, 0)]

    def read(self, launch: int, at: Any) -> Real:
        """Return what is there."""
        if ((at < 0) | (at >= len(self.v))).any() or (self.when[at] == launch).any():
            raise Rejected("a place is read that is outside of its buffer, or that this launch writes")
        self.seen[at] = True
        found = [self.stored[k] for k in np.unique(self.which[at])] or [Real(0, True, "0", 0)]
        label, depth = joined({one.label for one in found}), max(one.depth for one in found)
        return Real(self.v[at], self.clean[at], label, depth, max(one.narrow for one in found))

    def write(self, launch: int, at: Any, value: Real) -> None:
        """Store values, each in a place that nothing has read or written, nor the caller given."""
        if (
            ((at < 0) | (at >= len(self.v))).any()
            or len(np.unique(at)) != len(at)
            or (self.when[at] | self.seen[at]).any()
        ):
            raise Rejected("a place is written that is outside of its buffer, an input, read, or written before")
        self.v[at], self.clean[at], self.when[at], self.which[at] = value.v, value.clean, launch, len(self.stored)
        self.stored.append(value)


class _Replay:
    """One call with M rows, or samples of groups: its data, its buffers, and the launches."""

    def __init__(self, certificate: dict[str, Any], form: Any, m: int, programs: int = 0) -> None:
        self.c, self.form, self.call, self.m, self.data = certificate, form, form["call"], m, Sample(certificate, m)
        self.tiles = -(-m // form["rows"]) if form["rows"] else 0
        self.programs = programs or self.tiles
        self.buffers: dict[int, Buffer] = {}
        self.found: tuple[dict[str, int], set[tuple[str, str]]] = ({}, set())

    def number(self, value: Any) -> Any:
        """Return a recorded number at this M, and so many programs."""
        if not isinstance(value, dict):
            return value
        return value.get("times M", 0) * self.m + value.get("times G", 0) * self.programs + value["plus"]

    def buffer(self, place: Any, given: Any = None, label: str = "0") -> Buffer:
        """Return the buffer of a recorded tensor."""
        if place["buffer"] not in self.buffers:
            size = self.number(place["bytes"]) // ITEM[place["dtype"]]
            self.buffers[place["buffer"]] = Buffer(size, given, label)
        return self.buffers[place["buffer"]]

    def run(self) -> None:
        """Replay the call; raises Rejected."""
        for name, place in self.call["inputs"].items():
            self.buffer(place, *self.data.inputs[name])
        for number, event in enumerate(self.call["events"], 1):
            if "zeros" in event:
                self.buffer(event["zeros"]).clean[:] = True
            else:
                self.launch(number, event)
        for name in self.c["outputs"]:
            buffer, (want, labels) = self.buffers[self.call["outputs"][name]["buffer"]], self.data.outputs[name]
            if not (buffer.when.all() and buffer.clean.all()):
                raise Rejected(f"M = {self.m}: an element of {name} is not written once, with a value")
            if (buffer.v != want.reshape(-1)).any():
                raise Rejected(f"M = {self.m}: {name} is not the operator's")
            if wrong := {buffer.stored[k].label for k in np.unique(buffer.which)} - {*labels.split()}:
                raise Rejected(f"{name} holds {wrong}")
        if self.programs == self.tiles:  # else there are more turns than the host makes
            self.bounded()

    def launch(self, number: int, event: Any) -> None:
        """Run every program of a launch."""
        kernel = self.c["kernels"][event["launch"]]
        x, y, z = map(self.number, event.get("grid", (self.form["each"] * self.tiles, 1, 1)))
        arguments = [self.argument(value) for value in event["arguments"]]
        names, body = read(kernel["ttir"])
        place = {"tt.get_num_programs": (x, y, z), "launch": number, "threads": 32 * event["warps"]}
        for k in range(x * y * z):
            place["tt.get_program_id"] = (k % x, k // x % y, k // (x * y))
            one = Program(kernel["name"], place, self.data, self.c["values"], self.found)
            given = (one.real(value) if isinstance(value, float) else value for value in arguments)
            one.env |= zip(names, given, strict=True)
            one.block(body)

    def argument(self, value: Any) -> Any:
        """Return an argument: a buffer with an address, a float, or an integer."""
        if isinstance(value, dict) and "buffer" in value:
            return (self.buffer(value), np.asarray(self.number(value["offset"])))
        return value if isinstance(value, float) else np.asarray(self.number(value))

    def bounded(self) -> None:
        """Compare the depths and the types midway with the contract; raises Rejected."""
        contract, fixed, (depths, midway) = Contract(**contract_of(self.c["contract"])), self.c["fixed"], self.found
        for label, products in SUMS.items():
            terms = self.m * fixed.get("positions", 1) if label.startswith("ΣDY") else fixed["N"]
            most = min(depths.get(label, 0), terms - (not products))  # what adds a 0 is exact: no term meets more
            if most > arithmetic(contract, fixed["dtype"]).terms(terms, products=products):
                raise Rejected(f"M = {self.m}: depth {depths[label]} of {label} is more than the contract's")
        residual = ("X", SHORT[fixed["dtype"]]) if self.c["op"].startswith("add_") else None
        allowed = {residual if contract.residual == "rounded" else None, ("XHAT", SHORT.get(str(contract.xhat)))}
        if midway - allowed:
            raise Rejected(f"{midway - allowed} is rounded before it is used, of which the contract says nothing")
