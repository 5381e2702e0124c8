"""A right RMSNorm, and a short run of it or of another function in this process."""

import torch

from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.search.search import search

# As sitecustomize.py on the import path of another process: its searches run the first corner cases alone.
FEW_CORNERS = """
import sys

if "verify_norm" in sys.orig_argv:  # `python -m verify_norm`, not pytest
    from verify_norm.cases import corners, covering

    covering.LAST_TRIES = 1  # nearly all are made for pairs that cannot meet
    table = corners.corners
    corners.corners = lambda *arguments, **options: table(*arguments, **options)[:20]
"""


def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)


def run(function=rmsnorm_fwd, *, examples=60, seconds=300.0, unsupported=None, **options):
    kernel = Kernel("k", "rmsnorm_fwd", run=function, unsupported=unsupported)
    return search(kernel, Settings(examples=examples, seconds=seconds, **options))
