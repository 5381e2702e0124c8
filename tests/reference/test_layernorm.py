"""LayerNorm against torch's float64, the other form of dx, and degenerate rows."""

import numpy as np
import pytest
import torch
from references import EPS, arrays, compare, leaf, pulled

from verify_norm.reference import layernorm

ROWS = [  # shape of x, how many of its last dimensions are one row
    ((7,), 1),
    ((1,), 1),
    ((3, 8), 1),
    ((1, 5), 1),
    ((4, 1), 1),
    ((2, 3, 5), 1),
    ((2, 3, 5), 2),
    ((2, 3, 5), 3),
    ((2, 1, 3, 2, 4), 2),
    ((0, 6), 1),
    ((2, 0, 6), 1),
]


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("given", ["both", "weight", "neither"])
@pytest.mark.parametrize(("shape", "ndim"), ROWS)
def test_agrees_with_torch(shape, ndim, given, offset):
    tail = shape[-ndim:]
    dy, x, w, b = arrays(shape, tail)
    w, b = (None if given == "neither" else w), (b if given == "both" else None)
    X, W, B = leaf(x), leaf(w), leaf(b)
    y, mean, rstd = torch.native_layer_norm(X, tail, None if W is None else W + offset, B, EPS)
    common = {"eps": EPS, "weight_offset": offset, "normalized_shape": tail}
    compare(layernorm.forward(x, w, b, **common), (y, mean.reshape(-1), rstd.reshape(-1)))
    compare(layernorm.backward(dy, x, w, b, **common), pulled(y, dy, (X, W, B)))


def test_the_two_forms_of_dx_agree():
    dy, x, w, b = arrays((5, 24), (24,))
    dx = layernorm.backward(dy, x, w, b, eps=EPS).dx
    _, mean, rstd = layernorm.forward(x, w, b, eps=EPS)
    xhat, g, N = (x - mean[:, None]) * rstd[:, None], w * dy, 24
    total = g.sum(1, keepdims=True), (g * xhat).sum(1, keepdims=True)
    np.testing.assert_allclose(dx, rstd[:, None] / N * (N * g - total[0] - xhat * total[1]), rtol=1e-12, atol=1e-14)


def test_a_row_of_one_and_a_constant_row_are_flat():
    one = layernorm.backward(np.ones((3, 1)), np.full((3, 1), 7.0), np.full(1, 2.0), np.ones(1), eps=EPS)
    assert one.dx.tolist() == [[0.0]] * 3
    assert one.dweight.tolist() == [0.0]
    assert one.dbias.tolist() == [3.0]
    assert layernorm.forward(np.full((1, 4), 7.0), None, np.arange(4.0), eps=EPS).y.tolist() == [[0.0, 1.0, 2.0, 3.0]]


def test_no_rows_give_gradients_of_zero():
    dx, dweight, dbias = layernorm.backward(np.empty((0, 4)), np.empty((0, 4)), np.ones(4), np.ones(4), eps=EPS)
    assert dx.shape == (0, 4)
    assert dweight.tolist() == dbias.tolist() == [0.0] * 4


def test_degenerate_values_do_not_warn():
    zero = layernorm.forward(np.zeros((1, 4)), None, None, eps=0.0)
    assert np.isnan(zero.y).all()
    assert np.isinf(zero.rstd).all()
    x = np.array([[1.0, np.nan], [1.0, np.inf], [1.0, 2.0]])
    assert np.isfinite(layernorm.backward(x, x, None, None, eps=EPS).dx).all(axis=1).tolist() == [False, False, True]
