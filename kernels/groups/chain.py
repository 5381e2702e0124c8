"""Chains of launches of groups: kernels with their constants, programs and numbers, which lack only the tensors."""

import functools
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verify_norm.kernels import launch
from verify_norm.kernels.groups import backward as shared_backward
from verify_norm.kernels.groups import constants, held, held_backward, plan
from verify_norm.kernels.groups import forward as shared

Type = torch.dtype | None
Numbers = tuple[int, ...]
KERNELS: dict[str, tuple[Any, type[Any]]] = {  # with the class of their constants
    "forward_whole": (held.forward_whole, constants.Whole),
    "forward_held": (held.forward_held, constants.Held),
    "forward_sums": (shared.forward_sums, constants.ForwardSums),
    "forward_merge": (shared.forward_merge, constants.ForwardMerge),
    "forward_turn": (shared.forward_turn, constants.ForwardTurn),
    "backward_whole": (held_backward.backward_whole, constants.Whole),
    "backward_held": (held_backward.backward_held, constants.Held),
    "backward_sums": (shared_backward.backward_sums, constants.BackwardSums),
    "backward_merge": (shared_backward.backward_merge, constants.BackwardMerge),
    "backward_turn": (shared_backward.backward_turn, constants.BackwardTurn),
    "over_samples": (held_backward.over_samples, constants.OverSamples),
    "over_members": (shared_backward.over_members, constants.OverMembers),
}
OPTIONS = ("num_warps", "maxnreg", "launch_pdl")


class Launch(NamedTuple):
    """A kernel, how many programs run it, and what follows the tensors in its arguments."""

    kernel: launch.Plan
    programs: int
    numbers: tuple[Any, ...]

    def __call__(self, *tensors: Tensor | None) -> None:
        """Run it."""
        self.kernel.launch(self.programs, *tensors, *self.numbers)


class Batch(NamedTuple):
    """What BatchNorm adds to a chain.

    own : a group has the weight and bias, not a channel
    types : those of the running statistics, or None where there are none
    momentum : by which they move; None where they take the place of the groups' own
    eps : of a backward in which they do
    """

    own: bool
    types: tuple[Type, Type]
    momentum: float | None = None
    eps: float | None = None


ALONE = Batch(False, (None, None))


class Chain(NamedTuple):
    """The launches of a call: `whole` where programs hold whole groups, else the others, and room for their sums."""

    whole: Launch | None = None
    room: int = 0
    sums: Any = None  # a Launch where there is room
    merge: Launch | None = None
    turns: tuple[Launch, ...] = ()
    over: Launch | None = None  # the last one, of dweight and dbias, where no other stores them


@functools.cache
def _kernel(
    name: str, device: torch.device, types: tuple[Any, ...], values: Any, options: tuple[Any, ...]
) -> launch.Plan:
    """Return a kernel for arguments of these types, with these constants and options."""
    return launch.Plan(KERNELS[name][0], values, device, options=dict(options))


def run_forward(chain: Chain, tensors: tuple[Tensor | None, ...]) -> None:
    """Run the launches of a forward on x, y, weight, bias, mean, rstd and the running statistics."""
    if chain.whole is not None:
        chain.whole(*tensors)
        return
    x, sums = tensors[0], None
    if chain.sums is not None and x is not None:
        sums = x.new_empty(chain.room, dtype=torch.float32)
        chain.sums(x, sums)
    if chain.merge is not None:
        chain.merge(sums, *tensors[4:])
    for turn in chain.turns:
        turn(*tensors, sums)


def run_backward(
    chain: Chain, tensors: tuple[Any, ...], gradients: tuple[Tensor | None, ...], parts: list[Tensor | None]
) -> None:
    """Run the launches of a backward on dx, dy, x, weight, bias, mean and rstd; `parts` are dweight's and dbias's."""
    dx, dy, x, w, _, _, rstd = tensors
    if chain.whole is not None:
        chain.whole(*tensors, *parts)
        if chain.over is not None:
            chain.over(*parts, *gradients)
        return
    sums = x.new_empty(chain.room, dtype=torch.float32)
    means: list[Tensor | None] = [None, None]
    stored: tuple[Tensor | None, ...] = (None, None) if chain.over is not None else gradients
    chain.sums(None if chain.turns else dx, x, dy, *tensors[3:], sums)
    if chain.merge is not None:
        means = [torch.empty_like(rstd), torch.empty_like(rstd)] if chain.turns else means
        chain.merge(sums, w, *means, *stored)
    for turn in chain.turns:
        turn(*tensors, *means, *stored, sums)
    if chain.over is not None:
        chain.over(sums, *gradients)


def builder(
    p: plan.Division, device: torch.device, types: tuple[Any, ...], activation: str | None, has_own: bool
) -> Any:
    """Return what makes launches with a plan's constants; `early` ones begin while the launch before still runs."""
    of_plan = {"ACT": activation, "PTX": launch.ptx(device), "OWN": has_own, **p.constants, **(p.merging or {})}

    def build(name: str, programs: int, numbers: tuple[Any, ...], *, early: bool = False, **more: Any) -> Launch:
        own = of_plan | more
        if name.endswith("_turn"):
            own |= {"SUMS": numbers[1] > 0, "MANY": 1} | ({} if p.itself else {"RANKS": 0})
        if not own["PTX"]:
            own.pop("maxnreg", None)
        elif early:
            own["launch_pdl"] = True
        form = KERNELS[name][1]
        values = form(**{field.name: own[field.name] for field in fields(form)})
        options = tuple((option, own[option]) for option in OPTIONS if option in own)
        return Launch(_kernel(name, device, types, values, options), programs, numbers)

    return build
