"""What does not hold of an operator is said in words."""

import numpy as np
import pytest

from verify_norm.reference.operations.function import Own
from verify_norm.reference.operations.trial import complaint, selects

SAID = {
    "expected 1 outputs (y), got 2": (lambda x, w: (x, w), None),
    "y: expected the shape (3, 5) for x of (3, 5), got (3,)": (lambda x, w: x.sum(-1), None),
    "y of a row depends on other rows": (lambda x, w: w * x - x.mean(), None),
    "dx along a random direction": (lambda x, w: w * x, lambda dy, x, w: (dy, (dy * x).sum(0))),
    "dw along a random direction": (lambda x, w: w * x, lambda dy, x, w: (dy * w, dy.sum(0))),
    "dw: expected the shape (5,) of w, got (3, 5)": (lambda x, w: w * x, lambda dy, x, w: (dy * w, dy * x)),
    "expected 2 gradients, of x, w, got 1": (lambda x, w: w * x, lambda dy, x, w: dy * w),
}


def made(function, gradient=None):
    return Own(function, {"x": "MN", "w": "N"}, (), ("y",), gradient=gradient)


@pytest.mark.parametrize("words", SAID)
def test_what_is_said(words):
    assert complaint(made(*SAID[words])).startswith(words)


def test_a_right_gradient_by_hand_passes():
    assert complaint(made(lambda x, w: w * x, lambda dy, x, w: (dy * w, (dy * x).sum(0)))) is None


def test_what_selects():
    assert selects(made(lambda x, w: w * x / np.max(abs(x), -1, keepdims=True)))
    assert selects(made(lambda x, w: np.where(x > 0, x, w)))
    assert not selects(made(lambda x, w: w * np.tanh(abs(x))))
