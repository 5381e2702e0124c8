"""Rows longer than registers hold: the same normalizations, each row walked in tiles, once for every pass over it.

The mean, the centred squares and the result are a pass each, as are, in the backward, the two means and dx. dweight and
dbias are sums down columns, for which x and dy are read once more by programs that hold a few columns each.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from verify_norm.kernels.arguments import Gradients
from verify_norm.kernels.launch import jit, launch, programs
from verify_norm.kernels.rows.backward import xhat
from verify_norm.kernels.rows.plan import TOGETHER, fold
from verify_norm.kernels.rows.tiles import factor, load, parameter, saturated, store

Numbers = tuple[Any, ...]


@jit
def _sum(X, R, row, sxm, sxn, srm, srn, cols, M, N, VEC: tl.constexpr):
    x = load(X, row, sxm, cols, sxn, M, N, False, VEC, "").to(tl.float32)
    if R is not None:
        x += load(R, row, srm, cols, srn, M, N, False, VEC, "").to(tl.float32)
    return x


@dataclass(frozen=True)
class LongConstants:
    """The constants of `_forward` and `_dx`: elements of a vector, columns of a tile."""

    VEC: int
    CHUNK: int


@dataclass(frozen=True)
class PartialsConstants(LongConstants):
    """The constants of `_partials`: which sums to compute, and rows of a tile."""

    DWEIGHT: bool
    DBIAS: bool
    ROWS: int


@jit(int64="M NV sxm sxn srm srn", float32="eps")
def _forward(X, R, H, Y, W, B, Mean, Rstd, Scale, Most, M, NV, sxm, sxn, srm, srn, eps, offset, K: tl.constexpr):
    VEC: tl.constexpr = K.VEC
    CHUNK: tl.constexpr = K.CHUNK
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
    """Return x̂ of a tile and its gradient."""
    x = load(X, row, sxm, cols, sxn, M, N, False, VEC, "")
    x = xhat(x, cols, N, mean, rstd, CENTERED, False, False)
    g = load(DY, row, sdm, cols, sdn, M, N, False, VEC, "").to(tl.float32)
    if W is not None:
        g *= factor(W, cols, N, offset, False, VEC, False)
    return x, g


@jit(int64="M NV sdm sdn sxm sxn shm shn")
def _dx(DX, DY, X, DH, W, Mean, Rstd, M, NV, sdm, sdn, sxm, sxn, shm, shn, offset, K: tl.constexpr):
    VEC: tl.constexpr = K.VEC
    CHUNK: tl.constexpr = K.CHUNK
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


@jit(int64="M NV sxm sxn sdm sdn count")
def _partials(X, DY, Mean, Rstd, Lines, M, NV, sxm, sxn, sdm, sdn, count, K: tl.constexpr):
    VEC: tl.constexpr = K.VEC
    ROWS: tl.constexpr = K.ROWS
    CHUNK: tl.constexpr = K.CHUNK
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
    if K.DWEIGHT:
        tl.store(p, tl.sum(dw, axis=0), mask=cols < N)
        p += count * (NV * VEC)
    if K.DBIAS:
        tl.store(p, tl.sum(db, axis=0), mask=cols < N)


def forward(tensors: tuple[Any, ...], numbers: Numbers, vec: int) -> None:
    """Fill y, h, mean, rstd and most, one program a row; tensors and numbers are arguments of `_forward`, in order."""
    x, m = tensors[0], numbers[0]
    launch(_forward, m, *tensors, *numbers, LongConstants(vec, _chunk(x)), **_options(x))


def backward(tensors: tuple[Any, ...], gradients: Gradients, numbers: Numbers, vec: int) -> None:
    """Fill those of the gradients dx, dw and db that are given.

    tensors are dy, x, dh, w, mean and rstd; numbers are arguments of `_dx`, in order.
    """
    dx, dw, db = gradients
    dy, x, _, _, mean, rstd = tensors
    m, nv, sdm, sdn, sxm, sxn, *_ = numbers
    if dx is not None:
        launch(_dx, m, dx, *tensors, *numbers, LongConstants(vec, _chunk(x)), **_options(x))
    parts = (dw is not None) + (db is not None)
    if parts:
        rows, chunk = (4, 1024) if x.is_cuda else (1, 2**14)
        n = nv * vec
        width = triton.cdiv(n, chunk)
        most = max(programs(x) // width, TOGETHER // rows if x.is_cuda else 1)
        count = max(1, min(most, triton.cdiv(m, rows)))
        lines = torch.empty((parts, count, n), dtype=torch.float32, device=x.device)
        constants = PartialsConstants(vec, chunk, dw is not None, db is not None, rows)
        sizes = (m, nv, sxm, sxn, sdm, sdn, count)
        launch(_partials, count * width, x, dy, mean, rstd, lines, *sizes, constants, **_options(x))
        fold(lines, dw, db)


def _chunk(x: Tensor) -> int:
    return 4096 if x.is_cuda else 2**14


def _options(x: Tensor) -> dict[str, int]:
    return {"num_warps": 8} if x.is_cuda else {}
