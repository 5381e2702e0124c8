"""What calls leave in memory: tensors, and what grows with each call."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from verify_norm.checks.relations.rerun import rerun
from verify_norm.core.run import Case, Run
from verify_norm.loading import module_calls
from verify_norm.running import growth
from verify_norm.running.guards import PoisonEmpty

FIRST = 2  # calls: one of them that leaves nothing behind answers the question
CALLS = 20  # which all leave something behind, where a kernel keeps what it is given or makes
ROUNDS = (5, 5, 10, 280)  # calls; a cache of bounded size stops growing in the last round, if not before
SLOW = 0.01  # seconds: a call that takes longer is not repeated so often
SECONDS = 1.0  # after which a round is over
MALLOC = "the memory that malloc has given out"
BYTES = 1024  # for a call: less may be what the allocator and the interpreter keep

T = TypeVar("T")


def kept(run: Run) -> Iterator[str]:
    """Yield in words whether tensors of each of many calls stay in memory."""
    if _slow(run):
        return
    calls: list[list[StorageWeakRef]] = []
    for count in (FIRST, CALLS - FIRST, ROUNDS[-1]):
        calls += _repeated(lambda: _storages(run), count)
        if _held(calls) < len(calls):
            return
        gc.collect()  # what refers to itself goes only then
        if _held(calls) < len(calls):
            return
    yield f"each of {len(calls)} calls leaves a tensor in memory, after the caller has released all of its own"


def grown(run: Run) -> Iterator[str]:
    """Yield in words what grows with each call: a container of the kernel, threads, open files, memory from malloc."""
    if _slow(run):
        return
    instance = module_calls.Instance()
    assert run.kernel.run is not None
    serving = replace(run, kernel=replace(run.kernel, run=instance.serving(run.kernel.run)))
    rerun(serving)
    gc.collect(1)  # also what earlier runs leave
    reached = growth.containers(run.kernel.run, instance)  # once: the search takes longer than the calls
    before = _sizes(reached)
    growing, calls = {*before, MALLOC}, 0
    for count in ROUNDS:
        bytes_before = growth.native()
        made = len(_repeated(lambda: rerun(serving).problem, count))
        gc.collect(1)
        more = growth.native() - bytes_before
        now = _sizes(reached)
        more_of = {key for key, (_, size) in now.items() if size - before[key][1] >= made}
        growing &= more_of | ({MALLOC} if more >= made * BYTES else set())
        if not growing:
            return
        before, calls = now, calls + made
    names = {key: name for key, (name, _) in before.items()} | {MALLOC: MALLOC}
    for what in sorted({names[key] for key in growing}):
        yield f"each of {calls} calls adds to {what}"


def _repeated(call: Callable[[], T], count: int) -> list[T]:
    """Return the results of a number of calls, or of fewer where they take long."""
    started, results = time.perf_counter(), list[T]()
    while len(results) < count and (len(results) < CALLS or time.perf_counter() - started < SECONDS):
        results.append(call())
    return results


def _slow(run: Run) -> bool:
    """Return whether a call takes so long that it is not repeated."""
    started = time.process_time()
    rerun(run)  # what is made once is made now
    return time.process_time() - started > SLOW


def _sizes(reached: Mapping[int, growth.Container]) -> dict[Any, tuple[str, int]]:
    """Return what may grow by one and more in a call: in words, and its size."""
    counts = {name: (f"the number of {name}", size) for name, size in growth.counts().items()}
    return {key: (one.name, one.size) for key, one in reached.items()} | counts


def _held(calls: list[list[StorageWeakRef]]) -> int:
    """Return how many calls leave something in memory that no call before has used: one buffer may serve all."""
    count, before = 0, set[int]()
    for storages in calls:
        alive = {storage.cdata for storage in storages if not storage.expired()}
        if not alive <= before:
            count += 1
        before |= alive
    return count


def _storages(run: Run) -> list[StorageWeakRef]:
    """Return weak references to the storages of all tensors that a call takes and makes."""
    recordings: list[_Recording] = []

    def recording(case: Case) -> _Recording:
        recordings.append(_Recording(case))
        return recordings[0]

    rerun(run, within=recording)
    return recordings[0].storages


class _Recording(PoisonEmpty):
    """Allocates as every call does, and records each tensor that torch's operators return."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.poison)
        given = (value for value in case.arguments.values() if isinstance(value, torch.Tensor))
        self.storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in given]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = (item for item in tree_leaves(result) if type(item) is torch.Tensor)
        self.storages += (StorageWeakRef(tensor.untyped_storage()) for tensor in made)
        return result
