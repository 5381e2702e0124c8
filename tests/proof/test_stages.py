"""The rules of a proof one by one: depths of sums, what is rounded midway, and what two values are together."""

import numpy as np
import pytest

from verify_norm.proof.floats import Floats, _adds, literal
from verify_norm.proof.memory import NotProved, Values
from verify_norm.proof.stages import Rules, Stage, failure, joined, reduction, unknown
from verify_norm.proof.ttir import Block, Line, Operation, Type

LAYERNORM, FUSED, RMSNORM = (
    Rules(centred=centred, fused=fused) for centred, fused in ((True, False), (True, True), (False, False))
)


def made(operator, left, right="", rules=LAYERNORM, element="f32", same=False):
    """What an operation makes of two stages, each a name, or a Stage."""
    left, right = (one if isinstance(one, Stage) else Stage(one) for one in (left, right))
    return rules.binary(operator, left, right, element=element, same=same)


@pytest.mark.parametrize(
    ("operator", "left", "right", "kind", "depth"),
    [
        ("add", Stage("ΣX", 3), Stage("X", 0), "ΣX", 4),
        ("add", Stage("ΣX", 3), Stage("ΣX", 5), "ΣX", 6),
        ("div", Stage("ΣX", 3), Stage("N"), "MEAN", 3),
        ("sub", Stage("X"), Stage("MEAN", 3), "XC", 0),
        ("add", Stage("ΣXC²", 1), Stage("ΣXC²", 1), "ΣXC²", 2),
        ("mul", Stage("G"), Stage("XHAT"), "ΣGX", 1),
        ("mul", Stage("XHAT"), Stage("G"), "ΣGX", 1),
        ("add", Stage("0"), Stage("ΣX", 3), "ΣX", 3),
        ("add", Stage("ΣX", 3), Stage("0"), "ΣX", 3),
    ],
)
def test_a_rule_gives_the_depth_of_its_sums(operator, left, right, kind, depth):
    found = made(operator, left, right)
    assert (found.kind, found.depth) == (kind, depth)


def test_a_square_is_one_of_equal_values():
    assert made("mul", "XC", "XC", same=True).kind == "ΣXC²"
    assert made("mul", "XC", "XC").kind == "UNKNOWN"
    assert made("mul", "X", "X", RMSNORM, same=True).kind == "ΣXC²"
    assert "cancels where the mean is large" in made("mul", "X", "X", same=True).why


def test_what_may_be_narrow_midway_is_a_word_of_the_contract():
    narrow = made("mul", Stage("XHAT", narrow="bf16", words=frozenset({"a"})), "W")
    assert (narrow.kind, narrow.words) == ("W·XHAT", {"xhat=bf16", "a"})
    assert made("sub", Stage("X", narrow="bf16"), "MEAN", FUSED).words == {"residual=bf16"}
    for lost in (made("sub", Stage("X", narrow="bf16"), "MEAN"), made("mul", Stage("XC", narrow="f16"), "RSTD")):
        assert lost.kind == "UNKNOWN"
        assert "before it is used" in lost.why
    assert "arithmetic in f16" in made("sub", "X", "MEAN", element="f16").why
    assert made("add", unknown("it is"), "X").why == "it is"


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (Stage("ΣX", 3, words=frozenset("a")), Stage("ΣX", 5, words=frozenset("b")), "ΣX"),
        (Stage("X", 5, words=frozenset("a")), Stage("ΣX", 2, words=frozenset("b")), "ΣX"),
        (Stage("0", 5, words=frozenset("a")), Stage("W", 2, words=frozenset("b")), "W"),
        (Stage("W", 5, words=frozenset("a")), Stage("B", 2, words=frozenset("b")), "UNKNOWN"),
        (unknown("u")._replace(depth=5, words=frozenset("ab")), Stage("B"), "UNKNOWN"),
    ],
)
def test_a_value_that_is_one_or_the_other(a, b, kind):
    for found in (joined(a, b), joined(b, a)):
        assert (found.kind, found.depth, found.words) == (kind, 5, {"a", "b"})
    assert joined(Stage("X", narrow="bf16"), Stage("0")).narrow == "bf16"


@pytest.mark.parametrize(
    ("size", "each", "threads", "last", "depth"),
    [
        (8, 8, 1, False, 7),  # in one thread, one after another
        (8, 1, 32, False, 3),  # a tree
        (1024, 4, 256, True, 3 + 8),
        (1024, 32, 32, True, 31 + 5),  # a thread has 32 of the row
        (64, 64, 32, True, 7 + 3),  # of many rows: 8 adjacent ones of this
        (100, 3, 32, False, 2 + 6),
        (2, 5, 32, False, 1),
    ],
)
def test_how_deep_a_reduction_adds(size, each, threads, last, depth):
    assert reduction(size, each, threads, last=last) == depth


def test_degrees_of_what_has_to_vanish():
    x, r = Stage("X", degree=1), Stage("RSTD", roots=1)
    product = made("mul", x, r, RMSNORM)
    assert (product.degree, product.roots) == (1, 1)
    assert (made("mul", product, Stage("W", degree=1), RMSNORM).degree) == 2
    assert made("add", Stage("ΣX", degree=1), Stage("ΣX", degree=4, roots=2)).degree == 4
    assert failure(3, 2) == 2 * (3 + 4 * 2) + 2


def block(*sums, last, name="arith.addf", arguments=("a", "b", "c", "d")):
    operations = [
        Operation(name, [result], list(operands), "", Type((), "f32"), "", Line("", 0)) for result, *operands in sums
    ]
    operations.append(Operation("tt.reduce.return", [], list(last), "", Type((), "f32"), "", Line("", 0)))
    return Block(list(arguments), operations)


@pytest.mark.parametrize(
    ("found", "adds"),
    [
        (block(("x", "a", "c"), ("y", "b", "d"), last="xy"), True),
        (block(("x", "c", "a"), ("y", "b", "d"), last="xy"), True),
        (block(("x", "a", "c"), ("y", "b", "d"), last="yx"), False),
        (block(("x", "a", "b"), ("y", "c", "d"), last="xy"), False),
        (block(("x", "a", "c"), ("y", "b", "d"), last="xx"), False),
        (block(("x", "a", "c"), ("y", "b", "d"), last="xy", name="arith.maxnumf"), False),
        (block(("x", "a", "c"), last="xb"), False),
    ],
)
def test_a_reduction_adds_each_value_to_its_own_partner(found, adds):
    assert _adds(found, 2) == adds


@pytest.mark.parametrize(
    ("text", "element", "value"),
    [("1.5", "f32", 1.5), ("0x3F80", "bf16", 1.0), ("0x3C00", "f16", 1.0), ("0x7F800000", "f32", float("inf"))],
)
def test_constants_of_ttir(text, element, value):
    assert literal(text, element, Line("", 0)) == value
    with pytest.raises(NotProved):
        literal("dense", element, Line("", 0))


def cast(stage, to="bf16", text=""):
    """What a conversion makes of a value of this stage."""
    value = Values(np.zeros(1, np.uint64), np.zeros(1, np.int16), stage, "f32")
    operation = Operation("arith.truncf", ["%r"], ["%a"], text, Type((1,), to), "", Line("k.py", 7))
    return Floats()._cast(operation, value).stage


def test_a_conversion_rounds_once_and_to_nearest():
    assert cast(Stage("XHAT")).narrow == "bf16"
    assert cast(Stage("XHAT", narrow="bf16"), "bf16").narrow == "bf16"
    twice = cast(Stage("XHAT", narrow="bf16"), "f16")
    assert (twice.kind, twice.why, twice.at.line) == ("UNKNOWN", "XHAT is rounded twice", 7)
    assert cast(Stage("0")).narrow == ""
    assert cast(Stage("XHAT"), text="rounding = to_nearest_even").narrow == "bf16"
    with pytest.raises(NotProved, match="does not round to nearest") as caught:
        cast(Stage("XHAT"), text="rounding = toward_zero : f32")
    assert caught.value.what == "rounding"
