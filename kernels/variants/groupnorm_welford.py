"""GroupNorm's forward with statistics in one pass: Welford's mean and squares in every lane, merged at the end.

The algorithm of FlyMy.AI's GroupNorm kernel, which follows PyTorch's inductor: each lane of a block keeps (mean,
m2, weight) of the elements it saw, and tl.reduce merges the lanes by Chan's formula. The errors of the print are fixed:
the running state survives the loop, a masked lane never contributes (not even NaN · 0), y is (x − mean)·a + b rather
than x·a + (b − mean·a), the grid has one axis, offsets have 64 bits, and rank, strides, weight and bias are free.

B. P. Welford, Technometrics 4 (1962); T. F. Chan, G. H. Golub, R. J. LeVeque, COMPSTAT 1982.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from verify_norm.kernels.arguments import dense, stored
from verify_norm.kernels.groupnorm import channels_inner, grouped
from verify_norm.kernels.launch import jit, launch

LANES = 1024  # each keeps its own state; few enough to stay in registers


@jit
def _combine(mean1, m21, weight1, mean2, m22, weight2):
    weight = weight1 + weight2
    # A side without elements must leave the other exactly as it is. Its mean is 0, so delta is the other's mean, whose
    # square may overflow: the weights, of which one is 0 then, come first. Rounded division makes w/w exactly 1.
    share = tl.div_rn(weight2, tl.where(weight == 0.0, 1.0, weight))
    delta = mean2 - mean1
    return mean1 + delta * share, m21 + m22 + delta * (delta * (weight1 * share)), weight


@jit
def _place(g, e, G, CG, S, sb, sc, ss, CHANNELS_INNER: tl.constexpr):
    e = e.to(tl.int64)
    if CHANNELS_INNER:
        channel, s = e % CG, e // CG
    else:
        channel, s = e // S, e % S
    channel += g % G * CG
    return channel, g // G * sb + channel * sc + s * ss


@dataclass(frozen=True)
class Constants:
    """The constants of the kernel: whether neighbours in memory are channels, and elements of a block."""

    CHANNELS_INNER: bool
    BLOCK: int


@jit
def _forward(X, Y, W, B, Mean, Rstd, G, CG, S, sxb, sxc, sxs, syb, syc, sys, eps, K: tl.constexpr):
    CHANNELS_INNER: tl.constexpr = K.CHANNELS_INNER
    BLOCK: tl.constexpr = K.BLOCK
    g = tl.program_id(0).to(tl.int64)
    N = CG * S
    mean = tl.zeros([BLOCK], tl.float32)
    m2 = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        e = start + tl.arange(0, BLOCK)
        mask = e < N
        channel, at = _place(g, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        # Only the last block is masked. A lane without an element keeps its state, rather than adding one of weight 0.
        weight = tl.where(mask, weight + 1.0, weight)
        delta = tl.where(mask, x - mean, 0.0)
        mean = tl.where(mask, mean + delta / tl.where(mask, weight, 1.0), mean)
        m2 = tl.where(mask, m2 + delta * (x - mean), m2)
    mean, m2, weight = tl.reduce((mean, m2, weight), 0, _combine)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(m2 / N + eps))
    tl.store(Mean + g, mean)
    tl.store(Rstd + g, rstd)

    for start in range(0, N, BLOCK):
        e = start + tl.arange(0, BLOCK)
        mask = e < N
        channel, at = _place(g, e, G, CG, S, sxb, sxc, sxs, CHANNELS_INNER)
        y = (tl.load(X + at, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        if W is not None:
            y *= tl.load(W + channel, mask=mask, other=0.0).to(tl.float32)
        if B is not None:
            y += tl.load(B + channel, mask=mask, other=0.0).to(tl.float32)
        channel, at = _place(g, e, G, CG, S, syb, syc, sys, CHANNELS_INNER)
        tl.store(Y + at, y, mask=mask)


def lanes(n: int, x: Tensor) -> int:
    """Return how many elements a block holds: on a GPU one size, compiled once; in the interpreter as few as suffice.

    Even there at least one lane of a small group stays empty, as on a GPU.
    """
    return LANES if x.device.type == "cuda" else min(LANES, triton.next_power_of_2(n + 1))


def groupnorm_fwd_welford(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of GroupNorm of x (B, C, *spatial), as `groupnorm.groupnorm_fwd`, by Welford.

    Raises
    ------
    ValueError, TypeError
        As `groupnorm.groupnorm_fwd`.
    """
    b, c, s = grouped(x, weight, bias, num_groups)
    x3 = stored(x).reshape(b, c, s)
    y3 = torch.empty_like(x3)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    constants = Constants(channels_inner(x3), lanes(c // num_groups * s, x))
    tensors = (x3, y3, dense(weight), dense(bias), mean, rstd)
    sizes = (num_groups, c // num_groups, s)
    launch(_forward, b * num_groups, *tensors, *sizes, *x3.stride(), *y3.stride(), float(eps), constants)
    return y3.view(x.shape), mean, rstd
