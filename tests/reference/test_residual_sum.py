"""What add_layernorm and add_rmsnorm share: the complex step, and emulated kernels of either contract."""

import math
from dataclasses import replace

import numpy as np
import pytest
from references import EPS, FLOAT32

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import ratio
from verify_norm.core.run import Expected
from verify_norm.reference import add_layernorm, add_rmsnorm, layernorm, residual_sum, rmsnorm
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages.stage import Approximate

F32 = np.float32
MODULES = {"layernorm": add_layernorm, "rmsnorm": add_rmsnorm}
KINDS = list(MODULES)


def arrays(shape, seed=0, offset=1.0):
    rng = np.random.default_rng(seed)
    x, residual = rng.normal(size=shape) * 2 + offset, rng.normal(size=shape) * 3 - 0.4
    return x, residual, rng.normal(size=shape[-1:]) + 0.5, rng.normal(size=shape[-1:]), rng.normal(size=(2, *shape))


def calls(kind, w, b):
    """Return the operator's four functions with the parameters filled in."""
    parameters = (w, b) if kind == "layernorm" else (w,)
    options = {"eps": EPS, "weight_offset": 0.5}
    return tuple(
        lambda *data, name=name, **more: getattr(MODULES[kind], name)(*data, *parameters, **options, **more)
        for name in ("forward", "backward", "forward_error", "backward_error")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_complex_step(kind):
    """∂(⟨dy, y⟩ + ⟨dh, h⟩) = Im(…)/h in every direction of x and of residual, to the last digits."""
    x, residual, w, b, (dy, dh) = arrays((3, 6), seed=2)
    forward, backward, *_ = calls(kind, w, b)
    dx = backward(dy, dh, x + residual).dx
    for which in (0, 1):
        for place in np.ndindex(x.shape):
            probe = [x.astype(complex), residual.astype(complex)]
            probe[which][place] += 1e-200j
            out = forward(*probe)
            step = ((dy * out.y).sum() + (dh * out.residual_out).sum()).imag / 1e-200
            assert step == pytest.approx(dx[place], rel=1e-12, abs=1e-13)


def to(dtype, value):
    return FORMATS[dtype].round(value)


def emulated(kind, x, residual, w, b, dtype, rounded):
    """A kernel in float32 that rounds the sum to x's type before the statistics, or does not."""
    h = F32(x) + F32(residual)
    out = to(dtype, h.astype(float))
    h = F32(out) if rounded else h
    mean = h.mean(-1, keepdims=True) if kind == "layernorm" else F32(0)
    xc = h - mean
    rstd = F32(1) / np.sqrt((xc * xc).mean(-1, keepdims=True) + F32(EPS))
    y = xc * rstd * (F32(w) + F32(0.5))
    y = y + F32(b) if kind == "layernorm" else y
    statistics = {"rstd": rstd, "mean": np.broadcast_to(mean, rstd.shape)}
    return {"y": to(dtype, y.astype(float)), "residual_out": out} | {
        name: value[..., 0].astype(float) for name, value in statistics.items()
    }


def worst(kind, dtype, rounded, declared, seed, offset=0.0):
    x, residual, w, b, _ = arrays((4, 512), seed, offset)
    x, residual, w, b = (to(dtype, t) for t in (x, residual, w, b))
    forward, _, forward_error, _ = calls(kind, w, b)
    value = forward(x, residual)
    error = forward_error(x, residual, arithmetic=FLOAT32, rounded=FORMATS[dtype].round if declared else None)
    got = emulated(kind, x, residual, w, b, dtype, rounded)
    types = {"y": dtype, "residual_out": dtype}
    return {
        name: ratio(got[name], Expected(v, e, types.get(name, "float32"))).max()
        for name, v, e in zip(value._fields, value, error, strict=True)
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
def test_each_contract_holds_for_its_kernel(kind, dtype, offset):
    found = [worst(kind, dtype, declared, declared, seed, offset) for seed in range(15) for declared in (False, True)]
    assert max(max(f.values()) for f in found) <= 1
    assert max(f["y"] for f in found) > (0.01 if offset else 0.1)
    assert max(f["residual_out"] for f in found) > 0.4
    assert all(worst(kind, dtype, False, True, seed, offset)["y"] <= 1 for seed in range(5))  # keeping more is right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_the_sum_first_breaks_the_strict_contract(kind, dtype):
    found = worst(kind, dtype, True, False, seed=0)
    assert found["y"] > 1
    assert found["rstd"] > 10
    assert found["residual_out"] <= 1


def test_the_rounded_sum_has_one_right_value():
    """Through float32 or at once, for 16-bit types: 24 >= 2·11 + 2. Operands far apart are the hard ones."""
    rng = np.random.default_rng(0)
    for dtype in ("float16", "bfloat16"):
        form = FORMATS[dtype]
        x, residual = (
            form.round(np.ldexp(1 + rng.random(200_000), rng.integers(-14, 15, 200_000)) * rng.choice([-1, 1], 200_000))
            for _ in range(2)
        )
        h = x + residual
        np.testing.assert_array_equal(form.round(residual_sum.nearest(h, FLOAT32)), form.round(h))
        np.testing.assert_array_equal(residual_sum.nearest(h, FLOAT32), F32(h).astype(float))


def test_ties_go_to_even():
    """A sum that float32 holds is off by nothing, so the other side of a tie of x's type is wrong."""
    for dtype, tie in (("bfloat16", 257.0), ("float16", 2049.0), ("float32", 2.0**24 + 1)):
        x, residual = np.array([[tie - 1, 1.0]]), np.array([[1.0, 2.0**-130]])
        delta = residual_sum.sum_error(x, residual, FLOAT32)
        assert (delta > 0).tolist() == [[False, True]]  # a subnormal residual may be flushed
        expected = Expected(x + residual, delta, dtype)
        assert ratio(np.array([[tie - 1, 1.0]]), expected).max() <= 1
        assert ratio(np.array([[tie + 1, 1.0]]), expected).max() > 1
    narrow = replace(FLOAT32, u=2.0**-8)  # rounds to 8 bits, then to 11
    assert residual_sum.sum_error(np.array([256.0]), np.array([1.0]), narrow) == 1


def test_nearest_is_float32s():
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate([np.ldexp(rng.normal(size=5000), rng.integers(-160, 132, 5000)), [0.0, np.inf, -np.inf]])
        np.testing.assert_array_equal(residual_sum.nearest(x, FLOAT32), F32(x).astype(float))
    assert np.isnan(residual_sum.nearest(np.array([np.nan]), FLOAT32)).all()


def orders(terms, d):
    """dx by three orders of the last additions, in float32: joined last, into the last term, first."""
    head, tail = terms[0], terms[1:]
    last = head
    for t in tail:
        last = last + t
    yield last + d
    yield head + (sum(tail[1:], tail[0]) + d)
    first = d + head
    for t in tail:
        first = first + t
    yield first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_dresidual_may_be_added_in_any_order(kind, scale):
    top = 0.0
    for seed in range(30):
        x, _, w, b, (dy, dh) = (F32(t).astype(float) for t in arrays((4, 24), seed))
        dh = F32(dh * scale).astype(float)
        _, backward, _, backward_error = calls(kind, w, b)
        value, error = backward(dy, dh, x), backward_error(dy, dh, x, arithmetic=FLOAT32)
        module = layernorm if kind == "layernorm" else rmsnorm
        fixed = module.forward(x, *((None, None) if kind == "layernorm" else (None,)), eps=EPS)
        mean = F32(fixed.mean)[:, None] if kind == "layernorm" else F32(0)
        r = F32(fixed.rstd)[:, None]
        g, xhat = F32(dy) * (F32(w) + F32(0.5)), (F32(x) - mean) * r
        terms = [r * g, -(r * (xhat * (g * xhat).mean(-1, keepdims=True)))]
        if kind == "layernorm":
            terms.append(np.broadcast_to(-(r * g.mean(-1, keepdims=True)), g.shape))
        for dx in orders(terms, F32(dh)):
            top = max(top, ratio(dx.astype(float), Expected(value.dx, error.dx, "float32")).max())
    assert 0.08 < top <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_adding_to_dy_instead_is_detected(kind):
    x, residual, w, b, (dy, dh) = arrays((4, 24))
    _, backward, _, backward_error = calls(kind, w, b)
    h = x + residual
    value, error = backward(dy, dh, h), backward_error(dy, dh, h, arithmetic=FLOAT32)
    early = backward(dy + dh, None, h)
    assert ratio(early.dx, Expected(value.dx, error.dx, "bfloat16")).max() > 100


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_row_and_overflow_is_not_judged(kind):
    x, residual, w, b, (dy, dh) = arrays((4, 8))
    x[0, 3], residual[1, 2], x[2, 1], residual[2, 1] = np.nan, np.inf, 3e38, 3e38
    forward, backward, forward_error, backward_error = calls(kind, w, b)
    value, error = forward(x, residual), forward_error(x, residual, arithmetic=FLOAT32)
    assert (np.isfinite(value.y) & np.isfinite(error.y)).all(axis=1).tolist() == [False, False, False, True]
    assert not np.isfinite(error.residual_out[2, 1])
    gradient = backward(dy, dh, value.residual_out)
    assert np.isfinite(gradient.dx).all(axis=1).tolist()[0::3] == [False, True]
    limit = backward_error(dy, dh, value.residual_out, arithmetic=FLOAT32).dx
    assert np.isfinite(limit).all(axis=1).tolist()[0::3] == [False, True]
    assert math.isnan(float(gradient.dx[0, 0]))


def test_the_error_of_a_sum_after_a_dropout_is_the_summands_a_rounding_and_three_underflows():
    coarse = Arithmetic(u=2.0**-10, tiny=2.0**-6, huge=1e30)
    x = Approximate(np.array([1.0]), np.array([0.5]), np.array([1.0]))
    expected = 0.5 + coarse.u * (2.0 + 0.5) + 3 * coarse.tiny
    assert residual_sum.dropped_sum_error(x, np.array([-3.0]), coarse).tolist() == [expected]
    for huge, finite in ((4.5, False), (4.625, True)):  # |x| + δx + |residual|, which a kernel may hold
        bound = residual_sum.dropped_sum_error(x, np.array([-3.0]), replace(coarse, huge=huge))
        assert np.isfinite(bound).all() == finite


@pytest.mark.parametrize(("h", "apart"), [(1.25 + 2.0**-12, 0.5), (1.25 - 2.0**-12, 0.5), (1.3, 2.0**-10)])
def test_what_is_kept_of_a_sum_may_be_the_rounding_of_either_end(h, apart):
    """Of halves, 1.25 is between two."""
    single = Arithmetic(u=2.0**-24, tiny=2.0**-126, huge=3.4028235e38)
    off = residual_sum.kept_off(np.array([h]), np.array([2.0**-10]), single, lambda v: np.rint(2 * v) / 2)
    assert off.tolist() == [apart]
