"""What the replay reads, what a program makes, and how long the checker is."""

import re
from pathlib import Path

import numpy as np
import pytest
from replayed import FORWARD, SUM, call_of

from verify_norm.proof.replay import check as checker
from verify_norm.proof.replay.derivation import Value, joined
from verify_norm.proof.replay.reading import Rejected, read

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


def ran(text, grid, *arguments, early=False):
    """The values of each program of a launch, by its number; programs run once, in groups."""
    call, found = call_of(FORWARD), {}
    names, body = read(text)
    call.certificate["kernels"]["k"], run = ("k", names, body), call.block

    def block(operations):
        yielded = run(operations)
        for k in range(len(call.env["x"].v) if operations is body else 0):
            number = tuple(int(call.env[axis].v[k]) for axis in "xyz")
            assert number not in found
            found[number] = {name: of_program(one.v, k) for name, one in call.env.items()}
        return yielded

    call.block = block
    call.launch(1, {"launch": "k", "grid": grid, "warps": 1, "early": early, "arguments": list(arguments)})
    assert sorted(found) == sorted(np.ndindex(*grid))
    return found


def of_program(v, k):
    return v[..., k if v.shape[-1] > 1 else 0].tolist()


@pytest.mark.parametrize(("number", "total", "inner"), [(0, 0 + 3 + 6, 0), (5, 5, 0), (1, 1 + 4, 5), (2, 2 + 5, 14)])
@pytest.mark.parametrize("grid", [6, 200])
def test_branches_and_loops(number, total, inner, grid):
    """Of programs that take other branches, and other numbers of turns, than those that run with them."""
    found, few = ran(TTIR, [grid, 1, 1], 7)[number, 0, 0], number < 3
    at = [number + lane for lane in range(4)]
    assert found["%sum#0"] == total
    assert found["%sum#1"] == [lane + number * len(range(number, 7, 3)) for lane in range(4)]
    assert (found["%branch#0"], found["%branch#1"]) == (([a * a for a in at], 1) if few else (at, number))
    assert found["%inner"] == inner
    assert found["%chosen"] == (at if few else [0, 1, 2, 3])


def test_numbers_of_programs():
    places = "\n".join(f"%{axis} = tt.get_program_id {axis} : i32" for axis in "xyz")
    sizes = "\n".join(f"%n{axis} = tt.get_num_programs {axis} : i32" for axis in "xyz")
    found = ran(f"tt.func @k() {{\n{places}\n{sizes}\ntt.return\n}}", [2, 3, 50])
    for number, values in found.items():
        assert tuple(values[f"%{axis}"] for axis in "xyz") == number
        assert [values[f"%n{axis}"] for axis in "xyz"] == [2, 3, 50]


INTEGERS = {  # an operation on numbers, with its type; what it makes
    "arith.divsi %a, %b : i32": (7, 2, 3),
    "arith.remui %a, %b : i32": (7, 2, 1),
    "arith.minsi %a, %b : i32": (7, -2, -2),
    "arith.cmpi sge, %a, %b : i32": (7, 7, True),
    "arith.cmpi ult, %a, %b : i32": (7, 8, True),
    "arith.muli %a, %b : i32": (2**15, 2**15, 2**30),
    "arith.addi %a, %b : i32": (2**31 - 2, 1, 2**31 - 1),
}


@pytest.mark.parametrize("text", INTEGERS)
def test_operations_on_integers(text):
    a, b, made = INTEGERS[text]
    assert ran(f"tt.func @k(%a: i32, %b: i32) {{\n%c = {text}\n}}", [1, 1, 1], a, b)[0, 0, 0]["%c"] == made


REFUSED = {  # of an operation: its operands, and why it is refused
    "arith.divsi %a, %b : i32": (-7, 2, "of a negative number"),
    "arith.remsi %a, %b : i32": (-7, 2, "of a negative number"),
    "arith.maxui %a, %b : i32": (-7, 2, "of a negative number"),
    "arith.cmpi ult, %a, %b : i32": (-7, 8, "of a negative number"),
    "arith.muli %a, %b : i32": (2**16, 2**15, "overflows i32"),
    "arith.addi %a, %b : i32": (2**31 - 1, 1, "overflows i32"),
    "arith.addi %a, %b : i16": (2**15 - 1, 1, "overflows i16"),
    "arith.addi %a, %b : tensor<2xi32>": (1, 1, "of what is no integer"),
    "arith.addi %a, %f : i32": (1, 1.0, "of what is no integer"),
    "tt.splat %a : i32 -> tensor<2xi32>\n%d = tt.reshape %c : tensor<2xi32> -> tensor<3xi32>": (1, 1, "cannot reshape"),
    "tt.expand_dims %d {axis = 1 : i32} : tensor<2xi32> -> tensor<1x2xi32>": (1, 1, "another shape than its type"),
    "tt.addptr %a, %p : i32, i32": (1, {"buffer": 0, "offset": 0}, "&0"),
    "arith.addi %p, %a : i32": (1, {"buffer": 0, "offset": 0}, "of what is no integer"),
    "arith.sitofp %a : i32 to bf16": (100, 1, "bf16"),
    "arith.extsi %t : i1 to i32": (1, 1, "positive"),
    "arith.shli %a, %b : i32": (1, 1, "shli"),
    "tt.get_program_id w : i32": (1, 1, "w"),
    'tt.elementwise_inline_asm "add.f32 $0, $1;" {pure = true} %a : i32 -> i32': (1, 1, "add.f32"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_operations_that_are_refused(text):
    a, b, why = REFUSED[text]
    names = "%a: i32, " + (
        "%p: !tt.ptr<f32>" if isinstance(b, dict) else "%f: f32" if isinstance(b, float) else "%b: i32"
    )
    before = "%t = arith.constant true\n%d = arith.constant dense<1> : tensor<2xi32>"
    with pytest.raises((Rejected, LookupError, ValueError, TypeError), match=re.escape(why)):
        ran(f"tt.func @k({names}) {{\n{before}\n%c = {text}\n}}", [1, 1, 1], a, b)


def test_what_is_one_or_the_other():
    assert [joined(set(one)) for one in (["X"], ["0", "X"], ["ΣX", "X", "0"], ["0"], [])] == ["X", "X", "ΣX", "0", "0"]
    assert [joined(set(one)) for one in (["X", "W"], ["?", "X"], ["X", "~X"], ["ΣX", "ΣG"], ["?"])] == ["?"] * 5


def test_roundings_and_zeros():
    call = call_of(FORWARD)  # of float32
    assert [call.rounded(label, "bf16") for label in ("0", "?", "X", "XHAT")] == ["0", "?", "?", "?"]
    x, zero, product = Value(0, "X"), Value(0, "0"), Value(0, "ΣXC²", 1)
    assert call.made("add", "f32", product, zero) == ("ΣXC²", 1)
    assert call.made("add", "f32", product, product) == ("ΣXC²", 2)
    assert call.made("add", "f32", x, x) == ("ΣX", 1)
    assert call.made("mul", "f32", x, x)[0] == "?", "of an operator that is centred"
    assert call.made("add", "bf16", x, x)[0] == "?"
    assert call.made("mul", "f32", Value(0, "XC"), Value(0, "RSTD"))[0] == "XHAT"
    assert call_of(SUM).made("mul", "f16", x, Value(0, "RSTD"))[0] == "?", "a step, but not in 16 bits"
    assert call_of(SUM).made("add", "f16", Value(0, "X0"), Value(0, "RESIDUAL"))[0] == "X"
    assert call_of(SUM).rounded("Y", "f16") == call_of(SUM).rounded("~Y", "f16") == "~Y"
    assert call_of(SUM).rounded("Y", "bf16") == "?", "another type than that of the outputs"


def test_what_is_made_of_garbage_is_garbage():
    call, op = call_of(FORWARD), read("tt.func @k() {\n%c = arith.divf %a, %b : tensor<2xf32>\n}")[1][0]
    found = call.floating(op, "div", Value(np.array([[6], [6]]), "ΣX", 3), Value(np.array([[0, 1], [3, 2]]), "N"))
    assert (found.v.tolist(), *found[1:]) == ([[-1, 6], [2, 3]], "MEAN", 3), "a division by 0, in one program"
    left, right = Value(np.array([[-1, 6]]), "XC"), Value(np.array([[0, 3]]), "RSTD")
    for a, b in ((left, right), (right, left)):
        assert call.floating(op, "mul", a, b).v.tolist() == [[-1, 18]]
    found = call.floating(op, "mul", left, Value(np.array([3, 3]), "RSTD"))
    assert (found.v == -1).all(), "operands of different shapes"


@pytest.mark.parametrize(
    ("size", "warps", "depth"), [(1024, 4, 7 + 7), (1024, 1, 31 + 5), (8, 4, 0 + 3), (1000, 4, 7 + 7), (1, 4, 0)]
)
def test_the_depth_of_a_sum_by_threads(size, warps, depth):
    body = "^bb0(%p: f32, %q: f32):\n%r = arith.addf %p, %q : f32\ntt.reduce.return %r : f32"
    text = f'%s = "tt.reduce"(%x) <{{axis = 1 : i32}}> ({{\n{body}\n}}) : (tensor<1x{size}xf32>) -> tensor<1xf32>'
    call, op = call_of(FORWARD), read(f"tt.func @k() {{\n{text}\n}}")[1][0]
    call.threads, call.kernel = 32 * warps, "k"
    (found,) = call.tt_reduce(op, Value(np.stack([np.ones((1, size), int)] * 3, axis=-1), "X"))
    assert found.v.tolist() == [[size] * 3]
    assert found[1:] == ("ΣX" if size > 1 else "X", depth)


TWO_SUMS = """tt.func @k() {
%s:2 = "tt.reduce"(%x, %y) <{axis = 0 : i32}> ({
^bb0(%a: f32, %b: f32, %c: f32, %d: f32):
%p = arith.addf %a, %c : f32
%q = arith.addf %d, %b : f32
tt.reduce.return %p, %q : f32, f32
}) : (tensor<4xf32>, tensor<4xf32>) -> (f32, f32)
}"""


@pytest.mark.parametrize(
    ("old", "new"),
    [("%a, %c", "%a, %b"), ("return %p, %q", "return %q, %p"), ("%d, %b", "%d, %d"), ("addf %a", "mulf %a")],
)
def test_two_sums_at_once(old, new):
    call = call_of(FORWARD)
    call.threads, call.kernel = 32, "k"
    x, y = Value(np.array([[1], [2], [3], [4]]), "X"), Value(np.array([[5, 1], [6, 1], [-1, 1], [8, 1]]), "0")
    first, second = call.tt_reduce(read(TWO_SUMS)[1][0], x, y)
    assert (first.v.tolist(), *first[1:]) == ([10], "ΣX", 2)
    assert (second.v.tolist(), *second[1:]) == ([-1, 4], "0", 0), "of garbage, and of zeros"
    with pytest.raises(Rejected, match="is no sum"):
        call.tt_reduce(read(TWO_SUMS.replace(old, new))[1][0], x, y)


def test_a_choice():
    call, x, w = call_of(FORWARD), Value(np.array([[1], [2]]), "ΣX", 3), Value(np.array([[3], [4]]), "W")
    zero = Value(np.array([[0], [0]]), "0")
    for mask, b, want in (
        ([True, False], w, ([1, 4], "?", 3)),
        ([True, False], zero, ([1, 0], "ΣX", 3)),
        ([True, True], w, ([1, 2], "ΣX", 3)),
        ([False, False], w, ([3, 4], "W", 3)),
    ):
        found = call.arith_select(None, Value(np.array(mask)[:, None]), x, b)
        assert (found.v[:, 0].tolist(), *found[1:]) == want


def test_the_depths_of_a_call():
    call = call_of(FORWARD)
    call.replay()
    assert {label: call.depths[label] for label in FORWARD["depths"]} == FORWARD["depths"]


def test_the_checker_has_at_most_300_lines(tmp_path):
    """By the count of the page, whose block this runs."""
    page = (Path(__file__).parents[2] / "docs/explanation/proofs.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(import ast\n.*?)```", page, re.S)
    counted, said = {}, re.search(r"```text\n(reading .*?)```", page, re.S)
    exec(block, {"print": lambda name, lines: counted.update({name: lines})})
    assert said is not None
    assert said[1].split() == [str(word) for pair in counted.items() for word in pair]
    files = Path(checker.__file__).parent.glob("*.py")
    assert counted.keys() - {"total"} == {file.stem for file in files} - {"__init__"}
    assert counted["total"] == sum(lines for name, lines in counted.items() if name != "total") <= 300
