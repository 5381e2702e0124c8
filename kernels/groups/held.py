"""GroupNorm's forward of groups that registers hold: x is read once, in one launch."""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl

from verify_norm.kernels.activation import activate
from verify_norm.kernels.groups.tiles import below, block, constant, move, origin, own, places, within
from verify_norm.kernels.launch import jit
from verify_norm.kernels.widening import anew


@jit(int64="M sxb sxc sxs syb syc sys", int32="G CG S", float32="eps")
def forward_whole(
    X, Y, W, B, Mean, Rstd, RM, RV, M, G, CG, S, sxb, sxc, sxs, syb, syc, sys, eps, momentum, K: tl.constexpr
):
    """Normalize BLOCK_G small groups, as one block. K is a `Whole`."""
    ACT: tl.constexpr = K.ACT
    row = tl.program_id(0).to(tl.int64) * K.BLOCK_G + tl.arange(0, K.BLOCK_G)
    cols = tl.arange(0, K.BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, K.BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, K)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    p = places(X, sample * sxb + first * sxc, c, s, (sxb, sxc, sxs), K)
    x = tl.load(p, mask=mask, other=0.0).to(tl.float32)
    N = (CG * S).to(tl.float32)
    if RM is not None and momentum is None:
        mean, rstd = constant(RM, RV, row, row < M, eps)
        xc = x - mean[:, None, None]
    else:
        mean = tl.div_rn(tl.sum(tl.sum(x, axis=2), axis=1), N)
        xc = tl.where(mask, x - mean[:, None, None], 0.0)  # else every lane beyond the group would add mean²
        variance = tl.div_rn(tl.sum(tl.sum(xc * xc, axis=2), axis=1), N)
        rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
        move(RM, row, momentum, mean, row < M)
        move(RV, row, momentum, variance * tl.div_rn(N, N - 1.0), row < M)
    tl.store(Mean + row, mean, mask=row < M)
    tl.store(Rstd + row, rstd, mask=row < M)
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w = own(W, row[:, None], channel, there, 1.0, K)[:, :, None]
    b = own(B, row[:, None], channel, there, 0.0, K)[:, :, None]
    y = activate(xc * rstd[:, None, None] * w + b, ACT, K.PTX)
    tl.store(places(Y, sample * syb + first * syc, c, s, (syb, syc, sys), K), y, mask=mask)


@jit(int64="sxb sxc sxs syb syc sys", int32="G CG S", float32="eps")
def forward_held(
    X, Y, W, B, Mean, Rstd, RM, RV, G, CG, S, sxb, sxc, sxs, syb, syc, sys, eps, momentum, K: tl.constexpr
):
    """Normalize one group, as WIDE·BLOCKS blocks of (channels, positions), kept in their own type. K is a `Held`."""
    EVEN: tl.constexpr = K.EVEN
    BLOCK_C: tl.constexpr = K.BLOCK_C
    BLOCK_S: tl.constexpr = K.BLOCK_S
    WIDE: tl.constexpr = K.WIDE
    BLOCKS: tl.constexpr = K.BLOCKS
    ACT: tl.constexpr = K.ACT
    FAST: tl.constexpr = K.PTX and K.VEC > 1
    sx, sy = (sxb, sxc, sxs), (syb, syc, sys)
    group = tl.program_id(0)
    sample, first = (group // G).to(tl.int64), group % G * CG
    cols, along, N = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S), (CG * S).to(tl.float32)
    from_x, from_y = origin(sample, first, sx), origin(sample, first, sy)
    xs = ()
    ws = ()
    bs = ()
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        xs += (block(X, from_x, c, s, sx, CG, S, EVEN, "", K),)
    for i in tl.static_range(WIDE):
        c = i * BLOCK_C + cols
        there = below(c, CG, K)
        ws += (own(W, group, first + c, there, 1.0, K)[:, None],)
        bs += (own(B, group, first + c, there, 0.0, K)[:, None],)
    if RM is not None and momentum is None:
        mean, rstd = constant(RM, RV, group, group >= 0, eps)
    else:
        total = anew(xs[0], FAST)
        for i in tl.static_range(1, WIDE * BLOCKS):
            total += anew(xs[i], FAST)
        mean = tl.div_rn(tl.sum(total), N)
        squares = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
        for i in tl.static_range(WIDE * BLOCKS):
            x = anew(xs[i], FAST) - mean
            if not EVEN:  # else every lane beyond the group would add mean²
                c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
                x = tl.where(within(c, s, CG, S, K), x, 0.0)
            squares += x * x
        variance = tl.div_rn(tl.sum(squares), N)
        rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
        move(RM, group, momentum, mean, group >= 0)
        move(RV, group, momentum, variance * tl.div_rn(N, N - 1.0), group >= 0)
    tl.store(Mean + group, mean)
    tl.store(Rstd + group, rstd)
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        x = anew(xs[i], FAST) - mean
        y = activate(x * rstd * ws[i // BLOCKS] + bs[i // BLOCKS], ACT, K.PTX)
        p = places(Y, from_y, c, s, sy, K)
        if EVEN:
            tl.store(p, y)
        else:
            tl.store(p, y, mask=within(c, s, CG, S, K))
