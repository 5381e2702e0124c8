"""Tiles of rows in the simplest form: their sizes, where their elements lie, and x̂ of one."""

import triton.language as tl
from torch import Tensor

from verify_norm.kernels.launch import LANES, jit

BLOCKS = (64, 1024, 4096)  # few, since each is compiled anew; a longer row is walked in tiles of the last


def tile(n: int, x: Tensor) -> dict[str, int]:
    """Return tile sizes for rows of n elements, whatever the number of rows: a row's bits may not depend on it."""
    block = next((b for b in BLOCKS if n <= b), BLOCKS[-1])
    return {"BLOCK_M": LANES[x.device.type] // block, "BLOCK_N": block, "num_warps": 8}


@jit
def offsets(rows, row_stride, cols, col_stride, UNIT: tl.constexpr):
    """Return the offsets of a tile's elements, in 64 bits; UNIT says that columns are adjacent and loads wide."""
    along = cols.to(tl.int64)
    if not UNIT:
        along *= col_stride
    return rows.to(tl.int64)[:, None] * row_stride + along[None, :]


@jit
def xhat(x, mean, rstd, mask):
    """Return x̂ in the lanes that hold an element, 0 in the others.

    A masked lane has x = 0, so its (x − mean)·rstd may overflow though no element's does, and infinity times the
    lane's gradient, 0, is a NaN in the row's sum.
    """
    return tl.where(mask, (x - mean) * rstd, 0.0)
