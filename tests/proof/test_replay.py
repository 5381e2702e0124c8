"""Programs of a launch that the replay runs together: each makes what it makes alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from verify_norm.proof.replay.program import Programs
from verify_norm.proof.replay.reading import read, widest

TTIR = """module {
  tt.func public @k(%n: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %id = tt.get_program_id x : i32
    %lane = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %ids = tt.splat %id : i32 -> tensor<4xi32>
    %at = arith.addi %ids, %lane : tensor<4xi32>
    %few = arith.cmpi slt, %id, %c3 : i32
    %chosen = arith.select %few, %at, %lane : tensor<4xi32>
    %branch:2 = scf.if %few -> (tensor<4xi32>, i32) {
      %b = arith.muli %at, %at : tensor<4xi32>
      scf.yield %b, %c1 : tensor<4xi32>, i32
    } else {
      scf.yield %at, %id : tensor<4xi32>, i32
    }
    %sum:2 = scf.for %i = %id to %n step %c3 iter_args(%a = %c0, %t = %lane) -> (i32, tensor<4xi32>)  : i32 {
      %odd = arith.remsi %i, %c3 : i32
      %more = arith.addi %a, %i : i32
      %u = arith.addi %t, %ids : tensor<4xi32>
      scf.yield %more, %u : i32, tensor<4xi32>
    }
    %inner = scf.if %few -> (i32) {
      %turns = scf.for %j = %c0 to %id step %c1 iter_args(%s = %c0) -> (i32)  : i32 {
        %v = arith.addi %s, %sum#0 : i32
        scf.yield %v : i32
      }
      scf.yield %turns : i32
    } else {
      scf.yield %c0 : i32
    }
    tt.return
  }
}"""
SHOWN = ("%at", "%chosen", "%branch#0", "%branch#1", "%sum#0", "%sum#1", "%inner")


def run(numbers, n=7):
    """What programs of these numbers make, run together."""
    (argument,), body = read(TTIR)
    place = {"tt.get_program_id": [np.array(numbers)], "waited": True}
    some = Programs("k", place, SimpleNamespace(steps=None), {argument: np.array([n])})
    some.block(body)
    return {name: np.broadcast_to(some.env[name], (len(numbers), *some.env[name].shape[1:])) for name in SHOWN}


def test_programs_that_run_together_make_what_each_makes_alone():
    numbers = [0, 5, 1, 2, 9, 4]
    together = run(numbers)
    for k, number in enumerate(numbers):
        alone = run([number])
        assert {name: value[k].tolist() for name, value in together.items()} == {
            name: value[0].tolist() for name, value in alone.items()
        }
    assert together["%sum#0"].tolist() == [0 + 3 + 6, 5, 1 + 4, 2 + 5, 0, 4]
    assert together["%branch#1"].tolist() == [1, 5, 1, 1, 9, 4]
    assert together["%inner"].tolist() == [0, 0, 5, 14, 0, 0]
    assert together["%chosen"][:2].tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("waits", [(0, 1, 2), (0, 2)])
def test_programs_have_waited_where_each_of_them_has(waits):
    place = {"tt.get_program_id": [np.arange(3)], "waited": False}
    some = Programs("k", place, SimpleNamespace(steps=None), {"%id": np.arange(3)})

    def wait(part, number):
        part.place["waited"] |= bool(number in waits)
        return [part.env["%id"] * 2]

    (twice,) = some.apart(np.arange(3), wait)
    assert twice.tolist() == [0, 2, 4]
    assert some.place["waited"] == (waits == (0, 1, 2))


def test_the_largest_tensor_is_found():
    assert widest(TTIR) == 4
    assert widest("tensor<8x128x!tt.ptr<f32>> tensor<16xf32> f32") == 1024
    assert widest("i32") == 1
