"""GroupNorm against torch's float64, and against LayerNorm."""

import numpy as np
import pytest
import torch
from references import EPS, FLOAT32, arrays, compare, leaf, pulled

from verify_norm.reference import groupnorm, layernorm

GROUPS = [  # shape of x, number of groups
    ((2, 6), 3),
    ((2, 6), 6),
    ((2, 6), 1),
    ((3, 4, 5), 2),
    ((2, 6, 3, 5), 2),
    ((1, 3, 2, 2, 3), 1),
    ((2, 4, 1), 4),
    ((0, 4, 3), 2),
]


@pytest.mark.parametrize("given", ["both", "weight", "neither"])
@pytest.mark.parametrize(("shape", "num_groups"), GROUPS)
def test_agrees_with_torch(shape, num_groups, given):
    dy, x, w, b = arrays(shape, shape[1:2])
    w, b = (None if given == "neither" else w), (b if given == "both" else None)
    X, W, B = leaf(x), leaf(w), leaf(b)
    z = X.reshape(shape[0], num_groups, -1) if X.numel() else X.reshape(0, num_groups, 6)
    mean = z.mean(-1)
    var = ((z - mean[..., None]) ** 2).mean(-1)
    xhat = ((z - mean[..., None]) * torch.rsqrt(var + EPS)[..., None]).reshape(shape)
    affine = (1, -1, *[1] * (len(shape) - 2))
    y = (xhat if W is None else xhat * W.reshape(affine)) + (0 if B is None else B.reshape(affine))
    common = {"num_groups": num_groups, "eps": EPS}
    compare(groupnorm.forward(x, w, b, **common), (y, mean, torch.rsqrt(var + EPS)))
    compare(groupnorm.backward(dy, x, w, b, **common), pulled(y, dy, (X, W, B)))


def test_one_group_and_one_position_is_layernorm_over_channels():
    dy, x, w, b = arrays((5, 12), 12)
    common = {"eps": 1e-5, "arithmetic": FLOAT32}
    rows = layernorm.backward_error(dy, x, w, b, **common)
    groups = groupnorm.backward_error(dy, x, w, b, num_groups=1, **common)
    for a, c in zip(rows, groups, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-12)
