"""GroupNorm: y = (x − mean) · rstd · w + b, statistics over each group of channels of each sample, w and b per
channel.

x (B, C, *spatial) is seen as (B, C, S) with any three strides, so that channels_last needs no copy. A row of a
tile is one group of one sample; its columns are the group's C/G · S elements, walked in the order in which they
lie in memory. All arithmetic is float32, and the variance is that of centred values.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from verify_norm.kernels.affine import column_sums
from verify_norm.kernels.launch import check_backward, check_shapes, check_types, dense, jit, launch, tile, xhat


@jit
def place(row, e, G, CG, S, sb, sc, ss, CHANNELS_INNER: tl.constexpr):
    """The channel of element e of group `row`, and where the element lies."""
    row, e = row.to(tl.int64)[:, None], e.to(tl.int64)[None, :]
    if CHANNELS_INNER:
        channel, s = e % CG, e // CG
    else:
        channel, s = e // S, e % S
    channel += row % G * CG
    return channel, row // G * sb + channel * sc + s * ss


@jit
def _forward(
    X, Y, W, B, Mean, Rstd, M, G, CG, S, sxb, sxc, sxs, syb, syc, sys, eps,
    CHANNELS_INNER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    N = CG * S
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        e = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (e < N)[None, :]
        channel, at = place(row, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        total += tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=1) / N

    squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        e = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (e < N)[None, :]
        channel, at = place(row, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        xc = tl.where(mask, x - mean[:, None], 0.0)  # else every lane beyond the group would add mean²
        squares += xc * xc
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Mean + row, mean, mask=row < M)
    tl.store(Rstd + row, rstd, mask=row < M)

    for start in range(0, N, BLOCK_N):
        e = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (e < N)[None, :]
        channel, at = place(row, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean[:, None]) * rstd[:, None]
        if W is not None:
            y *= tl.load(W + channel, mask=mask, other=0.0).to(tl.float32)
        if B is not None:
            y += tl.load(B + channel, mask=mask, other=0.0).to(tl.float32)
        channel, at = place(row, e, G, CG, S, syb, syc, sys, CHANNELS_INNER)
        tl.store(Y + at, y, mask=mask)


@jit
def _channel_sums(
    X, DY, Mean, Rstd, DW, DB, M, C, G, S, sxb, sxc, sxs, sdb, sdc, sds,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Σ dy·x̂ and Σ dy over the S elements of every channel of every sample."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    b, channel = row // C, row % C
    group = b * G + channel // (C // G)
    mean = tl.load(Mean + group, mask=row < M, other=0.0)[:, None]
    rstd = tl.load(Rstd + group, mask=row < M, other=0.0)[:, None]
    dw = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    db = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, S, BLOCK_N):
        s = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = (row < M)[:, None] & (s < S)[None, :]
        x = tl.load(X + (b * sxb + channel * sxc)[:, None] + (s * sxs)[None, :], mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(DY + (b * sdb + channel * sdc)[:, None] + (s * sds)[None, :], mask=mask, other=0.0).to(tl.float32)
        dw += dy * xhat(x, mean, rstd, mask)
        db += dy
    tl.store(DW + row, tl.sum(dw, axis=1), mask=row < M)
    tl.store(DB + row, tl.sum(db, axis=1), mask=row < M)


@jit
def _dx(
    DX, DY, X, W, Mean, Rstd, DW, DB, M, G, CG, S, sgb, sgc, sgs, sdb, sdc, sds, sxb, sxc, sxs,
    CHANNELS_INNER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    N = CG * S
    along = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, CG, BLOCK_N):
        c = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (c < CG)[None, :]
        w = tl.full([BLOCK_M, BLOCK_N], 1.0, tl.float32)
        if W is not None:
            w = tl.load(W + (row % G * CG)[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
        along += w * tl.load(DW + (row * CG)[:, None] + c[None, :], mask=mask, other=0.0)
        total += w * tl.load(DB + (row * CG)[:, None] + c[None, :], mask=mask, other=0.0)
    c1 = (tl.sum(along, axis=1) / N)[:, None]
    c2 = (tl.sum(total, axis=1) / N)[:, None]

    mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    for start in range(0, N, BLOCK_N):
        e = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (e < N)[None, :]
        channel, at = place(row, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        channel, at = place(row, e, G, CG, S, sdb, sdc, sds, CHANNELS_INNER)
        g = tl.load(DY + at, mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= tl.load(W + channel, mask=mask, other=0.0).to(tl.float32)
        dx = rstd * (g - (c2 + (x - mean) * rstd * c1))
        channel, at = place(row, e, G, CG, S, sgb, sgc, sgs, CHANNELS_INNER)
        tl.store(DX + at, dx, mask=mask)


def grouped(x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int) -> tuple[int, int, int]:
    """B, C and S of x (B, C, *spatial), after the checks that forward and backward share."""
    check_types(x, weight, bias)
    if x.dim() < 2:
        raise ValueError(f"x must have at least 2 dimensions (B, C, *spatial), not shape {tuple(x.shape)}")
    channels = x.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"x has {channels} channels, which num_groups = {num_groups} does not divide")
    check_shapes((channels,), weight=weight, bias=bias)
    return x.shape[0], channels, math.prod(x.shape[2:])


def channels_inner(x3: Tensor) -> bool:
    """Whether neighbours in memory are neighbouring channels, as in channels_last."""
    return x3.stride(1) < x3.stride(2)


def groupnorm_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupNorm of x (B, C, *spatial), of any strides: y, mean and rstd.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of rank 2 or more and any strides.
    weight, bias : Tensor or None
        Of shape (C,), of x's type or float32.
    num_groups : int
        G, a divisor of C.
    eps : float
        Added to the variance under the root.

    Returns
    -------
    y : Tensor
        Of x's shape and type; channels_last where x is.
    mean, rstd : Tensor
        float32 of shape (B, G).

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, G does not divide C, or a type would lose bits in silence.
    """
    b, c, s = grouped(x, weight, bias, num_groups)
    x3 = x.reshape(b, c, s)
    y3 = torch.empty_like(x3)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    block = tile(c // num_groups * s, x)
    launch(
        _forward, triton.cdiv(b * num_groups, block["BLOCK_M"]), x3, y3, dense(weight), dense(bias), mean, rstd,
        b * num_groups, num_groups, c // num_groups, s, *x3.stride(), *y3.stride(), float(eps),
        CHANNELS_INNER=channels_inner(x3), **block,
    )  # fmt: skip
    return y3.view(x.shape), mean, rstd


def groupnorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of GroupNorm, from dy like x and the forward's mean and rstd: dx, dweight, dbias.

    With x̂ = (x − mean)·rstd and g = w·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) with means over the group,
    dweight = Σ dy·x̂ and dbias = Σ dy over samples and positions. The sums per sample and channel are made once,
    and serve all three. dx has x's type, dweight and dbias those of weight and bias, and None stays None. `eps`
    is in rstd already; it is an argument because it is one of the operator.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic not float32, one a group.
    """
    grouped(x, weight, bias, num_groups)
    check_backward(x, dy, x.shape[0] * num_groups, mean=mean, rstd=rstd)
    return _backward(dy, x, weight, mean, rstd, num_groups, (True, weight, bias))


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Any, rstd: Any, num_groups: int,
    wanted: tuple[bool, Tensor | None, Tensor | None],
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients in `wanted`: whether dx, and the weight and bias if theirs."""
    b, c, s = grouped(x, weight, None, num_groups)
    x3, dy3, mean, rstd = x.reshape(b, c, s), dy.reshape(b, c, s), dense(mean), dense(rstd)
    dw, db = (torch.empty((b, c), dtype=torch.float32, device=x.device) for _ in range(2))
    block = tile(s, x)
    launch(
        _channel_sums, triton.cdiv(b * c, block["BLOCK_M"]), x3, dy3, mean, rstd, dw, db, b * c, c, num_groups, s,
        *x3.stride(), *dy3.stride(), **block,
    )  # fmt: skip
    dx = None
    if wanted[0]:
        dx3 = torch.empty_like(x3)
        block = tile(c // num_groups * s, x)
        launch(
            _dx, triton.cdiv(b * num_groups, block["BLOCK_M"]), dx3, dy3, x3, dense(weight), mean, rstd, dw, db,
            b * num_groups, num_groups, c // num_groups, s, *dx3.stride(), *dy3.stride(), *x3.stride(),
            CHANNELS_INNER=channels_inner(x3), **block,
        )  # fmt: skip
        dx = dx3.view(x.shape)
    return (
        dx,
        None if wanted[1] is None else column_sums(dw, wanted[1]),
        None if wanted[2] is None else column_sums(db, wanted[2]),
    )


class GroupNormFunction(torch.autograd.Function):
    """GroupNorm for autograd: apply(x, weight, bias, num_groups, eps) -> y. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float):
        """y, keeping what the gradients need."""
        y, mean, rstd = groupnorm_fwd(x, weight, bias, num_groups, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.num_groups = num_groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):
        """The gradients that are asked for, and no others."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0], weight if need[1] else None, bias if need[2] else None)
        return *_backward(dy, x, weight, mean, rstd, ctx.num_groups, wanted), None, None


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, computed by this kernel: same arguments, parameters and state."""

    def forward(self, input: Tensor) -> Tensor:
        """The normalized input."""
        return GroupNormFunction.apply(input, self.weight, self.bias, self.num_groups, self.eps)
