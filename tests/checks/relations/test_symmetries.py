"""The laws: each judges what it looks at, exactly where results are exact, and says nothing where it knows nothing."""

from dataclasses import replace

import pytest
from checking import ROWS, run_of
from norms import layernorm, layernorm_bwd, rmsnorm

from verify_norm.checks.relations.symmetries import LAWS, linearity, scale, scale_dy, shift
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.search.examine import examine

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS.values())
def test_every_identity_judges_what_it_looks_at(law, dtype):
    equations = law(run_of(layernorm_bwd(), replace(ROWS, dtype=dtype, variant=1), "layernorm_bwd"))
    assert {e.output for e in equations} == {"dx", "dweight", "dbias"}
    for e in equations:
        assert (e.ratio <= 1).all()
        assert (e.tolerance < abs(e.left).max()).mean() > 0.9


def test_exact_identities_allow_nothing():
    for e in scale_dy(run_of(layernorm_bwd(), ROWS, "layernorm_bwd")):
        assert (e.tolerance == 0).all()
    (mean,) = (e for e in scale(run_of(layernorm())) if e.output == "mean")
    assert (mean.tolerance == 0).all()


def test_a_law_says_nothing_where_its_effect_is_unknown():
    assert scale(run_of(layernorm(), replace(ROWS, log2_scale=60))) is None  # squares would overflow
    half = replace(ROWS, dtype="float16", log2_scale=-15)
    assert scale(run_of(layernorm_bwd(), half, "layernorm_bwd", stats="x")) is None  # a saved mean may underflow
    assert linearity(run_of(layernorm_bwd(), replace(ROWS, dy_layout="scalar"), "layernorm_bwd")) is None
    assert shift(run_of(rmsnorm("llama"), op="rmsnorm_fwd", xhat="x")) is None


@pytest.mark.parametrize(
    ("law", "op", "how", "wrong"),
    [
        (scale, "layernorm_fwd", "hard-coded eps", {"y", "rstd"}),  # the mean has no eps
        (scale_dy, "layernorm_bwd", "clamped", {"dx", "dweight", "dbias"}),
        (linearity, "layernorm_bwd", "skips zeros", {"dx"}),
    ],
)
def test_a_broken_law_is_beyond_its_tolerance_in_what_it_breaks(law, op, how, wrong):
    make = layernorm if op == "layernorm_fwd" else layernorm_bwd
    spec = replace(ROWS, dy_log2_scale=3)
    assert {e.output for e in law(run_of(make(how), spec, op)) if e.ratio.max() > 1} == wrong
    assert {e.output for e in law(run_of(make(), spec, op)) if e.ratio.max() > 1} == set()


@pytest.mark.parametrize(("name", "shape"), [("V02_gated_bwd", (9,)), ("V05_modulated_bwd", (1, 2, 9))])
def test_a_product_of_four_may_round_a_subnormal_factor(name, shape):
    """Where w·x̂ is subnormal, its rounding times dy is more than half an ulp of the result."""
    for seed in (101, 102, 103):
        spec = CaseSpec(shape, weight_data="subnormal", seed=seed)
        examined = examine(registry.limited(ZOO[name].kernel), spec, ("identities",), "cpu")
        assert not examined.findings
        assert examined.looked == ("identities",)
