"""Fields of a contract: a kernel that differs is detected, passes where it says so, and is still held to that."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of
from matrix import layernorm_bwd, rmsnorm_fwd
from norms import layernorm as right_fwd
from norms import layernorm_bwd as right_bwd
from norms import rows

from verify_norm.checks import CHECKS
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import LAWS, CaseSpec
from verify_norm.reference.arithmetic import PRODUCTS

SMALL = CaseSpec((40, 33))
# What runs a kernel again for its values: the products that it computes make no difference to the other further runs.
OF_VALUES = {
    "further": ("memory", "determinism", "batch_invariance", "distribution", "gradient", "degenerate", "power", *LAWS)
}
PRODUCT_SPECS = (
    replace(SMALL, **OF_VALUES),
    replace(SMALL, offset=100.0, seed=1, **OF_VALUES),
    replace(SMALL, dtype="float16", weight_dtype="float32", seed=2, **OF_VALUES),
    CaseSpec((8, 640), data="constant", seed=3, **OF_VALUES),
    CaseSpec((600, 8), data="heavy", seed=4, **OF_VALUES),
)
EVERY = tuple(CHECKS)
BOUNDED = ("signature", "accuracy", "statistics", "sums")


def found(function, spec, op, checks=BOUNDED, **contract):
    """What the checks find in one run, by (check, output); keywords are fields of the contract."""
    run = run_of(function, spec, op, **contract)
    assert run.problem is None, run.problem
    looking = [CHECKS[name] for name in checks if CHECKS[name].applies(OPS[op]) and CHECKS[name].looks(run)]
    said = [f for check in looking for f in check.function(run) if isinstance(f, Finding)]
    return {(f.check, f.output): f.message for f in said}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("products", PRODUCTS)
def test_matrix_products_pass_every_check_where_the_contract_says_so(products):
    """One of them in all further runs, torch.compile among them: the others differ from it in values alone."""
    for spec in (*PRODUCT_SPECS, *[SMALL] * (products == "tf32")):
        how = {"cut": spec.seed % 2 == 0, "ones": spec.seed % 3 == 0}
        assert found(layernorm_bwd(products, **how), spec, "layernorm_bwd", EVERY, products=products) == {}
        assert found(rmsnorm_fwd(products, **how), spec, "rmsnorm_fwd", EVERY, products=products) == {}


@pytest.mark.parametrize(("products", "better"), [("tf32", "bf16x3"), ("bf16", "tf32"), ("bf16x3", "tf32x3")])
def test_matrix_products_are_detected_by_a_contract_of_better_ones(products, better):
    few = CaseSpec((4, 33))
    for contract in ({}, {"products": better}):
        said = found(layernorm_bwd(products), few, "layernorm_bwd", **contract)
        assert {("accuracy", name) for name in ("dx", "dweight", "dbias")} <= set(said)
        assert ("statistics", "rstd") in found(rmsnorm_fwd(products), few, "rmsnorm_fwd", **contract)
    assert f"4 terms summed in float32 by {better} products, then one" in said[("accuracy", "dweight")]


def test_a_mistake_in_matrix_products_is_detected_all_the_same():
    """float16 has TF32's digits and fewer exponents; a row that is left out is larger than what TF32 misses."""
    tiny = replace(SMALL, dy_log2_scale=-20)
    assert found(layernorm_bwd("tf32"), tiny, "layernorm_bwd", products="tf32") == {}
    half, short = layernorm_bwd("float16"), layernorm_bwd("tf32", drop=1)
    assert ("accuracy", "dweight") in found(half, tiny, "layernorm_bwd", products="tf32")
    assert set(found(short, SMALL, "layernorm_bwd", products="tf32")) == {("accuracy", "dweight")}


def test_sums_of_16_bit_numbers_are_exact_in_tf32():
    """So dbias, a product of ones and dy, keeps the strict bound: a wrong one is not excused by what TF32 may miss."""
    spec = replace(SMALL, dtype="bfloat16", weight_dtype="float32")

    def wrong(dy, x, weight, bias, eps, normalized_shape):
        dx, dweight, dbias = layernorm_bwd("tf32")(dy, x, weight, bias, eps, normalized_shape)
        return dx, dweight, dbias * (1 + 2.0**-14)

    assert set(found(wrong, spec, "layernorm_bwd", products="tf32")) == {("accuracy", "dbias")}
    assert ("accuracy", "dbias") not in found(wrong, replace(spec, dtype="float32"), "layernorm_bwd", products="tf32")


def gemma(kind):
    """RMSNorm with 1 + weight formed in `kind`, or in the weight's own type."""

    def rmsnorm_fwd(x, weight, eps, normalized_shape, weight_offset):
        r = rows(x, normalized_shape)
        rstd = (r.square().mean(1, keepdim=True) + eps).rsqrt()
        w = (weight.to(kind or weight.dtype) + weight_offset).float()
        return (r * rstd * rows(w, normalized_shape)).reshape(x.shape).to(x.dtype), rstd[:, 0]

    return rmsnorm_fwd


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_offset_weight_in_the_weights_type(dtype):
    spec = CaseSpec((4, 48), dtype="float32", weight_dtype=dtype, weight_offset=1.0)
    assert found(gemma(None), spec, "rmsnorm_fwd", EVERY, offset_weight="weight") == {}
    assert found(gemma(torch.float32), spec, "rmsnorm_fwd", EVERY, offset_weight="weight") == {}
    assert set(found(gemma(None), spec, "rmsnorm_fwd")) == {("accuracy", "y")}
    if dtype == "float16":  # its promise does not excuse bfloat16
        assert set(found(gemma(torch.bfloat16), spec, "rmsnorm_fwd", offset_weight="weight")) == {("accuracy", "y")}
    plain = replace(spec, weight_offset=0.0)  # nothing is added, so nothing is rounded

    def rounded(x, weight, eps, normalized_shape, weight_offset):
        y, rstd = gemma(torch.float32)(x, weight, eps, normalized_shape, weight_offset)
        return y * (1 + 2.0**-12), rstd

    assert ("accuracy", "y") in found(rounded, plain, "rmsnorm_fwd", offset_weight="weight")


def layernorm_1p(kind):
    """LayerNorm with 1 + weight formed in `kind`, or in the weight's own type."""

    def layernorm_fwd(x, weight, bias, eps, normalized_shape, weight_offset):
        w = (weight.to(kind or weight.dtype) + weight_offset).float()
        return right_fwd("")(x, w, bias, eps, normalized_shape)

    return layernorm_fwd


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_offset_weight_of_layernorm_in_the_weights_type(dtype):
    spec = CaseSpec((4, 48), dtype="float32", weight_dtype=dtype, weight_offset=1.0)
    for kind in (None, torch.float32):
        assert found(layernorm_1p(kind), spec, "layernorm_fwd", offset_weight="weight") == {}
    assert found(layernorm_1p(torch.float32), spec, "layernorm_fwd") == {}
    assert set(found(layernorm_1p(None), spec, "layernorm_fwd")) == {("accuracy", "y")}


def test_a_layernorm_backward_without_the_offset_is_detected():
    def layernorm_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        return right_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)

    spec = CaseSpec((4, 48), weight_offset=1.0)
    assert set(found(layernorm_bwd, spec, "layernorm_bwd")) == {("accuracy", "dx")}
    assert found(right_bwd(), spec, "layernorm_bwd") == {}
    assert found(layernorm_bwd, replace(spec, weight_offset=0.0), "layernorm_bwd") == {}


def saturating(largest):
    """LayerNorm's gradients in float16, saturated at ±largest."""

    def layernorm_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        given = (t if t is None else t.float() for t in (dy, x, weight, bias, mean, rstd))
        return [g.clamp(-largest, largest).to(x.dtype) for g in right_bwd()(*given, eps, normalized_shape)]

    return layernorm_bwd


def test_a_16_bit_output_that_saturates_and_one_that_overflows():
    spec = CaseSpec((640, 6), dtype="float16", dy_log2_scale=13, further=())
    for function, right in ((saturating(65504.0), {"saturate"}), (saturating(torch.inf), {"either", "overflow"})):
        for saturate in ("either", "saturate", "overflow"):
            said = found(function, spec, "layernorm_bwd", EVERY, saturate=saturate)
            assert said == {} if saturate in right else ("accuracy", "dbias") in said
    message = found(saturating(65504.0), spec, "layernorm_bwd")[("accuracy", "dbias")]
    assert "then one rounding to float16, which overflows (saturate=either)" in message
    assert ("accuracy", "dbias") in found(saturating(65472.0), spec, "layernorm_bwd", saturate="saturate")


@pytest.mark.parametrize("output", ["float8_e4m3fn", "float8_e5m2"])
def test_a_quantized_y_saturates_unless_its_contract_says_that_it_overflows(output):
    spec, kind = CaseSpec((3, 40), scale=2.0**16, seed=1), getattr(torch, output)
    beyond = torch.nan if output == "float8_e4m3fn" else torch.inf

    def kernel(largest):
        def run(x, weight, scale, eps, normalized_shape):
            r, w = rows(x, normalized_shape, torch.float64), rows(weight, normalized_shape, torch.float64)
            z = r * (r.square().mean(1, keepdim=True) + eps).rsqrt() * w
            y = torch.from_numpy(FORMATS[output].round((z * scale).numpy()))
            y = torch.where(y.isinf(), largest * y.sign(), y)
            return y.float().to(kind), z.abs().max().float().reshape(1)

        return run

    saturating, overflowing = kernel(torch.finfo(kind).max), kernel(beyond)
    for function, right in ((saturating, {"either", "saturate"}), (overflowing, {"overflow"})):
        for saturate in ("either", "saturate", "overflow"):
            said = found(function, spec, "rmsnorm_fp8_fwd", BOUNDED, output=output, saturate=saturate)
            assert set(said) == (set() if saturate in right else {("accuracy", "y")})


@pytest.mark.slow
def test_gradients_of_parameters_in_another_type():
    spec = CaseSpec((40, 33), dtype="bfloat16")

    def wide(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *others = right_bwd()(*(t.float() for t in (dy, x, weight, bias, mean, rstd)), eps, normalized_shape)
        return dx.bfloat16(), *others

    types = {("signature", "dweight"), ("signature", "dbias")}
    assert types <= set(found(wide, spec, "layernorm_bwd"))
    assert types <= set(found(right_bwd(), spec, "layernorm_bwd", weight_grad="float32"))
    assert found(wide, spec, "layernorm_bwd", EVERY, weight_grad="float32") == {}


def blas(lanes):
    """RMSNorm's rstd whose sums are (x·x) @ ones; with a number, the same in as many runs, whatever the machine."""

    def rmsnorm_fwd(x, weight, eps, normalized_shape):
        r = rows(x, normalized_shape)
        squares = r * r
        if lanes is None:
            total = squares @ torch.ones(r.shape[1])
        else:
            total = torch.from_numpy(np.add.accumulate(squares.reshape(len(r), -1, lanes).numpy(), 1)[:, -1].sum(1))
        rstd = (total / r.shape[1] + eps).rsqrt()
        y = r * rstd[:, None] * rows(weight, normalized_shape)
        return y.reshape(x.shape).to(x.dtype), rstd

    return rmsnorm_fwd


@pytest.mark.parametrize("data", ["constant", "alternating", "normal"])
def test_row_sums_by_a_matrix_product_of_the_cpu_have_four_lanes_or_more(data):
    for seed, length in enumerate((4096, 1 << 14, 1 << 16)):
        spec = CaseSpec((4, length), data=data, offset=100.0 * (data == "normal"), seed=seed)
        assert found(blas(None), spec, "rmsnorm_fwd", lanes=4) == {}
        assert found(blas(4), spec, "rmsnorm_fwd", lanes=4) == {}


def test_a_finding_on_few_lanes_names_the_field():
    said = found(blas(4), CaseSpec((1, 1 << 14), data="constant"), "rmsnorm_fwd")
    assert set(said) == {("accuracy", "y"), ("statistics", "rstd")}
    words = "16384 terms summed in float32, in at least 128 running sums (contract: lanes=128), then one rounding to "
    words += "float32"
    assert all(words in message for message in said.values())
