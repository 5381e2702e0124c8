"""Stock torch as kernels of our operators: baselines that a user's own kernel can be compared with.

Row and group norms are called as users call them, their gradients taken by torch.autograd.grad, so that the backward
uses what torch itself saved and ignores the given mean and rstd. BatchNorm's backward does take them.
What torch refuses (one value a group or channel in training, an offset of RMSNorm's weight) raises here too.

Those whose names end in _compiled are the same functions of torch.nn.functional under torch.compile, for sizes that
change, and as one graph; on a CPU that needs a C++ compiler, and seconds for each new combination of types and layouts.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Gradients = tuple[Tensor | None, ...]


def layernorm_fwd_torch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of torch.native_layer_norm, which functional.layer_norm is: y, mean and rstd."""
    y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
    return y, mean.reshape(-1), rstd.reshape(-1)


def layernorm_bwd_torch(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Gradients:
    """Return the gradients of functional.layer_norm: dx, dweight, dbias."""
    return gradients(lambda x, w, b: functional.layer_norm(x, normalized_shape, w, b, eps), dy, x, weight, bias)


def rmsnorm_fwd_torch(x: Tensor, weight: Tensor | None, eps: float, normalized_shape: tuple[int, ...]) -> Tensor:
    """Return the result of functional.rms_norm: y."""
    return functional.rms_norm(x, normalized_shape, weight, eps)


def rmsnorm_bwd_torch(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Gradients:
    """Return the gradients of functional.rms_norm: dx, dweight."""
    return gradients(lambda x, w: functional.rms_norm(x, normalized_shape, w, eps), dy, x, weight)


def groupnorm_fwd_torch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of torch.native_group_norm, called as functional.group_norm calls it: y, mean and rstd.

    That makes every argument contiguous first, on a CPU x in its own memory format; the native function would read what
    lies between the elements.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.device.type != "cpu" or last is None or not x.is_contiguous(memory_format=last):
        x = x.contiguous()
    w, b = (None if t is None else t.contiguous() for t in (weight, bias))
    size = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    return torch.native_group_norm(x, w, b, *size, num_groups, eps)


def groupnorm_bwd_torch(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> Gradients:
    """Return the gradients of `groupnorm_fwd_torch`'s y: dx, dweight, dbias."""
    return gradients(lambda x, w, b: groupnorm_fwd_torch(x, w, b, num_groups, eps)[0], dy, x, weight, bias)


def batchnorm_fwd_torch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Return the results of torch.native_batch_norm: y, and in training mean and rstd. It updates running statistics.

    One value a channel in training is refused, and no values change nothing, as in functional.batch_norm;
    torch.native_batch_norm would make running_var NaN of the one, and raise at the other.
    """
    if training and x.numel() == x.shape[1]:
        raise ValueError(f"expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    if not x.numel():  # eps does not matter, and functional.batch_norm does not take 0
        return (functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum),)
    y, mean, rstd = torch.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return (y, mean, rstd) if training else (y,)


def batchnorm_bwd_torch(
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
    """Return the results of aten.native_batch_norm_backward, from the given mean and rstd: dx, dweight, dbias.

    On the CPU it takes them in the type that torch's own forward saves them in, that of the parameters.
    """
    if not x.numel():
        return gradients(
            lambda x, w, b: functional.batch_norm(x, running_mean, running_var, w, b, training, 0.0),
            dy,
            x,
            weight,
            bias,
        )
    if x.device.type == "cpu" and mean is not None and rstd is not None:
        kept = next((t.dtype for t in (weight, bias, running_mean) if t is not None), x.dtype)
        mean, rstd = mean.to(kept), rstd.to(kept)
    mask = [True, weight is not None, bias is not None]
    dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, running_mean, running_var, mean, rstd, training, eps, mask
    )
    return dx, dweight if mask[1] else None, dbias if mask[2] else None


def instancenorm_fwd_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the result of functional.instance_norm: y."""
    return functional.instance_norm(x, None, None, weight, bias, True, 0.0, eps)


def instancenorm_bwd_torch(dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of functional.instance_norm: dx, dweight, dbias."""
    return gradients(lambda x, w, b: functional.instance_norm(x, None, None, w, b, True, 0.0, eps), dy, x, weight, bias)


def layernorm_fwd_torch_compiled(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Tensor:
    """Return the results of functional.layer_norm under torch.compile: y."""
    return _compiled(functional.layer_norm, x, normalized_shape, weight, bias, eps)


def layernorm_bwd_torch_compiled(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Gradients:
    """Return the gradients of functional.layer_norm under torch.compile: dx, dweight, dbias."""
    return gradients(
        lambda x, w, b: _compiled(functional.layer_norm, x, normalized_shape, w, b, eps), dy, x, weight, bias
    )


def rmsnorm_fwd_torch_compiled(
    x: Tensor, weight: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Tensor:
    """Return the results of functional.rms_norm under torch.compile: y."""
    return _compiled(functional.rms_norm, x, normalized_shape, weight, eps)


def rmsnorm_bwd_torch_compiled(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, normalized_shape: tuple[int, ...]
) -> Gradients:
    """Return the gradients of functional.rms_norm under torch.compile: dx, dweight."""
    return gradients(lambda x, w: _compiled(functional.rms_norm, x, normalized_shape, w, eps), dy, x, weight)


def groupnorm_fwd_torch_compiled(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> Tensor:
    """Return the results of functional.group_norm under torch.compile: y."""
    return _compiled(functional.group_norm, x, num_groups, weight, bias, eps)


def groupnorm_bwd_torch_compiled(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> Gradients:
    """Return the gradients of functional.group_norm under torch.compile: dx, dweight, dbias."""
    return gradients(lambda x, w, b: _compiled(functional.group_norm, x, num_groups, w, b, eps), dy, x, weight, bias)


def batchnorm_fwd_torch_compiled(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Return the results of functional.batch_norm under torch.compile: y; it updates running statistics."""
    return _compiled(functional.batch_norm, x, running_mean, running_var, weight, bias, training, momentum, eps)


def batchnorm_bwd_torch_compiled(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> Gradients:
    """Return the gradients of functional.batch_norm under torch.compile, which takes the statistics itself."""
    kept = [None if t is None else t.clone() for t in (running_mean, running_var)]
    return gradients(
        lambda x, w, b: _compiled(functional.batch_norm, x, *kept, w, b, training, 0.1, eps), dy, x, weight, bias
    )


def instancenorm_fwd_torch_compiled(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the results of functional.instance_norm under torch.compile: y."""
    return _compiled(functional.instance_norm, x, None, None, weight, bias, True, 0.0, eps)


def instancenorm_bwd_torch_compiled(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Gradients:
    """Return the gradients of functional.instance_norm under torch.compile: dx, dweight, dbias."""
    return gradients(
        lambda x, w, b: _compiled(functional.instance_norm, x, None, None, w, b, True, 0.0, eps), dy, x, weight, bias
    )


@functools.cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    def norm(*arguments: Any) -> Any:
        return function(*arguments)

    return torch.compile(norm, dynamic=True, fullgraph=True)


def _compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return torch.compile of `function`, however many combinations of arguments it has seen.

    Beyond eight it would be called uncompiled, which a verdict on compiled code must not rest on.
    """
    import torch._dynamo  # torch.compile's own part of torch, which takes a second to import

    with torch._dynamo.config.patch(recompile_limit=2**20, accumulated_recompile_limit=2**20):
        return _compile(function)(*arguments)


def gradients(function: Callable[..., Any], dy: Tensor, *leaves: Tensor | None) -> Gradients:
    """Return the gradients of ⟨dy, function(*leaves)⟩ by each leaf, in the strides it has; None for None."""
    leaves = tuple(None if t is None else t.detach().requires_grad_() for t in leaves)
    given = [t for t in leaves if t is not None]
    with torch.enable_grad():
        y = function(*leaves)
    gradients = iter(torch.autograd.grad(y, given, dy))
    return tuple(None if t is None else next(gradients) for t in leaves)
