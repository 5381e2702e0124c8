"""GroupNorm with an activation against torch's float64."""

import numpy as np
import pytest
import torch
from references import EPS, compare, leaf, pulled

from verify_norm.reference import activated

CASES = [((2, 6, 5), 3, "both"), ((3, 4), 2, "weight"), ((2, 3, 2, 4), 1, "bias"), ((1, 4, 3), 4, "neither")]


@pytest.mark.parametrize("name", ["silu", "gelu"])
@pytest.mark.parametrize(("shape", "groups", "given"), CASES)
def test_agrees_with_torch(name, shape, groups, given):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=shape) * 2 + 1, rng.normal(size=shape)
    w = rng.normal(size=shape[1]) if given in ("both", "weight") else None
    b = rng.normal(size=shape[1]) if given in ("both", "bias") else None
    X, W, B = leaf(x), leaf(w), leaf(b)
    ones = torch.ones(shape[1], dtype=torch.float64) if W is None else W  # torch has no bias without a weight
    y = getattr(torch.nn.functional, name)(torch.nn.functional.group_norm(X, groups, ones, B, EPS))
    common = {"num_groups": groups, "eps": EPS}
    compare([getattr(activated, f"{name}_forward")(x, w, b, **common).y], [y])
    compare(getattr(activated, f"{name}_backward")(dy, x, w, b, **common), pulled(y, dy, (X, W, B)))
