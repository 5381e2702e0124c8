"""GroupNorm's launches: the loops of `groups` and `groups_backward`, by the plans of `group_plan`."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from verify_norm.kernels.group_plan import COMPUTED, Plan, adjacent, plan
from verify_norm.kernels.groups import forward_merge, forward_results, forward_sums, forward_whole
from verify_norm.kernels.groups_backward import (
    backward_merge,
    backward_results,
    backward_sums,
    backward_whole,
    over_samples,
)
from verify_norm.kernels.launch import dense

# Bytes of x, or of x and dy, that are summed over before results are computed: about what the L2 cache keeps. Backward
# has a launch more a batch, and is better off with fewer.
CACHE = {1: 40 << 20, 2: 96 << 20}


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Y, mean and rstd of x (B, C, *spatial), whose channels the groups divide."""
    b, c = x.shape[:2]
    x3, group = x.flatten(2) if x.dim() > 2 else x[..., None], c // num_groups
    s = x3.shape[2]
    y3 = torch.empty_like(x3)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    p = plan(c, s, num_groups, *adjacent(x3, y3), x.itemsize, 1, x.device.type)
    tensors, strides = (x3, y3, dense(weight), dense(bias), mean, rstd), (*x3.stride(), *y3.stride(), float(eps))
    with torch.cuda.device_of(x):
        if p.merging is None and b:
            programs, sizes = (
                triton.cdiv(b * num_groups, p.constants["BLOCK_G"]),
                (b * num_groups, num_groups, group, s),
            )
            forward_whole[(programs,)](*tensors, *sizes, *strides, ACT=activation, **p.constants)
        elif p.merging is not None and b:
            sums, plane = _sums(p, x3, num_groups)
            for begin, units in _batches(p, x3, num_groups, 1):
                extents = (begin, plane, c, num_groups, group, p.groups * group, s, p.members)
                forward_sums[(units * p.members,)](
                    x3, sums, begin, plane, c, p.groups * group, s, p.members, *x3.stride(), **p.constants
                )
                if not p.itself:
                    forward_merge[(units * p.groups,)](
                        sums, mean, rstd, *extents, float(eps), BLOCK_S=p.constants["BLOCK_S"], **p.merging
                    )
                forward_results[(_parts(p, units),)](
                    *tensors, sums, *extents, COMPUTED, *strides, ACT=activation, COLS=p.merging["COLS"],
                    RANKS=p.merging["RANKS"] if p.itself else 0, **p.constants,
                )  # fmt: skip
    return y3.view(x.shape), mean, rstd


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Any, rstd: Any, num_groups: int,
    activation: str | None, wanted: tuple[bool, bool, bool],
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients that are wanted, of x, weight and bias."""
    b, c = x.shape[:2]
    x3, dy3 = (t.flatten(2) if t.dim() > 2 else t[..., None] for t in (x, dy))
    s, group = x3.shape[2], c // num_groups
    dx3 = torch.empty_like(x3)  # for its strides where it is not wanted
    gradients = [
        torch.empty(p.shape, dtype=p.dtype, device=x.device) if want and p is not None else None
        for p, want in ((weight, wanted[1]), (bias, wanted[2]))
    ]
    # of one sample they are the gradients already
    channels = [None if t is None else t if b == 1 else t.new_empty((b, c), dtype=torch.float32) for t in gradients]
    p = plan(c, s, num_groups, *adjacent(x3, dy3, dx3), x.itemsize, 2, x.device.type)
    out, known = dx3 if wanted[0] else None, (dense(weight), dense(bias), dense(mean), dense(rstd))
    strides = (*dx3.stride(), *dy3.stride(), *x3.stride())
    with torch.cuda.device_of(x):
        if p.merging is None and b:
            programs, sizes = (
                triton.cdiv(b * num_groups, p.constants["BLOCK_G"]),
                (b * num_groups, num_groups, group, s),
            )
            backward_whole[(programs,)](
                out, dy3, x3, *known, *channels, *sizes, *strides, ACT=activation, **p.constants
            )
        elif p.merging is not None and b:
            sums, plane = _sums(p, x3, num_groups)
            means = tuple(torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
            sizes = (c, num_groups, group, p.groups * group)
            for begin, units in _batches(p, x3, num_groups, 2):
                backward_sums[(units * p.members,)](
                    x3, dy3, *known, sums, begin, plane, *sizes, s, p.members, *x3.stride(), *dy3.stride(),
                    ACT=activation, **p.constants,
                )  # fmt: skip
                backward_merge[(units * p.groups * p.wide,)](
                    sums, known[0], *channels, *means, begin, plane, *sizes, p.members, **p.merging
                )
                if out is not None:
                    backward_results[(_parts(p, units),)](
                        dx3, dy3, x3, *known, *means, begin, *sizes, s, COMPUTED, *strides, ACT=activation,
                        **p.constants,
                    )  # fmt: skip
        if b != 1 and any(t is not None for t in gradients):
            block = {"BLOCK_M": 128, "BLOCK_C": 32 if x.is_cuda else 256, "num_warps": 4}
            over_samples[(triton.cdiv(c, block["BLOCK_C"]),)](*channels, *gradients, b, c, **block)
    return dx3.view(x.shape) if wanted[0] else None, gradients[0], gradients[1]


def _sums(p: Plan, x3: Tensor, num_groups: int) -> tuple[Tensor, int]:
    """Room for two sums of every channel of every member of all units, and how far apart the two are."""
    plane = len(x3) * triton.cdiv(num_groups, p.groups) * p.members * p.constants["BLOCK_C"]
    return torch.empty(2 * plane, dtype=torch.float32, device=x3.device), plane


def _parts(p: Plan, units: int) -> int:
    """How many programs compute the results of so many units."""
    return units * p.wide * triton.cdiv(p.blocks, COMPUTED)


def _batches(p: Plan, x3: Tensor, num_groups: int, arrays: int) -> Iterator[tuple[int, int]]:
    """The first and the number of units of every batch; of about as many each."""
    units = len(x3) * triton.cdiv(num_groups, p.groups)
    most = max(CACHE[arrays] * units // (x3.numel() * x3.itemsize * arrays), 1)
    many = triton.cdiv(units, triton.cdiv(units, most))
    for begin in range(0, units, many):
        yield begin, min(many, units - begin)
