"""Proves a configuration of a kernel: each launch of its calls, over two random points of the field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from verify_norm.core.ops import OPS, output_dtype
from verify_norm.core.spec import Contract
from verify_norm.proof import field as f
from verify_norm.proof.integers import Num, num, undecided
from verify_norm.proof.machine import Machine
from verify_norm.proof.memory import Buffer, NotProved, Pointer
from verify_norm.proof.shapes import Affine, Form
from verify_norm.proof.stages import OUTPUTS, Rules, Stage, failure, joined
from verify_norm.proof.truth import Size, Truth, truth
from verify_norm.proof.ttir import Line, Program, Unreadable, read
from verify_norm.proof.world import Launch, World

SEEDS = (20260101, 20260102)  # of the two points
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
KINDS = {"x": "X", "residual": "RESIDUAL", "residual_out": "X", "weight": "W", "bias": "B", "dy": "DY"} | {
    "dresidual_out": "DH",
    "mean": "MEAN",
    "rstd": "RSTD",
}  # the stage of what an input holds


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is fixed: the operator, types, eps, the offset of the weight, and the length of a row, or groups of one."""

    op: str
    dtype: str
    eps: float
    offset: float
    columns: int
    groups: int = 0
    positions: int = 0

    def size(self, m: int) -> Size:
        """Return the extents of m rows, or samples of groups."""
        return Size(m * max(self.groups, 1), self.columns, self.groups, self.positions)


@dataclass(slots=True)
class Proved:
    """What has been shown of a call.

    outputs, failures : the stage of each output, or why it is not proved
    values : the line, meaning and depth of each value
    limits : the largest M whose numbers fit into their types, by line; arguments have none
    degree : of the polynomials that have to vanish
    runs : how many programs stand for all
    rows : of the largest run: what a quotient is compared with
    """

    outputs: dict[str, Stage] = field(default_factory=dict)
    failures: dict[str, NotProved] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[Line, float] = field(default_factory=dict)
    degree: int = 0
    runs: int = 0
    rows: int = 0

    def add(self, other: "Proved") -> None:
        """Add what has been shown of a call for other M."""
        for name, stage in other.outputs.items():
            self.outputs[name] = joined(self.outputs.get(name, stage), stage)
        for name, value in other.values.items():
            self.note(name, value["line"], value["depth"])
        self.failures |= other.failures
        self.limited(other.limits)
        self.degree, self.rows = max(self.degree, other.degree), max(self.rows, other.rows)
        self.runs += other.runs

    def limited(self, limits: Mapping[Line, float]) -> None:
        """Add the largest M that lines allow."""
        self.limits |= {at: min(limit, self.limits.get(at, limit)) for at, limit in limits.items()}

    def note(self, name: str, line: str, meanings: Mapping[str, int]) -> None:
        """Add what a value is, with the depth of each meaning."""
        depths = self.values.setdefault(name, {"line": line, "depth": {}})["depth"]
        for kind, depth in meanings.items():
            depths[kind] = max(depth, depths.get(kind, 0))


def prove_form(config: Configuration, found: Form, kernels: Mapping[str, Mapping[str, Any]]) -> Proved:
    """Prove a call for every M: the programs of a full tile of rows, and of the last tile with 1, 2, … rows in it.

    Tile p has the rows from rows·p on. In the first run M = rows·p + rows + q, in the others M = rows·p + k, with
    p, q ≥ 0: together all M. Tiles differ in p alone, on which no value but an address depends. Raises NotProved.
    """
    proved, rows, each = Proved(), found.rows, found.each
    cases = [(rows, 1), *((k, 0) for k in range(1, rows))]
    for seed in SEEDS:
        for valid, beyond in cases:
            m = num(valid, rows, beyond)
            known = rows == 1 or not beyond
            grid = num(each, each, each * beyond) if known else undecided("the number of programs")
            _run(config, found.call, kernels, proved, seed, _Symbols(valid, rows, m, grid, each))
    return proved


def prove_call(
    config: Configuration, rows: int, call: Mapping[str, Any], kernels: Mapping[str, Mapping[str, Any]]
) -> Proved:
    """Prove a call of one number of rows, all its programs; raises NotProved."""
    proved = Proved()
    for seed in SEEDS:
        _run(config, call, kernels, proved, seed, _Symbols(rows, 0, num(rows), None))
    return proved


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The rows that exist in a run; rows of a tile where it is a symbol (else 0), M, the grid, a tile's programs."""

    valid: int
    rows: int
    m: Num
    grid: Any
    each: int = 1

    def number(self, value: int | Affine) -> Num:
        """Return a recorded number."""
        if isinstance(value, Affine):
            return Num(value.slope * self.m.c + value.base, value.slope * self.m.p, value.slope * self.m.q)
        return num(value)


def _run(
    config: Configuration,
    call: Mapping[str, Any],
    kernels: Mapping[str, Mapping[str, Any]],
    proved: Proved,
    seed: int,
    at: _Symbols,
) -> None:
    known = truth(config.op, config.size(at.valid), config.offset, seed)
    rules = Rules(centred=OPS[config.op].centred, fused="residual_out" in known.outputs)
    world = World(rules, known.quantities, _constants(config, known), at.rows)
    memory = _Memory(config, known, call, at)
    launches = [event for event in call["events"] if "launch" in event]
    for event in call["events"]:
        if "torch" in event:
            why = world.reason(f"the host computes {event['torch']} with torch, of which there is no TTIR", Line("", 0))
            for place in event["writes"]:
                memory.buffer(place).spoil(why)
            continue
        if "zeros" in event:
            memory.buffer(event["zeros"]).fill()
            continue
        arguments = [memory.argument(value) for value in event["arguments"]]
        kernel = program(kernels[event["launch"]]["ttir"])
        for one in memory.buffers.values():
            one.begin()
        grid = (at.grid, num(1), num(1)) if at.rows else tuple(num(size) for size in event["grid"])
        launch = Launch(kernel, arguments, grid, event["warps"], event["early"], event is launches[0])
        tile = [(num(k, at.each), num(0), num(0)) for k in range(at.each)]
        for pid in tile if at.rows else _programs(event["grid"]):
            Machine(world, launch, pid).run()
    _check(config, call, known, memory, world, proved)
    proved.limited(world.limits)
    proved.runs, proved.rows = proved.runs + 1, max(proved.rows, at.valid)
    for name, (line, meanings) in world.notes.items():
        proved.note(name, str(line), meanings)


def _programs(grid: Sequence[int]) -> list[tuple[Num, ...]]:
    x, y, z = grid
    return [(num(i), num(j), num(k)) for k in range(z) for j in range(y) for i in range(x)]


_read: dict[str, Program] = {}


def program(text: str) -> Program:
    """Return a kernel from its TTIR; raises NotProved."""
    if text not in _read:
        try:
            _read[text] = read(text)
        except Unreadable as error:
            raise NotProved("reach", f"the TTIR is not read: {error}") from error
    return _read[text]


def _constants(config: Configuration, known: Truth) -> Any:
    """Return the function that says what a float of a kernel is: its stage, and its element of the field."""
    single = np.float32
    table: dict[float, tuple[Stage, int]] = {1.0: (Stage("1"), 1)}
    if config.offset:
        table.setdefault(float(single(config.offset)), (Stage("OFFSET"), f.of(config.offset)))
    table[float(single(1.0 / config.columns))] = (Stage("1/N"), f.of(Fraction(1, config.columns)))
    table[float(config.columns)] = (Stage("N"), f.of(config.columns))
    eps = (Stage("EPS", degree=1), known.eps)
    table |= {0.0: (Stage("0"), 0), float(config.eps): eps, float(single(config.eps)): eps}
    return lambda value: table.get(value) or table.get(float(single(value)))


class _Memory:
    """The buffers of a call, by the number of their storage."""

    def __init__(self, config: Configuration, known: Truth, call: Mapping[str, Any], at: _Symbols) -> None:
        self.config, self.known, self.at = config, known, at
        self.buffers: dict[int, Buffer] = {}
        for name, place in call["inputs"].items():
            if name in known.inputs:
                fused = name == "x" and config.op.startswith("add_")
                kind = "X0" if fused else KINDS[name]
                self._new(name, "input", place, Stage(kind, degree=1, roots=kind == "RSTD"), known.inputs[name])
        for name, place in call["outputs"].items():
            if place["buffer"] in self.buffers:
                raise NotProved("reach", f"{name} shares the memory of {self.buffers[place['buffer']].name}")
            self._new(name, "output", place, None, None)

    def argument(self, value: Any) -> Any:
        """Return an argument of a launch: a pointer, an integer, or a float."""
        if isinstance(value, dict):
            return Pointer(self.buffer(value), self.at.number(value["offset"]))
        return value if isinstance(value, float) or value is None else self.at.number(value)

    def buffer(self, place: Mapping[str, Any]) -> Buffer:
        """Return the buffer of a recorded tensor; one that no argument has is scratch memory."""
        if place["buffer"] not in self.buffers:
            self._new(f"a buffer of {place['dtype']}", "scratch", place, None, None)
        buffer = self.buffers[place["buffer"]]
        if buffer.dtype != place["dtype"]:
            raise NotProved("dtype", f"{buffer.name}, of {buffer.dtype}, is taken for {place['dtype']}")
        return buffer

    def _new(self, name: str, role: str, place: Mapping[str, Any], stage: Stage | None, v: f.Field | None) -> None:
        item, size = ITEM.get(place["dtype"], 1), place["bytes"]
        slope = 0
        if isinstance(size, Affine):
            if size.base or size.slope % item:
                raise NotProved("reach", f"{name} has a size that is not a multiple of the rows")
            slope = size.slope // item
        count = slope * self.at.valid if slope else size // item
        if v is not None and v.size != count:
            raise NotProved("reach", f"{name} has {count} elements, not {v.size}")
        self.buffers[place["buffer"]] = buffer = Buffer(name, role, count, slope * self.at.rows, stage, v)
        buffer.dtype, buffer.of_all = place["dtype"], bool(self.at.rows and not slope)


def _check(
    config: Configuration, call: Mapping[str, Any], known: Truth, memory: _Memory, world: World, proved: Proved
) -> None:
    """Compare every output with the truth."""
    op = OPS[config.op]
    shapes: dict[str, Any] = {
        t.extent: call["inputs"][t.name]["shape"] for t in op.inputs if t.extent in ("data", "affine")
    }
    for tensor in op.outputs:
        if tensor.name not in call["outputs"] and (tensor is op.outputs[0] or op.forward is not None):
            raise NotProved("meaning", f"{tensor.name} is not returned")
        if tensor.name in call["outputs"]:
            place = call["outputs"][tensor.name]
            buffer, want = memory.buffers[place["buffer"]], known.outputs[tensor.name].reshape(-1)
            dtype = output_dtype(tensor, Contract(), config.dtype, config.dtype)
            try:
                stage = _compared(tensor.name, buffer, want, place, (dtype, shapes.get(tensor.extent)), world)
            except NotProved as error:
                proved.failures.setdefault(tensor.name, error)
            else:
                before = proved.outputs.setdefault(tensor.name, stage)
                proved.outputs[tensor.name] = joined(before, stage)
                proved.degree = max(proved.degree, failure(stage.degree, stage.roots))


def _compared(
    name: str, buffer: Buffer, want: f.Field, place: Mapping[str, Any], expected: tuple[str, Any], world: World
) -> Stage:
    """Return the stage of an output that is written whole, is the operator's, and is rounded once; raises NotProved."""
    dtype, shape = expected
    if buffer.bad.any():
        why, line = world.reasons[int(buffer.bad[buffer.bad > 0][0])]
        what = "reach" if why.startswith("the host") else "meaning"
        raise NotProved(what, f"{why}, and reaches {name}", line)
    if place["offset"] != 0 or len(buffer.v) != want.size or not _contiguous(place):
        raise NotProved("reach", f"{name} is not a contiguous tensor of its own, of {want.size} elements")
    if shape is not None and list(place["shape"]) != list(shape):
        raise NotProved("meaning", f"{name} has another shape than its input")
    if place["dtype"] != dtype:
        raise NotProved("rounding", f"{name} has the type {place['dtype']}, not {dtype}")
    if not buffer.written.all():
        raise NotProved("memory", f"{name} is not written from element {int(np.argmin(buffer.written))} on", buffer.at)
    if (buffer.v != want).any():
        at = int(np.argmax(buffer.v != want))
        raise NotProved("meaning", f"{name} is not the operator's from element {at} on", buffer.at)
    stage = buffer.stage(slice(None))
    if stage.kind == "UNKNOWN":
        raise NotProved("rounding", stage.why, stage.at)
    if stage.kind not in OUTPUTS[name] or (stage.narrow and stage.narrow != SHORT[dtype]):
        raise NotProved("rounding", f"{name} is rounded as {stage.kind}, which has no bound", buffer.at)
    return stage


def _contiguous(place: Mapping[str, Any]) -> bool:
    stride: Any = 1
    for size, one in zip(reversed(place["shape"]), reversed(place["strides"]), strict=True):
        if size != 1 and one != stride:
            return False
        stride = size if stride == 1 else None if isinstance(size, Affine) else size * stride
    return True
