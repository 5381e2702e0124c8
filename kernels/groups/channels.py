"""BatchNorm's launches: those of GroupNorm, on x seen so that a channel of all samples is a group.

A group has its weight and bias (`Batch.own`). Where one stride leads through samples and positions, as in channels_last
or without positions, x (B, C, S) is one sample of C groups with B·S positions. Elsewhere it is C samples of one group,
with B channels. Where few positions of a channel are adjacent, and vectors would reach into the next one, as in 7×7, x
is one sample of C·S columns: a group of S for each channel, with B positions. All are views; no element moves.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients, stored
from verify_norm.kernels.groups.chain import Batch, Numbers, run_backward, run_forward
from verify_norm.kernels.groups.launch import backward_chain, dense, forward_chain, three
from verify_norm.kernels.groups.plan import WIDEST

VECTOR = 16  # bytes of a load: as wide only where the positions of a channel have a multiple of it
FLAT = WIDEST // 2  # positions, at most, of a channel whose columns others help to fill a tile with vectors
COLUMNS = 2**31 - 2**15  # at most: they are counted in 32 bits


class Running(NamedTuple):
    """Running mean and variance: dense, and where they came from."""

    mean: Tensor | None
    var: Tensor | None
    given: tuple[Tensor | None, Tensor | None]

    @property
    def types(self) -> tuple[torch.dtype | None, torch.dtype | None]:
        """Their types."""
        return None if self.mean is None else self.mean.dtype, None if self.var is None else self.var.dtype

    def write_back(self) -> None:
        """Copy what moved to where it came from, where that is not dense."""
        for own, given in zip((self.mean, self.var), self.given, strict=True):
            if own is not None and given is not None and own is not given:
                given.copy_(own)


def running_of(mean: Tensor | None, var: Tensor | None) -> Running:
    """Return running statistics in one dense run each."""
    dense_mean, dense_var = (None if t is None else stored(t).contiguous() for t in (mean, var))
    return Running(dense_mean, dense_var, (mean, var))


class View(NamedTuple):
    """How tensors (B, C, S) are seen: in this shape and these strides, with so many groups a sample."""

    groups: int
    shape: Numbers
    strides: Sequence[Numbers]


def seen(shape: Numbers, strides: list[Numbers], itemsize: int) -> View:
    """Return the view of tensors of this shape, these strides and so many bytes an element: a channel is a group.

    >>> seen((2, 3, 4), [(12, 1, 3)], 4)
    View(groups=3, shape=(1, 3, 8), strides=[(24, 1, 3)])
    >>> seen((2, 3, 4), [(12, 4, 1)], 4)
    View(groups=1, shape=(3, 2, 4), strides=[(4, 12, 1)])
    >>> seen((2, 3, 49), [(147, 49, 1)], 4)
    View(groups=3, shape=(1, 147, 2), strides=[(294, 1, 147)])
    """
    b, c, s = shape
    if all(b == 1 or s == 1 or t[0] == s * t[2] for t in strides):
        along = [t[2] if s > 1 else t[0] for t in strides]
        of_rows = [(b * s * step, t[1], step) for t, step in zip(strides, along, strict=True)]
        return View(c, (1, c, b * s), of_rows)
    odd = s * itemsize % VECTOR > 0 and s <= FLAT and c * s <= COLUMNS
    if odd and all(t[1:] == (s, 1) for t in strides):
        return View(c, (1, c * s, b), [(b * t[0], 1, t[0]) for t in strides])
    return View(1, (c, b, s), [(t[1], t[0], t[2]) for t in strides])


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, momentum: float | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of x (B, C, *spatial) of at least one element; move the running statistics in place.

    Without a momentum they are what x is normalized by.
    """
    x = stored(x)
    y = torch.empty_like(x)
    strides = [t for t in (three(x.shape, x.stride()), three(x.shape, y.stride())) if t is not None]
    if len(strides) < 2:  # no three strides lead through x
        y, mean, rstd = forward(x.flatten(2), weight, bias, running, momentum, eps)
        return y.view(x.shape), mean, rstd
    b, c = x.shape[:2]
    view = seen((b, c, x.numel() // (b * c)), strides, x.element_size())
    mean = x.new_empty(c, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    (w, w_type, w_at), (bias, b_type, b_at) = dense(weight, x), dense(bias, x)
    at = x.data_ptr() | y.data_ptr() | w_at | b_at | 16
    moves = momentum if running.mean is not None or running.var is not None else None
    form = (x.device, x.dtype, w_type, b_type, view.shape, view.groups, *view.strides, at & -at, float(eps), None)
    chain = forward_chain(*form, Batch(True, running.types, moves))
    assert chain is not None  # three strides are given
    run_forward(chain, (x, y, w, bias, mean, rstd, running.mean, running.var))
    if moves is not None:
        running.write_back()
    return y, mean, rstd


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
    eps: float | None,
    wanted: tuple[bool, bool, bool],
) -> Gradients:
    """Return those of dx, dweight and dbias that are wanted, of x of at least one element.

    `statistics` are the forward's mean and rstd or, with an eps, running mean and variance.
    """
    dy, x = stored(dy), stored(x)
    dx = torch.empty_like(x)  # for its strides where it is not wanted
    found = [t for t in (three(x.shape, t.stride()) for t in (dx, dy, x)) if t is not None]
    if len(found) < 3:  # no three strides lead through one of them
        dx, dw, db = backward(dy.flatten(2), x.flatten(2), weight, bias, statistics, eps, wanted)
        return dx if dx is None else dx.view(x.shape), dw, db
    dw, db = (
        torch.empty(p.shape, dtype=p.dtype, device=x.device) if want and p is not None else None
        for p, want in ((weight, wanted[1]), (bias, wanted[2]))
    )
    b, c = x.shape[:2]
    view = seen((b, c, x.numel() // (b * c)), found, x.element_size())
    mean, var = (stored(t).contiguous() for t in statistics)
    w, w_type, at = dense(weight, x)
    at |= x.data_ptr() | dy.data_ptr() | dx.data_ptr() | 16
    form = (x.device, x.dtype, w_type, None, view.shape, view.groups, *view.strides, at & -at, None)
    asked = (wanted[0], dw is not None, db is not None)
    types = (mean.dtype, var.dtype)
    chain = backward_chain(*form, asked, Batch(True, types, eps=None if eps is None else float(eps)))
    assert chain is not None  # three strides are given
    out = dx if wanted[0] else None
    run_backward(chain, (out, dy, x, w, None, mean, var), (dw, db), [dw, db])
    return out, dw, db
