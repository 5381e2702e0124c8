"""What is proved of one kernel's TTIR, and of that TTIR with a mistake in it; the checker on certificates with one."""

import copy

import pytest
from replayed import FORWARD as RIGHT
from replayed import altered, ttir

from verify_norm.proof.memory import NotProved
from verify_norm.proof.prover import prove_form
from verify_norm.proof.replay.check import check
from verify_norm.proof.replay.reading import Rejected
from verify_norm.proof.shapes import Affine, Form, form
from verify_norm.proof.shown import Configuration

((DIGEST, KERNEL),) = RIGHT["kernels"].items()
CONFIG = Configuration("layernorm_fwd", "float32", 1e-5, 0.0, 100)


def affine(value):
    """Return a call as the prover has it."""
    if isinstance(value, dict):
        if value.keys() == {"times M", "plus"}:
            return Affine(value["times M"], value["plus"])
        return {key: affine(one) for key, one in value.items()}
    return [affine(one) for one in value] if isinstance(value, list) else value


def proved(*replaced):
    """Return what is proved of the TTIR with texts replaced, each of which has to be there."""
    text = KERNEL["ttir"]
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new, 1)
    found = RIGHT["forms"][0]
    return prove_form(CONFIG, Form(affine(found["call"]), found["rows"]), {DIGEST: KERNEL | {"ttir": text}})


def test_a_right_kernel_is_proved_for_every_number_of_rows():
    found = proved()
    assert not found.failures
    assert {name: stage.kind for name, stage in found.outputs.items()} == {"y": "Y", "mean": "MEAN", "rstd": "RSTD"}
    assert found.runs == 2 * 8, "a full tile of 8 rows, and tiles of 1 to 7, over two points"
    assert min(found.limits.values()) > 2**31


PRODUCTS = """%y_46 = arith.mulf %x_38, %y_45 : tensor<8x128xf32> loc(#loc136)
    %y_47 = tt.broadcast %t_29 : tensor<1x128xf32> -> tensor<8x128xf32> loc(#loc137)
    %y_48 = arith.mulf %y_46, %y_47"""
TURNED = """%y_47 = tt.broadcast %t_29 : tensor<1x128xf32> -> tensor<8x128xf32> loc(#loc137)
    %y_46 = arith.mulf %y_47, {} : tensor<8x128xf32> loc(#loc136)
    %y_48 = arith.mulf %y_46, {}"""
ALIKE = {
    "a sum the other way round": ("arith.addf %y_48, %y_49", "arith.addf %y_49, %y_48"),
    "an approximate root": ("tt.precise_sqrt", "math.sqrt"),
    "an approximate division": ("tt.precise_divf", "arith.divf"),
    "a parameter's lanes beyond the row, which reach nothing": ("tt.load %p_31, %t_22, %cst", "tt.load %p_31, %t_22"),
    "(xc·rstd)·w as xc·(w·rstd)": (PRODUCTS, TURNED.format("%y_45", "%x_38")),
}


@pytest.mark.parametrize("replaced", ALIKE.values(), ids=list(ALIKE))
def test_another_form_of_the_same_is_proved(replaced):
    assert not proved(replaced).failures


WRONG = {
    "the lanes beyond the row add mean²": ("select %t_24, %x_37, %cst_1", "select %t_24, %x_37, %x_37", "meaning", 202),
    "x − mean is not subtracted": ("arith.subf %t_26, %x_36", "arith.addf %t_26, %x_36", "meaning", 202),
    "eps is forgotten": ("arith.addf %rstd_40, %rstd_41", "arith.addf %rstd_40, %rstd_40", "meaning", 202),
    "eps outside of the root": ("tt.precise_sqrt %rstd_42", "tt.precise_sqrt %rstd_40", "meaning", 202),
    "squares of x": ("arith.mulf %x_38, %x_38", "arith.mulf %t_26, %t_26", "meaning", 202),
    "y = w·x̂ − b": ("arith.addf %y_48, %y_49", "arith.subf %y_48, %y_49", "meaning", 92),
    "x is read beyond its rows": ("tt.load %p_17, %t_25, %cst_1", "tt.load %p_17, %t_24, %cst_1", "memory", 77),
    "y is written beyond its rows": ("tt.store %p_57, %y_50, %t_25", "tt.store %p_57, %y_50, %t_24", "memory", 92),
    "y is written over the next row": ("tt.store %p_57, %y_50, %t_25", "tt.store %p_57, %y_50, %t_23", "memory", 92),
    "y is written to x": ("tt.store %p_57, %y_50", "tt.store %p_17, %y_50", "memory", 92),
    "a row short": ("arith.cmpi slt, %row_7, %t", "arith.cmpi sge, %row_7, %t", "memory", 77),
    "a column short": ("arith.muli %NV, %c4_i64", "arith.subi %NV, %c1_i64", "meaning", 202),
    "lanes beyond the row hold garbage": ("tt.load %p_17, %t_25, %cst_1", "tt.load %p_17, %t_25", "meaning", 77),
    "another row's address": ("arith.muli %tile_3, %c8_i64", "arith.addi %tile_3, %c8_i64", "reach", 77),
    "a largest, not a sum": ("%mean_60 = arith.addf", "%mean_60 = arith.maximumf", "reach", 190),
    "an atomic": ("tt.store %p_57, %y_50, %t_25", "%a = tt.atomic_rmw fadd, %p_57, %y_50, %t_25", "reach", 92),
}


@pytest.mark.parametrize(("old", "new", "what", "line"), WRONG.values(), ids=list(WRONG))
def test_a_mistake_is_not_proved_and_its_line_is_named(old, new, what, line):
    try:
        found = list(proved((old, new)).failures.values())
    except NotProved as error:
        found = [error]
    assert found
    assert {error.what for error in found} <= {what, "meaning"}
    assert any(error.what == what and error.at.line == line for error in found), [str(error) for error in found]


def test_e_x2_minus_mean2_is_the_variance_but_rounds_otherwise():
    onepass = "arith.subf %square, %mean2 : tensor<8xf32> loc(#loc132)\n"
    before = (
        "%square = arith.divf %rstd_39, %mean_34 : tensor<8xf32> loc(#loc132)\n"
        "    %mean2 = arith.mulf %mean_35, %mean_35 : tensor<8xf32> loc(#loc132)\n    %rstd_40 = "
    )
    found = proved(
        ("arith.mulf %x_38, %x_38", "arith.mulf %t_26, %t_26"),
        ("%rstd_40 = arith.divf %rstd_39, %mean_34 : tensor<8xf32> loc(#loc132)\n", before + onepass),
    )
    error = found.failures["rstd"]
    assert (error.what, error.at.line) == ("rounding", 199)
    assert "not centred: E[x²] − mean² cancels" in error.why


def test_what_underflows_between_two_products_has_no_bound():
    found = proved((PRODUCTS, TURNED.format("%x_38", "%y_45")))
    assert "w·(x − μ) before rstd" in found.failures["y"].why


def test_an_intermediate_that_is_rounded_has_no_bound_or_its_word_in_the_contract():
    narrow = "%half = arith.truncf {} : tensor<8x128xf32> to tensor<8x128xbf16> loc(#loc130)\n    "
    wide = "%full = arith.extf %half : tensor<8x128xbf16> to tensor<8x128xf32> loc(#loc130)\n    "
    squares = "%squares = arith.mulf %x_38, %x_38"
    lost = proved((squares, narrow.format("%x_38") + wide + "%squares = arith.mulf %full, %full"))
    assert "XC is rounded to bf16 before it is used" in lost.failures["rstd"].why
    product = "%y_48 = arith.mulf %y_46, %y_47"
    kept = proved((product, narrow.format("%y_46") + wide + "%y_48 = arith.mulf %full, %y_47"))
    assert kept.outputs["y"].words == {"xhat=bf16"}


def test_the_checker_replays_a_certificate():
    assert check(RIGHT).startswith("replayed for M = 1, 8, 9, 15; ")


def depth(found):
    found["values"]["forward %mean"]["depth"]["ΣX"] = 3


def word(found):
    found["values"]["forward %x_37"]["depth"] = {"X": 0}


def stored(number, name):
    """Write another argument to the place of an output."""
    return lambda found: found["forms"][0]["call"]["outputs"].update(
        {name: found["forms"][0]["call"]["inputs"][number]}
    )


HALVES = (
    "%y_50 = arith.addf %y_48, %y_49 : tensor<8x128xf32>",
    "%h = arith.truncf %y_48 : tensor<8x128xf32> to tensor<8x128xbf16>\n"
    "    %g = arith.extf %h : tensor<8x128xbf16> to tensor<8x128xf32>\n"
    "    %y_50 = arith.addf %g, %y_49 : tensor<8x128xf32>",
)
XHAT = (
    "%y_48 = arith.mulf %y_46, %y_47 : tensor<8x128xf32>",
    "%h = arith.truncf %y_46 : tensor<8x128xf32> to tensor<8x128xbf16>\n"
    "    %g = arith.extf %h : tensor<8x128xbf16> to tensor<8x128xf32>\n"
    "    %y_48 = arith.mulf %g, %y_47 : tensor<8x128xf32>",
)


def half(old, new, kind):
    """Round a value midway, and claim what it is: steps alone have to tell."""

    def change(found):
        ttir(old, new)(found)
        found["values"] |= {f"forward %{name}": {"line": "", "depth": {kind: 0}} for name in "hg"}

    return change


FALSE = {
    "w·x̂ in bfloat16 before the bias": half(*HALVES, "W·XHAT"),
    "x̂ in bfloat16, of which the contract says nothing": half(*XHAT, "XHAT"),
    "no contract": lambda found: found.update(contract="good"),
    "x̂ in bfloat16, and another type in the contract": lambda found: (
        half(*XHAT, "XHAT")(found),
        found.update(contract="strict,variance=two_pass,xhat=float16"),
    ),
    "assembly that widens another type": half(
        XHAT[0],
        XHAT[1]
        .replace(
            "arith.extf %h :",
            'tt.elementwise_inline_asm "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;" '
            '{constraints = "=f,=f,r", packed_element = 2 : i32, pure = true} %h :',
        )
        .replace("bf16> to", "f16> ->")
        .replace("bf16", "f16"),
        "XHAT",
    ),
    "assembly that is unknown": ttir("cp.async.bulk.prefetch.L2.global [$1], $2;", "st.global [$1], $2; // prefetch"),
    "an output that no launch writes": stored("x", "y"),
    "an output without a place": lambda found: found["forms"][0]["call"]["outputs"].pop("rstd"),
    "an output of which nothing is known": lambda found: found["outputs"].update(dx={}),
    "a number that overflows": ttir("arith.trunci %N : i64 to i32", "arith.trunci %N : i64 to i4"),
    "a maximum for a minimum": ttir("arith.cmpi slt, %row_7", "arith.cmpi sgt, %row_7"),
    "a depth that is too small": depth,
    "a meaning that no step makes": word,
    "squares in float16": ttir("mulf %x_38, %x_38 : tensor<8x128xf32>", "mulf %x_38, %x_38 : tensor<8x128xf16>"),
    "no launches": lambda found: found["forms"][0].pop("call"),
    "it claims nothing": lambda found: found["values"].clear(),
    "not proved": lambda found: found.update(proved=False),
    **{name: ttir(old, new) for name, (old, new, *_) in WRONG.items()},
}


@pytest.mark.parametrize("change", FALSE.values(), ids=list(FALSE))
def test_the_checker_rejects_what_is_false(change):
    with pytest.raises(Rejected):
        check(altered(RIGHT, change))


def test_the_checker_allows_what_the_contract_does():
    def change(found):
        half(*XHAT, "XHAT")(found)
        found["contract"] += ",xhat=bfloat16"

    assert check(altered(RIGHT, change)).startswith("replayed for M = 1, 8, 9, 15; ")


def test_a_hash_that_does_not_fit_is_rejected():
    found = copy.deepcopy(RIGHT)
    found["kernels"][DIGEST]["ttir"] += " "
    with pytest.raises(Rejected, match="not what its hash says"):
        check(found)


def test_launches_have_a_form_where_all_numbers_are_affine():
    def call(m, programs, number):
        event = {"launch": "k", "grid": [programs, 1, 1], "arguments": [number], "warps": 4, "early": False}
        return {"inputs": {}, "outputs": {}, "events": [event]}

    sizes = (1, 2, 3, 17, 33, 1000)
    found = form(sizes, [call(m, -(-m // 4), 7 * m + 2) for m in sizes])
    assert (found.rows, found.call["events"][0]["arguments"]) == (4, [Affine(7, 2)])
    assert form(sizes, [call(m, -(-m // 4), m * m) for m in sizes]) is None
    assert form(sizes, [call(m, m // 4 + 1, m) for m in sizes]) is None, "as many as no tile of rows needs"
    assert form(sizes, [call(m, 132, m) for m in sizes]) is None, "programs that walk over the rows"
    few = (1, 2, 3)
    assert form(few, [call(m, 1, m) for m in few]) is None, "any tile of three rows and more"
    half = [call(m, -(-m // 4), m // 2) for m in sizes]
    assert form(sizes, half) is None
    other = [call(m, -(-m // 4), m) for m in sizes]
    other[-1]["events"][0]["launch"] = "another"
    assert form(sizes, other) is None, "another kernel for many rows"
