"""GroupNorm's forward of groups that registers hold: x is read once, in one launch. The names are `group_tiles`'."""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl

from verify_norm.kernels.activation import activate
from verify_norm.kernels.group_tiles import below, block, parameter, places, within
from verify_norm.kernels.launch import anew, jit


@jit
def forward_whole(
    X, Y, W, B, Mean, Rstd, M: tl.int64, G: tl.int32, CG: tl.int32, S: tl.int32, sxb: tl.int64, sxc: tl.int64,
    sxs: tl.int64, syb: tl.int64, syc: tl.int64, sys: tl.int64, eps: tl.float32, ACT: tl.constexpr,
    INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """BLOCK_G small groups, as one block."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_G + tl.arange(0, BLOCK_G)
    cols = tl.arange(0, BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, INNER, VEC)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    x = tl.load(places(X, sample * sxb + first * sxc, c, s, sxc, sxs, INNER, VEC), mask=mask, other=0.0).to(tl.float32)
    N = (CG * S).to(tl.float32)
    mean = tl.div_rn(tl.sum(tl.sum(x, axis=2), axis=1), N)
    xc = tl.where(mask, x - mean[:, None, None], 0.0)  # else every lane beyond the group would add mean²
    variance = tl.div_rn(tl.sum(tl.sum(xc * xc, axis=2), axis=1), N)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    tl.store(Mean + row, mean, mask=row < M)
    tl.store(Rstd + row, rstd, mask=row < M)
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w, b = parameter(W, channel, there, 1.0, "", 1)[:, :, None], parameter(B, channel, there, 0.0, "", 1)[:, :, None]
    y = activate(xc * rstd[:, None, None] * w + b, ACT, PTX)
    tl.store(places(Y, sample * syb + first * syc, c, s, syc, sys, INNER, VEC), y, mask=mask)


@jit
def forward_held(
    X, Y, W, B, Mean, Rstd, G: tl.int32, CG: tl.int32, S: tl.int32, sxb: tl.int64, sxc: tl.int64, sxs: tl.int64,
    syb: tl.int64, syc: tl.int64, sys: tl.int64, eps: tl.float32, ACT: tl.constexpr, INNER: tl.constexpr,
    VEC: tl.constexpr, PTX: tl.constexpr, EVEN: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    WIDE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One group, as WIDE·BLOCKS blocks of (channels, positions), kept in their own type. EVEN says none is short."""
    FAST: tl.constexpr = PTX and VEC > 1
    group = tl.program_id(0)
    sample, first = (group // G).to(tl.int64), group % G * CG
    cols, along, N = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S), (CG * S).to(tl.float32)
    from_x, from_y = sample * sxb + first.to(tl.int64) * sxc, sample * syb + first.to(tl.int64) * syc
    xs = ()
    ws = ()
    bs = ()
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        xs += (block(X, from_x, c, s, sxc, sxs, CG, S, INNER, VEC, EVEN, ""),)
    for i in tl.static_range(WIDE):
        c = i * BLOCK_C + cols
        there = below(c, CG, INNER, VEC)
        ws += (parameter(W, first + c, there, 1.0, INNER, VEC)[:, None],)
        bs += (parameter(B, first + c, there, 0.0, INNER, VEC)[:, None],)
    total = anew(xs[0], FAST)
    for i in tl.static_range(1, WIDE * BLOCKS):
        total += anew(xs[i], FAST)
    mean = tl.div_rn(tl.sum(total), N)
    squares = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for i in tl.static_range(WIDE * BLOCKS):
        x = anew(xs[i], FAST) - mean
        if not EVEN:  # else every lane beyond the group would add mean²
            c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
            x = tl.where(within(c, s, CG, S, INNER, VEC), x, 0.0)
        squares += x * x
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(squares), N) + eps))
    tl.store(Mean + group, mean)
    tl.store(Rstd + group, rstd)
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        x = anew(xs[i], FAST) - mean
        y = activate(x * rstd * ws[i // BLOCKS] + bs[i // BLOCKS], ACT, PTX)
        p = places(Y, from_y, c, s, syc, sys, INNER, VEC)
        if EVEN:
            tl.store(p, y)
        else:
            tl.store(p, y, mask=within(c, s, CG, S, INNER, VEC))
