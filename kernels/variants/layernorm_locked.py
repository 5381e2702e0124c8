"""LayerNorm's backward with locks: every program adds its rows' dweight and dbias into one of a few shared buffers.

The algorithm of the older print of Triton's layer-norm tutorial (https://triton-lang.org, tutorial 05): a program
computes dx of its rows, takes the spin lock of buffer `tile % GROUP_SIZE_M`, adds, and releases it; a second kernel
sums the buffers. The errors of the print are fixed: buffers are float32 and zeroed, and no more than are used. A
barrier precedes the release, or the next holder may read before all threads of the last have written. Every tensor has
its own strides, offsets have 64 bits, and rows have any length. dx is deterministic; dweight and dbias add up in the
order in which programs get the lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from verify_norm.kernels.arguments import check_backward, dense, normalized, rows, split, unit
from verify_norm.kernels.blocks import offsets, tile, xhat
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.rows.plan import fold


@dataclass(frozen=True)
class Constants:
    """The constants of the kernel: whether columns are adjacent, and rows and columns of a tile."""

    UNIT: bool
    BLOCK_M: int
    BLOCK_N: int


@jit
def _dx_and_locked_sums(
    DX, DY, X, W, Mean, Rstd, DW, DB, Lock, M, N, sdm, sdn, sxm, sxn, GROUP_SIZE_M, K: tl.constexpr
):
    UNIT: tl.constexpr = K.UNIT
    BLOCK_M: tl.constexpr = K.BLOCK_M
    BLOCK_N: tl.constexpr = K.BLOCK_N
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
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

    if Lock is not None:
        lock_id = pid % GROUP_SIZE_M
        while tl.atomic_cas(Lock + lock_id, 0, 1) == 1:
            pass
        for start in range(0, N, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            mask = (row < M)[:, None] & (cols < N)[None, :]
            x = tl.load(X + offsets(row, sxm, cols, sxn, UNIT), mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(DY + offsets(row, sdm, cols, sdn, UNIT), mask=mask, other=0.0).to(tl.float32)
            at = lock_id.to(tl.int64) * N + cols
            dw = tl.load(DW + at, mask=cols < N, other=0.0) + tl.sum(dy * xhat(x, mean, rstd, mask), axis=0)
            db = tl.load(DB + at, mask=cols < N, other=0.0) + tl.sum(dy, axis=0)
            tl.store(DW + at, dw, mask=cols < N)
            tl.store(DB + at, db, mask=cols < N)
        tl.debug_barrier()
        tl.atomic_xchg(Lock + lock_id, 0)


def layernorm_bwd_locked(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    normalized_shape: int | Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return dx, dweight and dbias of LayerNorm, as `layernorm.layernorm_bwd` does, with locked partial sums.

    dweight and dbias may differ from run to run by the rounding of a float32 sum in another order.

    Raises
    ------
    ValueError, TypeError
        As `layernorm.layernorm_bwd`.
    """
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    check_backward(x, dy, m, mean=mean, rstd=rstd)
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = tile(n, x)
    tiles = triton.cdiv(m, block["BLOCK_M"])
    dw, db = (None if t is None else torch.empty(t.shape, dtype=t.dtype, device=x.device) for t in (weight, bias))
    sums = lock = None
    buffers = max(1, min(tiles, group_size(n)))
    if dw is not None or db is not None:
        sums = torch.zeros((2, buffers, n), dtype=torch.float32, device=x.device)
        lock = torch.zeros(buffers, dtype=torch.int32, device=x.device)
    tensors = (dx, dy2, x2, dense(weight), dense(mean), dense(rstd), *((None, None) if sums is None else sums), lock)
    numbers = (m, n, *dy2.stride(), *x2.stride(), buffers)
    constants = Constants(unit(dy2, x2), block["BLOCK_M"], block["BLOCK_N"])
    launch(_dx_and_locked_sums, tiles, *tensors, *numbers, constants, num_warps=block["num_warps"])
    if sums is not None:
        fold(sums[dw is None : 1 + (db is not None)], dw, db)
    return dx, dw, db


def group_size(n: int) -> int:
    """Return how many buffers share the rows: longer rows hold a lock longer, but their buffers take more memory."""
    for limit, size in ((1024, 256), (4096, 128), (8192, 96)):
        if n <= limit:
            return size
    return 64
