"""BatchNorm against torch's float64, the complex step, and float32 kernels of several kinds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from references import EPS, FLOAT32, compare, leaf, pulled

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import ratio
from verify_norm.core.run import Expected
from verify_norm.reference import batchnorm

M = 0.3
NONE = (None,) * 4
F32 = np.float32
SHAPES = [(4, 3), (2, 3, 5), (2, 6, 3, 5), (3, 2, 2, 2, 2), (1, 3, 7), (2, 1, 1)]


def arrays(shape, seed=0, offset=1.0):
    rng = np.random.default_rng(seed)
    x, dy, c = rng.normal(size=shape) * 2 + offset, rng.normal(size=shape), shape[1]
    return dy, x, rng.normal(size=c) + 0.5, rng.normal(size=c), rng.normal(size=c) + offset, rng.random(c) + 0.5


def forward(*args, arithmetic, **options):
    """Return the values and their errors."""
    return batchnorm.forward(*args, **options), batchnorm.forward_error(*args, arithmetic=arithmetic, **options)


def backward(*args, arithmetic, **options):
    """Return the gradients and their errors."""
    return batchnorm.backward(*args, **options), batchnorm.backward_error(*args, arithmetic=arithmetic, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", ["both", "bias", "neither"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_torch(shape, given, training):
    dy, x, w, b, mean, var = arrays(shape)
    w, b = (w if given == "both" else None), (None if given == "neither" else b)
    X, W, B, MEAN, VAR = leaf(x), leaf(w), leaf(b), torch.from_numpy(mean.copy()), torch.from_numpy(var.copy())
    y = torch.nn.functional.batch_norm(X, MEAN, VAR, W, B, training, M, EPS)
    value = batchnorm.forward(x, w, b, mean, var, training=training, momentum=M, eps=EPS)
    compare((value.y, value.running_mean, value.running_var), (y, MEAN, VAR))
    axes = (0, *range(2, len(shape)))
    centre, spread = (x.mean(axes), x.var(axes)) if training else (mean, var)
    np.testing.assert_allclose(value.mean, centre)
    np.testing.assert_allclose(value.rstd, 1 / np.sqrt(spread + EPS))
    compare(batchnorm.backward(dy, x, w, b, mean, var, training=training, eps=EPS), pulled(y, dy, (X, W, B)))


def test_training_on_one_value_a_channel_raises():
    """An error in training, as torch.nn.functional.batch_norm raises."""
    x, b = np.full((1, 2, 1), 7.0), np.array([1.0, 2.0])
    for call in (batchnorm.forward, lambda x, *a, momentum, **k: batchnorm.backward(x, x, *a, **k)):
        with pytest.raises(ValueError, match="training needs more than one value a channel"):
            call(x, None, b, None, None, training=True, momentum=M, eps=EPS)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.functional.batch_norm(torch.from_numpy(x), None, None, training=True)


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0)])
@pytest.mark.parametrize("training", [True, False])
def test_no_values_change_nothing(shape, training):
    dy, x, w, b, mean, var = arrays(shape)
    MEAN, VAR = torch.from_numpy(mean.copy()), torch.from_numpy(var.copy())
    y = torch.nn.functional.batch_norm(torch.from_numpy(x), MEAN, VAR, None, None, training, M, EPS)
    options = {"training": training, "eps": EPS, "arithmetic": FLOAT32}
    value, error = forward(x, w, b, mean, var, momentum=M, **options)
    compare((value.y, value.running_mean, value.running_var), (y, MEAN, VAR))
    np.testing.assert_array_equal([value.running_mean, value.running_var], [mean, var])
    assert (error.y.shape, error.running_mean.tolist(), error.running_var.tolist()) == (shape, [0.0] * 3, [0.0] * 3)
    for gradient in backward(dy, x, w, b, mean, var, **options):
        assert gradient.dx.shape == shape
        assert gradient.dweight.tolist() == gradient.dbias.tolist() == [0.0] * 3


@pytest.mark.parametrize("training", [True, False])
def test_complex_step(training):
    dy, *args = arrays((3, 2, 3), seed=3)
    grads = batchnorm.backward(dy, *args, training=training, eps=EPS)
    for i, grad in enumerate(grads):
        for place in np.ndindex(grad.shape):
            probe = [a.astype(complex) for a in args]
            probe[i][place] += 1e-200j
            y = batchnorm.forward(*probe, training=training, momentum=M, eps=EPS).y
            assert (dy * y.imag).sum() / 1e-200 == pytest.approx(grad[place], rel=1e-12, abs=1e-14)


def kernel(x, dy, w, b, mean, var, training, *, form="plain", unbiased=True, momentum=M):
    """BatchNorm in float32 over (B, C): centred or expanded, gradients with the weight inside or outside."""
    x, dy, w, b, mean, var = (F32(t) for t in (x, dy, w, b, mean, var))
    n, m, out = F32(len(x)), F32(momentum), {}
    if training:
        mu = x.mean(0)
        biased = ((x - mu) ** 2).mean(0)
        spread = biased * (n / (n - 1)) if unbiased else biased
        if form == "plain":
            mean, var = (1 - m) * mean + m * mu, (1 - m) * var + m * spread
        else:
            mean, var = mean + m * (mu - mean), var + m * (spread - var)
        out |= {"running_mean": mean, "running_var": var}
    else:
        mu, biased = mean, var
    r = 1 / np.sqrt(biased + F32(EPS))
    xhat = (x - mu) * r
    y = x * (w * r) + (b - mu * (w * r)) if form == "expanded" else xhat * w + b
    dweight, dbias = (dy * xhat).sum(0), dy.sum(0)
    if not training:
        dx = dy * (w * r) if form == "plain" else (dy * w) * r
    elif form == "plain":
        g = w * dy
        dx = r * (g - g.mean(0) - xhat * (g * xhat).mean(0))
    else:
        dx = (dy - dbias / n - (x - mu) * ((dy * (x - mu)).sum(0) * r * r / n)) * (r * w)
    return out | {"y": y, "mean": mu, "rstd": r, "dx": dx, "dweight": dweight, "dbias": dbias}


def worst(training, seed, offset, arithmetic=FLOAT32, rows=300, momentum=M, **how):
    dy, x, w, b, mean, var = (F32(t).astype(float) for t in arrays((rows, 5), seed, offset))
    options = {"training": training, "eps": EPS, "arithmetic": arithmetic}
    pairs = forward(x, w, b, mean, var, momentum=momentum, **options), backward(dy, x, w, b, mean, var, **options)
    want = {
        name: Expected(v, e, "float32")
        for value, error in pairs
        for name, v, e in zip(value._fields, value, error, strict=True)
    }
    got = kernel(x, dy, w, b, mean, var, training, momentum=momentum, **how)
    return {name: ratio(value.astype(float), want[name]).max() for name, value in got.items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["plain", "outside", "expanded"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_correct_kernels_are_within_the_bound(training, form, offset):
    arithmetic = replace(FLOAT32, expanded=form == "expanded")
    found = [worst(training, seed, offset, arithmetic, form=form) for seed in range(20)]
    top = {name: max(f[name] for f in found) for name in found[0]}
    assert max(top.values()) <= 1, top
    if not offset:
        assert top["y"] > 0.2, top
        assert min(v for name, v in top.items() if training or name != "mean") > 0.015, top  # sums of 300 mostly cancel


@pytest.mark.parametrize("form", ["plain", "lerp"])
def test_a_tiny_momentum_leaves_the_roundings_of_the_average(form):
    found = [worst(True, seed, 0.0, form=form, momentum=1e-3) for seed in range(20)]
    for name in ("running_mean", "running_var"):
        assert 0.1 < max(f[name] for f in found) <= 1


def test_a_biased_running_variance_is_detected():
    """It is off by a share m/n of var: much for n = 2, and enough for n = 300."""
    for rows in (2, 300):
        assert worst(True, 0, 0.0, rows=rows, unbiased=False)["running_var"] > 100


def test_training_statistics_used_for_evaluation_are_detected():
    dy, x, w, b, mean, var = arrays((30, 5))
    value, error = backward(dy, x, w, b, mean, var, training=False, eps=EPS, arithmetic=FLOAT32)
    dx = batchnorm.backward(dy, x, w, b, mean, var, training=True, eps=EPS).dx
    assert ratio(dx, Expected(value.dx, error.dx, "bfloat16")).max() > 10


def test_in_half_precision_the_last_rounding_dominates():
    dy, x, w, b, mean, var = (FORMATS["bfloat16"].round(t) for t in arrays((300, 5)))
    options = {"training": True, "eps": EPS, "arithmetic": FLOAT32}
    value, error = forward(x, w, b, mean, var, momentum=M, **options)
    got = kernel(x, dy, w, b, mean, var, True)
    for name in ("y", "running_mean", "running_var"):
        rounded = FORMATS["bfloat16"].round(got[name].astype(float))
        top = ratio(rounded, Expected(getattr(value, name), getattr(error, name), "bfloat16")).max()
        assert 0.5 < top <= 1


def factored(x, dy, mean, r):
    """dweight as r·Σ dy·(x − mean), in float32."""
    with np.errstate(all="ignore"):
        return (F32(r) * (F32(dy) * (F32(x) - F32(mean))).sum(0, dtype=F32)).astype(float)


@pytest.mark.parametrize("training", [True, False])
def test_a_sum_that_overflows_before_it_meets_rstd_is_not_judged(training):
    """Σ dy·(x − μ) of large x is infinite in float32 though dweight is not; where it is not, dweight is judged."""
    dy, x, w, b, mean, var = (F32(t).astype(float) for t in arrays((30, 2), 4))
    x, mean, var, dy = x * [1.0, 2.0**120], mean * [1.0, 2.0**120], var * [1.0, 2.0**127], 2.0**20 * np.abs(dy)
    if training:
        dy[:, 1] *= np.sign(x[:, 1] - x[:, 1].mean())
    options = {"training": training, "eps": EPS}
    value, error = backward(dy, x, w, b, mean, var, **options, arithmetic=FLOAT32)
    made = batchnorm.forward(x, w, b, mean, var, momentum=M, **options)
    got = factored(x, dy, made.mean, made.rstd)
    assert np.isfinite(value.dweight).all()
    assert np.isfinite(got).tolist() == np.isfinite(error.dweight).tolist() == [True, False]
    assert ratio(got, Expected(value.dweight, error.dweight, "float32")).max() <= 1


def test_nan_stays_in_its_channel():
    dy, x, w, b, mean, var = arrays((6, 4))
    x[2, 1] = np.nan
    options = {"training": True, "eps": EPS, "arithmetic": FLOAT32}
    _, error = forward(x, w, b, mean, var, momentum=M, **options)
    assert np.isfinite(error.running_var).tolist() == np.isfinite(error.y).all(0).tolist() == [True, False, True, True]
    dx = batchnorm.backward_error(dy, x, w, b, mean, var, **options).dx
    assert np.isfinite(dx).all(0).tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: batchnorm.forward(x[0], *NONE, training=True, momentum=M, eps=EPS), r"expected the shape \(B, C"),
        (lambda x: batchnorm.forward(x, *NONE, training=False, momentum=M, eps=EPS), "evaluation needs both, got None"),
        (lambda x: batchnorm.backward(x, x, *NONE, training=False, eps=EPS), "evaluation needs both, got None"),
    ],
)
def test_wrong_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(np.ones((4, 6)))
    assert "\n" not in str(caught.value)


def test_the_statistics_of_no_values_are_no_numbers():
    x, options = np.zeros((0, 3)), {"training": True, "eps": EPS, "momentum": M}
    for made in (
        batchnorm.forward(x, *NONE, **options),
        batchnorm.forward_error(x, *NONE, arithmetic=FLOAT32, **options),
    ):
        assert (made.y.shape, made.running_mean, made.running_var) == ((0, 3), None, None)
        assert np.isnan([made.mean, made.rstd]).tolist() == [[True] * 3] * 2
    del options["momentum"]
    made = batchnorm.backward(x, x, *NONE, **options)
    assert (made.dx.shape, made.dweight, made.dbias) == ((0, 3), None, None)
