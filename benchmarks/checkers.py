"""Gradient checkers with one signature: torch's gradcheck (slow and fast), JAX's check in torch, and ours."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from verify_norm.gradcheck.gradcheck import gradcheck

Shapes = Mapping[str, tuple[int, ...]]
Checker = Callable[[Any, Shapes, int], bool]  # (function, shapes of its arguments, seed): is it not accused?

DTYPES = ("float64", "float32", "bfloat16")
JAX = {"float64": 1e-5, "float32": 2e-3, "bfloat16": 1e-1}  # JAX's default_gradient_tolerance; eps is 1e-4
SLOW_ELEMENTS = 4096  # the most for gradcheck's slow mode; its Jacobians grow as elements²: 32 GiB at (64, 1024)


def inputs(shapes: Shapes, seed: int, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(seed)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes.values()]


def of_torch(fast: bool) -> Checker:
    """Return torch's check in float64. A failing fast mode does not rerun in slow mode: hours at (64, 1024)."""

    def check(function: Any, shapes: Shapes, seed: int) -> bool:
        sys.modules["torch.autograd.gradcheck"]._run_slow_mode_and_get_error = lambda *a, **k: ""  # type: ignore
        arguments = inputs(shapes, seed, torch.float64)
        torch.manual_seed(seed)
        return bool(torch.autograd.gradcheck(function, arguments, fast_mode=fast, raise_exception=False))

    return check


def of_jax(dtype: str) -> Checker:
    """Return JAX's check_vjp, in torch: one random direction and cotangent, eps 1e-4."""

    def check(function: Any, shapes: Shapes, seed: int) -> bool:
        a = inputs(shapes, seed, getattr(torch, dtype))
        v = [torch.randn_like(t) for t in a]
        y = function(*a)
        dy = torch.randn_like(y)
        found = sum((g * t).sum() for g, t in zip(torch.autograd.grad(y, a, dy), v, strict=True))
        with torch.no_grad():
            ends = [function(*(t + sign * 1e-4 * d for t, d in zip(a, v, strict=True))) for sign in (1, -1)]
            want = ((ends[0] - ends[1]) * (0.5 / 1e-4) * dy).sum()
        return bool((found - want).abs() <= JAX[dtype] * (1 + want.abs()))

    return check


def of_ours(dtype: str) -> Checker:
    def check(function: Any, shapes: Shapes, seed: int) -> bool:
        return not gradcheck(function, shapes=dict(shapes), dtypes=[dtype], seed=seed).findings

    return check


CHECKERS: dict[str, Checker] = {
    "gradcheck, slow (float64)": of_torch(fast=False),
    "gradcheck, fast (float64)": of_torch(fast=True),
    **{f"JAX's check ({d})": of_jax(d) for d in DTYPES},
    **{f"verify-norm ({d})": of_ours(d) for d in DTYPES},
}
