"""RMSNorm against torch's float64."""

import pytest
import torch
from references import EPS, arrays, compare, leaf, pulled

from verify_norm.reference import rmsnorm

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
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("shape", "ndim"), ROWS)
def test_agrees_with_torch(shape, ndim, weighted, offset):
    tail = shape[-ndim:]
    dy, x, w, _ = arrays(shape, tail)
    w = w if weighted else None
    X, W = leaf(x), leaf(w)
    y = torch.nn.functional.rms_norm(X, tail, None if W is None else W + offset, EPS)
    rstd = torch.rsqrt((X * X).mean(tuple(range(-ndim, 0))) + EPS).reshape(-1)
    common = {"eps": EPS, "weight_offset": offset, "normalized_shape": tail}
    compare(rmsnorm.forward(x, w, **common), (y, rstd))
    compare(rmsnorm.backward(dy, x, w, **common), pulled(y, dy, (X, W)))
