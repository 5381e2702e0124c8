"""The workers of a Ray cluster: an actor for each GPU, or for each core. Ray places them; what ends one ends no other.

Ray is an optional package, which `OnRay` imports.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from verify_norm.campaign import cluster, worker
from verify_norm.campaign.accelerators import CPU
from verify_norm.campaign.actor import Actor, Examine, Place, imported, versions
from verify_norm.campaign.model import LOSSES, LostError, Outcome, Unit
from verify_norm.campaign.plan import Plan
from verify_norm.core.errors import UsageError

WAITING = 0.2  # seconds until the workers that start are looked at again
LOOKING = 1.0  # seconds until a thread that waits for an answer sees that the head is lost


@dataclass(slots=True)
class _Worker:
    """An actor as the driver knows it: `failed` counts those before it that failed; it is named once it has begun."""

    number: int
    kind: str
    actor: Any
    failed: int = 0
    name: str = ""


class _Inside:
    """Counts the threads that are inside a block, and waits until none is."""

    def __init__(self) -> None:
        self._number, self._changed = 0, threading.Condition()

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *_: object) -> None:
        self._add(-1)

    def _add(self, more: int) -> None:
        with self._changed:
            self._number += more
            self._changed.notify_all()

    def wait(self) -> None:
        """Return once no thread is inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._number)


class OnRay:
    """Workers in a Ray cluster: one for each GPU; without GPUs one for each core, at most `jobs`.

    A worker that is lost is replaced, where Ray has room for it: so the others go on while a host is away.
    """

    def __init__(
        self, plan: Plan, address: str = "", jobs: int | None = None, examine: Examine = worker.examine
    ) -> None:
        """Connect to the cluster at an address; without one to Ray's default, or to a new one on this machine.

        `examine` is what a worker does with a unit. Raises UsageError if Ray is not installed, there is no cluster, or
        it has no such device.
        """
        ray = imported()
        self._ray, self._own, self._examine = ray, not ray.is_initialized(), examine
        self._limit, self._closed = plan.limit, False
        self._lost: LostError | None = None
        self._inside, self._starts = _Inside(), threading.Lock()
        self._starting: dict[Any, _Worker] = {}
        self._workers: dict[int, _Worker] = {}
        if self._own:
            cluster.connect(address)
        self._actor, self._head = ray.remote(Actor), cluster.Head(ray)
        self._free: dict[str, SimpleQueue[_Worker | Exception]] = {}
        self._host = threading.Thread(target=self._welcome, daemon=True)
        try:
            self._on_gpu, self.places = cluster.places(plan, jobs, ray.nodes())
        except UsageError:
            self.close()
            raise
        self._settings = plan.settings | {"device": "cuda" if self._on_gpu else "cpu"}
        self._unstarted = dict(self.places)
        self._free.update((kind, SimpleQueue()) for kind in self.places)
        self._host.start()

    def _start(self, number: int, kind: str, failed: int = 0) -> None:
        """Ask Ray for the worker of this number; it is free once it has begun."""
        wanted: dict[str, Any] = {"num_gpus": int(self._on_gpu), "num_cpus": int(not self._on_gpu)}
        if self._on_gpu and kind:
            wanted["accelerator_type"] = kind
        actor = self._actor.options(**wanted).remote(self._examine)
        self._workers[number] = _Worker(number, kind, actor, failed)
        self._starting[actor.place.remote()] = self._workers[number]

    def _welcome(self) -> None:
        """Hand each worker that has begun to whoever waits for one; or the reason why none will."""
        try:
            while not self._closed:
                self._head.look()
                starting = list(self._starting)
                begun = self._ray.wait(starting, timeout=WAITING)[0] if starting else ()
                for reference in begun:
                    self._hand_over(self._starting.pop(reference), reference)
                if not begun:
                    time.sleep(WAITING)
        except LostError as error:
            self._lost = error
            self._tell(error)
        except Exception as error:  # no environment, other versions, no cluster any more
            self._tell(UsageError(f"--on ray: no worker starts: {cluster.why(error)}"))

    def _tell(self, error: Exception) -> None:
        """Raise an error in whatever waits for a worker."""
        for free in self._free.values():
            free.put(error)

    def _hand_over(self, one: _Worker, reference: Any) -> None:
        """Let a worker that has begun take units; ask for another one if its host is lost, a few times."""
        try:
            place = self._ray.get(reference)
        except Exception as error:
            if not _of_host(error) or one.failed == LOSSES:
                raise
            self._start(one.number, one.kind, one.failed + 1)
        else:
            self._free[one.kind].put(self._named(one, place))

    def _named(self, one: _Worker, place: Place) -> _Worker:
        """Give a worker the name of its place; raises UsageError where it has other versions than this process."""
        for name, version in versions().items():
            its = place.versions.get(name)
            if its != version:
                raise UsageError(f"{place.host} has {name} {its}, here it is {version}")
        unit = f"cuda:{place.gpu}" if self._on_gpu else f"{CPU} {one.number + 1}"
        one.name = f"{place.host} {unit}"
        return one

    def examine(self, unit: Unit) -> Outcome:
        """Return the outcome of a unit, of the next free worker. Of a lost host another worker takes it.

        Raises LostError if the cluster is gone.
        """
        wrong = self._ray.exceptions
        try:
            with self._inside:
                return self._examined(unit)
        except (wrong.RayError, ConnectionError) as error:
            raise LostError(f"--on ray: {cluster.why(error)}") from error

    def _examined(self, unit: Unit) -> Outcome:
        """Return the outcome of a unit, of the first of a few workers whose host is not lost."""
        started, wrong = time.time(), self._ray.exceptions
        for _ in range(LOSSES):
            one = self._next(unit.accelerator)
            try:
                outcome = self._answer(one.actor.examine.remote(unit, self._settings, one.name))
            except wrong.GetTimeoutError:
                ended = worker.overdue(self._limit)
            except (wrong.RayActorError, wrong.OutOfMemoryError) as error:
                ended = "" if _of_host(error) else "it ended its process"
            else:
                self._free[one.kind].put(one)
                return outcome
            self._replace(one)
            if ended:
                return Outcome(unit.id, one.name, started, time.time(), ended=ended)
        return Outcome(unit.id, one.name, started, time.time(), problem=f"{LOSSES} hosts were lost while it ran")

    def _answer(self, asked: Any) -> Outcome:
        """Return what a worker answers. Without a head Ray waits for what is lost too, until it ends this process."""
        deadline = time.monotonic() + self._limit
        while not self._ray.wait([asked], timeout=min(LOOKING, self._limit))[0]:
            if self._lost is not None:
                raise self._lost
            if time.monotonic() >= deadline:
                raise self._ray.exceptions.GetTimeoutError
        outcome: Outcome = self._ray.get(asked)
        return outcome

    def _next(self, kind: str) -> _Worker:
        """Return the next free worker, which may have to start; raises the reason why there is none."""
        with self._starts:
            if self._free[kind].empty() and self._unstarted[kind]:
                self._unstarted[kind] -= 1
                self._start(len(self._workers), kind)
        one = self._free[kind].get()
        if isinstance(one, Exception):
            self._free[kind].put(one)  # for the others
            raise one
        return one

    def _replace(self, one: _Worker) -> None:
        """End a worker, and ask for another one in its place."""
        self._ray.kill(one.actor)
        if not self._closed:
            self._start(one.number, one.kind)

    def close(self) -> None:
        """End all actors, and whatever waits for one; then leave the cluster, which ends a process that still asks."""
        if self._closed:
            return
        self._closed = True
        self._tell(RuntimeError("the campaign has ended"))
        if self._host.is_alive():
            self._host.join()
        if not self._head.silent():  # else Ray would wait for it; without this process its workers end by themselves
            for one in self._workers.values():
                with suppress(Exception):  # the cluster may be gone
                    self._ray.kill(one.actor)
        self._inside.wait()
        if self._own:
            self._ray.shutdown()


def _of_host(error: Exception) -> bool:
    """Return whether a worker is lost because its host is, which is no fault of the unit."""
    unavailable = type(error).__name__ == "ActorUnavailableError"
    return unavailable or getattr(error, "preempted", False) or "node has died" in str(error)
