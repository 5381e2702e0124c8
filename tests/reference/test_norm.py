"""The gradients that all operators share: by the complex step and by central differences."""

import numpy as np
import pytest
from references import EPS, arrays

from verify_norm.reference import groupnorm, layernorm, rmsnorm

CALLS = pytest.mark.parametrize(
    ("module", "shape", "affine", "options"),
    [
        (layernorm, (3, 8), (8,), {"eps": EPS}),
        (layernorm, (2, 3, 4), (3, 4), {"eps": EPS, "normalized_shape": (3, 4)}),
        (layernorm, (3, 8), (8,), {"eps": EPS, "weight_offset": 1.0}),
        (rmsnorm, (3, 8), (8,), {"eps": EPS, "weight_offset": 1.0}),
        (groupnorm, (2, 6, 3), (6,), {"eps": EPS, "num_groups": 3}),
    ],
)


def inputs(module, shape, affine):
    dy, x, w, b = arrays(shape, affine, seed=3)
    return dy, (x, w) if module is rmsnorm else (x, w, b)


@CALLS
def test_complex_step(module, shape, affine, options):
    """Every derivative ∂⟨dy, y⟩ = Im⟨dy, y(x + ih)⟩/h, to the last digits: nothing cancels."""
    dy, args = inputs(module, shape, affine)
    grads = module.backward(dy, *args, **options)
    h = 1e-200
    for i, grad in enumerate(grads):
        for place in np.ndindex(grad.shape):
            probe = [a.astype(complex) for a in args]
            probe[i][place] += 1j * h
            step = (dy * module.forward(*probe, **options).y.imag).sum() / h
            assert step == pytest.approx(grad[place], rel=1e-12, abs=1e-14)


@CALLS
def test_backward_runs_on_complex_numbers(module, shape, affine, options):
    """Its own derivative is symmetric in x: the Hessian of ⟨dy, y⟩, by the complex step."""
    dy, args = inputs(module, shape, affine)
    h, n = 1e-200, args[0].size
    hessian = np.empty((n, n))
    for k, place in enumerate(np.ndindex(shape)):
        probe = [a.astype(complex) for a in args]
        probe[0][place] += 1j * h
        hessian[k] = module.backward(dy.astype(complex), *probe, **options).dx.imag.ravel() / h
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-11, atol=1e-13)


@CALLS
def test_central_differences(module, shape, affine, options):
    """Independent of complex arithmetic; h = ∛u balances truncation h² against round-off u/h, each about u^⅔."""
    dy, args = inputs(module, shape, affine)
    grads = module.backward(dy, *args, **options)
    h = np.finfo(float).eps ** (1 / 3)
    rng = np.random.default_rng(4)
    for i, grad in enumerate(grads):
        direction = rng.normal(size=grad.shape)
        ends = [[*args[:i], args[i] + s * h * direction, *args[i + 1 :]] for s in (1, -1)]
        up, down = ((dy * module.forward(*end, **options).y).sum() for end in ends)
        assert (up - down) / (2 * h) == pytest.approx((grad * direction).sum(), rel=1e-8, abs=1e-8)
