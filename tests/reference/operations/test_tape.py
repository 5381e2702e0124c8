"""Gradients by the tape against a complex step, for each operation; a wrong rule is seen."""

import numpy as np
import pytest

from verify_norm.reference.operations import tape
from verify_norm.reference.operations.function import Own
from verify_norm.reference.operations.trial import complaint

FUNCTIONS = {
    "add": lambda x, w: x + w,
    "subtract": lambda x, w: w - x,
    "multiply": lambda x, w: w * x * x,
    "divide": lambda x, w: w / x,
    "negative": lambda x, w: -x * w,
    "absolute": lambda x, w: abs(x) * w,
    "sqrt": lambda x, w: np.sqrt(x * x + w * w),
    "exp": lambda x, w: np.exp(w * x),
    "log": lambda x, w: np.log(x * x) * w,
    "tanh": lambda x, w: np.tanh(w * x),
    "raised": lambda x, w: w * abs(x) ** 2.5,
    "maximum": lambda x, w: np.maximum(x, w),
    "minimum": lambda x, w: np.clip(x, -1.0, 1.0) * np.minimum(x, w),
    "where": lambda x, w: np.where(x > w, x * w, w - x),
    "sum": lambda x, w: x / x.sum(-1, keepdims=True) * w,
    "max": lambda x, w: x * w / np.abs(x).max(-1, keepdims=True) + x.min(-1, keepdims=True),
    "reshape": lambda x, w: np.expand_dims(np.mean(x, -1), -1) * np.reshape(w, (1, -1)) + np.squeeze(x[None], 0),
    "broadcast_to": lambda x, w: np.broadcast_to(w, np.shape(x)) * x,
    "concatenate": lambda x, w: np.concatenate([x[:, :1] * w[:1], x[:, 1:] + w[1:]], axis=-1),
    "take": lambda x, w: x * x[:, ::2].mean(-1, keepdims=True) + w[-1],
}


def said_of(function):
    with np.errstate(all="ignore"):
        return complaint(Own(function, {"x": "MN", "w": "N"}, (), ("y",)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_that_by_a_complex_step_and_a_wrong_one_is_seen(name, monkeypatch):
    assert said_of(FUNCTIONS[name]) is None
    right = tape.PULLS[name]
    monkeypatch.setitem(
        tape.PULLS, name, lambda g, out, args: [(one, p if p is None else 0.999 * p) for one, p in right(g, out, args)]
    )
    assert "by a complex step" in said_of(FUNCTIONS[name])


def test_each_rule_has_an_example():
    assert FUNCTIONS.keys() == tape.PULLS.keys()
