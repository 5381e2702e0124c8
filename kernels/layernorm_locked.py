"""LayerNorm's backward with locks: every program adds its rows' dweight and dbias into one of a few shared buffers.

The algorithm of the older print of Triton's layer-norm tutorial (https://triton-lang.org, tutorial 05): a program
computes dx of its rows, takes the spin lock of buffer `tile % GROUP_SIZE_M`, adds, and lets go; a second kernel
sums the buffers. What the print got wrong is mended: buffers in float32 and zeroed, no more of them than are
used, a barrier before the release (or the next holder may read before all threads of the last have written), the
strides of every tensor its own, 64-bit offsets, rows of any length. dx is deterministic; dweight and dbias add up
in the order in which programs get the lock.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

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
from verify_norm.kernels.row_plan import fold


@jit
def _dx_and_locked_sums(
    DX, DY, X, W, Mean, Rstd, DW, DB, Lock, M, N, sdm, sdn, sxm, sxn, GROUP_SIZE_M,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
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
    """Gradients of LayerNorm with locked partial sums: dx, dweight, dbias, as `layernorm.layernorm_bwd` returns them.

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
    launch(
        _dx_and_locked_sums, tiles, dx, dy2, x2, dense(weight), dense(mean), dense(rstd),
        *((None, None) if sums is None else sums), lock, m, n, *dy2.stride(), *x2.stride(),
        buffers, UNIT=unit(dy2, x2), **block,
    )  # fmt: skip
    if sums is not None:
        fold(sums[dw is None : 1 + (db is not None)], dw, db)
    return dx, dw, db


def group_size(n: int) -> int:
    """How many buffers share the rows: the tutorial's numbers. Longer rows hold a lock longer, but cost more memory."""
    for limit, size in ((1024, 256), (4096, 128), (8192, 96)):
        if n <= limit:
            return size
    return 64
