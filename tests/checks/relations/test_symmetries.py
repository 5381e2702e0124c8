"""The laws: each judges what it looks at, exactly where results are exact, and says nothing where it knows nothing."""

from dataclasses import replace

import pytest
from checking import ROWS, run_of
from norms import layernorm, layernorm_bwd, rmsnorm

from verify_norm.checks.relations.symmetries import LAWS, linearity, scale, scale_dy, shift

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
    assert linearity(run_of(layernorm_bwd(), replace(ROWS, dy_layout="scalar"), "layernorm_bwd")) is None
    assert shift(run_of(rmsnorm("llama"), op="rmsnorm_fwd", xhat="x")) is None


@pytest.mark.parametrize(
    ("law", "how", "output"),
    [(scale, "hard-coded eps", "dx"), (scale_dy, "clamped", "dx"), (linearity, "clamped", "dbias")],
)
def test_a_law_that_is_broken_is_beyond_its_tolerance(law, how, output):
    by_output = {e.output: e for e in law(run_of(layernorm_bwd(how), op="layernorm_bwd"))}
    right = {e.output: e for e in law(run_of(layernorm_bwd(), op="layernorm_bwd"))}
    assert right[output].ratio.max() <= 1
    assert (by_output[output].ratio.max() > 1) == (output == "dx")  # dbias has no dy that is clamped
