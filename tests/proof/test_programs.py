"""Programs that are run together, and one of them that does something else: what the replay, and the prover, say."""

import numpy as np
import pytest
from replayed import FORWARD, call_of

from verify_norm.proof import prover, ttir
from verify_norm.proof.integers import num
from verify_norm.proof.memory import Buffer, NotProved, Pointer
from verify_norm.proof.replay.check import CELL, INPUT
from verify_norm.proof.replay.reading import Rejected, read
from verify_norm.proof.stages import Rules, Stage
from verify_norm.proof.world import Launch, World

COPY = """module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) attributes {noinline = false} {
    %c2 = arith.constant 2 : i32
    %c37 = arith.constant 37 : i32
    %c99 = arith.constant 99 : i32
    %row = tt.get_program_id x : i32
    %at = arith.addi %row, %row : i32
    %lane = tt.make_range {end = 2 : i32, start = 0 : i32} : tensor<2xi32>
    %first = tt.splat %at : i32 -> tensor<2xi32>
    %place = arith.addi %first, %lane : tensor<2xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<2x!tt.ptr<f32>>
    %from = tt.addptr %xs, %place : tensor<2x!tt.ptr<f32>>, tensor<2xi32>
    %v = tt.load %from : tensor<2x!tt.ptr<f32>>
    %ys = tt.splat %y : !tt.ptr<f32> -> tensor<2x!tt.ptr<f32>>
    %to = tt.addptr %ys, %place : tensor<2x!tt.ptr<f32>>, tensor<2xi32>
    tt.store %to, %v : tensor<2x!tt.ptr<f32>>
    tt.return
  }
}"""
MISTAKES = {  # of one program alone: what is changed; why it is refused, or the elements that are not those of x
    "nothing": ("", "", []),
    "a value of program 37": (
        "%xs = tt.splat %x",
        "%odd = arith.cmpi eq, %row, %c37 : i32\n%one = arith.extui %odd : i1 to i32\n"
        "%q = tt.addptr %x, %one : !tt.ptr<f32>, i32\n%xs = tt.splat %q",
        [74, 75],
    ),
    "no store of the last program": (
        "tt.store %to, %v : tensor<2x!tt.ptr<f32>>",
        "%few = arith.cmpi slt, %row, %c99 : i32\n"
        "scf.if %few {\ntt.store %to, %v : tensor<2x!tt.ptr<f32>>\n} loc(#loc1)",
        [198, 199],
    ),
    "a masked lane of program 37": (
        "tt.store %to, %v :",
        "%cut = arith.constant 74 : i32\n%cuts = tt.splat %cut : i32 -> tensor<2xi32>\n"
        "%kept = arith.cmpi ne, %place, %cuts : tensor<2xi32>\ntt.store %to, %v, %kept :",
        [74],
    ),
    "program 37 writes the row before": (
        "%ys = tt.splat %y",
        "%odd = arith.cmpi eq, %row, %c37 : i32\n%one = arith.extui %odd : i1 to i32\n%z = arith.constant 0 : i32\n"
        "%two = arith.muli %one, %c2 : i32\n%back = arith.subi %z, %two : i32\n"
        "%q = tt.addptr %y, %back : !tt.ptr<f32>, i32\n%ys = tt.splat %q",
        "a place is written",
    ),
    "all write the first row": ("%to = tt.addptr %ys, %place", "%to = tt.addptr %ys, %lane", "a place is written"),
    "all write the same": ("%place = arith.addi %first,", "%place = arith.addi %lane,", "a place is written"),
    "program 37 reads what program 36 writes": (
        "%xs = tt.splat %x",
        "%odd = arith.cmpi eq, %row, %c37 : i32\n%p = arith.select %odd, %y, %x : !tt.ptr<f32>\n%xs = tt.splat %p",
        "a place is",
    ),
    "a program beyond the last row": ("", "", "out of bounds"),
    "program 37 stores and then takes a branch": (
        "tt.return",
        "%odd = arith.cmpi eq, %row, %c37 : i32\n"
        "scf.if %odd {\ntt.store %to, %v : tensor<2x!tt.ptr<f32>>\n} loc(#loc1)\ntt.return",
        "a place is written",
    ),
    "all take a branch after a store": (
        "tt.return",
        "%odd = arith.cmpi eq, %row, %c37 : i32\n"
        "scf.if %odd {\n%nothing = arith.addi %row, %row : i32\n} loc(#loc1)\ntt.return",
        [],
    ),
}
GRIDS = {"a program beyond the last row": 101, "all write the first row": 2, "all write the same": 2}  # else 100


@pytest.mark.parametrize("name", MISTAKES)
def test_what_one_program_of_many_does(name):
    old, new, want = MISTAKES[name]
    call, grid = call_of(FORWARD), GRIDS.get(name, 100)
    assert not old or COPY.count(old) == 1
    call.certificate["kernels"]["k"] = "copy", *read(COPY.replace(old, new))
    call.certificate["values"] = {f"copy %{v}": {"depth": {"X": 0}} for v in ("v", "p", "xs")}
    for number in (8, 9):
        call.buffers[f"&{number}"] = np.full(200, CELL)
    call.fill({"buffer": 8, "shape": [200]}, np.arange(1, 201), "X", INPUT)
    pointers = [{"buffer": number, "offset": 0} for number in (8, 9)]
    event = {"launch": "k", "grid": [grid, 1, 1], "warps": 1, "early": False, "arguments": pointers}
    if isinstance(want, str):
        with pytest.raises((Rejected, LookupError), match=want):
            call.launch(1, event)
        return
    call.launch(1, event)
    found = call.buffers["&9"]
    assert np.flatnonzero(found["v"] != np.arange(1, 201)).tolist() == want
    assert (found["used"] == 0).sum() == (0 if "value" in name else len(want))
    assert {*found["label"][found["used"] != 0]} == {"X"}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_one_program_of_many_does_in_a_proof(name):
    old, new, want = MISTAKES[name]
    text, count = COPY.replace(old, new), GRIDS.get(name, 100)
    data = np.arange(1, 201, dtype=np.uint64)
    x, y = Buffer("x", "input", 200, 0, Stage("X"), data), Buffer("y", "output", 200, 0, None, None)
    world = World(Rules(centred=True, fused=False), {}, lambda _: None, 0, num(1), np.random.default_rng(1))
    given = [Pointer(one, num(0)) for one in (x, y)]
    launch = Launch(ttir.read(text), given, (num(count), num(1), num(1)), 1, early=False, first=True)
    none = num(np.zeros(count, np.int64))
    programs = (num(np.arange(count)), none, none)
    if isinstance(want, str):
        with pytest.raises(NotProved, match=r"written twice|reads it|address beyond|writes it|between pointers"):
            prover.run(world, launch, programs)
        return
    prover.run(world, launch, programs)
    assert np.flatnonzero(y.v != data).tolist() == want
    assert np.flatnonzero(~y.written).tolist() == ([] if "value" in name else want)
    assert y.stage(slice(None)).kind == "X"
