"""Proves a configuration of a kernel: each launch of its calls, over two random points of the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from verify_norm.core.ops import OPS
from verify_norm.proof import field as f
from verify_norm.proof.buffers import Memory, Symbols
from verify_norm.proof.integers import Apart, Num, num, undecided
from verify_norm.proof.machine import Machine
from verify_norm.proof.memory import NotProved
from verify_norm.proof.outputs import compare
from verify_norm.proof.shapes import Affine, Form
from verify_norm.proof.shown import Configuration, Proved
from verify_norm.proof.stages import Rules, Stage
from verify_norm.proof.truth import Truth, truth
from verify_norm.proof.ttir import Line, Program, Unreadable, read
from verify_norm.proof.world import Launch, World

SEEDS = (20260101, 20260102)  # of the two points
Kernels = Mapping[str, Mapping[str, Any]]
TOGETHER = 32  # programs that run together, at most
Pid = tuple[Num, ...]  # of the three axes, with the programs in its arrays


def prove_form(config: Configuration, launches: Form, kernels: Kernels) -> Proved:
    """Prove a call for every M: the programs of a full tile of rows, and of the last tile with 1, 2, … rows in it.

    Tile p has the rows from rows·p on. In the first run M = rows·p + rows + q, in the others M = rows·p + k, with
    p, q ≥ 0: together all M. Tiles differ in p alone, on which no value but an address depends. Where programs share
    the tiles there is a first run for each k: M = rows·p + rows + rows·q + k, of p + q + ⌈k/rows⌉ + 1 tiles. Raises
    NotProved.
    """
    proved, rows, each = Proved(), launches.rows, launches.each
    cases = []
    for k in range(rows if launches.programs else 1):
        beyond = rows if launches.programs else 1
        known = rows == 1 or launches.programs is not None
        grid = num(each, each, each) if known else undecided("the number of programs")
        tiles = num(1 + bool(k), 1, 1) if launches.programs else None
        cases.append(Symbols(rows, rows, num(rows + k, rows, beyond), grid, each, tiles, beyond))
    for k in range(1, rows):
        tiles = num(1, 1) if launches.programs else None
        cases.append(Symbols(k, rows, num(k, rows), num(each, each), each, tiles, last=True))
    for seed in SEEDS:
        for at in cases:
            _Run(config, launches.call, kernels, seed, at).add_to(proved)
    return proved


def prove_call(config: Configuration, rows: int, call: Mapping[str, Any], kernels: Kernels) -> Proved:
    """Prove a call of one number of rows, all its programs; raises NotProved."""
    proved = Proved()
    for seed in SEEDS:
        _Run(config, call, kernels, seed, Symbols(rows, 0, num(rows), None)).add_to(proved)
    return proved


@dataclass
class _Run:
    """One run of a call: over one point of the field, of M in one form."""

    config: Configuration
    call: Mapping[str, Any]
    kernels: Kernels
    seed: int
    at: Symbols

    def add_to(self, proved: Proved) -> None:
        """Run every program that stands for others, and add to `proved` what is shown."""
        config, call, at = self.config, self.call, self.at
        known = truth(config.op, config.size(at.valid), config.offset, self.seed)
        rules = Rules(centred=OPS[config.op].centred, fused="residual_out" in known.outputs)
        draw = np.random.Generator(np.random.Philox(self.seed + 1))
        symbols = (at.rows, at.m, draw, at.beyond, at.tiles, at.last)
        world = World(rules, known.quantities, _constants(config, known), *symbols)
        memory = Memory(config, known, call, at)
        first = next((event for event in call["events"] if "launch" in event), None)
        for event in call["events"]:
            if "torch" in event:
                what = f"the host computes {event['torch']} with torch, of which there is no TTIR"
                why = world.reason(what, Line("", 0))
                for place in event["writes"]:
                    memory.buffer(place).spoil(why)
            elif "zeros" in event:
                memory.buffer(event["zeros"]).fill()
            else:
                self._launch(event, memory, world, first=event is first)
        compare(config, call, known, memory, world, proved)
        proved.limited(world.limits)
        proved.runs, proved.rows = proved.runs + 1, max(proved.rows, at.valid)
        proved.lines = 1 if world.shares is None else len(world.shares)
        for name, (line, meanings) in world.notes.items():
            proved.note(name, str(line), meanings)

    def _launch(self, event: Mapping[str, Any], memory: Memory, world: World, *, first: bool) -> None:
        way, grid, programs = self._grid(event)
        shared = num(1, v=1) if way == "whole" else grid[0]  # how many programs share the tiles
        arguments = [memory.argument(value, shared) for value in event["arguments"]]
        for buffer in memory.buffers.values():
            buffer.begin()
        kernel = program(self.kernels[event["launch"]]["ttir"])
        launch = Launch(kernel, arguments, grid, event["warps"], event["early"], first, way)
        run(world, launch, programs)

    def _grid(self, event: Mapping[str, Any]) -> tuple[str, Pid, Pid]:
        """Return what the programs of a launch are, their grid, and those that stand for all."""
        at, one = self.at, num(1)
        if at.rows and at.tiles is None:
            none = num(np.zeros(at.each, np.int64))
            return "tiles", (at.grid, one, one), (num(np.arange(at.each), at.each), none, none)
        if isinstance(event["grid"][0], Affine):
            return "shared", (num(1, w=1, v=1), one, one), (num([0], w=1), num([0]), num([0]))
        x, y, z = event["grid"]
        places = np.indices((z, y, x)).reshape(3, -1)
        return "whole" if at.rows else "", (num(x), num(y), num(z)), (num(places[2]), num(places[1]), num(places[0]))


def run(world: World, launch: Launch, programs: Pid) -> None:
    """Run programs of a launch, as many together as do the same; raises NotProved."""
    count = len(programs[0].c)
    batches = np.array_split(np.arange(count), count // TOGETHER + 1)
    while batches:
        batch = batches.pop(0)
        try:
            Machine(world, launch, tuple(axis._replace(c=axis.c[batch]) for axis in programs)).run()
        except Apart:
            batches += np.array_split(batch, 2)


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
