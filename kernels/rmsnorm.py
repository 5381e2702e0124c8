"""RMSNorm: y = x · rstd · (w + offset) over each row, with rstd = 1/√(mean(x²) + eps).

The offset is for weights stored as their distance from 1, as Gemma does: w + 1 is formed in float32, never in the
weight's own type. Without a weight the factor is 1, whatever the offset. All arithmetic is float32; long rows are
walked in tiles.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from verify_norm.kernels import affine
from verify_norm.kernels.launch import check_backward, dense, jit, launch, normalized, offsets, rows, split, tile, unit

Shape = int | Sequence[int] | None


@jit
def _forward(
    X, Y, W, Rstd, M, N, sxm, sxn, eps, offset,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Rstd + row, rstd, mask=row < M)

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        y = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32) * rstd[:, None]
        if W is not None:
            y *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        tl.store(Y + offsets(row, N, cols, 1, True), y, mask=mask)


@jit
def _dx(
    DX, DY, X, W, Rstd, M, N, sdm, sdn, sxm, sxn, offset,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    along = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        along += g * (x * rstd)
    c1 = (tl.sum(along, axis=1) / N)[:, None]

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
        g = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        dx = rstd * (g - x * rstd * c1)
        tl.store(DX + offsets(row, N, cols, 1, True), dx, mask=mask)


def rmsnorm_fwd(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, normalized_shape: Shape = None
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x (…, *normalized_shape), of any strides: y and rstd.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of any strides.
    weight : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    eps : float
        Added to the mean square under the root.
    weight_offset : float
        Added to the weight where there is one (1 for Gemma).
    normalized_shape : int, sequence of int or None
        The trailing dimensions to normalize; None: those of the weight, else the last one.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        As `launch.normalized` says: a shape that does not fit, a type that would lose bits in silence.
    """
    shape = normalized(x, weight, None, normalized_shape)
    m, n = split(x, shape)
    x2 = rows(x, m, n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    block = tile(n, x)
    launch(
        _forward, triton.cdiv(m, block["BLOCK_M"]), x2, y, dense(weight), rstd, m, n, *x2.stride(), float(eps),
        float(weight_offset), UNIT=unit(x2), **block,
    )  # fmt: skip
    return y, rstd


def rmsnorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of RMSNorm, from dy like x and the forward's rstd: dx, dweight.

    With x̂ = x·rstd and g = (w + offset)·dy: dx = rstd·(g − x̂·mean(g·x̂)), and dweight = Σ dy·x̂ over the rows.
    dx has x's type, dweight the weight's, None without one. A row's dx does not depend on any other row, and
    every sum is the same at every run. `eps` is in rstd already; it is an argument because it is one of the
    operator.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or rstd not float32, one a row.
    """
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    check_backward(x, dy, m, rstd=rstd)
    return _backward(dy, x, weight, rstd, m, n, float(weight_offset), (True, weight))


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Any, m: int, n: int, offset: float,
    wanted: tuple[bool, Tensor | None],
) -> tuple[Any, Tensor | None]:  # fmt: skip
    """The gradients in `wanted`: whether dx, and the weight if its own."""
    dy2, x2, rstd = rows(dy, m, n), rows(x, m, n), dense(rstd)
    dx = None
    if wanted[0]:
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block = tile(n, x)
        launch(
            _dx, triton.cdiv(m, block["BLOCK_M"]), dx, dy2, x2, dense(weight), rstd, m, n, *dy2.stride(), *x2.stride(),
            offset, UNIT=unit(dy2, x2), **block,
        )  # fmt: skip
    return dx, affine.gradients(dy2, x2, None, rstd, wanted[1], None)[0]


class RMSNormFunction(torch.autograd.Function):
    """RMSNorm for autograd: apply(x, weight, eps, weight_offset, normalized_shape) -> y. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, normalized_shape: Shape):
        """y, keeping what the gradients need."""
        y, rstd = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
        ctx.save_for_backward(x, weight, rstd)
        ctx.split = split(x, normalized(x, weight, None, normalized_shape))
        ctx.offset = float(weight_offset)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):
        """The gradients that are asked for, and no others."""
        x, weight, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0], weight if need[1] else None)
        return *_backward(dy, x, weight, rstd, *ctx.split, ctx.offset, wanted), None, None, None


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by this kernel: same arguments, parameters and state.

    With eps=None, eps is that of float32, the type of the arithmetic, for every type of x, as in torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        return RMSNormFunction.apply(x, self.weight, eps, 0.0, self.normalized_shape)
