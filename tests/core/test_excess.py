"""An output that is not what it has to be: what is said of its presence, its type, and the element farthest off."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core import excess, judge
from verify_norm.core.contract import Contract
from verify_norm.core.excess import Excess, element, unlike
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected, Output
from verify_norm.core.spec import CaseSpec

SPEC = CaseSpec((2, 3), "float16", frozen=("x",))
TRUTH = Expected(np.zeros((2, 3)), np.zeros((2, 3)), "float16")
OTHER = np.zeros(6)


def test_the_name_of_an_element():
    assert element("dx", (0, 17)) == "dx[0, 17]"
    assert element("rstd", (3,)) == "rstd[3]"


@pytest.mark.parametrize(
    ("name", "output", "expected", "said"),
    [
        ("y", Output("float16", (2, 3), TRUTH.value, TRUTH.value), TRUTH, []),
        ("y", None, TRUTH, ["y: expected a float16 tensor, got None"]),
        ("y", Output("float16", (6,), OTHER, None), TRUTH, ["y: expected shape (2, 3), got (6,)"]),
        ("y", Output("float32", (2, 3), TRUTH.value, TRUTH.value), TRUTH, ["y: expected float16, got float32"]),
        (
            "y",
            Output("int8", (6,), OTHER, None),
            Expected(TRUTH.value, TRUTH.delta, "float4_e2m1fn"),
            [
                "y: expected shape (2, 3), got (6,)",
                "y: expected float4_e2m1fn (two in a byte, as float4_e2m1fn_x2 or uint8), got int8",
            ],
        ),
        (
            "y_scale",
            Output("float32", (2, 3), TRUTH.value, TRUTH.value),
            Expected(TRUTH.value, TRUTH.delta, "float8_e8m0fnu"),
            ["y_scale: expected float8_e8m0fnu (or its bytes as uint8), got float32"],
        ),
        ("dx", None, None, []),
        (
            "dx",
            Output("float16", (6,), OTHER, None),
            None,
            ["dx: expected None because x needs no gradient, got a tensor of float16"],
        ),
        (
            "dweight",
            Output("float32", (6,), OTHER, None),
            None,
            ["dweight: expected None because weight is None, got a tensor of float32"],
        ),
    ],
)
def test_what_differs_before_any_value_is_looked_at(name, output, expected, said):
    assert list(unlike(name, output, expected, SPEC)) == said


def farthest(name, got, want, delta, op="rmsnorm_fwd", shape=(2, 3), contract=None, dtype="float16", saturate="either"):
    """The excess of an output against its truth, both given as lists."""
    got, want = np.array(got, float), np.array(want, float)
    expected = Expected(want, np.full(want.shape, delta), dtype, saturate)
    ratio = judge.ratio(got, expected)
    return excess.excess(name, got, ratio, expected, CaseSpec(shape), OPS[op], contract or Contract())


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (1.0 + 2.0**-14, 1.0, "y[0, 0] is 0.0625 ULP (float16) from float64, but not rounded to float16; allowed 0.5 "),
        (1.0 + 2.0**-10, 1.0, "y[0, 0] is 1 ULP (float16) from float64; allowed 0.5 "),
    ],
)
def test_an_element_that_is_near_enough_is_told_what_else_is_wrong(got, want, said):
    """A kernel that returns float32 in place of float16 is nearer than any float16."""
    assert farthest("y", [[got]], [[want]], 0.0, shape=(1, 1)).message.startswith(said)


def test_the_element_farthest_beyond_its_bound():
    """An ulp of float16 is 2⁻¹⁰ from 1 on; allowed are ½ ulp and a δ of ½ ulp."""
    got = [[1.0, 1.0 + 4 * 2.0**-10, 2.0], [1.0, 1.0 + 2 * 2.0**-10, 1.0 + 2 * 2.0**-10]]
    want = [[1.0, 1.0, 2.0], [1.0, 1.0, 1.0 + 2.0**-10]]  # the last one is as far off as is allowed
    assert farthest("y", got, want, 2.0**-11) == Excess(
        index=(0, 1),
        got=1.0 + 4 * 2.0**-10,
        want=1.0,
        ulp=4.0,
        allowed=1.0,
        message="y[0, 1] is 4 ULP (float16) from float64; allowed 1 (3 terms summed in float32, then one rounding to "
        "float16); 2 of 6 elements are beyond their bound",
    )
    assert farthest("y", [got[1][2:]], [want[1][2:]], 2.0**-11, shape=(1, 1)) is None
    assert farthest("y", want, want, 0.0) is None
    assert farthest("y", np.zeros((0, 3)), np.zeros((0, 3)), 0.0, shape=(0, 3)) is None


def test_what_is_a_little_beyond_its_bound_has_as_many_digits_as_tell_the_two_apart():
    got, want = [[1.0 + 2 * 2.0**-10]], [[1.0]]
    near = farthest("y", got, want, (1.5 - 1e-6) * 2.0**-10, shape=(1, 1))
    assert " is 2 ULP (float16) from float64; allowed 1.999999 (1 term summed" in near.message
    few = farthest("y", got, [[1.0001]], 0.0, shape=(1, 1))
    assert f"{few.ulp:.6g}" == "1.8976"
    assert " is 1.9 ULP (float16) from float64; allowed 0.5 (" in few.message
    ratio = np.array([[1.0 + 2.0**-52]])  # beyond by less than the two numbers show
    expected = Expected(np.array([[1.0]]), np.array([[1.5 * 2.0**-10]]), "float16")
    same = excess.excess("y", np.array(got), ratio, expected, CaseSpec((1, 1)), OPS["rmsnorm_fwd"], Contract())
    assert " is 2 ULP (float16) from float64; allowed 2 (" in same.message


@pytest.mark.parametrize(
    ("name", "op", "shape", "contract", "reason"),
    [
        ("y", "rmsnorm_fwd", (4, 6), Contract(), "6 terms summed in float32"),
        ("rstd", "rmsnorm_fwd", (4, 6), Contract(), "6 terms summed in float32"),
        ("dweight", "rmsnorm_bwd", (4, 6), Contract(), "8 terms summed in float32"),  # 24 elements for 3 of dweight
        ("dscale", "modulate_rmsnorm_bwd", (4, 6), Contract(), "8 terms summed in float32"),
        ("dx", "rmsnorm_bwd", (4, 6), Contract(accumulate="float64"), "6 terms summed in float64"),
        ("y", "rmsnorm_fwd", (3, 1), Contract(), "1 term summed in float32"),
        ("y", "rmsnorm_fwd", (3, 2), Contract(products="tf32"), "2 terms summed in float32 by tf32 products"),
        ("y", "rmsnorm_fwd", (3, 1023), Contract(), "1023 terms summed in float32"),
        (
            "y",
            "rmsnorm_fwd",
            (3, 1024),
            Contract(lanes=8),
            "1024 terms summed in float32, in at least 8 running sums (contract: lanes=8)",
        ),
        ("y", "rmsnorm_fwd", (3, 1024), Contract(summation="sequential"), "1024 terms summed in float32"),
    ],
)
def test_the_reason_of_an_allowance_says_how_much_is_summed_how(name, op, shape, contract, reason):
    found = farthest(name, [2.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0.0, op, shape, contract)
    assert f"; allowed 0.5 ({reason}, then one rounding to float16); 1 of 3 " in found.message


def test_the_sum_over_nothing_has_no_terms_and_an_own_operator_a_loose_bound():
    own = replace(OPS["rmsnorm_fwd"], user_defined=True, name="dyt_fwd")
    expected = Expected(np.ones(3), np.zeros(3), "float16")
    got = np.array([2.0, 1.0, 1.0])
    found = excess.excess("y", got, judge.ratio(got, expected), expected, SPEC, own, Contract(accumulate="float64"))
    loose = "a loose bound, by running error analysis of dyt_fwd's operations in float64, then one rounding to float16"
    assert f" ({loose}); 1 of 3" in found.message
    assert "(5 terms summed" in farthest("dweight", [2.0], [1.0], 0.0, "rmsnorm_bwd", (5, 1)).message
    assert "(0 terms summed" in farthest("dweight", [2.0], [1.0], 0.0, "rmsnorm_bwd", (0, 1)).message


@pytest.mark.parametrize(
    ("saturate", "got", "words"),
    [
        ("either", 60000.0, "one rounding to float16, which overflows (saturate=either)"),
        ("overflow", 60000.0, "one rounding to float16, which overflows (saturate=overflow)"),
        ("saturate", 60000.0, "one rounding to float16, which saturates (saturate=saturate)"),
    ],
)
def test_a_truth_beyond_the_largest_number_overflows_or_saturates(saturate, got, words):
    found = farthest("y", [got], [1e6], 0.0, shape=(1, 1), saturate=saturate)
    assert f", then {words}); 1 of 1 " in found.message
