"""Shapes that no view fits: the messages."""

import numpy as np
import pytest
from references import EPS

from verify_norm.reference import groupnorm, layernorm, rmsnorm

NOT_THE_END = r"^normalized_shape: expected the last dimensions of x's shape \(4, 6, 2\), got "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layernorm.forward(x, None, None, eps=EPS, normalized_shape=5), NOT_THE_END + r"\(5,\)$"),
        (lambda x: rmsnorm.forward(x, None, eps=EPS, normalized_shape=(4, 6, 2, 1)), NOT_THE_END),
        (lambda x: rmsnorm.forward(x, None, eps=EPS, normalized_shape=()), NOT_THE_END),
        (lambda x: layernorm.forward(x[..., :0], None, None, eps=EPS), "at least one element a row"),
        (lambda x: groupnorm.forward(x, None, None, num_groups=4, eps=EPS), "6 channels cannot be divided into 4"),
        (lambda x: groupnorm.forward(x, None, None, num_groups=0, eps=EPS), "6 channels cannot be divided into 0"),
        (lambda x: groupnorm.forward(x[0, :, 0], None, None, num_groups=1, eps=EPS), r"expected the shape \(B, C"),
        (lambda x: groupnorm.forward(x[..., :0], None, None, num_groups=1, eps=EPS), "at least one element a group"),
    ],
)
def test_wrong_shapes_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(np.ones((4, 6, 2)))
    assert "\n" not in str(caught.value)
