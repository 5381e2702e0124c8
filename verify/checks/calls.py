"""Calls: what a kernel keeps from one call to another, and what two threads share."""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import torch

from verify_norm.cases import make, placement, turns
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import Difference, cheap, differences, rerun, steady
from verify_norm.core.dtypes import Array
from verify_norm.core.spec import Case, Finding, Run, Tried
from verify_norm.running.execute import execute

FEWEST, MOST = 8, 100  # calls whose outputs are held
SECONDS = 0.1  # for them: a kernel that takes longer is called FEWEST times
IN_THREAD = 3  # calls of each thread

Exact = dict[str, Array | None]


def _looks(run: Run) -> bool:
    return "calls" in run.case.spec.further and cheap(run)


@check(looks=_looks)
def calls(run: Run) -> Iterator[Finding | Tried]:
    """A result does not depend on earlier calls, on who still holds their outputs, or on another thread.

    A case tries one of four: all inputs have new values in the same tensors; only weight and bias have; many calls
    follow each other, whose outputs are read again at the end; two threads call at the same time. The same inputs in
    fresh memory give the bits that must come out. A kernel that gives other bits there too, in a second call, is left
    to `determinism`.
    """
    name, way = turns.variant(run.case.spec, list(WAYS.items()))
    yield Tried(name)
    found = list(way(run, _others(run)))
    if found and steady(run):
        for difference in found:
            yield finding(run, "calls", difference.output, difference.words)


def _others(run: Run) -> Exact:
    """Return other exact values of the case's inputs, of the same shapes, types and layouts."""
    spec = run.case.spec
    return make.exact_inputs(replace(spec, seed=spec.seed ^ 1), run.case.op)


def _values(run: Run, other: Exact) -> Iterator[Difference]:
    return _overwritten(run, other, "all tensors")


def _parameters(run: Run, other: Exact) -> Iterator[Difference]:
    mine = {name: other[name] for name in ("weight", "bias") if run.case.exact.get(name) is not None}
    return _overwritten(run, mine or other, " and ".join(mine) or "all tensors")


def _overwritten(run: Run, changed: Exact, which: str) -> Iterator[Difference]:
    """Yield what differs where the tensors of a call get new values before the next call takes them."""
    before = _built(run, {})
    execute(run.kernel, before)
    after = _built(run, changed)
    for name, tensor in after.arguments.items():
        if isinstance(tensor, torch.Tensor):
            placement.overwrite(before.arguments[name], tensor)
    again = execute(run.kernel, replace(after, arguments=before.arguments))
    words = ("with these values in new tensors", f"where {which} of the call before hold them now")
    yield from differences(rerun(run, changed), again, words)


def _built(run: Run, changed: Exact) -> Case:
    case = run.case
    values, device = {**case.exact, **changed}, case.device
    return make.build(case.spec, case.op, run.kernel.contract, device, values, poison=case.poison)


def _many(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs in later calls with the same inputs, and what outputs hold once all calls are over.

    Two sets of inputs take turns in an order without a period (Thue and Morse's): buffers in a ring get both.
    """
    started = time.perf_counter()
    held: list[Run] = []
    while len(held) < FEWEST or (len(held) < MOST and time.perf_counter() - started < SECONDS):
        turn: Exact = other if len(held).bit_count() % 2 else {}
        held.append(execute(run.kernel, _built(run, turn)))
    for number, one in enumerate(held):
        first = held[1] if number.bit_count() % 2 else run
        found = list(differences(first, one, ("in the first call", f"in call {number + 1}")))
        found = found or list(_rewritten(one, f"after {len(held) - number - 1} more calls"))
        if found:
            yield from found
            return


def _rewritten(run: Run, when: str) -> Iterator[Difference]:
    """Yield the outputs whose memory has changed since the call returned them."""
    for name, tensor in run.returned.items():
        output = run.outputs[name]
        now = placement.to_float64(tensor).ravel()
        if output is not None and not np.array_equal(now, output.got.ravel(), equal_nan=True):
            count = int((now != output.got.ravel()).sum())
            yield Difference(name, f"{count} elements of {name} change {when}, although the caller still holds it")


def _threads(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs where two threads call the kernel at the same time, each with values of its own."""
    start = Barrier(2)

    def called(values: Exact) -> list[Run]:
        cases = [_built(run, values) for _ in range(IN_THREAD)]
        start.wait()
        return [execute(run.kernel, case) for case in cases]

    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:  # the filters of warnings belong to all threads
        both = list(pool.map(called, ({}, other)))
    for values, runs in zip(({}, other), both, strict=True):
        for one in runs:
            found = list(differences(rerun(run, values), one, ("alone", "beside a call in another thread")))
            if found:
                yield from found
                return


WAYS: dict[str, Callable[[Run, Exact], Iterator[Difference]]] = {
    "new values in place": _values,
    "new weight and bias in place": _parameters,
    "many calls": _many,
    "two threads": _threads,
}
