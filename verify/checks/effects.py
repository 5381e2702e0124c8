"""Effects: what a call leaves behind besides its outputs, in the process, in its arguments, and in memory."""

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import cheap, rerun
from verify_norm.core.spec import Case, Finding, Run
from verify_norm.running.guards import PoisonEmpty

CALLS = 20  # which all leave something behind, where a kernel keeps what it is given or makes
SLOW = 0.01  # seconds: a call that takes longer is not repeated so often


@check()
def effects(run: Run) -> Iterator[Finding]:
    """A call leaves the process and its arguments as they were, and its outputs own their elements.

    It looks at modes and flags of torch and NumPy, and at what the arguments are (requires_grad, grad, dtype, shape,
    strides, address). No element of an output lies in the memory of another one, as in an expanded tensor; gradients
    that torch's autograd makes may. In some cases it also looks for a call that seeds a global random generator, and
    for tensors that remain in memory after each of many calls. To draw from a generator is no effect.
    """
    for words in run.effects:
        yield finding(run, "effects", None, f"{words}; a call must leave it as it was")
    if not run.kernel.autograd:
        for name, tensor in run.returned.items():
            strided = zip(tensor.shape, tensor.stride(), strict=True)
            shared = any(size > 1 and stride == 0 for size, stride in strided)
            if shared and tensor.numel():
                message = f"{name} has strides {tensor.stride()} for shape {tuple(tensor.shape)}: its elements overlap"
                yield finding(run, "effects", name, f"{message}, so writing to one changes others; return a copy")
    if "effects" in run.case.spec.further and cheap(run):
        yield from _seeded(run)
        yield from _leaked(run)


def _seeded(run: Run) -> Iterator[Finding]:
    """Yield the generators whose state after a call does not depend on the state before."""
    states = []
    with torch.random.fork_rng():
        kept = random.getstate(), np.random.get_state()  # noqa: NPY002
        for seed in (1, 2):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            rerun(run)
            now = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate(), "NumPy": _numpy_state()}
            if torch.cuda.is_initialized():
                now["CUDA"] = torch.cuda.get_rng_state().tolist()
            states.append(now)
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
    for name in states[0]:
        if states[0][name] == states[1][name]:
            message = f"a call seeds {name}'s global random generator, which belongs to the caller"
            yield finding(run, "effects", None, f"{message}; draw from a torch.Generator or default_rng of its own")


def _numpy_state() -> tuple[bytes, int]:
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    return np.asarray(key).tobytes(), int(position)


def _leaked(run: Run) -> Iterator[Finding]:
    started = time.process_time()
    rerun(run)  # what is made once is made now
    if time.process_time() - started > SLOW:
        return
    calls = [_storages(run) for _ in range(CALLS)]
    if _kept(calls) == CALLS:
        gc.collect()  # what refers to itself goes only then
        if _kept(calls) == CALLS:
            message = f"each of {CALLS} calls leaves a tensor in memory, after the caller has released all of its own"
            yield finding(run, "effects", None, f"{message}; the kernel keeps what it must release")


def _kept(calls: list[list[StorageWeakRef]]) -> int:
    """Return how many calls leave something in memory that no call before has used: one buffer may serve all."""
    count, before = 0, set[int]()
    for storages in calls:
        alive = {storage.cdata for storage in storages if not storage.expired()}
        count += not alive <= before
        before |= alive
    return count


def _storages(run: Run) -> list[StorageWeakRef]:
    """Return references to all that a call takes and makes, which do not keep it in memory."""
    made: list[_Recording] = []

    def recording(case: Case) -> _Recording:
        made.append(_Recording(case))
        return made[0]

    rerun(run, within=recording)
    return made[0].storages


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
