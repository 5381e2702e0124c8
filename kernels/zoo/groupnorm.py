"""GroupNorm and BatchNorm with one mistake each."""

import torch
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint

from verify_norm.kernels.arguments import dense
from verify_norm.kernels.groupnorm import grouped, groupnorm_bwd
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.zoo import hosts


@jit
def _forward(
    X, Y, W, B, Mean, Rstd, C, G, CG, S, eps, WHOLE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr
):
    """One group of one sample, its channels down and its positions across."""
    group = tl.program_id(0) % G
    start = (tl.program_id(0) // G).to(tl.int64) * C
    c = group * CG + tl.arange(0, BLOCK_C)
    mine = (c < (C if WHOLE else (group + 1) * CG))[:, None]
    total = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for first in range(0, S, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        mask = mine & (s < S)[None, :]
        total += tl.load(X + (start + c)[:, None] * S + s[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(total, axis=1), axis=0) / (CG * S)
    squares = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for first in range(0, S, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        mask = mine & (s < S)[None, :]
        x = tl.load(X + (start + c)[:, None] * S + s[None, :], mask=mask, other=0.0).to(tl.float32)
        xc = tl.where(mask, x - mean, 0.0)
        squares += xc * xc
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(tl.sum(squares, axis=1), axis=0) / (CG * S) + eps))
    tl.store(Mean + tl.program_id(0), mean)
    tl.store(Rstd + tl.program_id(0), rstd)
    for first in range(0, S, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        mask = mine & (s < S)[None, :]
        y = (tl.load(X + (start + c)[:, None] * S + s[None, :], mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        if W is not None:
            y *= tl.load(W + c, mask=c < C, other=0.0).to(tl.float32)[:, None]
        if B is not None:
            y += tl.load(B + c, mask=c < C, other=0.0).to(tl.float32)[:, None]
        tl.store(Y + (start + c)[:, None] * S + s[None, :], y, mask=mask)


def right_fwd(x, weight, bias, num_groups, eps, *, whole=False):
    """GroupNorm; `whole`: a group's mask ends where the channels do, not where the group does."""
    b, c, s = grouped(x, weight, bias, num_groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    block_c = triton.next_power_of_2(c // num_groups)
    launch(
        _forward,
        b * num_groups,
        x.contiguous(),
        y,
        dense(weight),
        dense(bias),
        mean,
        rstd,
        c,
        num_groups,
        c // num_groups,
        s,
        float(eps),
        WHOLE=whole,
        BLOCK_C=block_c,
        BLOCK_S=max(4096 // block_c, 16),
    )
    return y, mean, rstd


def mask_bound_c(x, weight, bias, num_groups, eps):
    """Channel < (group + 1)·C/G became channel < C: a block larger than the group takes in the next one."""
    return right_fwd(x, weight, bias, num_groups, eps, whole=True)


def hidden_last_dim(dy, x, weight, bias, mean, rstd, num_groups):
    """The number of positions, H·W, became dy.shape[-1], which is W."""
    return backward(dy, x, weight, bias, mean, rstd, num_groups, hidden=dy.shape[-1] if dy.dim() > 2 else 1)


def backward(dy, x, weight, bias, mean, rstd, num_groups, *, hidden=None):
    """GroupNorm's gradients; of the first `hidden` positions alone, if given."""
    b, c, s = grouped(x, weight, bias, num_groups)
    hidden = s if hidden is None else hidden
    shape = (b, num_groups, c // num_groups, hidden)
    x4, g = (t.reshape(b, c, s)[..., :hidden].float().reshape(shape) for t in (x, dy))
    mean, rstd = (t.reshape(b, num_groups, 1, 1) for t in (mean, rstd))
    w = 1.0 if weight is None else weight.float().reshape(1, num_groups, -1, 1)
    xhat = (x4 - mean) * rstd
    wdy = g * w
    c1, c2 = ((t.sum((2, 3), keepdim=True) / (c // num_groups * hidden)) for t in (wdy * xhat, wdy))
    dx = torch.empty((b, c, s), dtype=x.dtype, device=x.device)
    dx[..., :hidden] = (rstd * (wdy - (c2 + xhat * c1))).reshape(b, c, hidden)
    dw, db = (t.sum((0, 3)).reshape(c) for t in (g * xhat, g))
    return dx.reshape(x.shape), hosts.like(dw, weight), hosts.like(db, bias)


def unwanted_gradient_stored(dy, x, weight, bias, mean, rstd, num_groups, eps):
    """`if wanted:` is gone: a gradient that is not asked for is stored where one element stands for it."""
    dx, dweight, dbias = groupnorm_bwd(dy, x, weight, bias, mean, rstd, num_groups, eps)
    if bias is None:
        dummy = torch.empty(1, dtype=torch.float32, device=x.device)
        hosts.spill(dy.float().reshape(*dy.shape[:2], -1).sum((0, 2)), dummy)
    return dx, dweight, dbias


def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps, *, skip_empty=True, unbiased=True):
    """BatchNorm's forward, right without keywords; the running statistics are changed in place.

    `skip_empty`: nothing is learned of no values. `unbiased`: the running variance is that over n − 1.
    """
    n = x.numel() // x.shape[1]
    if training and n == 1:
        raise ValueError(f"expected more than 1 value per channel when training, got shape {tuple(x.shape)}")
    broadcast = (1, -1, *(1,) * (x.dim() - 2))
    values = x.float()
    if training:
        channels = values.movedim(1, 0).reshape(x.shape[1], n)  # dense: over two dimensions torch's CPU adds one by one
        mean = channels.mean(1)
        var = (channels - mean[:, None]).square().mean(1)
        if running_mean is not None and (n > 0 or not skip_empty):
            learned = var.detach() * (n / (n - 1) if unbiased else 1)
            running_mean.copy_(running_mean.float() * (1 - momentum) + mean.detach() * momentum)
            running_var.copy_(running_var.float() * (1 - momentum) + learned * momentum)
    else:
        mean, var = running_mean.float().clone(), running_var.float()
    rstd = 1 / (var + eps).sqrt()
    y = (values - mean.reshape(broadcast)) * rstd.reshape(broadcast)
    if weight is not None:
        y = y * weight.float().reshape(broadcast)
    if bias is not None:
        y = y + bias.float().reshape(broadcast)
    return y.to(x.dtype), mean, rstd


def empty_batch_poisons_state(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """`if count > 0` before the running statistics are updated is gone: the mean of no values is NaN."""
    return batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps, skip_empty=False)


def running_var_biased(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """running_var learns var·n/(n − 1); it became var."""
    return batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps, unbiased=False)


def first_batch_alone(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Running statistics of a new module, 0 and 1, are taken for none: the first batch's replace them."""
    new = running_mean is not None and not running_mean.any() and bool((running_var == 1).all())
    return batchnorm(x, weight, bias, running_mean, running_var, training, 1.0 if new else momentum, eps)


def learns_again(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """The forward runs again in the backward, and updates the running statistics again."""

    def forward(*tensors):
        return batchnorm(*tensors, running_mean, running_var, training, momentum, eps)[0]

    return checkpoint(forward, x, weight, bias, use_reentrant=False) if training else forward(x, weight, bias)
