"""RMSNorm of heads and a rotation of each (RoPE), forward and backward, of rows that one tile holds.

With z = x̂·w, each pair (a, b) of the first R elements of z turns by the angle of its token:

    a' = a·cos − b·sin      b' = b·cos + a·sin

and dy turns back: da = da'·cos + db'·sin, db = db'·cos − da'·sin. What is behind the first R elements stays as it is.
With dz so made, dx and dweight are RMSNorm's: dx = rstd·(w·dz − x̂·mean(w·dz·x̂)) and dweight = Σ dz·x̂ over the rows.

x is (S, H, N): the H heads of S tokens, with a stride of each dimension, so heads of a packed qkv are read where they
are. A tile has HEADS heads of each of TOKENS tokens, HEADS a divisor of H. Every row is made of pairs, those that do
not turn too: the first elements of pairs are one tensor and the second ones another, in the columns of cos and sin, so
a thread has both. Lengths and strides are counted in vectors, as in `forward`; the lines of sums are `backward`'s.
"""

from dataclasses import dataclass

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from verify_norm.kernels.launch import jit
from verify_norm.kernels.rows.backward import line_of
from verify_norm.kernels.rows.tiles import addresses, plus
from verify_norm.kernels.widening import wide


@dataclass(frozen=True)
class RotationConstants:
    """The constants of `forward` and `backward`.

    VEC, PTX : as in `ForwardConstants`
    INTERLEAVED : pairs are (2i, 2i + 1); else (i, i + R/2), and behind R the same of the rest
    ALL : all pairs turn
    EVEN : a row has PAIRS pairs
    TOKENS, HEADS : tokens of a tile, and heads of each
    PAIRS : columns of a tile
    """

    VEC: int
    PTX: bool
    INTERLEAVED: bool
    ALL: bool
    EVEN: bool
    TOKENS: int
    HEADS: int
    PAIRS: int


@jit
def _place(tile, H, K: tl.constexpr):
    """Return the token and the head of each row of a tile."""
    HEADS: tl.constexpr = K.HEADS
    TOKENS: tl.constexpr = K.TOKENS
    blocks = H // HEADS
    row = tl.arange(0, TOKENS * HEADS)
    token = (tile // blocks).to(tl.int64) * TOKENS + row // HEADS
    head = tile % blocks * HEADS + row % HEADS
    return token, head


@jit
def _columns(NV, HV, K: tl.constexpr):
    """Return both columns of each pair, and up to which pair each of them exists.

    The rest is cut after whole vectors, so its last pairs may have no second element.
    """
    VEC: tl.constexpr = K.VEC
    pair = tl.arange(0, K.PAIRS)
    half = (HV * VEC).to(tl.int32)
    count = ((NV - 2 * HV + 1) // 2 * VEC).to(tl.int32) + half
    first, second = pair, pair + half
    if not K.ALL:
        behind = pair >= half
        first = tl.max_contiguous(tl.multiple_of(tl.where(behind, pair + half, first), VEC), VEC)
        second = tl.max_contiguous(tl.multiple_of(tl.where(behind, pair + count, second), VEC), VEC)
    return first, second, count, (NV * VEC).to(tl.int32) - count


@jit
def _masked(here, cols, width, K: tl.constexpr):
    mask = here[:, None]
    if not K.EVEN:
        mask = mask & (cols < width)[None, :]
    return mask


@jit
def _load(P, start, here, NV, HV, step, K: tl.constexpr):
    """Return the pairs of rows that begin at `start`, for `_pairs`, in P's own type; 0 outside."""
    VEC: tl.constexpr = K.VEC
    pair = tl.arange(0, K.PAIRS)
    if K.INTERLEAVED:
        both = tl.arange(0, 2 * K.PAIRS)
        a = tl.load(addresses(P, start, 1, both, step, VEC), mask=_masked(here, both, NV * VEC, K), other=0.0)
        b = a
    else:
        first, second, one, two = _columns(NV, HV, K)
        a = tl.load(addresses(P, start, 1, first, step, VEC), mask=_masked(here, pair, one, K), other=0.0)
        b = tl.load(addresses(P, start, 1, second, step, VEC), mask=_masked(here, pair, two, K), other=0.0)
    return a, b


@jit
def _pairs(a, b, K: tl.constexpr):
    """Return the first and the second elements of what `_load` returned, in float32."""
    FAST: tl.constexpr = K.PTX and K.VEC > 1
    if K.INTERLEAVED:
        a, b = tl.split(tl.reshape(wide(a, FAST), [a.shape[0], K.PAIRS, 2]))
    else:
        a, b = wide(a, FAST), wide(b, FAST)
    return a, b


@jit
def _store(P, start, here, NV, HV, a, b, K: tl.constexpr):
    """Write what `_load` returns, into adjacent columns."""
    VEC: tl.constexpr = K.VEC
    pair = tl.arange(0, K.PAIRS)
    if K.INTERLEAVED:
        both = tl.arange(0, 2 * K.PAIRS)
        t = tl.reshape(tl.join(a, b), [a.shape[0], 2 * K.PAIRS])
        tl.store(addresses(P, start, 1, both, 1, VEC), t, mask=_masked(here, both, NV * VEC, K))
    else:
        first, second, one, two = _columns(NV, HV, K)
        tl.store(addresses(P, start, 1, first, 1, VEC), a, mask=_masked(here, pair, one, K))
        tl.store(addresses(P, start, 1, second, 1, VEC), b, mask=_masked(here, pair, two, K))


@jit
def _angles(Cos, Sin, token, here, HV, K: tl.constexpr):
    """Return cos and sin of these tokens, in their own type; 0 outside."""
    VEC: tl.constexpr = K.VEC
    pair = tl.arange(0, K.PAIRS)
    mask = here[:, None]
    if not (K.ALL and K.EVEN):
        mask = mask & (pair < HV * VEC)[None, :]
    c = tl.load(line_of(Cos, token[:, None], HV, pair[None, :], VEC), mask=mask, other=0.0)
    s = tl.load(line_of(Sin, token[:, None], HV, pair[None, :], VEC), mask=mask, other=0.0)
    return c, s


@jit
def _turned(a, b, c, s, HV, BACK: tl.constexpr, K: tl.constexpr):
    """Return pairs turned by these angles, or back; those behind R as they are, also where one is NaN."""
    FAST: tl.constexpr = K.PTX and K.VEC > 1
    c, s = wide(c, FAST), wide(s, FAST)
    if BACK:
        s = -s
    one, two = a * c - b * s, b * c + a * s
    if not K.ALL:
        turns = (tl.arange(0, K.PAIRS) < HV * K.VEC)[None, :]
        one, two = tl.where(turns, one, a), tl.where(turns, two, b)
    return one, two


@jit
def _factors(W, NV, HV, offset, K: tl.constexpr):
    """Return the weight plus its offset, in every row of a tile: one row alone would be loaded one by one."""
    start = tl.zeros([K.TOKENS * K.HEADS], tl.int64)
    a, b = _load(W, start, start == 0, NV, HV, 1, K)
    a, b = _pairs(a, b, K)
    return plus(a, offset, False), plus(b, offset, False)


@jit(int64="S NV HV sxt sxh sxn", int32="H", float32="eps")
def forward(X, Y, W, Cos, Sin, Rstd, S, H, NV, HV, sxt, sxh, sxn, eps, offset, K: tl.constexpr):
    """Store Y, contiguous, and Rstd of a tile of X. K is a `RotationConstants`."""
    token, head = _place(tl.program_id(0), H, K)
    here = token < S
    row = token * H + head
    a, b = _load(X, token * sxt + head * sxh, here, NV, HV, sxn, K)
    c, s = _angles(Cos, Sin, token, here, HV, K)
    a, b = _pairs(a, b, K)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(a * a + b * b, axis=1) / (NV * K.VEC).to(tl.int32) + eps))
    tl.store(Rstd + row, rstd, mask=here)
    a *= rstd[:, None]
    b *= rstd[:, None]
    if W is not None:
        wa, wb = _factors(W, NV, HV, offset, K)
        a *= wa
        b *= wb
    a, b = _turned(a, b, c, s, HV, False, K)
    _store(Y, row * NV, here, NV, HV, a, b, K)


@jit
def _given(DY, X, Cos, Sin, Rstd, tile, S, H, NV, HV, sdt, sdh, sdn, sxt, sxh, sxn, K: tl.constexpr):
    """Return all that a tile of the backward loads."""
    token, head = _place(tile, H, K)
    here = token < S
    da, db = _load(DY, token * sdt + head * sdh, here, NV, HV, sdn, K)
    xa, xb = _load(X, token * sxt + head * sxh, here, NV, HV, sxn, K)
    c, s = _angles(Cos, Sin, token, here, HV, K)
    rstd = tl.load(Rstd + (token * H + head), mask=here, other=0.0)
    return da, db, xa, xb, c, s, rstd


@jit(int64="S NV HV sdt sdh sdn sxt sxh sxn", int32="H tiles")
def backward(
    DX, DY, X, W, Cos, Sin, Rstd, Lines, S, H, NV, HV, tiles, sdt, sdh, sdn, sxt, sxh, sxn, offset, K: tl.constexpr
):
    """Store DX, contiguous, and this program's share of dweight, a line of Lines. K is a `RotationConstants`.

    A tile is loaded while the one before it is computed: the compiler moves no load across a store.
    """
    ROWS: tl.constexpr = K.TOKENS * K.HEADS
    PAIRS: tl.constexpr = K.PAIRS
    N = (NV * K.VEC).to(tl.int32)
    dwa = tl.zeros([ROWS, PAIRS], tl.float32)
    dwb = tl.zeros([ROWS, PAIRS], tl.float32)
    if W is not None:
        wa, wb = _factors(W, NV, HV, offset, K)
    programs = tl.num_programs(0)
    strides = (sdt, sdh, sdn, sxt, sxh, sxn)
    ahead = _given(DY, X, Cos, Sin, Rstd, tl.program_id(0), S, H, NV, HV, *strides, K)
    for tile in tl.range(tl.program_id(0), tiles, programs, num_stages=1):
        da, db, xa, xb, c, s, rstd = ahead
        ahead = _given(DY, X, Cos, Sin, Rstd, tile + programs, S, H, NV, HV, *strides, K)
        token, head = _place(tile, H, K)
        a, b = _pairs(da, db, K)
        a, b = _turned(a, b, c, s, HV, True, K)
        xa, xb = _pairs(xa, xb, K)
        xa *= rstd[:, None]
        xb *= rstd[:, None]
        dwa += a * xa
        dwb += b * xb
        if W is not None:
            a *= wa
            b *= wb
        c1 = (tl.sum(a * xa + b * xb, axis=1) / N)[:, None]
        a = rstd[:, None] * (a - xa * c1)
        b = rstd[:, None] * (b - xb * c1)
        _store(DX, (token * H + head) * NV, token < S, NV, HV, a, b, K)
    if K.PTX and Lines is not None:
        gdc_launch_dependents()
    if Lines is not None:
        line = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
        _store(Lines, line * NV, line >= 0, NV, HV, tl.sum(dwa, axis=0)[None, :], tl.sum(dwb, axis=0)[None, :], K)
