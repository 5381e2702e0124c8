"""How tiles of rows, and the parameters that belong to their columns, come from memory and go back.

Lengths and strides are counted in vectors of VEC elements, so that the compiler can see what divides them; nothing else
about a size, a stride or an address is compiled in.
"""

import triton.language as tl

from verify_norm.kernels.launch import jit
from verify_norm.kernels.widening import wide


@jit
def prefetch(P, tile, stride, M, NV, VEC: tl.constexpr, ROWS: tl.constexpr):
    """Prefetch a whole tile into the L2, where its rows are adjacent: one instruction of one thread.

    The memory then has work while the program reduces, and no load in flight needs registers for it.
    """
    if (tile + 1) * ROWS <= M and (ROWS == 1 or stride == NV):
        asm: tl.constexpr = """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"""
        p = (P + tile * ROWS * (stride * VEC)).to(tl.int64, bitcast=True)
        size = (ROWS * 16 * NV).to(tl.int32)
        tl.inline_asm_elementwise(asm, "=r,l,r", [p, size], dtype=tl.int32, is_pure=False, pack=1)


@jit
def addresses(P, row, stride, cols, step, VEC: tl.constexpr):
    """Return pointers to these columns of rows, `stride` vectors apart; VEC > 1 says that columns are adjacent."""
    along = cols
    if VEC == 1:
        along = cols.to(tl.int64) * step
    p = P + (row.to(tl.int64)[:, None] * stride * VEC + along[None, :])
    if VEC > 1:
        p = tl.multiple_of(p, (1, VEC * P.dtype.element_ty.primitive_bitwidth // 8))  # in bytes
    return p


@jit
def load(P, row, stride, cols, step, M, N, INSIDE: tl.constexpr, VEC: tl.constexpr, CACHE: tl.constexpr):
    """Return a tile in its own type, 0 outside; INSIDE says that all these columns are columns of the row."""
    p = addresses(P, row, stride, cols, step, VEC)
    if row.shape[0] > 1 and INSIDE:
        t = tl.load(p, mask=(row < M)[:, None], other=0.0, cache_modifier=CACHE)
    elif row.shape[0] > 1:
        t = tl.load(p, mask=(row < M)[:, None] & (cols < N)[None, :], other=0.0, cache_modifier=CACHE)
    elif INSIDE:  # a tile of one row is a row
        t = tl.load(p, cache_modifier=CACHE)
    else:
        t = tl.load(p, mask=(cols < N)[None, :], other=0.0, cache_modifier=CACHE)
    return t


@jit
def store(P, value, row, stride, cols, M, N, INSIDE: tl.constexpr, VEC: tl.constexpr):
    """Write a tile of a tensor with adjacent columns."""
    p = addresses(P, row, stride, cols, 1, VEC)
    if row.shape[0] > 1 and INSIDE:
        tl.store(p, value, mask=(row < M)[:, None])
    elif row.shape[0] > 1:
        tl.store(p, value, mask=(row < M)[:, None] & (cols < N)[None, :])
    elif INSIDE:
        tl.store(p, value)
    else:
        tl.store(p, value, mask=(cols < N)[None, :])


@jit
def saturated(value, P, PTX: tl.constexpr):
    """Return values clamped to what P's type of 8 bits holds; NaN stays. With PTX the conversion itself saturates."""
    if not PTX:
        limit: tl.constexpr = 448.0 if P.dtype.element_ty == tl.float8e4nv else 57344.0
        value = tl.clamp(value, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    return value


@jit
def parameter(P, cols, N, INSIDE: tl.constexpr, VEC: tl.constexpr):
    """Return these columns of a dense weight or bias, as one row, in its own type."""
    p = P + cols[None, :]
    if VEC > 1:
        p = tl.multiple_of(p, (1, 16))
    if INSIDE:
        t = tl.load(p, eviction_policy="evict_last")  # every row needs it again
    else:
        t = tl.load(p, mask=(cols < N)[None, :], other=0.0, eviction_policy="evict_last")
    return t


@jit
def plus(w, offset, PTX: tl.constexpr):
    """Return a loaded weight plus its offset, in float32."""
    w = wide(w, PTX)
    if offset is not None:
        w += offset
    return w


@jit
def factor(W, cols, N, offset, INSIDE: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr):
    """Return what x̂ is multiplied by: these columns of the weight plus its offset, in float32."""
    return plus(parameter(W, cols, N, INSIDE, VEC), offset, PTX)
