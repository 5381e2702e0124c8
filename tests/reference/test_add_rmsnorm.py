"""add_rmsnorm against torch's float64: y and the sum, and what comes back through both."""

import numpy as np
import pytest
import torch
from references import EPS, FLOAT32, compare, leaf

from verify_norm.reference import add_rmsnorm


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 5), (4, 1), (0, 6), (7,)])
def test_agrees_with_torch(given, shape):
    rng = np.random.default_rng(0)
    x, residual, dy, dh = rng.normal(size=(4, *shape)) * 2 + 1
    w = rng.normal(size=shape[-1]) + 0.5 if given else None
    dh = dh if given else None
    X, R, W = leaf(x), leaf(residual), leaf(w)
    H = X + R
    Y = torch.nn.functional.rms_norm(H, shape[-1:], None if W is None else W + 0.5, EPS)
    rstd = 1 / (H.square().mean(-1) + EPS).sqrt()
    value = add_rmsnorm.forward(x, residual, w, eps=EPS, weight_offset=0.5)
    compare(value, (Y, H, rstd.reshape(-1)))
    outputs, cotangents = ((Y, H), (dy, dh)) if given else ((Y,), (dy,))
    leaves = [t for t in (X, R, W) if t is not None]
    dx, dresidual, *rest = torch.autograd.grad(outputs, leaves, [torch.from_numpy(c) for c in cotangents])
    assert torch.equal(dx, dresidual)
    got = add_rmsnorm.backward(dy, dh, value.residual_out, w, eps=EPS, weight_offset=0.5)
    compare([g for g in got if g is not None], [dx, *rest])


def test_wrong_shapes_raise():
    x, common = np.ones((4, 6)), {"eps": EPS}
    for name, call in (
        ("residual", lambda: add_rmsnorm.forward(x, x[:2], None, **common)),
        ("residual", lambda: add_rmsnorm.forward_error(x, x[0], None, **common, arithmetic=FLOAT32)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: expected the shape \(4, 6\), got \(.*\)$"):
            call()
