"""The workers of one machine: a process for each GPU, or several on the CPU. A unit may end its process alone."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from queue import SimpleQueue
from signal import SIGKILL
from typing import Any, Protocol

from verify_norm.campaign import worker
from verify_norm.campaign.accelerators import CPU, kind_of
from verify_norm.campaign.model import Outcome, Unit
from verify_norm.campaign.plan import Plan
from verify_norm.core.errors import UsageError
from verify_norm.running.fork_server import ending, no_main
from verify_norm.search.crew import cores
from verify_norm.search.request import device, gpus

ONE_EACH = "--jobs: on GPUs there is one worker for each; CUDA_VISIBLE_DEVICES chooses them"


class Executor(Protocol):
    """What examines units, several at the same time, each in a thread of the caller's."""

    @property
    def places(self) -> Mapping[str, int]:
        """How many units it examines at the same time, by their accelerator."""

    def examine(self, unit: Unit) -> Outcome:
        """Return the outcome of a unit; one that `ended` its process does not end the others."""

    def close(self) -> None:
        """End all processes, also those that examine a unit."""


class _Process(SpawnProcess):
    """A child that does not import the caller's script again."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 — multiprocessing's name
        with no_main():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    """Makes the process of one worker, and keeps it."""

    made: _Process | None = None

    def Process(self, *args: Any, **options: Any) -> _Process:  # type: ignore[override]  # noqa: N802
        self.made = _Process(*args, **options)
        return self.made


class _Worker:
    """One process, which is started again after a unit has ended it, or has not ended within `limit` seconds."""

    def __init__(self, name: str, gpu: str, limit: float) -> None:
        self.name, self._gpu, self._limit = name, gpu, limit
        self._context = _Context()
        self._pool: ProcessPoolExecutor | None = None

    def examine(self, unit: Unit, settings: Mapping[str, Any]) -> Outcome:
        """Return the outcome of a unit."""
        started = time.time()
        try:
            return self._started().submit(worker.examine, unit, settings, self.name).result(self._limit)
        except BrokenProcessPool:
            ended = self._lost()
        except futures.TimeoutError:
            self.close()
            ended = worker.overdue(self._limit)
        return Outcome(unit.id, self.name, started, time.time(), ended=ended)

    def _started(self) -> ProcessPoolExecutor:
        """Return the pool of the one process, which starts if there is none."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, self._context, worker.begin, (self._gpu,))
        return self._pool

    def _lost(self) -> str:
        """Forget the process, and return in words how it ended."""
        self.close()
        return ending(self._context.made.exitcode if self._context.made else None)

    def close(self) -> None:
        """End the process and what it has started, whatever they do."""
        pool, self._pool = self._pool, None
        made = self._context.made
        if made is not None and made.pid is not None:
            for kill in (os.killpg, os.kill):  # it leads a group of its own, once it has begun
                with suppress(ProcessLookupError):
                    kill(made.pid, SIGKILL)
        if pool is not None:
            pool.shutdown(cancel_futures=True)


class Local:
    """Workers on this machine: one for each GPU, `jobs` on a CPU, where by default each core has one."""

    def __init__(self, plan: Plan, jobs: int | None = None) -> None:
        """Find the places; no process starts before it has a unit.

        Raises UsageError if the device is not there, or is none of the plan's accelerators.
        """
        place = device(plan.device)
        on_gpu = place != "cpu"
        self._settings = plan.settings | {"device": "cuda" if on_gpu else "cpu"}
        if on_gpu and jobs is not None:
            raise UsageError(ONE_EACH)
        if not on_gpu:
            names = [f"cpu {number}" for number in range(1, (jobs or cores()) + 1)]
        elif ":" in plan.device:
            names = [place]
        else:
            names = [f"cuda:{number}" for number in range(gpus())]
        self._workers: list[_Worker] = []
        self._free: dict[str, SimpleQueue[_Worker]] = {}
        self.places: dict[str, int] = {}
        for name, kind in _kinds(names, plan.accelerators).items():
            one = _Worker(name, _visible(name) if on_gpu else "", plan.limit)
            self._workers.append(one)
            self._free.setdefault(kind, SimpleQueue()).put(one)
            self.places[kind] = self.places.get(kind, 0) + 1

    def examine(self, unit: Unit) -> Outcome:
        """Return the outcome of a unit, of the next free worker."""
        free = self._free[unit.accelerator]
        one = free.get()
        try:
            return one.examine(unit, self._settings)
        finally:
            free.put(one)

    def close(self) -> None:
        """End all processes."""
        for one in self._workers:
            one.close()


def _kinds(names: Sequence[str], accelerators: Sequence[str]) -> dict[str, str]:
    """Return the accelerator of each worker, "" if the plan names none; raises UsageError if no worker has any."""
    if not accelerators:
        return dict.fromkeys(names, "")
    devices = {name: _device_name(name) for name in names}
    found = {name: kind_of(there, accelerators) for name, there in devices.items()}
    if not any(found.values()):
        here, asked = " and ".join(sorted(set(devices.values()))), ", ".join(accelerators)
        raise UsageError(f"accelerators: the plan is for {asked}, and this machine has {here}")
    return {name: kind for name, kind in found.items() if kind}


def _device_name(name: str) -> str:
    """Return what torch calls the device of a worker."""
    import torch

    return torch.cuda.get_device_name(name) if name.startswith("cuda") else CPU


def _visible(name: str) -> str:
    """Return what CUDA_VISIBLE_DEVICES calls the device that torch here calls "cuda:N"."""
    number, listed = int(name.partition(":")[2]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return listed.split(",")[number].strip() if listed else str(number)
