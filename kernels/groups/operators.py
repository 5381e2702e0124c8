"""GroupNorm's launches as operators of torch, which torch.compile keeps whole; called eagerly, the launches alone."""

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients
from verify_norm.kernels.autograd import NAMESPACE
from verify_norm.kernels.groups import launch


def like(x: Tensor, *others: Tensor) -> Tensor:
    """Return a tensor of x's shape and type in the memory format of what `launch` returns."""
    alike = torch.empty_like(x)
    if all(launch.three(x.shape, t.stride()) is not None for t in (alike, x, *others)):
        return alike
    return torch.empty_like(x.flatten(2)).view(x.shape)


@torch.library.custom_op(f"{NAMESPACE}::group_norm_forward", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> list[Tensor]:
    return list(launch.forward(x, weight, bias, num_groups, eps, activation))


@_forward.register_fake
def _(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> list[Tensor]:
    return [like(x), *(x.new_empty((x.shape[0], num_groups), dtype=torch.float32) for _ in range(2))]


@torch.library.custom_op(f"{NAMESPACE}::group_norm_backward", mutates_args=())
def _backward(  # whose schema is flat
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    activation: str | None,
    wanted: list[bool],
) -> list[Tensor]:
    """Return those of dx, dweight and dbias that are wanted."""
    first, second, third = wanted
    found = launch.backward(dy, x, weight, bias, (mean, rstd), num_groups, activation, (first, second, third))
    return [t for t in found if t is not None]


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    activation: str | None,
    wanted: list[bool],
) -> list[Tensor]:
    found = [like(x, dy)] if wanted[0] else []
    return found + [
        torch.empty_like(t, memory_format=torch.contiguous_format)
        for t, want in zip((weight, bias), wanted[1:], strict=True)
        if want and t is not None
    ]


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd, as `launch.forward` does; by its operator in a compiler."""
    if not torch.compiler.is_compiling():
        return launch.forward(x, weight, bias, num_groups, eps, activation)
    with torch.no_grad():  # as the eager call has no gradient, whatever the parameters require
        y, mean, rstd = _forward(x, weight, bias, num_groups, float(eps), activation)
    return y, mean, rstd


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
    num_groups: int,
    activation: str | None,
    wanted: tuple[bool, bool, bool],
) -> Gradients:
    """Return dx, dweight and dbias, as `launch.backward` does; by its operator in a compiler."""
    if not torch.compiler.is_compiling():
        return launch.backward(dy, x, weight, bias, statistics, num_groups, activation, wanted)
    with torch.no_grad():
        found = iter(_backward(dy, x, weight, bias, *statistics, num_groups, activation, list(wanted)))
    there = (wanted[0], wanted[1] and weight is not None, wanted[2] and bias is not None)
    dx, dweight, dbias = (next(found) if one else None for one in there)
    return dx, dweight, dbias
