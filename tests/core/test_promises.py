"""What follows from a contract: the arithmetic of bounds, the types of outputs, and how values are rounded."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core import promises, tensors
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.intervals import LARGEST
from verify_norm.core.op import Tensor
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.reference.arithmetic import Arithmetic


def test_the_arithmetic_follows_the_contract():
    strict = promises.arithmetic(Contract(), "bfloat16")
    assert (strict.u, strict.xhat_u) == (FORMATS["float32"].u, 0.0)
    assert promises.arithmetic(Contract(xhat="x"), "bfloat16").xhat_u == FORMATS["bfloat16"].u
    assert promises.arithmetic(Contract(products="tf32"), "bfloat16").products == "tf32"
    by_weight = Contract(offset_weight="weight")
    for dtype, weight_dtype, u in (
        ("bfloat16", None, 2.0**-8),
        ("float32", "float16", 2.0**-11),
        ("float16", "float32", 0),
    ):
        assert promises.arithmetic(by_weight, dtype, weight_dtype).offset_u == u
        assert promises.arithmetic(Contract(), dtype, weight_dtype).offset_u == 0


def test_the_types_of_outputs():
    y, mean = OPS["layernorm_fwd"].outputs[:2]
    assert promises.output_dtype(y, Contract(), "float16") == "float16"
    assert promises.output_dtype(y, Contract(output="float32"), "float16") == "float32"
    assert promises.output_dtype(mean, Contract(), "float16") == "float32"
    assert promises.output_dtype(mean, Contract(stats="x"), "float16") == "float16"
    dx, dweight, _ = OPS["layernorm_bwd"].outputs
    wide = Contract(weight_grad="float32")
    assert [promises.output_dtype(t, wide, "float16", "bfloat16") for t in (dx, dweight)] == ["float16", "float32"]
    assert promises.output_dtype(dweight, Contract(), "float16", "bfloat16") == "bfloat16"


@pytest.mark.parametrize(("saturate", "largest"), [("either", 448.0), ("saturate", 448.0), ("overflow", np.inf)])
def test_a_quantized_truth_is_clipped_unless_the_contract_says_that_it_overflows(saturate, largest):
    assert promises.roundings(Contract(saturate=saturate), "float32", "float8_e4m3fn")["largest"] == largest


STRICT = Arithmetic(  # of the default contract, in full
    u=2.0**-24,
    tiny=2.0**-126,
    huge=(2 - 2.0**-23) * 2.0**127,
    summation="blocked",
    variance="centered",
    expanded=False,
    products="float32",
    stats_u=0.0,
    xhat_u=0.0,
    partials_u=0.0,
    offset_u=0.0,
    narrow_tiny=0.0,
    narrow_huge=np.inf,
    z_u=0.0,
    z_tiny=0.0,
    z_huge=np.inf,
    lanes=128,
    atomic=False,
)
HALF, BRAIN = (2.0**-11, 2.0**-25, 65504.0), (2.0**-8, 2.0**-134, (2 - 2.0**-7) * 2.0**127)


BETWEEN = ("z_u", "z_tiny", "z_huge")


def narrow(field, constants):
    return {field: constants[0], "narrow_tiny": constants[1], "narrow_huge": constants[2]}


@pytest.mark.parametrize(
    ("contract", "dtype", "changes"),
    [
        (Contract(), "float16", {}),
        (
            Contract(accumulate="float64", stats="float64", partials="float64"),
            "float16",
            {"u": 2.0**-53, "tiny": 2.0**-1022, "huge": LARGEST},
        ),
        (Contract(summation="sequential"), "float16", {"summation": "sequential"}),
        (Contract(summation="atomic"), "float16", {"atomic": True}),
        (Contract(variance="shifted", expanded=True), "float16", {"variance": "shifted", "expanded": True}),
        (Contract(products="bf16x3", lanes=4), "float16", {"products": "bf16x3", "lanes": 4}),
        (Contract(stats="x"), "float16", narrow("stats_u", HALF)),
        (Contract(stats="x"), "float32", {}),  # it is not narrower
        (Contract(stats="float64", xhat="float32"), "float16", {}),
        (Contract(stats="bfloat16"), "float16", narrow("stats_u", BRAIN)),  # named, whatever x is
        (Contract(xhat="x"), "bfloat16", narrow("xhat_u", BRAIN)),
        (Contract(partials="x"), "float16", narrow("partials_u", HALF)),
        (Contract(z="x"), "float16", dict(zip(BETWEEN, HALF, strict=True))),
        (Contract(z="x"), "float32", {}),
        (Contract(z="bfloat16"), "float32", dict(zip(BETWEEN, BRAIN, strict=True))),
        (Contract(xhat="bfloat16", partials="float16"), "float32", {"xhat_u": 2.0**-8} | narrow("partials_u", HALF)),
    ],
)
def test_each_promise_is_in_the_arithmetic_and_nothing_else(contract, dtype, changes):
    assert promises.arithmetic(contract, dtype) == replace(STRICT, **changes)


@pytest.mark.parametrize(
    ("tensor", "output", "other_dtype", "expected"),
    [
        (tensors.Y, "promoted", "float32", "float32"),
        (tensors.Y, "promoted", "float16", "float16"),
        (tensors.Y, None, "float32", "float16"),
        (tensors.gradient(tensors.MODULATION[0]), None, "float32", "float32"),
    ],
)
def test_cos_and_the_like_promote_y_as_a_weight_does(tensor, output, other_dtype, expected):
    assert promises.output_dtype(tensor, Contract(output=output), "float16", None, other_dtype) == expected


@pytest.mark.parametrize(
    ("tensor", "output", "residual_dtype", "expected"),
    [
        (tensors.Y, "promoted", "float32", "float32"),
        (tensors.Y, "promoted", "float16", "float16"),
        (tensors.Y, None, "float32", "float16"),
        (tensors.RESIDUAL_OUT, None, "float32", "float32"),
        (tensors.RESIDUAL_OUT, "bfloat16", None, "float16"),
    ],
)
def test_a_residual_promotes_the_sum_and_may_promote_y(tensor, output, residual_dtype, expected):
    given = {"residual_dtype": residual_dtype}
    assert promises.output_dtype(tensor, Contract(output=output), "float16", **given) == expected
    y = {"y": Expected(np.ones(2), np.zeros(2), "float16")}
    spec = CaseSpec((2,), "float16", **given)
    (wide,) = promises.promoted(y, "float32", Contract(), spec).values()
    assert wide.dtype == (residual_dtype or "float16")


def test_a_rounded_sum_is_rounded_to_the_type_in_which_it_is_returned():
    rounded = promises.roundings(Contract(residual="rounded"), "float32", "bfloat16")["rounded"]
    assert rounded(np.array(1 + 2.0**-20)) == 1 + 2.0**-20


@pytest.mark.parametrize(
    ("got", "other_dtype", "output", "expected"),
    [
        ("float32", "float32", None, "float32"),
        ("float16", "float32", None, "float16"),
        ("bfloat16", "float32", None, "float16"),
        ("float32", None, None, "float16"),
        ("float32", "float32", "float16", "float16"),
    ],
)
def test_beside_cos_in_float32_y_may_have_two_types(got, other_dtype, output, expected):
    y = Expected(np.ones(2), np.zeros(2), "float16")
    spec = CaseSpec((2,), "float16", other_dtype=other_dtype)
    assert promises.promoted({"y": y}, got, Contract(output=output), spec) == {"y": replace(y, dtype=expected)}


def test_an_output_of_few_bits_has_its_type_beside_cos_in_float32():
    expected = {"y": Expected(np.ones(2), np.zeros(2), "int8")}
    spec = CaseSpec((2,), "float16", other_dtype="float32")
    assert promises.promoted(expected, "float32", Contract(), spec) is expected


@pytest.mark.parametrize(
    ("tensor", "contract", "weight_dtype", "expected"),
    [
        (tensors.Y, Contract(output="promoted"), None, "float16"),
        (tensors.Y, Contract(output="promoted"), "float16", "float16"),
        (tensors.Y, Contract(output="promoted"), "bfloat16", "float32"),
        (tensors.DX, Contract(output="promoted"), "bfloat16", "float16"),  # the gradient of x has its type
        (tensors.DX, Contract(output="float32"), None, "float32"),
        (tensors.RESIDUAL_OUT, Contract(output="float32"), None, "float16"),
        (tensors.gradient(tensors.RESIDUAL), Contract(output="float32"), None, "float32"),
        (tensors.DBIAS, Contract(weight_grad="float32"), "bfloat16", "float32"),
        (tensors.DBIAS, Contract(), "bfloat16", "bfloat16"),
        (tensors.NEW_MEAN, Contract(stats="x", weight_grad="bfloat16"), "float32", "float32"),
        (tensors.RSTD, Contract(stats="bfloat16"), None, "bfloat16"),
        (tensors.AMAX, Contract(stats="x"), None, "float32"),  # it is no statistic of a row
        (tensors.QUANTIZED, Contract(), None, "float8_e4m3fn"),
        (tensors.QUANTIZED, Contract(output="float8_e5m2"), None, "float8_e5m2"),
    ],
    ids=lambda value: value.name if isinstance(value, Tensor) else None,
)
def test_the_type_of_each_output(tensor, contract, weight_dtype, expected):
    assert promises.output_dtype(tensor, contract, "float16", weight_dtype) == expected


def test_a_fused_sum_is_rounded_to_the_type_of_x_where_the_contract_says_so():
    plain = promises.roundings(Contract(), "bfloat16", "float16")
    assert plain == {"rounded": None, "largest": 65504.0, "scale_floor": 0.0, "e8m0": "floor"}
    rounded = promises.roundings(Contract(residual="rounded"), "bfloat16", "float16")["rounded"]
    assert rounded(np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8])).tolist() == [1.0, 1 + 2.0**-6]
