"""The double backward against torch's float64 autograd, the complex step, and its own symmetry."""

import numpy as np
import pytest
import torch
from references import EPS, SECOND_ORDER, compare, draw, parts_add_up

from verify_norm.reference import groupnorm, layernorm, rmsnorm
from verify_norm.reference.double_backward import DOUBLE_BACKWARD, layernorm_double_backward, rmsnorm_double_backward

MODULES = {"layernorm": layernorm, "rmsnorm": rmsnorm, "groupnorm": groupnorm}
EVERY = pytest.mark.parametrize(("op", "shape", "affine", "options"), SECOND_ORDER)


def with_torch(op, x, weight, bias, affine, *, num_groups=1, weight_offset=0.0, normalized_shape=None):
    """Return y, computed in torch operations that are differentiable any number of times."""
    if op == "groupnorm":
        z, dims = x.reshape(x.shape[0], num_groups, -1 if x.numel() else 1), (-1,)
        weight, bias = (None if p is None else p.reshape(-1, *[1] * (x.dim() - 2)) for p in (weight, bias))
    else:
        z, dims = x, tuple(range(-len(affine), 0))
    xc = z if op == "rmsnorm" else z - z.mean(dims, keepdim=True)
    y = (xc * torch.rsqrt((xc * xc).mean(dims, keepdim=True) + EPS)).reshape(x.shape)
    y = y if weight is None else y * (weight + weight_offset)
    return y if bias is None else y + bias


@pytest.mark.parametrize("given", ["all", "weight", "x"])
@EVERY
def test_agrees_with_torch(op, shape, affine, options, given):
    dy, args, cotangents = draw(op, shape, affine)
    count = {"all": 3, "weight": 2, "x": 1}[given]
    args = [a if i < count else None for i, a in enumerate(args)]
    cotangents = [c if i < count else None for i, c in enumerate(cotangents)]
    leaves = [None if a is None else torch.from_numpy(a).requires_grad_() for a in args]
    weight, bias = leaves[1], leaves[2] if len(leaves) == 3 else None
    DY = torch.from_numpy(dy).requires_grad_()
    used = [t for t in leaves if t is not None]
    grads = torch.autograd.grad(with_torch(op, leaves[0], weight, bias, affine, **options), used, DY, create_graph=True)
    total = sum((g * torch.from_numpy(c)).sum() for g, c in zip(grads, cotangents, strict=False))
    wanted = [DY, leaves[0]] + ([] if weight is None else [weight])
    want = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    got = DOUBLE_BACKWARD[op](*cotangents, dy, *args[:2], eps=EPS, **options)
    assert (got.weight is None) == (weight is None)
    compare([g for g in got if g is not None], want)


@EVERY
def test_every_cotangent_may_be_none(op, shape, affine, options):
    dy, args, changes = draw(op, shape, affine)
    parts_add_up(lambda parts: DOUBLE_BACKWARD[op](*parts, dy, *args[:2], eps=EPS, **options), changes)


@EVERY
def test_second_derivatives_are_symmetric(op, shape, affine, options):
    """∂L/∂x is how dx changes when x moves along ddx and the weight along ddweight: the order does not matter."""
    dy, args, changes = draw(op, shape, affine)
    h = 1e-200
    probe = [a + 1j * h * t for a, t in zip(args, changes, strict=True)]
    moved = MODULES[op].backward(dy, *probe, eps=EPS, **options)
    got = DOUBLE_BACKWARD[op](*changes, dy, *args[:2], eps=EPS, **options)
    np.testing.assert_allclose(got.x, moved.dx.imag / h, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(got.weight, moved.dweight.imag / h, rtol=1e-11, atol=1e-12)


def test_double_backward_runs_on_complex_numbers():
    """Its own derivative along dy is itself, for it is linear in dy."""
    dy, args, changes = draw("layernorm", (3, 8), (8,))
    h = 1e-200
    moved = layernorm_double_backward(*changes, dy * (1 + 1j * h), *args[:2], eps=EPS)
    still = layernorm_double_backward(*changes, dy, *args[:2], eps=EPS)
    np.testing.assert_allclose(moved.x.imag / h, still.x, rtol=1e-12)
    assert not moved.dy.imag.any()  # and ∂L/∂dy does not depend on dy


def test_a_row_of_one_is_flat():
    one = np.ones((3, 1))
    got = layernorm_double_backward(one, None, None, one, 7.0 * one, None, eps=EPS)
    assert got.dy.tolist() == got.x.tolist() == [[0.0]] * 3
    assert got.weight is None


def test_a_wrong_shape_raises():
    x = np.ones((2, 4))
    with pytest.raises(ValueError, match=r"^ddx: expected the shape \(2, 4\), got \(4,\)$"):
        rmsnorm_double_backward(np.ones(4), None, x, x, None, eps=EPS)
    with pytest.raises(ValueError, match=r"^ddweight: expected the shape \(4,\), got \(2,\)$"):
        rmsnorm_double_backward(None, np.ones(2), x, x, np.ones(4), eps=EPS)
