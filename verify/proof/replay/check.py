"""Replays a certificate, with no code of the prover.

Each value's meaning and depth are those that the certificate claims. This makes every step of them by `STEPS`, runs
every program of a few numbers of rows in another prime field, with other data, keeps account of what is written where,
compares quotients over N and outputs with the operator's formulas, and the depths with the contract. It knows no
symbols: it does not repeat that M = 1, R, R + 1 and 2R − 1 (with R rows a program) stand for every M.
"""

import hashlib
from typing import Any

import numpy as np

from verify_norm.core.errors import UsageError
from verify_norm.core.known import read as contract_of
from verify_norm.core.ops import arithmetic
from verify_norm.core.spec import Contract
from verify_norm.proof.replay.derivation import GARBAGE, ROUNDED, Derivation, floats
from verify_norm.proof.replay.memory import INPUT, Memory
from verify_norm.proof.replay.program import ASM, Programs
from verify_norm.proof.replay.reading import Rejected, assembly, read, widest
from verify_norm.proof.replay.sample import Sample

TOGETHER = 2**16  # elements of the largest tensor of the programs that run together
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
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
            _Call(certificate, form, m).replay()
            sizes.append(m)
        for m, programs in ((r + 1, 1), (2 * r + 1, 2)) if form.get("programs") else ():  # turns in a loop over tiles
            _Call(certificate, form, m, programs).replay()
    return f"replayed for M = {', '.join(map(str, sizes))}; {len(certificate['values'])} values"


class _Call:
    """One call with M rows, or samples of groups: its numbers, its data, its memory, and the derivation."""

    def __init__(self, certificate: dict[str, Any], form: Any, m: int, programs: int = 0) -> None:
        fixed, self.certificate, self.each, self.m = certificate["fixed"], certificate, form["each"], m
        self.contract = Contract(**contract_of(certificate["contract"]))
        self.tiles = -(-m // form["rows"]) if form["rows"] else 0
        self.programs = programs or self.tiles
        self.call, self.data = self.numbers(form["call"]), Sample(certificate, m)
        narrow, midway = SHORT[fixed["dtype"]], {"XHAT": SHORT.get(str(self.contract.xhat), "")}
        if certificate["op"].startswith("add_") and self.contract.residual == "rounded":
            midway["X"] = narrow
        self.steps = Derivation(self.data.centred, certificate["values"], narrow, midway)
        self.memory = Memory(self.call)

    def numbers(self, value: Any) -> Any:
        """Return a recorded call with the numbers of this M, and of so many programs."""
        if isinstance(value, list):
            return [self.numbers(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "plus" in value:
            return value.get("times M", 0) * self.m + value.get("times G", 0) * self.programs + value["plus"]
        return {name: self.numbers(one) for name, one in value.items()}

    def replay(self) -> None:
        """Replay the call; raises Rejected."""
        for name, place in self.call["inputs"].items():
            v, label = self.data.inputs[name]
            self.memory.fill(place, v, self.steps.codes.get(label, GARBAGE), INPUT)
        for number, event in enumerate(self.call["events"], 1):
            if "zeros" in event:
                self.memory.fill(event["zeros"], 0, 0, 0)
            else:
                self.launch(number, event)
        for name in self.certificate["outputs"]:
            self.compare(name, self.call["outputs"][name])
        if self.programs == self.tiles:  # else there are more turns than the host makes
            self.bounded()

    def launch(self, number: int, event: Any) -> None:
        """Run every program of a launch, as many together as have few elements."""
        kernel = self.certificate["kernels"][event["launch"]]
        names, body = read(kernel["ttir"])
        x, y, z = event.get("grid", (self.each * self.tiles, 1, 1))
        place = {"launch": number, "threads": 32 * event["warps"], "waited": not event["early"]}
        place["tt.get_num_programs"] = [np.array([one]) for one in (x, y, z)]
        given = dict[str, Any]()
        for name, value in zip(names, event["arguments"], strict=True):
            address = self.memory.address(value) if isinstance(value, dict) else value
            given[name] = np.array([self.real(value) if isinstance(value, float) else address])
        together = max(1, TOGETHER // widest(kernel["ttir"]))
        for first in range(0, x * y * z, together):
            k = np.arange(first, min(first + together, x * y * z))
            numbers = {"tt.get_program_id": (k % x, k // x % y, k // (x * y))}
            Programs(kernel["name"], place | numbers, self, dict(given)).block(body)

    def real(self, value: float) -> Any:
        """Return a float that a kernel is given."""
        name, v = self.data.constants.get(float(np.float32(value)), self.data.constants.get(value, ("", 0)))
        return floats(v, self.steps.codes.get(name, GARBAGE))

    def compare(self, name: str, place: Any) -> None:
        """Compare an output with the operator's: written once, of its type, and rounded once; raises Rejected."""
        found, (want, labels) = self.memory.output(place), self.data.outputs[name]
        dtype = "float32" if name in ("mean", "rstd") else self.certificate["fixed"]["dtype"]
        codes = [self.steps.codes[label] for label in labels.split() if label in self.steps.codes]
        codes += [code + ROUNDED for code in codes if dtype != "float32"]
        if place["dtype"] != dtype or not np.isin(found["label"], codes).all():
            raise Rejected(f"M = {self.m}: an element of {name} is not written once, as {labels} of {dtype}")
        if not np.array_equal(found["v"], want.reshape(-1)):
            raise Rejected(f"M = {self.m}: {name} is not the operator's")

    def bounded(self) -> None:
        """Compare the depths with the contract; raises Rejected."""
        fixed = self.certificate["fixed"]
        for label, products in SUMS.items():
            terms = self.m * fixed.get("positions", 1) if label.startswith("ΣDY") else fixed["N"]
            most = min(self.steps.depths.get(label, 0), terms - (not products))  # no term meets more: a 0 is exact
            if most > arithmetic(self.contract, fixed["dtype"]).terms(terms, products=products):
                raise Rejected(f"M = {self.m}: depth {self.steps.depths[label]} of {label} is more than the contract's")
