"""GroupNorm's launches, which BatchNorm (`channels`) shares: the loops of `forward`, `backward`, `held` and
`held_backward`, by the plans of `plan`.

What follows from the form of the arguments alone (types, sizes, strides, alignment) is found once and cached: a chain
of launches that lacks only the tensors. Chains are looked up by flat arguments: a NamedTuple as the key takes three
times as long.
"""

import functools
import itertools
import math

import torch
import triton
from torch import Tensor

from verify_norm.kernels import launch
from verify_norm.kernels.arguments import Gradients, located, stored
from verify_norm.kernels.groups import plan
from verify_norm.kernels.groups.chain import ALONE, Batch, Chain, Numbers, Type, builder, run_backward, run_forward


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of x (B, C, *spatial), whose channels the groups divide."""
    x = stored(x)
    y = torch.empty_like(x)
    mean = x.new_empty(x.shape[0], num_groups, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    if not x.numel():
        return y, mean.fill_(torch.nan), rstd.fill_(torch.nan)  # of no elements
    w, w_type, w_at = dense(weight, x)
    b, b_type, b_at = dense(bias, x)
    at = x.data_ptr() | y.data_ptr() | w_at | b_at | 16
    chain = forward_chain(
        x.device, x.dtype, w_type, b_type, x.shape, num_groups, x.stride(), y.stride(), at & -at, float(eps), activation
    )
    if chain is None:  # no three strides lead through x
        y, mean, rstd = forward(x.flatten(2), weight, bias, num_groups, eps, activation)
        return y.view(x.shape), mean, rstd
    run_forward(chain, (x, y, w, b, mean, rstd, None, None))
    return y, mean, rstd


@functools.lru_cache(512)
def forward_chain(
    device: torch.device,
    dtype: torch.dtype,
    weight: Type,
    bias: Type,
    shape: Numbers,
    num_groups: int,
    x: Numbers,
    y: Numbers,
    aligned: int,
    eps: float,
    activation: str | None,
    batch: Batch = ALONE,
) -> Chain | None:
    """Return the launches for x (B, C, *spatial) and y of these strides; None where these do not collapse to three."""
    (b, c, *_), s, at_x, at_y = shape, math.prod(shape[2:]), three(shape, x), three(shape, y)
    if at_x is None or at_y is None:
        return None
    group, size, room = c // num_groups, dtype.itemsize, launch.room(device)
    inner = plan.adjacent(aligned, size, (b, c, s), at_x, at_y)
    p = plan.plan((c, s, num_groups), *inner, size, 1, room)
    momentum = batch.momentum
    types = (dtype, weight, bias, batch.types, momentum is None)
    build = builder(p, device, types, activation, batch.own)
    if p.merging is None:
        few, sizes = p.constants.get("BLOCK_G"), (num_groups, group, s, *at_x, *at_y, eps, momentum)
        if few is None:
            return Chain(build("forward_held", b * num_groups, sizes))
        return Chain(build("forward_whole", triton.cdiv(b * num_groups, few), (b * num_groups, *sizes)))
    units, plane, sizes = _extents(p, (b, c, s), num_groups)
    numbers = (plane, *sizes, *at_x, *at_y, eps, momentum)
    if batch.types[0] is not None and momentum is None:
        every = plan.Turn(0, 0, 0, units)
        return Chain(turns=(build("forward_turn", _programs(p, every), (*every[:3], *numbers)),))
    first, turns = plan.turns(p, units, p.groups * group * s * size, room)
    return Chain(
        room=3 * plane,
        sums=build("forward_sums", first, (plane, c, p.groups * group, s, p.members, *at_x)),
        merge=None
        if p.itself
        else build("forward_merge", _merges(p, units), (plane, *sizes, eps, momentum), early=True),
        turns=tuple(build("forward_turn", _programs(p, t), (*t[:3], *numbers), early=True) for t in turns),
    )


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
    """Return dx, dweight and dbias, None for those that are not wanted; `statistics` are mean and rstd."""
    mean, rstd = statistics
    dy, x = stored(dy), stored(x)
    n, c = x.shape[:2]
    dx = torch.empty_like(x)  # for its strides where it is not wanted
    dw, db = (
        torch.empty(p.shape, dtype=p.dtype, device=x.device) if want and p is not None else None
        for p, want in ((weight, wanted[1]), (bias, wanted[2]))
    )
    if not x.numel():
        dw, db = (t if t is None else t.zero_() for t in (dw, db))
        return dx if wanted[0] else None, dw, db
    (w, w_type, w_at), (b, b_type, b_at) = dense(weight, x), dense(bias, x)
    known = (w, b, stored(mean).contiguous(), stored(rstd).contiguous())
    at = x.data_ptr() | dy.data_ptr() | dx.data_ptr() | w_at | b_at | 16
    chain = backward_chain(
        x.device,
        x.dtype,
        w_type,
        b_type,
        x.shape,
        num_groups,
        dx.stride(),
        dy.stride(),
        x.stride(),
        at & -at,
        activation,
        (wanted[0], dw is not None, db is not None),
    )
    if chain is None:  # no three strides lead through one of them
        dy3, x3 = (t.reshape(n, c, math.prod(x.shape[2:])) for t in (dy, x))
        dx, dw, db = backward(dy3, x3, weight, bias, statistics, num_groups, activation, wanted)
        return dx if dx is None else dx.view(x.shape), dw, db
    out = dx if wanted[0] else None
    # float32 for one sample too: a compiler may round dx otherwise where the sums beside it are stored in 16 bits
    parts = [None if t is None else t.new_empty(n, c, dtype=torch.float32) for t in (dw, db)]
    run_backward(chain, (out, dy, x, *known), (dw, db), parts if chain.whole is not None else [])
    if chain.whole is not None and n == 1:
        dw, db = (
            part if t is None or part is None else part[0].to(t.dtype) for t, part in zip((dw, db), parts, strict=True)
        )
    return out, dw, db


@functools.lru_cache(512)
def backward_chain(
    device: torch.device,
    dtype: torch.dtype,
    weight: Type,
    bias: Type,
    shape: Numbers,
    num_groups: int,
    dx: Numbers,
    dy: Numbers,
    x: Numbers,
    aligned: int,
    activation: str | None,
    wanted: tuple[bool, bool, bool],
    batch: Batch = ALONE,
) -> Chain | None:
    """Return the launches for x, dy and dx of these strides; None where these do not collapse to three."""
    (b, c, *_), s, at = shape, math.prod(shape[2:]), [three(shape, t) for t in (dx, dy, x)]
    strides = [t for t in at if t is not None]
    if len(strides) < 3:
        return None
    at_dx, at_dy, at_x = strides
    group, size, room = c // num_groups, dtype.itemsize, launch.room(device)
    inner = plan.adjacent(aligned, size, (b, c, s), *strides)
    # erf takes the registers that x and dy would be held in; elsewhere compilers keep both in float32 too (`anew`)
    spare = activation != "gelu" and (device.type != "cuda" or launch.ptx(device))
    p = plan.plan((c, s, num_groups), *inner, size, 2, room, spare)
    constant, parameters = batch.eps is not None, any(wanted[1:])
    types = (dtype, weight, bias, wanted, batch.types, constant)
    build = builder(p, device, types, activation, batch.own)
    if p.merging is None:
        tile = {"BLOCK_M": 128, "BLOCK_C": 32 if device.type == "cuda" else 256, "num_warps": 4}
        few, numbers = p.constants.get("BLOCK_G"), (num_groups, group, s, *at_dx, *at_dy, *at_x, batch.eps)
        if few is None:
            whole = build("backward_held", b * num_groups, numbers)
        else:
            whole = build("backward_whole", triton.cdiv(b * num_groups, few), (b * num_groups, *numbers))
        if not parameters or b == 1 or batch.own:
            return Chain(whole)
        return Chain(whole, over=build("over_samples", triton.cdiv(c, tile["BLOCK_C"]), (b, c), early=True, **tile))
    units, plane, sizes = _extents(p, (b, c, s), num_groups)
    first, turns = plan.turns(p, units, 2 * p.groups * group * s * size, room)
    if not wanted[0] or constant:
        first, turns = units * p.members, []
    channels = min(p.constants["BLOCK_C"], 8)  # whose sums are adjacent: 32 bytes
    merge = over = None
    if (turns and not p.itself) or (batch.own and parameters and not turns):
        merge = build("backward_merge", _merges(p, units), (plane, *sizes), early=True)
    if parameters and not batch.own:
        pieces, tile = units // b * p.wide * p.constants["BLOCK_C"] // channels, {"CHANNELS": channels}
        numbers = (plane, b, c, p.groups * group, p.members)
        over = build("over_members", pieces, numbers, early=True, LINES=2048 // channels, **tile)
    numbers = (plane, *sizes, *at_dx, *at_dy, *at_x)
    return Chain(
        room=2 * plane,
        sums=build("backward_sums", first, (plane, *sizes, *at_dx, *at_dy, *at_x, batch.eps)),
        merge=merge,
        turns=tuple(build("backward_turn", _programs(p, t), (*t[:3], *numbers), early=True) for t in turns),
        over=over,
    )


def dense(t: Tensor | None, x: Tensor) -> tuple[Tensor | None, Type, int]:
    """Return a parameter in one dense run, its type, and its address as if its elements had the size of x's."""
    t, dtype, at = located(t)
    return t, dtype, 0 if t is None else at * x.element_size() // t.element_size()


def three(shape: Numbers, strides: Numbers) -> Numbers | None:
    """Return the strides of (B, C, S), or None unless one stride leads through all spatial dimensions."""
    spatial = [(n, stride) for n, stride in zip(shape[2:], strides[2:], strict=True) if n != 1]
    if any(stride != n * inner for (_, stride), (n, inner) in itertools.pairwise(spatial)):
        return None
    return *strides[:2], spatial[-1][1] if spatial else 1


def _extents(p: plan.Division, shape: tuple[int, int, int], num_groups: int) -> tuple[int, int, Numbers]:
    """Return how many units there are, how many sums of one kind, and the sizes that kernels find them by."""
    b, c, s = shape
    units, group = b * triton.cdiv(num_groups, p.groups), c // num_groups
    plane = units * p.members * p.constants["BLOCK_C"]
    return units, plane, (c, num_groups, group, p.groups * group, s, p.members)


def _merges(p: plan.Division, units: int) -> int:
    """Return how many programs merge the sums of all units."""
    return units * -(-p.groups // int((p.merging or {})["MANY"]))


def _programs(p: plan.Division, turn: plan.Turn) -> int:
    """Return how many programs a turn has."""
    return turn.summed + turn.units * p.wide * -(-p.blocks // int(p.constants["COMPUTED"]))
