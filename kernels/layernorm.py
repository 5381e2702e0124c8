"""LayerNorm: y = (x − mean(x)) · rstd · w + b over each row, with rstd = 1/√(var(x) + eps).

All arithmetic is float32. The variance is that of centred values, in a second pass over the row: E[x²] − E[x]²
cancels when the mean is large. A row longer than the largest block is walked in tiles.
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
def _forward(
    X, Y, W, B, Mean, Rstd, M, N, sxm, sxn, eps,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        total += tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=1) / N

    squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        xc = tl.where(mask, x - mean[:, None], 0.0)  # else every lane beyond the row would add mean²
        squares += xc * xc
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Mean + row, mean, mask=row < M)
    tl.store(Rstd + row, rstd, mask=row < M)

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        y = (x - mean[:, None]) * rstd[:, None]
        if W is not None:
            y *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        if B is not None:
            y += tl.load(B + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        tl.store(Y + offsets(row, N, cols, 1, True), y, mask=mask)


@jit
def _dx(
    DX, DY, X, W, Mean, Rstd, M, N, sdm, sdn, sxm, sxn,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    along = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        along += g * xhat(x, mean, rstd, mask)
        total += g
    c1 = (tl.sum(along, axis=1) / N)[:, None]
    c2 = (tl.sum(total, axis=1) / N)[:, None]

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        dx = rstd * (g - (c2 + (x - mean) * rstd * c1))
        tl.store(DX + offsets(row, N, cols, 1, True), dx, mask=mask)


def layernorm_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of x (…, *normalized_shape), of any strides: y, mean and rstd.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of any strides.
    weight, bias : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    eps : float
        Added to the variance under the root.
    normalized_shape : int, sequence of int or None
        The trailing dimensions to normalize; None: those of the weight (or bias), else the last one.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    mean, rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        As `launch.normalized` says: a shape that does not fit, a type that would lose bits in silence.
    """
    shape = normalized(x, weight, bias, normalized_shape)
    m, n = split(x, shape)
    x2 = rows(x, m, n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    block = tile(n, x)
    launch(
        _forward, triton.cdiv(m, block["BLOCK_M"]), x2, y, dense(weight), dense(bias), mean, rstd, m, n, *x2.stride(),
        float(eps), UNIT=unit(x2), **block,
    )  # fmt: skip
    return y, mean, rstd


def layernorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of LayerNorm, from dy like x and the forward's mean and rstd: dx, dweight, dbias.

    With x̂ = (x − mean)·rstd and g = w·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), dweight = Σ dy·x̂ and dbias =
    Σ dy over the rows. dx has x's type, dweight and dbias those of weight and bias, and None stays None. A row's
    dx does not depend on any other row, and every sum is the same at every run. `eps` is in rstd already; it is
    an argument because it is one of the operator.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic not float32, one a row.
    """
    shape = normalized(x, weight, bias, normalized_shape)
    m, n = split(x, shape)
    check_backward(x, dy, m, mean=mean, rstd=rstd)
    return _backward(dy, x, weight, mean, rstd, m, n, (True, weight, bias))


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Any, rstd: Any, m: int, n: int,
    wanted: tuple[bool, Tensor | None, Tensor | None],
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients in `wanted`: whether dx, and the weight and bias if theirs."""
    dy2, x2, mean, rstd = rows(dy, m, n), rows(x, m, n), dense(mean), dense(rstd)
    dx = None
    if wanted[0]:
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block = tile(n, x)
        launch(
            _dx, triton.cdiv(m, block["BLOCK_M"]), dx, dy2, x2, dense(weight), mean, rstd, m, n, *dy2.stride(),
            *x2.stride(), UNIT=unit(dy2, x2), **block,
        )  # fmt: skip
    return dx, *affine.gradients(dy2, x2, mean, rstd, *wanted[1:])


class LayerNormFunction(torch.autograd.Function):
    """LayerNorm for autograd: apply(x, weight, bias, eps, normalized_shape) -> y. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape):
        """y, keeping what the gradients need."""
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.split = split(x, normalized(x, weight, bias, normalized_shape))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):
        """The gradients that are asked for, and no others."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0], weight if need[1] else None, bias if need[2] else None)
        return *_backward(dy, x, weight, mean, rstd, *ctx.split, wanted), None, None


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by this kernel: same arguments, parameters and state."""

    def forward(self, input: Tensor) -> Tensor:
        """The normalized input."""
        return LayerNormFunction.apply(input, self.weight, self.bias, self.eps, self.normalized_shape)
