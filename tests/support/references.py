"""What the tests of the reference share: an arithmetic, random arguments, and torch's float64 to compare with."""

import numpy as np
import torch

from verify_norm.reference.arithmetic import Arithmetic

EPS = 1e-3
FLOAT32 = Arithmetic(u=2.0**-24, tiny=2.0**-126, huge=float(np.finfo(np.float32).max))


def arrays(shape, affine, seed=0):
    """Return dy, x, weight and bias."""
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=shape) * 2 + 1, rng.normal(size=shape)
    return dy, x, rng.normal(size=affine) + 0.5, rng.normal(size=affine)


def leaf(value):
    """Return a tensor that requires a gradient; None stays None."""
    return None if value is None else torch.from_numpy(value).requires_grad_()


def pulled(y, dy, leaves):
    """Return torch's gradients of ⟨dy, y⟩; None where a leaf is None."""
    grads = iter(torch.autograd.grad(y, [t for t in leaves if t is not None], torch.from_numpy(dy)))
    return [None if t is None else next(grads) for t in leaves]


def compare(got, want):
    """Assert that arrays and tensors agree in shape and to 11 digits, and are None in the same places."""
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == tuple(b.shape)
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-11, atol=1e-11)


SECOND_ORDER = [  # op, shape of x, shape of the weight, options
    ("layernorm", (7,), (7,), {}),
    ("layernorm", (3, 8), (8,), {}),
    ("layernorm", (4, 1), (1,), {}),
    ("layernorm", (2, 3, 5), (3, 5), {"normalized_shape": (3, 5)}),
    ("layernorm", (3, 8), (8,), {"weight_offset": 1.0}),
    ("layernorm", (0, 6), (6,), {}),
    ("rmsnorm", (3, 8), (8,), {}),
    ("rmsnorm", (2, 3, 5), (3, 5), {"normalized_shape": (3, 5), "weight_offset": 1.0}),
    ("rmsnorm", (4, 1), (1,), {}),
    ("groupnorm", (2, 6), (6,), {"num_groups": 3}),
    ("groupnorm", (2, 6, 3, 5), (6,), {"num_groups": 2}),
    ("groupnorm", (2, 4, 5), (4,), {"num_groups": 4}),
    ("groupnorm", (0, 4, 3), (4,), {"num_groups": 2}),
]


def draw(op, shape, affine, seed=0):
    """Return dy, the arguments of the forward pass, and a change of each."""
    rng = np.random.default_rng(seed)
    x, dy, tx = rng.normal(size=shape) * 2 + 1, rng.normal(size=shape), rng.normal(size=shape)
    parameters = [rng.normal(size=affine) + 0.5 for _ in range(1 if op == "rmsnorm" else 2)]
    return dy, [x, *parameters], [tx, *(rng.normal(size=affine) for _ in parameters)]


def parts_add_up(call, changes):
    """Assert that a change that is None counts as 0: the results of single changes add up to that of all."""
    alone = [[c if i == k else None for i, c in enumerate(changes)] for k in range(len(changes))]
    for whole, *parts in zip(call(changes), *map(call, alone), strict=True):
        np.testing.assert_allclose(whole, sum(parts), rtol=1e-12, atol=1e-13)
    assert all(not part.any() for part in call([None] * len(changes)))
