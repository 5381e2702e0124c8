"""A kernel that is right, whose rows are counted in 64 bits by the bounds of its loop alone."""

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, split
from verify_norm.kernels.launch import jit, launch

EACH = 4  # rows a program


@jit
def _rows(X, Y, W, Rstd, M, N, stride, eps, offset, EACH: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * EACH
    for row in range(first, min(first + EACH, M)):
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(X + row * stride + cols, mask=cols < N, other=0.0).to(tl.float32)
            squares += x * x
        rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) / N + eps))
        tl.store(Rstd + row, rstd)
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            y = tl.load(X + row * stride + cols, mask=cols < N, other=0.0).to(tl.float32) * rstd
            if W is not None:
                y *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset
            tl.store(Y + row * N + cols, y, mask=cols < N)


def int64_bounds(x, weight, eps, weight_offset, normalized_shape):
    """The row is an int64 because a bound of the loop is one, so that its product with a stride has room."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    x2 = x if x.dim() == 2 and x.stride(1) == 1 and x.shape == (m, n) else x.reshape(m, n).contiguous()
    y, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(m, device=x.device)
    block = min(triton.next_power_of_2(n), 1024)
    numbers = (m, n, x2.stride(0), float(eps), float(weight_offset))
    launch(_rows, triton.cdiv(m, EACH), x2, y, dense(weight), rstd, *numbers, EACH=EACH, BLOCK=block)
    return y, rstd
