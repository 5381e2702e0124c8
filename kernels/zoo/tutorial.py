"""LayerNorm's backward as Triton's tutorial 05 has it, and as two texts have it wrong.

Every row has a program. It computes dx, takes the lock of one of GROUP_SIZE_M buffers, adds its share of dweight and
dbias there, and lets go; the buffers are then added. Each mistake of the texts is a keyword; without any, it is right.
The tutorial (https://triton-lang.org) is that before Triton's pull request 6307.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, rows, split
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.variants.layernorm_locked import group_size
from verify_norm.kernels.zoo import hosts


@dataclass(frozen=True)
class Constants:
    """The constants of `_dx_and_sums`; the first three are arguments of `backward`."""

    BY_DIVISION: bool
    FLAGGED: bool
    BARRIER: bool
    BLOCK_N: int


@jit
def _dx_and_sums(
    DX,
    DY,
    X,
    W,
    Mean,
    Rstd,
    DW,
    DB,
    Lock,
    M,
    N,
    sgm,
    sdm,
    sdn,
    sxm,
    sxn,
    dx_reach,
    dy_reach,
    groups,
    size,
    K: tl.constexpr,
):
    BY_DIVISION: tl.constexpr = K.BY_DIVISION
    FLAGGED: tl.constexpr = K.FLAGGED
    BARRIER: tl.constexpr = K.BARRIER
    BLOCK_N: tl.constexpr = K.BLOCK_N
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    x = tl.load(X + row * sxm + cols * sxn, mask=mask, other=0.0).to(tl.float32)
    at = row * sdm + cols * sdn
    dy = tl.load(DY + at, mask=mask & (at < dy_reach), other=0.0).to(tl.float32)
    wdy = dy
    if W is not None:
        wdy = dy * tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - tl.load(Mean + row)) * rstd, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    at = row * sgm + cols
    tl.store(DX + at, rstd * (wdy - (xhat * c1 + c2)), mask=mask & (at < dx_reach))

    lock_id = row // size if BY_DIVISION else row % groups
    dw, db = (dy * xhat).to(DW.dtype.element_ty), dy.to(DW.dtype.element_ty)
    while tl.atomic_cas(Lock + lock_id, 0, 1) == 1:
        pass
    at = lock_id * N + cols
    if FLAGGED:  # the first to come need not add to anything
        Count = Lock + groups + lock_id
        if tl.load(Count) == 0:
            tl.atomic_xchg(Count, 1)
        else:
            dw = (dw.to(tl.float32) + tl.load(DW + at, mask=mask).to(tl.float32)).to(DW.dtype.element_ty)
            db = (db.to(tl.float32) + tl.load(DB + at, mask=mask).to(tl.float32)).to(DW.dtype.element_ty)
    else:
        dw = (dw.to(tl.float32) + tl.load(DW + at, mask=mask).to(tl.float32)).to(DW.dtype.element_ty)
        db = (db.to(tl.float32) + tl.load(DB + at, mask=mask).to(tl.float32)).to(DW.dtype.element_ty)
    tl.store(DW + at, dw, mask=mask)
    tl.store(DB + at, db, mask=mask)
    if BARRIER:
        tl.debug_barrier()
    tl.atomic_xchg(Lock + lock_id, 0)


def backward(
    dy,
    x,
    weight,
    bias,
    mean,
    rstd,
    normalized_shape,
    *,
    zeroed=True,
    flagged=False,
    barrier=True,
    by_division=False,
    partials=torch.float32,
    one_stride=False,
    add_to_output=False,
    warps=8,
):
    """The gradients; right without keywords.

    `zeroed`: the buffers start at 0. `flagged`: the first row of a buffer stores without adding. `barrier`: all threads
    have stored before the lock is released. `by_division`: row // GROUP_SIZE_M chooses the buffer, rather than
    row % GROUP_SIZE_M. `partials`: the type of the buffers. `one_stride`: x's row stride serves for dy and dx too, and
    every column stride is taken to be 1. `add_to_output`: the buffers are added to what the output holds.
    `warps`: how many a program has, between which a missing barrier is a race.
    """
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    if n * x.element_size() > 2**16:  # one program holds a row, as in the tutorial
        raise RuntimeError("rows of more than 64 KB are not supported")
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = group_size(n)
    groups = max(triton.cdiv(m, size), 1) if by_division else size
    make = torch.zeros if zeroed else torch.empty
    dw, db = (make((groups, n), dtype=partials, device=x.device) for _ in range(2))
    lock = torch.zeros(2 * groups, dtype=torch.int32, device=x.device)
    strides = (n, *dy2.stride(), *x2.stride())
    if one_stride:
        strides = (x2.stride(0), x2.stride(0), 1, x2.stride(0), 1)
    tensors = (dx, dy2, x2, dense(weight), dense(mean), dense(rstd), dw, db, lock)
    numbers = (m, n, *strides, dx.numel() + hosts.SLACK, hosts.reach(dy2), groups, size)
    constants = Constants(by_division, flagged, barrier, triton.next_power_of_2(n))
    launch(_dx_and_sums, m, *tensors, *numbers, constants, num_warps=warps)
    sums = []
    for partial, like in ((dw, weight), (db, bias)):
        total = partial.float().sum(0)
        if add_to_output:
            total += torch.empty_like(total)
        sums.append(hosts.like(total, like))
    return dx, *sums


def partials_in_x_dtype(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 001: the buffers have the type of x, and each sum so far is rounded to it."""
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, flagged=True, partials=x.dtype)


def one_stride_for_all(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 001: dy is read and dx written by the row stride of x, and columns are taken to be adjacent."""
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, one_stride=True)


def as_printed(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 001 with all its mistakes: buffers of torch.empty in x's type, one stride, no barrier."""
    mistakes = {"zeroed": False, "flagged": True, "partials": x.dtype, "one_stride": True, "barrier": False}
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, **mistakes)


def never_first(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 000: every row adds to its buffer, which nothing has set to 0."""
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, zeroed=False, by_division=True)


def adds_to_output(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 000: the second stage adds the buffers to an output that nothing has set to 0."""
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, by_division=True, add_to_output=True)


def rewritten_as_printed(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Seed 000 with all its mistakes: no first store, nothing set to 0, no barrier."""
    mistakes = {"zeroed": False, "by_division": True, "add_to_output": True, "barrier": False}
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, **mistakes)


def flagged(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Right: zeroed buffers, and a flag that spares the first row of each an addition."""
    return backward(dy, x, weight, bias, mean, rstd, normalized_shape, flagged=True)
