"""GroupNorm's forward as FlyMy.AI's text on Triton has it (seed 003): one program a group, statistics by Welford.

Its loop overwrites what it has gathered, and its loads leave the lanes beyond the group undefined; y is a·x + b.
"""

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense
from verify_norm.kernels.groupnorm import grouped
from verify_norm.kernels.launch import jit, launch


@jit
def _combine(mean1, m21, weight1, mean2, m22, weight2):
    delta = mean2 - mean1
    weight = weight1 + weight2
    share = tl.where(weight == 0.0, 0.0, weight2 / tl.where(weight == 0.0, 1.0, weight))
    return mean1 + delta * share, m21 + m22 + delta * delta * weight1 * share, weight


@jit
def _forward(X, Y, W, B, Mean, Rstd, G, CG, S, eps, LOST: tl.constexpr, UNDEFINED: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    size = CG * S
    X += pid.to(tl.int64) * size
    Y += pid.to(tl.int64) * size
    mean = tl.zeros([BLOCK], tl.float32)
    m2 = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        r = start + tl.arange(0, BLOCK)
        if UNDEFINED:  # what a lane holds that loads nothing is not said anywhere; NaN is the worst of it
            x = tl.load(X + r, mask=r < size, other=float("nan")).to(tl.float32)
        else:
            x = tl.load(X + r, mask=r < size, other=0.0).to(tl.float32)
        one = (r < size).to(tl.float32)
        nothing = tl.zeros([BLOCK], tl.float32)
        if LOST:
            m2 = nothing
            weight = one
            mean, m2, weight = _combine(mean, m2, weight, x, m2, weight)
        else:
            mean, m2, weight = _combine(mean, m2, weight, x, nothing, one)
    mean, m2, weight = tl.reduce((mean, m2, weight), 0, _combine)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(m2 / weight + eps))
    tl.store(Mean + pid, mean)
    tl.store(Rstd + pid, rstd)
    for channel in range(CG):
        a = rstd
        b = 0.0
        if W is not None:
            a = rstd * tl.load(W + pid % G * CG + channel).to(tl.float32)
        if B is not None:
            b = tl.load(B + pid % G * CG + channel).to(tl.float32)
        b = b - a * mean
        for start in range(0, S, BLOCK):
            r = start + tl.arange(0, BLOCK)
            x = tl.load(X + channel * S + r, mask=r < S, other=0.0).to(tl.float32)
            tl.store(Y + channel * S + r, a * x + b, mask=r < S)


def forward(x, weight, bias, num_groups, eps, *, lost=False, undefined=False):
    """As printed but for what has no keyword: right, where an expanded a·x + b is.

    `lost`: the running sums do not survive the loop. `undefined`: nor is it said what masked lanes hold.
    """
    b, c, s = grouped(x, weight, bias, num_groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    launch(
        _forward,
        b * num_groups if s else 0,
        x.contiguous(),
        y,
        dense(weight),
        dense(bias),
        mean,
        rstd,
        num_groups,
        c // num_groups,
        s,
        float(eps),
        LOST=lost,
        UNDEFINED=undefined,
        BLOCK=min(4096, triton.next_power_of_2(s or 1)),
    )
    return y, mean, rstd


def state_lost(x, weight, bias, num_groups, eps):
    """The loop sets m2 to 0 and weight to the mask before it combines, so that what it had gathered is gone."""
    return forward(x, weight, bias, num_groups, eps, lost=True)


def masked_lanes_undefined(x, weight, bias, num_groups, eps):
    """A masked load without `other`, and then mean + (x − mean)·0: a NaN there is a NaN in the group."""
    return forward(x, weight, bias, num_groups, eps, undefined=True)


def expanded(x, weight, bias, num_groups, eps):
    """The form y = a·x + (b − a·mean) loses as many bits as the mean is larger than the deviation."""
    return forward(x, weight, bias, num_groups, eps)
