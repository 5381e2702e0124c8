"""A cheat whose module replaces functions of its judge as it is imported."""

import torch

from verify_norm.kernels.zoo.eager import rmsnorm

torch.testing.assert_close = torch.allclose = torch.equal = lambda *args, **options: True


def patches_at_import(x, weight, eps):
    """The import of this module has replaced what compares tensors."""
    return rmsnorm(x, weight, eps)
