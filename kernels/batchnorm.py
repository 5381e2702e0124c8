"""BatchNorm: y = (x − mean)·rstd·w + b, statistics over all samples and positions of each channel.

In training they are those of x, and move the running ones; in evaluation they are the running ones. x (B, C, *spatial)
has any strides, so that channels_last needs no copy. All arithmetic is float32, and the variance is that of centred
values. The kernels are GroupNorm's (`groups.channels`).
"""

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients, check_backward, check_shapes
from verify_norm.kernels.autograd import NAMESPACE
from verify_norm.kernels.groupnorm import grouped
from verify_norm.kernels.groups import channels
from verify_norm.kernels.groups.operators import like


def batchnorm_fwd(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of BatchNorm of x (B, C, *spatial), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of rank 2 or more and any strides.
    weight, bias : Tensor or None
        Of shape (C,), of x's type or float32.
    running_mean, running_var : Tensor or None
        Of shape (C,) and any floating type. Training moves them in place, to (1 − momentum)·old + momentum·new, with
        the unbiased variance; of an x without elements it does not. Evaluation needs both.
    training : bool
        Whether the statistics are those of x.
    momentum : float
        The share of the batch in the running statistics.
    eps : float
        Added to the variance under the root.

    Returns
    -------
    y : Tensor
        Of x's shape and type; channels_last where x is.
    mean, rstd : Tensor
        float32 of shape (C,): what x was normalized by; NaN in training of an x without elements.

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, a type would lose bits in silence, training has one value a channel, or evaluation
        lacks running statistics.
    """
    _check(x, weight, bias, running_mean, running_var, training)
    if torch.compiler.is_compiling():
        with torch.no_grad():  # as the eager call has no gradient, whatever the parameters require
            return _forward(x, weight, bias, running_mean, running_var, training, float(momentum), float(eps))
    return _normalized(x, weight, bias, running_mean, running_var, training, momentum, eps)


def batchnorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> Gradients:
    """Return dx, dweight and dbias of BatchNorm, from dy like x and the statistics.

    With x̂ = (x − mean)·rstd and g = w·dy, training has dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) with means over a
    channel, from the forward's mean and rstd. In evaluation the running statistics are constants, and dx = rstd·g.
    In both dweight = Σ dy·x̂ and dbias = Σ dy. dx has x's type, dweight and dbias those of weight and bias, and None
    stays None.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic of training not float32, one a channel.
    """
    _check(x, weight, bias, running_mean, running_var, training)
    if training:
        check_backward(x, dy, x.shape[1], mean=mean, rstd=rstd)  # type: ignore[arg-type]  # it refuses None
        first, second, own = mean, rstd, None
    else:
        check_backward(x, dy, 0)
        first, second, own = running_mean, running_var, float(eps)
    if torch.compiler.is_compiling():
        with torch.no_grad():
            found = iter(_backward(dy, x, weight, bias, first, second, own))
        return next(found), None if weight is None else next(found), None if bias is None else next(found)
    return _gradients(dy, x, weight, bias, first, second, own)


def _check(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
) -> None:
    """Raise ValueError or TypeError for arguments that do not fit each other."""
    batch, count, positions = grouped(x, weight, bias, 1)
    if not count:
        raise ValueError(f"x must have channels, not shape {tuple(x.shape)}")
    running = {"running_mean": running_mean, "running_var": running_var}
    check_shapes((count,), **running)
    for name, t in running.items():
        if t is not None and not t.is_floating_point():
            raise TypeError(f"{name} must have a floating type, not {t.dtype}")
        if t is not None and t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, x on {x.device}")
        if t is None and not training:
            raise ValueError(f"evaluation needs {name}")
    if training and batch * positions == 1:
        raise ValueError(f"training needs more than one value a channel, got x of shape {tuple(x.shape)}")
    if batch * positions > 2**31 - 2**15:
        raise ValueError(f"a channel of {batch * positions} values is too long: these kernels count them in 32 bits")


def _normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel():
        running = channels.running_of(running_mean, running_var)
        return channels.forward(x, weight, bias, running, float(momentum) if training else None, eps)
    if training or running_mean is None or running_var is None:
        mean = x.new_full((x.shape[1],), torch.nan, dtype=torch.float32)
        return torch.empty_like(x), mean, mean.clone()
    return torch.empty_like(x), running_mean.float().clone(), (running_var.float() + eps).rsqrt()


def _gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    eps: float | None,
) -> Gradients:
    if x.numel() and first is not None and second is not None:
        return channels.backward(dy, x, weight, bias, (first, second), eps, (True, True, True))
    dw, db = (None if t is None else torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (weight, bias))
    return torch.empty_like(x), dw, db


@torch.library.custom_op(f"{NAMESPACE}::batch_norm_forward", mutates_args=("running_mean", "running_var"))
def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # of what changes an argument, torch.compile takes no list
    return _normalized(x, weight, bias, running_mean, running_var, training, momentum, eps)


@_forward.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = (x.new_empty((x.shape[1],), dtype=torch.float32) for _ in range(2))
    return like(x), mean, rstd


@torch.library.custom_op(f"{NAMESPACE}::batch_norm_backward", mutates_args=())
def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    eps: float | None,
) -> list[Tensor]:
    """Return those of dx, dweight and dbias that exist."""
    return [t for t in _gradients(dy, x, weight, bias, first, second, eps) if t is not None]


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    eps: float | None,
) -> list[Tensor]:
    parameters = [t for t in (weight, bias) if t is not None]
    return [like(x, dy), *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in parameters)]
