"""Residual addition with LayerNorm: h = x + residual, y = LayerNorm(h), and h rounded to x's type.

The statistics and y are those of the float32 sum h, never of its rounded copy residual_out: a kernel that re-reads
what it stored returns another y in half precision. All arithmetic is float32; the variance is that of centred values;
long rows are walked in tiles, and x + residual formed anew in every pass, which costs a load and no accuracy. Where
Mean is None no mean is subtracted: add_rmsnorm runs the same kernels.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from verify_norm.kernels import affine
from verify_norm.kernels.launch import (
    check_backward,
    check_shapes,
    dense,
    jit,
    launch,
    normalized,
    offsets,
    rows,
    split,
    tile,
    unit,
    xhat,
)

Shape = int | Sequence[int] | None


@jit
def _added(X, R, row, cols, mask, sxm, sxn, srm, srn, UNIT: tl.constexpr):
    x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
    return x + tl.load(R + offsets(row, srm, cols, srn, UNIT), mask=mask, other=0.0).to(tl.float32)


@jit
def _forward(
    X, R, H, Y, W, B, Mean, Rstd, M, N, sxm, sxn, srm, srn, eps, offset,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mean = tl.zeros([BLOCK_M], tl.float32)
    if Mean is not None:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, N, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            mask = (row < M)[:, None] & (cols < N)[None, :]
            total += _added(X, R, row, cols, mask, sxm, sxn, srm, srn, UNIT)
        mean = tl.sum(total, axis=1) / N
        tl.store(Mean + row, mean, mask=row < M)

    squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        h = _added(X, R, row, cols, mask, sxm, sxn, srm, srn, UNIT)
        hc = tl.where(mask, h - mean[:, None], 0.0)  # else every lane beyond the row would add mean²
        squares += hc * hc
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Rstd + row, rstd, mask=row < M)

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        h = _added(X, R, row, cols, mask, sxm, sxn, srm, srn, UNIT)
        y = (h - mean[:, None]) * rstd[:, None]
        if W is not None:
            y *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        if B is not None:
            y += tl.load(B + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        tl.store(H + offsets(row, N, cols, 1, True), h, mask=mask)
        tl.store(Y + offsets(row, N, cols, 1, True), y, mask=mask)


@jit
def _dx(
    DX, DY, DH, H, W, Mean, Rstd, M, N, sdm, sdn, srm, srn, shm, shn, offset,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    mean = tl.zeros([BLOCK_M, 1], tl.float32)
    if Mean is not None:
        mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    along = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        h = tl.load(H + offsets(row, shm, cols, shn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        along += g * xhat(h, mean, rstd, mask)
        total += g
    c1 = (tl.sum(along, axis=1) / N)[:, None]
    c2 = tl.zeros([BLOCK_M, 1], tl.float32)
    if Mean is not None:
        c2 = (tl.sum(total, axis=1) / N)[:, None]

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        h = tl.load(H + offsets(row, shm, cols, shn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        dx = rstd * (g - (c2 + xhat(h, mean, rstd, mask) * c1))
        if DH is not None:  # added to the norm's gradient, not to dy, which the norm would project
            dx += tl.load(DH + offsets(row, srm, cols, srn, UNIT), mask=mask, other=0.0).to(tl.float32)
        tl.store(DX + offsets(row, N, cols, 1, True), dx, mask=mask)


def add_layernorm_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm of h = x + residual, both (…, *normalized_shape) and each of any strides: y, residual_out, mean, rstd.

    y and residual_out, which is h rounded, have x's shape and type and are contiguous; mean and rstd are those of h
    before it is rounded, float32 of shape (M,), one a row. The arguments are those of `layernorm_fwd`.

    Raises
    ------
    ValueError, TypeError
        As `launch.normalized` says, and if residual has not x's shape, type and device.
    """
    return run_forward(x, residual, weight, bias, eps, 0.0, normalized_shape, centered=True)


def run_forward(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, shape: Shape,
    *, centered: bool,
) -> tuple[Tensor, Tensor, Any, Tensor]:  # fmt: skip
    """Both operators' forward pass: y, residual_out, the mean (None unless `centered`) and rstd."""
    m, n = split(x, normalized(x, weight, bias, shape))
    check_like(x, "x", residual=residual)
    x2, r2 = rows(x, m, n), rows(residual, m, n)
    y, h = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if centered else None
    block = tile(n, x)
    launch(
        _forward, triton.cdiv(m, block["BLOCK_M"]), x2, r2, h, y, dense(weight), dense(bias), mean, rstd, m, n,
        *x2.stride(), *r2.stride(), float(eps), float(offset), UNIT=unit(x2, r2), **block,
    )  # fmt: skip
    return y, h, mean, rstd


def add_layernorm_bwd(
    dy: Tensor,
    dresidual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of `add_layernorm_fwd`, from those of both its outputs: dx (dresidual is the same), dweight, dbias.

    dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) + dresidual_out with x̂ = (residual_out − mean)·rstd and g = w·dy; without
    its last term where dresidual_out is None. dx has residual_out's type, dweight and dbias those of weight and bias,
    and None stays None. A row's dx does not depend on any other row, and every sum is the same at every run.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy or dresidual_out is not like residual_out or a statistic not float32, one a row.
    """
    m, n = split(residual_out, normalized(residual_out, weight, bias, normalized_shape))
    check_backward(residual_out, dy, m, mean=mean, rstd=rstd)
    check_like(residual_out, "residual_out", dresidual_out=dresidual_out)
    return run_backward(dy, dresidual_out, residual_out, weight, mean, rstd, m, n, 0.0, (True, weight, bias))


def run_backward(
    dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor | None, mean: Any, rstd: Any, m: int, n: int,
    offset: float, wanted: tuple[bool, Tensor | None, Tensor | None],
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients in `wanted`: whether dx, and the weight and bias if theirs."""
    dy2, h2, mean, rstd = rows(dy, m, n), rows(h, m, n), dense(mean), dense(rstd)
    dh2 = None if dh is None else rows(dh, m, n)
    dx = None
    if wanted[0]:
        dx = torch.empty(h.shape, dtype=h.dtype, device=h.device)
        block = tile(n, h)
        strided = (dy2, dy2 if dh2 is None else dh2, h2)
        launch(
            _dx, triton.cdiv(m, block["BLOCK_M"]), dx, dy2, dh2, h2, dense(weight), mean, rstd, m, n,
            *(stride for t in strided for stride in t.stride()), offset, UNIT=unit(*strided), **block,
        )  # fmt: skip
    return dx, *affine.gradients(dy2, h2, mean, rstd, *wanted[1:])


def check_like(t: Tensor, name: str, **others: Tensor | None) -> None:
    """Refuse what is to be added to `t`, or is its gradient, in another shape or type or elsewhere."""
    check_shapes(tuple(t.shape), **others)
    for other, value in others.items():
        if value is not None and value.dtype != t.dtype:
            raise TypeError(f"{other} must be {t.dtype} like {name}, not {value.dtype}")
        if value is not None and value.device != t.device:
            raise ValueError(f"{other} is on {value.device}, {name} on {t.device}")


class AddLayerNormFunction(torch.autograd.Function):
    """For autograd: apply(x, residual, weight, bias, eps, normalized_shape) -> y, residual_out. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
                normalized_shape: Shape):  # fmt: skip
        """The two outputs, keeping what the gradients need."""
        y, h, mean, rstd = add_layernorm_fwd(x, residual, weight, bias, eps, normalized_shape)
        ctx.save_for_backward(h, weight, bias, mean, rstd)
        ctx.split = split(x, normalized(x, weight, bias, normalized_shape))
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None):
        """The gradients that are asked for, and no others; from one output alone where the other has none."""
        h, weight, bias, mean, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0] or need[1], weight if need[2] else None, bias if need[3] else None)
        dx, dweight, dbias = dh, None, None
        if dy is not None:
            dx, dweight, dbias = run_backward(dy, dh, h, weight, mean, rstd, *ctx.split, 0.0, wanted)
        return dx if need[0] else None, dx if need[1] else None, dweight, dbias, None, None
