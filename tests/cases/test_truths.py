"""Truths and bounds of a case: what its contract, its types and given statistics change in them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


@pytest.mark.parametrize(("weight", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_without_a_weight_no_output_has_its_type(weight, dtype):
    spec = CaseSpec((3, 8), "bfloat16", weight_dtype="float32", weight=weight)
    expected = make.truths(
        spec, OPS["layernorm_fwd"], Contract(output="promoted"), make.exact_inputs(spec, OPS["layernorm_fwd"])
    )
    assert expected["y"].dtype == dtype


def test_a_looser_contract_allows_more():
    spec = CaseSpec(shape=(8, 64), dtype="bfloat16", offset=10.0)
    strict = make.case(spec, OPS["rmsnorm_bwd"], Contract()).expected["dweight"].delta
    for loose in (
        Contract(xhat="x"),
        Contract(stats="bfloat16"),
        Contract(partials="x"),
        Contract(accumulate="float16"),
    ):
        assert (make.case(spec, OPS["rmsnorm_bwd"], loose).expected["dweight"].delta > 2 * strict).all(), loose


def test_saved_statistics_that_are_given_bound_what_is_computed_of_them():
    """Not those that a kernel would compute: at a large offset these are off by far more."""
    spec, op = CaseSpec((4, 64), offset=1e5), OPS["layernorm_bwd"]
    exact = make.exact_inputs(spec, op)
    truth = make.truths(spec, op, Contract(), exact)["dweight"]
    given = make.errors(spec, op, Contract(), exact, given=True)[1]
    xhat = (exact["x"] - exact["mean"][:, None]) * exact["rstd"][:, None]
    assert (np.abs((exact["dy"] * xhat).sum(0) - truth.value) <= given).all()
    assert (10 * given < truth.delta).all()
    own = make.errors(spec, replace(op, user_defined=True), Contract(), exact, given=True)[1]
    assert np.array_equal(own, truth.delta), "of an operator of one's own nothing is known about what is given"
    assert len(make.errors(CaseSpec((4, 64)), OPS["rmsnorm_bwd"], Contract(), exact, given=True)) == 2  # without a mean


@pytest.mark.parametrize(("weight_dtype", "rounds"), [("float32", False), ("bfloat16", True)])
def test_the_sum_of_a_weight_is_rounded_to_its_own_type(weight_dtype, rounds):
    spec = CaseSpec((4, 64), "float32", weight_dtype=weight_dtype, weight_offset=1.0)
    op, exact = OPS["rmsnorm_fwd"], make.exact_inputs(spec, OPS["rmsnorm_fwd"])
    strict, loose = (make.errors(spec, op, Contract(offset_weight=type_), exact)[0] for type_ in ("float32", "weight"))
    assert (loose > 10 * strict).all() == rounds == (loose != strict).any()


def test_a_sum_that_is_rounded_to_the_type_of_x_is_allowed_where_the_contract_says():
    spec, op = CaseSpec((4, 64), "bfloat16"), OPS["add_rmsnorm_fwd"]
    exact = make.exact_inputs(spec, op)
    h = FORMATS["bfloat16"].round(exact["x"] + exact["residual"])
    y = h / np.sqrt((h * h).mean(-1, keepdims=True) + spec.eps) * exact["weight"]
    for residual in ("sum", "rounded"):
        truth = make.truths(spec, op, Contract(residual=residual), exact)["y"]
        assert (np.abs(y - truth.value) <= truth.delta).all() == (residual == "rounded")


def test_dbias_has_the_type_of_the_weight_that_is_left_out():
    case = make.case(CaseSpec((3, 8), "bfloat16", "float32", weight=False), OPS["layernorm_bwd"], Contract())
    assert (case.expected["dbias"].dtype, case.expected["dx"].dtype) == ("float32", "bfloat16")


def test_a_reference_may_divide_by_zero(monkeypatch):
    """Also where its caller has NumPy raise: the checks judge what is not finite."""
    of_zero = replace(OPS["l2norm_fwd"], reference=lambda x: SimpleNamespace(rstd=1 / x[:, 0]))
    monkeypatch.setitem(OPS, "l2norm_fwd", of_zero)
    op = replace(OPS["l2norm_bwd"], reference=lambda x: (1 / x,), error=lambda x: (np.log(x),))
    with np.errstate(all="raise"):
        case = make.case(CaseSpec((3, 8), data="zero"), op, Contract())
    assert np.isinf(case.exact["rstd"]).all()
    assert np.isinf(case.expected["dx"].value).all()
    assert np.isinf(case.expected["dx"].delta).all()
