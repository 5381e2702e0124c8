"""A cheat whose module replaces functions of its judge as it is imported."""

from typing import Any

import torch

from verify_norm.kernels.zoo.eager import rmsnorm

agree: Any = lambda *args, **options: True  # noqa: E731
torch.testing.assert_close = torch.allclose = torch.equal = agree


def patches_at_import(x, weight, eps):
    """The import of this module has replaced what compares tensors."""
    return rmsnorm(x, weight, eps)
