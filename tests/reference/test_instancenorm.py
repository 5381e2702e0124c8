"""InstanceNorm against torch's float64, and channels of one value."""

import numpy as np
import pytest
import torch
from references import EPS, arrays, compare, leaf, pulled

from verify_norm.reference import instancenorm


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 6, 3, 5), (1, 2, 2, 2, 2)])
def test_agrees_with_torch(shape):
    dy, x, w, b = arrays(shape, shape[1])
    X, W, B = leaf(x), leaf(w), leaf(b)
    y = torch.nn.functional.instance_norm(X, None, None, W, B, True, 0.1, EPS)
    value = instancenorm.forward(x, w, b, eps=EPS)
    compare((value.y,), (y,))
    assert value.mean.shape == value.rstd.shape == shape[:2]
    compare(instancenorm.backward(dy, x, w, b, eps=EPS), pulled(y, dy, (X, W, B)))


def test_a_channel_of_one_value_is_flat():
    x, b = np.full((1, 2, 1), 7.0), np.array([1.0, 2.0])
    assert instancenorm.forward(x, None, b, eps=EPS).y.tolist() == [[[1.0], [2.0]]]
    assert instancenorm.backward(x, x, None, b, eps=EPS).dx.tolist() == [[[0.0], [0.0]]]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((6,), r"expected the shape \(B, C"), ((4, 0), "0 channels"), ((2, 3, 0), "at least one element a group")],
)
def test_wrong_shapes_raise(shape, message):
    with pytest.raises(ValueError, match=message):
        instancenorm.forward(np.ones(shape), None, None, eps=EPS)
