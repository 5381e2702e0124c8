"""The right kernels in which the zoo's bugs live: a norm of rows forward and backward, with a place for each mistake.

Called as they are, they are right: LayerNorm where `centered`, else RMSNorm, of rows of any strides and length, in
float32. What a bug changes is an argument: the strides of a pass, how many rows or columns a mask admits, a tile, or
one of a few named variants of a line. They are for reading, not for speed.

A bug that writes beyond its buffer does so for at most SLACK elements, fewer than any guard zone has: the write has
to show, and destroy nothing. One that reads beyond gets zeros after the storage's end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from verify_norm.kernels.arguments import dense, normalized, rows, split
from verify_norm.kernels.blocks import tile
from verify_norm.kernels.launch import jit, launch

SLACK = 60
Shape = int | Sequence[int] | None


@dataclass(frozen=True)
class ForwardConstants:
    """The constants of `_forward`; the first four are arguments of `forward`."""

    VARIANCE: str
    EPS: str
    SUM: Any
    WIDE: bool
    BLOCK_M: int
    BLOCK_N: int


@dataclass(frozen=True)
class GradientConstants:
    """The constants of `_dx`; the first is an argument of `input_gradient`."""

    KEEP: bool
    BLOCK_M: int
    BLOCK_N: int


@jit
def _forward(
    X, Y, W, B, Mean, Rstd, M, N, admitted, walked, sxm, sxn, snn, sym, syn, reach, eps, offset, K: tl.constexpr
):
    VARIANCE: tl.constexpr = K.VARIANCE
    EPS: tl.constexpr = K.EPS
    SUM: tl.constexpr = K.SUM
    WIDE: tl.constexpr = K.WIDE
    BLOCK_M: tl.constexpr = K.BLOCK_M
    BLOCK_N: tl.constexpr = K.BLOCK_N
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    row = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    mean = tl.zeros([BLOCK_M], tl.float32)
    if Mean is not None:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, walked, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            mask = (row < admitted)[:, None] & (cols < N)[None, :]
            total += tl.load(X + row[:, None] * sxm + cols[None, :] * sxn, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=1) / N
        tl.store(Mean + row, mean, mask=row < M)

    squares = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    for start in range(0, walked, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < admitted)[:, None] & (cols < N)[None, :]
        x = tl.load(X + row[:, None] * sxm + cols[None, :] * sxn, mask=mask, other=0.0).to(SUM)
        if Mean is not None and VARIANCE != "one_pass" and VARIANCE != "clipped":
            x -= mean[:, None]
            if VARIANCE != "unmasked":
                x = tl.where(mask, x, 0.0)
        squares += x * x
    sum_of_squares = tl.sum(squares, axis=1).to(tl.float32)
    var = sum_of_squares / N
    if VARIANCE == "one_pass" or VARIANCE == "clipped":
        var -= mean * mean
    if VARIANCE == "clipped":
        var = tl.maximum(var, 0.0)
    if EPS == "outside":
        rstd = tl.div_rn(1.0, tl.sqrt_rn(var) + eps)
    elif EPS == "on_sum":
        rstd = tl.div_rn(1.0, tl.sqrt_rn((sum_of_squares + eps) / N))
    else:
        rstd = tl.div_rn(1.0, tl.sqrt_rn(var + eps))
    tl.store(Rstd + row, rstd, mask=row < M)

    for start in range(0, walked, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < admitted)[:, None] & (cols < N)[None, :]
        x = tl.load(X + row[:, None] * sxm + cols[None, :] * snn, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean[:, None]) * rstd[:, None]
        if W is not None:
            y *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
        if B is not None:
            y += tl.load(B + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        at = row[:, None] * sym + cols[None, :] * syn
        tl.store(Y + at, y, mask=mask & (at < reach))


@jit
def _dx(DX, DY, X, W, Mean, Rstd, M, N, sgm, sdm, sdn, sxm, sxn, dx_reach, dy_reach, weights, offset, K: tl.constexpr):
    KEEP: tl.constexpr = K.KEEP
    BLOCK_M: tl.constexpr = K.BLOCK_M
    BLOCK_N: tl.constexpr = K.BLOCK_N
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mean = tl.zeros([BLOCK_M, 1], tl.float32)
    if Mean is not None:
        mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    along = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        at = row[:, None] * sdm + cols[None, :] * sdn
        g = tl.load(DY + at, mask=mask & (at < dy_reach), other=0.0).to(tl.float32)
        x = tl.load(X + row[:, None] * sxm + cols[None, :] * sxn, mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < weights, other=0.0).to(tl.float32) + offset)[None, :]
        along += g * tl.where(mask, (x - mean) * rstd, 0.0)
        total += g
    c1 = tl.sum(along, axis=1) / N
    if KEEP:
        c1 = c1[:, None]
    c2 = tl.zeros([BLOCK_M, 1], tl.float32)
    if Mean is not None:
        c2 = (tl.sum(total, axis=1) / N)[:, None]

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        at = row[:, None] * sdm + cols[None, :] * sdn
        g = tl.load(DY + at, mask=mask & (at < dy_reach), other=0.0).to(tl.float32)
        x = tl.load(X + row[:, None] * sxm + cols[None, :] * sxn, mask=mask, other=0.0).to(tl.float32)
        if W is not None:
            g *= (tl.load(W + cols, mask=cols < weights, other=0.0).to(tl.float32) + offset)[None, :]
        dx = rstd * (g - (c2 + (x - mean) * rstd * c1))
        at = row[:, None] * sgm + cols[None, :]
        tl.store(DX + at, dx, mask=mask & (at < dx_reach))


@jit
def _columns(
    X, DY, Mean, Rstd, DW, DB, M, N, sxm, sxn, sdm, sdn, dy_reach, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One line of partial sums from each tile of rows."""
    line = tl.program_id(0).to(tl.int64)
    row = line * BLOCK_M + tl.arange(0, BLOCK_M)
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    mean = tl.zeros([BLOCK_M, 1], tl.float32)
    if Mean is not None:
        mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = (row < M)[:, None] & (cols < N)[None, :]
        at = row[:, None] * sdm + cols[None, :] * sdn
        dy = tl.load(DY + at, mask=mask & (at < dy_reach), other=0.0).to(tl.float32)
        x = tl.load(X + row[:, None] * sxm + cols[None, :] * sxn, mask=mask, other=0.0).to(tl.float32)
        xhat = tl.where(mask, (x - mean) * rstd, 0.0)
        tl.store(DW + line * N + cols, tl.sum(dy * xhat, axis=0), mask=cols < N)
        tl.store(DB + line * N + cols, tl.sum(dy, axis=0), mask=cols < N)


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float = 0.0,
    normalized_shape: Shape = None,
    *,
    centered: bool,
    variance: str = "two_pass",
    place_of_eps: str = "inside",
    sums: Any = tl.float32,
    wide: bool = True,
    block: dict[str, int] | None = None,
    admit: int | None = None,
    walk: int | None = None,
    second_stride: int | None = None,
    y: Tensor | None = None,
    y_strides: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return y, mean (None unless `centered`) and rstd of the rows of x.

    Where a mistake goes: `variance` is "two_pass", "unmasked" (lanes beyond the row count), "one_pass" or "clipped"
    (one pass, at least 0); `place_of_eps` "inside" the root, "outside" it, or "on_sum" of the squares; `sums` the type
    in which squares are formed and summed; `wide` whether row offsets have 64 bits; `block` the tile; `admit` how many
    rows the masks let through (M), and `walk` how many columns the loops walk (N); `second_stride` the column stride of
    x where it is normalized; `y` and `y_strides` where to write, and by which strides.
    """
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    x2 = rows(x, m, n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if y is None else y
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if centered else None
    block_m, block_n, options = cut(fitting(m, n, x) if block is None else block)
    tensors = (x2, y, dense(weight), dense(bias), mean, rstd)
    sizes = (m, n, m if admit is None else admit, n if walk is None else walk)
    last = x2.stride(1) if second_stride is None else second_stride
    strides = (*x2.stride(), last, *((n, 1) if y_strides is None else y_strides))
    numbers = (*sizes, *strides, y.numel() + SLACK, float(eps), float(offset))
    constants = ForwardConstants(variance, place_of_eps, sums, wide, block_m, block_n)
    launch(_forward, triton.cdiv(m, block_m), *tensors, *numbers, constants, **options)
    return y, mean, rstd


def input_gradient(
    dy2: Tensor,
    x2: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    out: Tensor,
    offset: float = 0.0,
    *,
    dy_strides: tuple[int, int] | None = None,
    dx_stride: int | None = None,
    keep: bool = True,
    block: dict[str, int] | None = None,
) -> Tensor:
    """Return the gradient of (M, N) rows, written to `out`.

    Where a mistake goes: `dy_strides` and `dx_stride` are the strides by which dy is read and dx is written; without
    `keep` a row's sum loses its dimension, and is another row's.
    """
    m, n = x2.shape
    block_m, block_n, options = cut(fitting(m, n, x2) if block is None else block)
    tensors = (out, dy2, x2, dense(weight), dense(mean), dense(rstd))
    strides = (n if dx_stride is None else dx_stride, *(dy_strides or dy2.stride()), *x2.stride())
    ends = (out.numel() + SLACK, reach(dy2), n if weight is None else weight.numel())
    constants = GradientConstants(keep, block_m, block_n)
    launch(_dx, triton.cdiv(m, block_m), *tensors, m, n, *strides, *ends, float(offset), constants, **options)
    return out


def cut(block: dict[str, int]) -> tuple[int, int, dict[str, int]]:
    """Return rows and columns of a tile, and Triton's options."""
    options = {name: value for name, value in block.items() if not name.startswith("BLOCK")}
    return block["BLOCK_M"], block["BLOCK_N"], options


def partial_sums(
    dy2: Tensor,
    x2: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    lines: int | None = None,
    row_tile: int = 8,
    dy_strides: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Σ dy·x̂ and Σ dy over each tile of rows, float32 (tiles, N); of the first `lines` tiles only, if given."""
    m, n = x2.shape
    lines = triton.cdiv(m, row_tile) if lines is None else lines
    dw, db = (torch.empty((lines, n), dtype=torch.float32, device=x2.device) for _ in range(2))
    strides = dy2.stride() if dy_strides is None else dy_strides
    block = {"BLOCK_M": row_tile, "BLOCK_N": fitting(m, n, x2)["BLOCK_N"]}
    launch(
        _columns, lines, x2, dy2, dense(mean), dense(rstd), dw, db, m, n, *x2.stride(), *strides, reach(dy2), **block
    )
    return dw, db


def fitting(m: int, n: int, x: Tensor) -> dict[str, int]:
    """A tile no larger than it need be, which saves an interpreter much; on a GPU the few that are compiled anyway."""
    if x.device.type == "cuda":
        return tile(n, x)
    width = min(triton.next_power_of_2(n), 4096)
    return {"BLOCK_M": min(triton.next_power_of_2(max(m, 1)), 16384 // width), "BLOCK_N": width}


def reach(t: Tensor) -> int:
    """How many elements there are from the tensor's first to the end of its storage."""
    return int(t.untyped_storage().nbytes() // t.element_size() - t.storage_offset())


def like(sums: Tensor, parameter: Tensor | None) -> Tensor | None:
    """The sums as the gradient of `parameter`: in its shape and type, None for None."""
    return None if parameter is None else sums.to(parameter.dtype).reshape(parameter.shape)


@jit
def _copy(Sums, Out, N, BLOCK: tl.constexpr):
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        tl.store(Out + cols, tl.load(Sums + cols, mask=cols < N, other=0.0), mask=cols < N)


def spill(sums: Tensor, out: Tensor) -> Tensor:
    """Write all the sums from where `out` begins, though it may be shorter than they are."""
    launch(_copy, 1, sums.reshape(-1), out, min(sums.numel(), out.numel() + SLACK), BLOCK=256)
    return out
