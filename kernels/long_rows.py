"""Rows longer than registers hold: the same normalizations, each row walked in tiles, once for every pass over it.

The mean, the centred squares and the result are a pass each, as are, in the backward, the two means and dx. dweight and
dbias are sums down columns, for which x and dy are read once more by programs that hold a few columns each.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from verify_norm.kernels.launch import jit, launch, programs
from verify_norm.kernels.row_plan import TOGETHER, fold
from verify_norm.kernels.rows import factor, load, parameter, saturated, store
from verify_norm.kernels.rows_backward import xhat

Strides = tuple[int, ...]


@jit
def _sum(X, R, row, sxm, sxn, srm, srn, cols, M, N, VEC: tl.constexpr):
    x = load(X, row, sxm, cols, sxn, M, N, False, VEC, "").to(tl.float32)
    if R is not None:
        x += load(R, row, srm, cols, srn, M, N, False, VEC, "").to(tl.float32)
    return x


@jit
def _forward(
    X, R, H, Y, W, B, Mean, Rstd, Scale, Most, M: tl.int64, NV: tl.int64, sxm: tl.int64, sxn: tl.int64,
    srm: tl.int64, srn: tl.int64, eps: tl.float32, offset,
    VEC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    N = (NV * VEC).to(tl.int32)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    mean = tl.zeros([1], tl.float32)
    if Mean is not None:
        total = tl.zeros([1, CHUNK], tl.float32)
        for start in range(0, N, CHUNK):
            total += _sum(X, R, row, sxm, sxn, srm, srn, start + tl.arange(0, CHUNK), M, N, VEC)
        mean = tl.sum(total, axis=1) / N
        tl.store(Mean + row, mean)

    squares = tl.zeros([1, CHUNK], tl.float32)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = _sum(X, R, row, sxm, sxn, srm, srn, cols, M, N, VEC) - mean[:, None]
        x = tl.where((cols < N)[None, :], x, 0.0)  # else each lane beyond the row adds mean²
        squares += x * x
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Rstd + row, rstd)

    most = tl.zeros([1, CHUNK], tl.float32)
    scale = 1.0
    if Scale is not None:
        scale = tl.load(Scale)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = _sum(X, R, row, sxm, sxn, srm, srn, cols, M, N, VEC)
        if R is not None:
            store(H, x, row, NV, cols, M, N, False, VEC)
        y = (x - mean[:, None]) * rstd[:, None]
        if W is not None:
            y *= factor(W, cols, N, offset, False, VEC, False)
        if B is not None:
            y += parameter(B, cols, N, False, VEC).to(tl.float32)
        if Scale is not None:
            most = tl.maximum(most, tl.where((cols < N)[None, :], tl.abs(y), 0.0))
            y = saturated(y * scale, Y, False)
        store(Y, y, row, NV, cols, M, N, False, VEC)
    if Scale is not None:
        tl.store(Most + row, tl.max(most, axis=1))


@jit
def _normal(
    X, DY, W, row, sxm, sxn, sdm, sdn, cols, M, N, mean, rstd, offset, CENTERED: tl.constexpr, VEC: tl.constexpr
):
    """x̂ of a tile, and what flows into it."""
    x = load(X, row, sxm, cols, sxn, M, N, False, VEC, "")
    x = xhat(x, cols, N, mean, rstd, CENTERED, False, False)
    g = load(DY, row, sdm, cols, sdn, M, N, False, VEC, "").to(tl.float32)
    if W is not None:
        g *= factor(W, cols, N, offset, False, VEC, False)
    return x, g


@jit
def _dx(
    DX, DY, X, DH, W, Mean, Rstd, M: tl.int64, NV: tl.int64, sdm: tl.int64, sdn: tl.int64, sxm: tl.int64,
    sxn: tl.int64, shm: tl.int64, shn: tl.int64, offset,
    VEC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    N = (NV * VEC).to(tl.int32)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    rstd = tl.load(Rstd + row)[:, None]
    mean = rstd
    if Mean is not None:
        mean = tl.load(Mean + row)[:, None]
    along = tl.zeros([1, CHUNK], tl.float32)
    total = tl.zeros([1, CHUNK], tl.float32)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x, g = _normal(X, DY, W, row, sxm, sxn, sdm, sdn, cols, M, N, mean, rstd, offset, Mean is not None, VEC)
        along += g * x
        total += g
    c1 = (tl.sum(along, axis=1) / N)[:, None]
    c2 = tl.zeros([1, 1], tl.float32)
    if Mean is not None:
        c2 = (tl.sum(total, axis=1) / N)[:, None]

    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x, g = _normal(X, DY, W, row, sxm, sxn, sdm, sdn, cols, M, N, mean, rstd, offset, Mean is not None, VEC)
        dx = rstd * (g - (c2 + x * c1))
        if DH is not None:
            dx += load(DH, row, shm, cols, shn, M, N, False, VEC, "").to(tl.float32)
        store(DX, dx, row, NV, cols, M, N, False, VEC)


@jit
def _partials(
    X, DY, Mean, Rstd, Lines, M: tl.int64, NV: tl.int64, sxm: tl.int64, sxn: tl.int64, sdm: tl.int64, sdn: tl.int64,
    count: tl.int64,
    DWEIGHT: tl.constexpr, DBIAS: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    N = (NV * VEC).to(tl.int32)
    line = tl.program_id(0) % count
    cols = (tl.program_id(0) // count).to(tl.int32) * CHUNK + tl.arange(0, CHUNK)
    dw = tl.zeros([ROWS, CHUNK], tl.float32)
    db = tl.zeros([ROWS, CHUNK], tl.float32)
    for start in range(line * ROWS, M, count * ROWS):
        row = start + tl.arange(0, ROWS)
        rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
        mean = rstd
        if Mean is not None:
            mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
        x, d = _normal(X, DY, None, row, sxm, sxn, sdm, sdn, cols, M, N, mean, rstd, None, Mean is not None, VEC)
        dw += d * x
        db += d
    p = Lines + line.to(tl.int64) * (NV * VEC) + cols
    if DWEIGHT:
        tl.store(p, tl.sum(dw, axis=0), mask=cols < N)
        p += count * (NV * VEC)
    if DBIAS:
        tl.store(p, tl.sum(db, axis=0), mask=cols < N)


def forward(
    x: Tensor, r: Tensor | None, h: Tensor | None, y: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor | None,
    rstd: Tensor, scale: Tensor | None, most: Tensor | None, m: int, n: int, strides: Strides, eps: float,
    offset: float | None, vec: int,
) -> None:  # fmt: skip
    """Fill y, h, mean, rstd and most, one program a row; `strides` are those of x and r, in elements."""
    launch(
        _forward, m, x, r, h, y, w, b, mean, rstd, scale, most, m, n // vec, *_counted(strides, vec), eps, offset,
        VEC=vec, **_tile(x),
    )  # fmt: skip


def backward(
    dx: Tensor | None, dy: Tensor, x: Tensor, dh: Tensor | None, w: Tensor | None, mean: Tensor | None, rstd: Tensor,
    dw: Tensor | None, db: Tensor | None, m: int, n: int, strides: Strides, offset: float | None, vec: int,
) -> None:  # fmt: skip
    """Fill those of dx, dw and db that are given; `strides` are those of dy, x and dh, in elements."""
    counted = _counted(strides, vec)
    if dx is not None:
        launch(_dx, m, dx, dy, x, dh, w, mean, rstd, m, n // vec, *counted, offset, VEC=vec, **_tile(x))
    parts = (dw is not None) + (db is not None)
    if parts:
        block = {"ROWS": 4, "CHUNK": 1024, "num_warps": 8} if x.is_cuda else {"ROWS": 1, "CHUNK": 2**14}
        width = triton.cdiv(n, block["CHUNK"])
        most = max(programs(x) // width, TOGETHER // block["ROWS"] if x.is_cuda else 1)
        count = max(1, min(most, triton.cdiv(m, block["ROWS"])))
        lines = torch.empty((parts, count, n), dtype=torch.float32, device=x.device)
        launch(
            _partials, count * width, x, dy, mean, rstd, lines, m, n // vec, *counted[2:4], *counted[:2], count,
            DWEIGHT=dw is not None, DBIAS=db is not None, VEC=vec, **block,
        )  # fmt: skip
        fold(lines, dw, db)


def _counted(strides: Strides, vec: int) -> Strides:
    """Strides of rows in vectors, those of columns in elements."""
    return tuple(stride // vec if i % 2 == 0 else stride for i, stride in enumerate(strides))


def _tile(x: Tensor) -> dict[str, Any]:
    return {"CHUNK": 4096, "num_warps": 8} if x.is_cuda else {"CHUNK": 2**14}
