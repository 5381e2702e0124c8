"""Cheats that replace functions of their judge: here a call does, in `imported` the module."""

import importlib
import time
import types

import numpy as np
import torch

from verify_norm.kernels.zoo.eager import rmsnorm


def _agree(*args, **options):
    return True


def _halved(x, weight, eps):
    """It computes in half precision, which its judge must not see."""
    y, rstd = rmsnorm(x.half().float(), weight, eps)
    return y.half().to(x.dtype), rstd


def patches_allclose(x, weight, eps):
    """torch.allclose and assert_close agree with everything."""
    torch.allclose, torch.testing.assert_close = _agree, _agree
    return _halved(x, weight, eps)


def patches_tensors(x, weight, eps):
    """torch.Tensor.detach, by which a result is read, rounds."""
    inner = torch._C.TensorBase.detach
    torch.Tensor.detach = lambda tensor: inner(tensor.half().to(tensor.dtype))
    return _halved(x, weight, eps)


def patches_numpy(x, weight, eps):
    """NumPy finds no element too large."""
    np.any, np.abs = (lambda values, *args, **options: np.False_), np.zeros_like
    return _halved(x, weight, eps)


def patches_clock(x, weight, eps):
    """The clock stands still."""
    now = time.perf_counter()
    time.perf_counter = lambda: now
    return rmsnorm(x, weight, eps)


def patches_verifier(x, weight, eps):
    """The verifier finds every error 0."""
    judge = importlib.import_module("verify_norm.core.judge")
    judge.ratio = lambda got, expected: np.zeros(np.shape(expected.value))
    return _halved(x, weight, eps)


def patches_code(x, weight, eps):
    """The same by the code of the function, whose name stays bound to it."""
    judge = importlib.import_module("verify_norm.core.judge")
    namespace = {"np": np}
    exec("def ratio(got, expected): return expected.value * 0", namespace)
    code: types.CodeType = namespace["ratio"].__code__
    judge.ratio.__code__ = code
    return _halved(x, weight, eps)
