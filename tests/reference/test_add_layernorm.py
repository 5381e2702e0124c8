"""add_layernorm against torch's float64: y and the sum, and what comes back through both."""

import numpy as np
import pytest
import torch
from references import EPS, compare, leaf

from verify_norm.reference import add_layernorm


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 5), (4, 1), (0, 6), (7,)])
def test_agrees_with_torch(given, shape):
    rng = np.random.default_rng(0)
    x, residual, dy, dh = rng.normal(size=(4, *shape)) * 2 + 1
    w, b = rng.normal(size=(2, shape[-1])) + 0.5 if given else (None, None)
    dh = dh if given else None
    X, R, W, B = leaf(x), leaf(residual), leaf(w), leaf(b)
    H = X + R
    Y = torch.nn.functional.layer_norm(H, shape[-1:], None if W is None else W + 0.5, B, EPS)
    mean = H.mean(-1)
    rstd = 1 / ((H - mean[..., None]).square().mean(-1) + EPS).sqrt()
    value = add_layernorm.forward(x, residual, w, b, eps=EPS, weight_offset=0.5)
    compare(value, (Y, H, mean.reshape(-1), rstd.reshape(-1)))
    outputs, cotangents = ((Y, H), (dy, dh)) if given else ((Y,), (dy,))
    leaves = [t for t in (X, R, W, B) if t is not None]
    dx, dresidual, *rest = torch.autograd.grad(outputs, leaves, [torch.from_numpy(c) for c in cotangents])
    assert torch.equal(dx, dresidual)
    got = add_layernorm.backward(dy, dh, value.residual_out, w, b, eps=EPS, weight_offset=0.5)
    compare([g for g in got if g is not None], [dx, *rest])


def test_wrong_shapes_raise():
    x, common = np.ones((4, 6)), {"eps": EPS}
    for name, call in (
        ("residual", lambda: add_layernorm.forward(x, x[0], None, None, **common)),
        ("dresidual_out", lambda: add_layernorm.backward(x, x[0], x, None, None, **common)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: expected the shape \(4, 6\), got \(.*\)$"):
            call()
