"""GroupNorm: y = act((x − mean) · rstd · w + b), statistics over each group of channels of each sample, w and b per
channel; act is nothing, SiLU or GELU.

x (B, C, *spatial) is seen as (B, C, S) with any three strides, so that channels_last needs no copy. All arithmetic is
float32, and the variance is that of centred values. The loops are in `groups` and `groups_backward`.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from verify_norm.kernels.activation import ACTIVATIONS
from verify_norm.kernels.groups import TOGETHER, forward_merge, forward_results, forward_sums, forward_whole
from verify_norm.kernels.groups_backward import (
    backward_merge,
    backward_results,
    backward_sums,
    backward_whole,
    over_samples,
)
from verify_norm.kernels.launch import check_backward, check_shapes, check_types, dense

WHOLE = {"cuda": 32768, "cpu": 8192}  # lanes of x, or of x and dy, that a program may hold of whole groups
FEW = {"cuda": 1024, "cpu": 16384}  # lanes that smaller groups fill together
BLOCK = {"cuda": 8192, "cpu": 16384}  # bytes of x in a block of a shared group
SUMMED, COMPUTED = 8, 4  # blocks that one program sums over, if there are enough, and computes
STAGES = 4  # blocks that are loaded ahead
MEMBERS = 512  # of a unit at most: what results still merge by themselves, and more than fill a GPU
MERGED = 16384  # sums that a merge on its own takes at a time
LINE = 64  # bytes that have to be adjacent, or memory is read at less than its speed
CACHE = {1: 40 << 20, 2: 96 << 20}  # bytes of x, or of x and dy, that are summed over before they are computed


class Plan(NamedTuple):
    """How groups of one size are divided among programs; never by how many there are: a group's bits may not depend.

    A unit is so many `groups`, in channel tiles `wide` a block and so many `blocks`, and has so many `members`; none
    where a program holds whole groups.
    """

    constants: dict[str, Any]
    groups: int = 1
    wide: int = 1
    blocks: int = 1
    members: int = 0

    @property
    def merging(self) -> dict[str, Any]:
        """The constants of a merge."""
        block_c = self.constants["BLOCK_C"]
        ranks = max(min(MERGED // block_c, triton.next_power_of_2(self.members)), 1)
        return {"ONE": self.groups == 1, "RANKS": ranks, "BLOCK_C": block_c, "num_warps": 8}


@functools.lru_cache(4096)
def plan(C: int, S: int, G: int, inner: str, vec: int, itemsize: int, arrays: int, device: str) -> Plan:
    """The plan for x (B, C, S) in G groups, of so many bytes an element, where a program holds so many such arrays."""
    channels, positions = (triton.next_power_of_2(n) for n in (C // G, S))
    if channels * positions * arrays <= WHOLE[device]:
        if channels * positions <= FEW[device]:  # sizes that differ little share one compiled variant
            channels, positions = (n << (n.bit_length() - 1) % 2 for n in (channels, positions))  # powers of four
        few = max(FEW[device] // (channels * positions), 1)
        warps = min(max(few * channels * positions * arrays // 1024, 4), 16)
        vec = math.gcd(vec, C // G) if inner == "channels" else vec  # groups have to start where vectors do
        constants = {"INNER": inner, "VEC": vec, "BLOCK_C": channels, "BLOCK_S": positions, "num_warps": warps}
        return Plan(constants | {"BLOCK_G": few})
    lanes = BLOCK[device] // itemsize
    groups, block_c = _unit(C, G, inner, vec, itemsize, lanes) if inner == "channels" else (1, 0)
    width = min(groups * (C // G), C)
    block_c = block_c or _channels(width, S, lanes)
    block_s = max(lanes // block_c, 1)
    wide, blocks = triton.cdiv(width, block_c), triton.cdiv(S, block_s)
    members = wide * min(max(blocks // SUMMED, 1), max(MEMBERS // wide, 1))
    vec = math.gcd(vec, width) if inner == "channels" else vec
    constants = {"INNER": inner, "VEC": vec, "BLOCK_C": block_c, "BLOCK_S": block_s, "STAGES": STAGES, "num_warps": 4}
    return Plan(constants, groups, wide, blocks, members)


def _unit(C: int, G: int, inner: str, vec: int, itemsize: int, lanes: int) -> tuple[int, int]:
    """How many groups are a unit where channels are adjacent, and in how many channels a tile: 0 if that is free.

    So many that lines of memory are read, vectors stay as wide as they are, and the fewest lanes idle.
    """
    group = C // G
    several = [n for n in range(1, G + 1) if n * group <= 128 and (n * group * itemsize >= LINE or n == G)]
    if not several:
        return 1, min(128, triton.next_power_of_2(group))

    def cost(n: int) -> tuple[int, int, int]:
        block = triton.next_power_of_2(n * group)
        return -math.gcd(vec, n * group), triton.cdiv(G, n) * block, -n

    best = min(several, key=cost)
    return best, triton.next_power_of_2(best * group)


def _channels(width: int, S: int, lanes: int) -> int:
    """Of how many channels a tile of so many lanes is to be: with the fewest lanes idle, then with the fewest."""
    widths = [2**k for k in range(lanes.bit_length()) if 2**k <= triton.next_power_of_2(width)]
    return min(widths, key=lambda c: (triton.cdiv(width, c) * triton.cdiv(S, lanes // c), c))


def adjacent(*tensors: Tensor) -> tuple[str, int]:
    """Which axis of all these (B, C, S) has adjacent elements, and of how many from each multiple of it a load can be.

    >>> adjacent(torch.empty(2, 4, 6)), adjacent(torch.empty(2, 6, 4).mT), adjacent(torch.empty(2, 4, 6)[..., ::2])
    (('positions', 2), ('channels', 4), ('', 1))
    """
    shape = tensors[0].shape
    for inner, axis, others in (("positions", 2, (0, 1)), ("channels", 1, (0, 2))):
        if shape[axis] > 1 and all(t.stride(axis) == 1 for t in tensors):
            apart = (shape[axis], *(t.stride(other) for t in tensors for other in others if shape[other] > 1))
            aligned = all(t.data_ptr() % 16 == 0 for t in tensors)
            return inner, math.gcd(16 // tensors[0].itemsize, *apart) if aligned else 1
    return "", 1


def grouped(x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int) -> tuple[int, int, int]:
    """B, C and S of x (B, C, *spatial), after the checks that forward and backward share."""
    check_types(x, weight, bias)
    if x.dim() < 2:
        raise ValueError(f"x must have at least 2 dimensions (B, C, *spatial), not shape {tuple(x.shape)}")
    channels = x.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"x has {channels} channels, which num_groups = {num_groups} does not divide")
    check_shapes((channels,), weight=weight, bias=bias)
    return x.shape[0], channels, math.prod(x.shape[2:])


def channels_inner(x3: Tensor) -> bool:
    """Whether neighbours in memory are neighbouring channels, as in channels_last."""
    return x3.stride(1) < x3.stride(2)


def groupnorm_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupNorm of x (B, C, *spatial), of any strides: y, mean and rstd.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of rank 2 or more and any strides.
    weight, bias : Tensor or None
        Of shape (C,), of x's type or float32.
    num_groups : int
        G, a divisor of C.
    eps : float
        Added to the variance under the root.

    Returns
    -------
    y : Tensor
        Of x's shape and type; channels_last where x is.
    mean, rstd : Tensor
        float32 of shape (B, G).

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, G does not divide C, or a type would lose bits in silence.
    """
    return _forward(x, weight, bias, num_groups, eps, None)


def groupnorm_silu_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """SiLU of GroupNorm, as `groupnorm_fwd`."""
    return _forward(x, weight, bias, num_groups, eps, "silu")


def groupnorm_gelu_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """GELU z·Φ(z), the exact one, of GroupNorm, as `groupnorm_fwd`."""
    return _forward(x, weight, bias, num_groups, eps, "gelu")


def groupnorm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of GroupNorm, from dy like x and the forward's mean and rstd: dx, dweight, dbias.

    With x̂ = (x − mean)·rstd and g = w·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) with means over the group,
    dweight = Σ dy·x̂ and dbias = Σ dy over samples and positions. The sums per sample and channel are made once,
    and serve all three. dx has x's type, dweight and dbias those of weight and bias, and None stays None. `eps`
    is in rstd already; it is an argument because it is one of the operator.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic not float32, one a group.
    """
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, None)


def groupnorm_silu_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of SiLU of GroupNorm: those of GroupNorm at dy·silu'(z), z = w·x̂ + b computed anew."""
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, "silu")


def groupnorm_gelu_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of GELU of GroupNorm: those of GroupNorm at dy·gelu'(z), z = w·x̂ + b computed anew."""
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, "gelu")


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    b, c, s = grouped(x, weight, bias, num_groups)
    x3, group = x.reshape(b, c, s), c // num_groups
    y3 = torch.empty_like(x3)
    mean, rstd = (torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
    p = plan(c, s, num_groups, *adjacent(x3, y3), x.itemsize, 1, x.device.type)
    tensors, strides = (x3, y3, dense(weight), dense(bias), mean, rstd), (*x3.stride(), *y3.stride(), float(eps))
    with torch.cuda.device_of(x):
        if not p.members and b:
            sizes = (b * num_groups, num_groups, group, s)
            programs = triton.cdiv(b * num_groups, p.constants["BLOCK_G"])
            forward_whole[(programs,)](*tensors, *sizes, *strides, ACT=activation, **p.constants)
        elif b:
            sums, plane = _sums(p, x3, num_groups)
            merges = p.members * p.constants["BLOCK_C"] > TOGETHER  # else results do, each for itself
            for begin, units in _batches(p, x3, num_groups, CACHE[1]):
                sizes = (begin, plane, c, num_groups, group, p.groups * group, s, p.members)
                forward_sums[(units * p.members,)](
                    x3, sums, begin, plane, c, p.groups * group, s, p.members, *x3.stride(), **p.constants
                )
                if merges:
                    block_s = p.constants["BLOCK_S"]
                    forward_merge[(units,)](sums, mean, rstd, *sizes, float(eps), BLOCK_S=block_s, **p.merging)
                forward_results[(units * p.wide * triton.cdiv(p.blocks, COMPUTED),)](
                    *tensors, sums, *sizes, COMPUTED, *strides, ACT=activation, **p.constants,
                    ONE=p.groups == 1, RANKS=0 if merges else p.merging["RANKS"],
                )  # fmt: skip
    return y3.view(x.shape), mean, rstd


def _sums(p: Plan, x3: Tensor, num_groups: int) -> tuple[Tensor, int]:
    """Room for two sums of every channel of every member of all units, and how far apart the two are."""
    plane = len(x3) * triton.cdiv(num_groups, p.groups) * p.members * p.constants["BLOCK_C"]
    return torch.empty(2 * plane, dtype=torch.float32, device=x3.device), plane


def _batches(p: Plan, x3: Tensor, num_groups: int, cache: int) -> Iterator[tuple[int, int]]:
    """The first and the number of units of every batch; of about as many each."""
    units = len(x3) * triton.cdiv(num_groups, p.groups)
    most = max(cache * units // (x3.numel() * x3.itemsize), 1)
    many = triton.cdiv(units, triton.cdiv(units, most))
    for begin in range(0, units, many):
        yield begin, min(many, units - begin)


def _checked_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int,
    activation: str | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    grouped(x, weight, bias, num_groups)
    check_backward(x, dy, x.shape[0] * num_groups, mean=mean, rstd=rstd)
    return _backward(dy, x, weight, bias, mean, rstd, num_groups, activation, (True, True, True))


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Any, rstd: Any, num_groups: int,
    activation: str | None, wanted: tuple[bool, bool, bool],
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients that are wanted, of x, weight and bias."""
    b, c, s = grouped(x, weight, bias, num_groups)
    x3, dy3 = x.reshape(b, c, s), dy.reshape(b, c, s)
    dx3 = torch.empty_like(x3)  # for its strides where it is not wanted
    gradients = [
        torch.empty(p.shape, dtype=p.dtype, device=x.device) if want and p is not None else None
        for p, want in ((weight, wanted[1]), (bias, wanted[2]))
    ]
    # of one sample they are the gradients already
    channels = [None if t is None else t if b == 1 else t.new_empty((b, c), dtype=torch.float32) for t in gradients]
    p = plan(c, s, num_groups, *adjacent(x3, dy3, dx3), x.itemsize, 2, x.device.type)
    out, parameters, statistics = (
        dx3 if wanted[0] else None,
        (dense(weight), dense(bias)),
        (dense(mean), dense(rstd)),
    )
    group = c // num_groups
    with torch.cuda.device_of(x):
        if not p.members and b:
            sizes = (b * num_groups, num_groups, group, s, *dx3.stride(), *dy3.stride(), *x3.stride())
            programs = triton.cdiv(b * num_groups, p.constants["BLOCK_G"])
            backward_whole[(programs,)](
                out, dy3, x3, *parameters, *statistics, *channels, *sizes, ACT=activation, **p.constants
            )
        elif b:
            sums, plane = _sums(p, x3, num_groups)
            means = tuple(torch.empty((b, num_groups), dtype=torch.float32, device=x.device) for _ in range(2))
            constants = {"ACT": activation, **p.constants}
            for begin, units in _batches(p, x3, num_groups, CACHE[2] // 2):
                sizes = (c, num_groups, group, p.groups * group)
                backward_sums[(units * p.members,)](
                    x3, dy3, *parameters, *statistics, sums, begin, plane, *sizes, s, p.members, *x3.stride(),
                    *dy3.stride(), **constants,
                )  # fmt: skip
                backward_merge[(units * p.wide,)](
                    sums, parameters[0], *channels, *means, begin, plane, *sizes, p.members, **p.merging
                )
                if out is not None:
                    backward_results[(units * p.wide * triton.cdiv(p.blocks, COMPUTED),)](
                        dx3, dy3, x3, *parameters, *statistics, *means, begin, *sizes, s, COMPUTED, *dx3.stride(),
                        *dy3.stride(), *x3.stride(), **constants,
                    )  # fmt: skip
        if b != 1 and any(t is not None for t in gradients):
            block = {"BLOCK_M": 128, "BLOCK_C": 32 if x.is_cuda else 256, "num_warps": 4}
            over_samples[(triton.cdiv(c, block["BLOCK_C"]),)](*channels, *gradients, b, c, **block)
    return dx3.view(x.shape) if wanted[0] else None, *gradients


class GroupNormFunction(torch.autograd.Function):
    """GroupNorm for autograd: apply(x, weight, bias, num_groups, eps, activation=None) -> y. Differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float,
        activation: str | None = None,
    ):  # fmt: skip
        """y, keeping what the gradients need."""
        if activation not in (None, *ACTIVATIONS):
            raise ValueError(f"activation must be None or one of {', '.join(ACTIVATIONS)}, not {activation!r}")
        y, mean, rstd = _forward(x, weight, bias, num_groups, eps, activation)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.num_groups, ctx.activation = num_groups, activation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):
        """The gradients that are asked for, and no others."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:3])
        return *_backward(dy, x, weight, bias, mean, rstd, ctx.num_groups, ctx.activation, wanted), None, None, None


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, computed by this kernel: same arguments, parameters and state, and an activation after it."""

    def __init__(self, *args: Any, activation: str | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """The normalized input."""
        return GroupNormFunction.apply(input, self.weight, self.bias, self.num_groups, self.eps, self.activation)

    def extra_repr(self) -> str:
        """As torch's, and the activation if there is one."""
        said = super().extra_repr()
        return said if self.activation is None else f"{said}, activation={self.activation}"
