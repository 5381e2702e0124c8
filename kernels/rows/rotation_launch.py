"""RMSNorm of heads and their rotation: how they are cut, and the launches of `rotation`.

A row's results depend on its length, types, strides and alignment, and on how many heads a token has, which decides how
many of them make a tile; not on the number of tokens.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from verify_norm.kernels.arguments import located, stored
from verify_norm.kernels.launch import CPU_PROGRAMS, LANES, Plan, multiprocessors, ptx, warps_of
from verify_norm.kernels.rows import rotation
from verify_norm.kernels.rows.norm import Norm
from verify_norm.kernels.rows.plan import TOGETHER, Type, fold
from verify_norm.kernels.rows.rotation import RotationConstants

HELD = 2**13  # elements of the longest row
TILE = 4096  # bytes of x that a tile of the forward has at least, in 2 warps
BOTH = 2048  # elements of x that a tile of the backward has at least, in 4 warps
FILL = 16  # warps of the backward a multiprocessor


class Angles(NamedTuple):
    """Which rotation: tables of a row of `half` numbers a token, and whether pairs are neighbours."""

    cos: Tensor
    sin: Tensor
    half: int
    interleaved: bool


class Heads(NamedTuple):
    """A tensor as (tokens, heads, elements): strides, and bits whose last four are 0 if vectors can load it."""

    t: Tensor
    token: int
    head: int
    column: int
    bits: int


@cache
def rotation_plan(
    device: torch.device,
    n: int,
    half: int,
    heads: int,
    vec: int,
    dtype: torch.dtype,
    weight: Type,
    angles: Type,
    offset: bool,
    interleaved: bool,
    backward: bool,
) -> Plan:
    """Return the plan of rows of n elements, of which the first `half` pairs turn.

    A thread has 32 elements of x in the forward, and 16 of x and of dy in the backward, with those of the next tile and
    16 sums. Nothing is prefetched into the L2: tiles of 4 KB are so many that this takes longer.
    """
    cuda, rest = device.type == "cuda", n - 2 * half
    count = n // 2 if interleaved and n % 2 == 0 else half + -(-rest // (2 * vec)) * vec
    pairs = _columns(count, vec)
    tile = LANES["cpu"] if not cuda else BOTH if backward else TILE // dtype.itemsize
    rows = max(tile // (2 * pairs), 1)
    each = math.gcd(heads, rows)
    threads = rows * 2 * pairs // (16 if backward else 32)
    warps = min(max(triton.next_power_of_2(threads // 32), 4 if backward else 2), 16)
    constants = RotationConstants(
        vec,
        ptx(device),
        INTERLEAVED=interleaved,
        ALL=not rest,
        EVEN=2 * pairs == n,
        TOKENS=rows // each,
        HEADS=each,
        PAIRS=pairs,
    )
    most = max(max(FILL // warps, 1) * multiprocessors(device), TOGETHER) if cuda else CPU_PROGRAMS
    kernel = rotation.backward if backward else rotation.forward
    return Plan(kernel, constants, device, vec, rows, most, options={"num_warps": warps_of(device, warps)})


def _columns(n: int, vec: int) -> int:
    """Return the columns of a tile for n pairs: few sizes where they are loaded one by one, each compiled anew."""
    least = 16 if vec > 1 else 64 if n <= 64 else 256 if n <= 256 else 1024
    return max(least, triton.next_power_of_2(n))


class Geometry(NamedTuple):
    """What a launch counts: tokens, heads, and vectors of a row and of R/2; the plan of it."""

    plan: Plan
    tokens: int
    heads: int
    row: int
    half: int

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        k = self.plan.constants
        tiles: int = -(-self.tokens // k.TOKENS) * (self.heads // k.HEADS)
        return tiles


def tokens_and_heads(x: Tensor, norm: Norm) -> tuple[int, int]:
    """Return how many tokens x has, and heads of each: the last dimension before the normalized ones if it has more."""
    heads = x.shape[norm.lead - 1] if norm.lead > 1 else 1
    return math.prod(x.shape[: norm.lead - 1]) if norm.lead > 1 else norm.rows, heads


def _heads(t: Tensor, tokens: int, heads: int, n: int, lead: int) -> Heads:
    """Return t (…, heads, …) as heads of tokens; a copy only where the tokens' dimensions have no one stride.

    A dimension of size 1 counts for the alignment too, as in `launch`.
    """
    t = stored(t)
    size, bits = t.element_size(), t.data_ptr()
    for stride in t.stride()[:lead]:
        bits |= stride * size
    t = t.reshape(tokens, heads, n)
    token, head, column = t.stride()
    return Heads(t, token, head, column, bits | t.data_ptr() | token * size | head * size | n * size | (column != 1))


def _planned(
    norm: Norm, x: Tensor, weight: Tensor | None, angles: Angles, *given: Heads
) -> tuple[Geometry, tuple[Tensor | None, ...]]:
    """Return how x is cut, and weight, cos and sin in dense runs; `given` are x and what else is as large."""
    n, half, size = norm.columns, angles.half, x.element_size()
    w, w_type, bits = located(weight)
    cos, kind, one = located(angles.cos)
    sin, _, two = located(angles.sin)
    bits |= one | two | half * min(size, angles.cos.element_size())
    for t in given:
        bits |= t.bits
    vec = 1 if bits & 15 else 16 // size
    tokens, heads = tokens_and_heads(x, norm)
    how = norm.offset is not None, angles.interleaved, len(given) > 1
    plan = rotation_plan(x.device, n, half, heads, vec, x.dtype, w_type, kind, *how)
    return Geometry(plan, tokens, heads, n // vec, half // vec), (w, cos, sin)


def forward(x: Tensor, weight: Tensor | None, angles: Angles, eps: float, norm: Norm) -> tuple[Tensor, Tensor]:
    """Return y and rstd of x, whose heads turn by these angles.

    Raises
    ------
    ValueError
        If a row is longer than `HELD`.
    """
    _check_length(norm.columns)
    y, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(norm.rows, dtype=torch.float32)
    if not norm.rows or not norm.columns:
        return y, rstd.fill_(torch.nan)  # of no elements
    of_x = _heads(x, *tokens_and_heads(x, norm), norm.columns, norm.lead)
    cut, parameters = _planned(norm, x, weight, angles, of_x)
    vec, plan = cut.plan.vec, cut.plan
    sizes = (*cut[1:], of_x.token // vec, of_x.head // vec, of_x.column, float(eps), norm.offset)
    plan.launch(cut.tiles, of_x.t, y, *parameters, rstd, *sizes)
    return y, rstd


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, angles: Angles, rstd: Tensor, norm: Norm
) -> tuple[Tensor, Tensor | None]:
    """Return dx and dweight, None without a weight; raises ValueError as `forward` does."""
    m, n, lead = norm.rows, norm.columns, norm.lead
    _check_length(n)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dw = None if weight is None else torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    if not m or not n:
        return dx, dw if dw is None else dw.zero_()
    of_x, of_dy = (_heads(t, *tokens_and_heads(x, norm), n, lead) for t in (x, dy))
    cut, parameters = _planned(norm, x, weight, angles, of_x, of_dy)
    vec, plan = cut.plan.vec, cut.plan
    programs = -(-cut.tiles // -(-cut.tiles // plan.most))
    lines = None if dw is None else torch.empty((1, programs, n), dtype=torch.float32, device=x.device)
    strides = (one for t in (of_dy, of_x) for one in (t.token // vec, t.head // vec, t.column))
    tensors = (dx, of_dy.t, of_x.t, *parameters, located(rstd)[0], lines)
    plan.launch(programs, *tensors, *cut[1:], cut.tiles, *strides, norm.offset)
    if lines is not None:
        fold(lines, dw, None)
    return dx, dw


def _check_length(n: int) -> None:
    if n > HELD:
        raise ValueError(f"a row of {n} elements is too long: this kernel takes at most {HELD}")
