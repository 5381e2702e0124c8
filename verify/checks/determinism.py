"""Determinism: the same case gives the same bits, at once and after a case of another shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from verify_norm import cases, data
from verify_norm.again import Difference, again, cheap, crowded, device_of, differences
from verify_norm.checks import check, finding
from verify_norm.spec import CaseSpec, Finding, Run

NOT_ALWAYS = "a replay may take several tries to show it"
EVERY = 3  # one case of so many, by its seed: see checks.gradient
WHY = "a launch is not in torch's current stream, or does not wait for the one before"
RUNS = 4  # more, where so many programs run that those meet which share a lock or a buffer: few runs show a race


def _looks(run: Run) -> bool:
    return run.problem is None and (crowded(run) or (run.case.spec.seed % EVERY == 0 and cheap(run)))


@check(looks=_looks)
def determinism(run: Run) -> Iterable[Finding]:
    """The same inputs in fresh buffers give the same bits, also when a case of another shape came between.

    A large case runs several times instead, for races, which need many programs and show now and then. On an NVIDIA GPU
    the inputs also arrive late once, in a busy stream (`late`), for what counts on the host being slow.

    Where the contract says that it is not deterministic, sums over rows may differ by the rounding of another order
    (`again.differences` derives how much), and nothing else may.
    """
    found: list[Difference] = []
    for _ in range(RUNS if crowded(run) else 1):
        found = found or [_seldom(d) for d in differences(run, again(run), ("in one run", "in the next"))]
    found = found or list(_late(run))
    other = None if found or crowded(run) else _other_shape(run)
    if other is not None:
        again(run, cases.draw(other, run.case.op), spec=other)
        after = f"after a run of shape {other.shape}"
        found = list(differences(run, again(run), (f"before {after.removeprefix('after ')}", after)))
    for difference in found:
        yield finding(run, "determinism", difference.output, difference.said)


def _seldom(difference: Difference) -> Difference:
    """Where values differ: a race shows in some runs and not in others."""
    return difference if difference.index is None else replace(difference, said=f"{difference.said}; {NOT_ALWAYS}")


def _late(run: Run) -> Iterator[Difference]:
    """What differs where the inputs arrive late."""
    if torch.device(device_of(run.case)).type != "cuda":
        return
    from verify_norm import late  # Triton is not imported before its interpreter may be enabled

    if late.possible(run.case):
        for found in differences(run, again(run, within=late.arriving), ("as usual", "where its inputs arrive late")):
            yield replace(found, said=f"{found.said}; {WHY}")


def _other_shape(run: Run) -> CaseSpec | None:
    """More rows, longer ones, or both, by turns, for a cache may be keyed by either; None where there is no such case.

    They are more, not fewer: what a larger case has left behind is what a smaller one finds.
    """
    spec, op = run.case.spec, run.case.op
    shape = list(spec.shape)
    if op.view == "rows" and len(shape) == spec.normalized_ndim:
        shape = [1, *shape]
    turn = spec.seed // EVERY % 3
    if turn != 1:
        shape[0] = 2 * shape[0] + 1
    if turn != 0:
        channels = op.view != "rows" and len(shape) == 2
        shape[-1] = 2 * shape[-1] if channels else 2 * shape[-1] + 1  # channels stay divisible by the groups
    other = replace(spec, shape=tuple(shape))
    refused = data.refusal(other, op) or (run.kernel.unsupported and run.kernel.unsupported(other))
    return None if refused else other
