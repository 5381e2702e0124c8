"""Norms to 8 bits: values by hand, and the errors of what saturates, of the scale and of amax."""

from dataclasses import replace

import numpy as np
import pytest
from references import EPS, FLOAT32

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.reference import layernorm, quantized, rmsnorm


def test_saturation_has_no_error_and_what_is_near_it_has():
    case = make.case(CaseSpec((2, 64), scale=300.0, seed=1), OPS["layernorm_fp8_fwd"], Contract())
    y = case.expected["y"]
    beyond = np.abs(y.value) == 448.0
    assert 0 < beyond.sum() < beyond.size
    assert (y.delta[beyond] == 0).all()
    assert (y.delta[~beyond] > 0).all()


def test_values_by_hand():
    """ẑ = (−0.8, 0.8) at rstd = 0.8; the weight doubles one, the scale of 400 takes it beyond 448."""
    x, scale = np.array([[1.0, 3.0]]), np.array([400.0])
    value = quantized.layernorm_forward(x, np.array([1.0, 2.0]), None, scale, eps=0.5625)
    np.testing.assert_allclose(value.y, [[-320.0, 448.0]], rtol=1e-15)
    np.testing.assert_allclose(value.amax, [1.6], rtol=1e-15)  # of z, before the scale
    wide = quantized.layernorm_forward(x, np.array([1.0, 2.0]), None, scale, eps=0.5625, largest=57344.0)
    np.testing.assert_allclose(wide.y, [[-320.0, 640.0]], rtol=1e-15)
    rms = quantized.rmsnorm_forward(np.array([[3.0, 5.0]]), None, 2 * scale, eps=47.0)  # rstd = ⅛
    assert (rms.y.tolist(), rms.amax.tolist(), rms.rstd.tolist()) == ([[300.0, 448.0]], [0.625], [0.125])
    assert quantized.rmsnorm_forward(x[:0], None, scale, eps=EPS).amax.tolist() == [0.0]


def test_the_error_of_amax_is_that_of_the_elements_that_may_be_the_largest():
    z = np.array([1.0, -4.0, 3.0])
    assert quantized.amax_error(z, np.array([0.1, 0.5, 0.1])).tolist() == [0.5]
    assert quantized.amax_error(z, np.array([9.0, 0.0, 0.0])).tolist() == [6.0]  # the first may reach 10
    assert quantized.amax_error(z, np.array([0.0, 1.5, 0.0])).tolist() == [1.5]
    assert quantized.amax_error(z, np.array([0.0, np.nan, 0.0])).tolist() == [np.inf]


@pytest.mark.parametrize("folded", [True, False])
def test_a_scale_may_be_folded_into_the_weight_and_an_inverse_scale_is_beyond_the_bound(folded):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 64)).astype(np.float32), rng.normal(size=64).astype(np.float32)
    scale = np.float32(37.3)
    rstd = 1 / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(EPS))
    y = (x * rstd) * (w * scale) if folded else (x * rstd * w) / np.float32(np.float16(1 / scale))
    args = x.astype(float), w.astype(float), np.array([float(scale)])
    want = quantized.rmsnorm_forward(*args, eps=EPS)
    off = np.abs(y - want.y) / quantized.rmsnorm_error(*args, eps=EPS, arithmetic=FLOAT32).y
    assert (off.max() <= 1) == folded


@pytest.mark.parametrize("bias", [None, np.array([3.0, -2.0, 0.5, 0.25])])
def test_the_last_product_errs_by_its_roundings_of_what_it_is_made_of(bias):
    """y and amax have the error of the norm's own y; three roundings are of the terms of y, which may cancel."""
    rng = np.random.default_rng(0)
    a, scale = replace(FLOAT32, tiny=0.0), np.array([2.0])
    x, weight = rng.normal(size=(6, 4)), rng.normal(size=4)
    for error, norm, extra, offset in (
        (quantized.layernorm_error, layernorm, (bias,), {"weight_offset": 0.5}),
        (quantized.rmsnorm_error, rmsnorm, (), {"weight_offset": 0.5}),
    ):
        made, cut = (
            error(x, weight, *extra, scale, **offset, largest=largest, eps=EPS, arithmetic=a)
            for largest in (np.inf, 1.0)
        )
        y = norm.forward(x, weight, *extra, **offset, eps=EPS).y
        dz = norm.forward_error(x, weight, *extra, **offset, eps=EPS, arithmetic=a)
        terms = np.abs(y) + (0.0 if not extra or bias is None else 2 * np.abs(bias))
        np.testing.assert_allclose(made.y, 2 * (dz.y + 3 * a.u * terms), rtol=1e-5)
        assert ((cut.y == 0) == (np.abs(2 * y) > 1.0)).all()
        assert made.amax == quantized.amax_error(y, dz.y)
        assert all(np.array_equal(getattr(made, name), getattr(dz, name)) for name in dz._fields if name != "y")
