"""Takes a campaign through its units: hands them to workers, enters what becomes of them, and goes on from its file."""

import shlex
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import Any

from verify_norm.campaign.local import Executor
from verify_norm.campaign.model import LOSSES, Outcome, Unit
from verify_norm.campaign.plan import Plan, digest
from verify_norm.campaign.shard import WHOLE, Shard
from verify_norm.campaign.store import Store
from verify_norm.running.environment import environment
from verify_norm.search.request import device

LASTING = ("verify-norm", "python", "numpy", "torch", "triton", "hypothesis")  # versions, the same for all units
Progress = Callable[[Store], None]


def facts(plan: Plan, units: tuple[Unit, ...]) -> dict[str, Any]:
    """Return what two runs of one campaign share: the plan, the digest of its units, and the versions."""
    here = environment("cpu" if plan.device == "cpu" else device("auto"))  # units may run elsewhere
    versions = {name: here[name] for name in LASTING}
    return {"plan": plan.model_dump(mode="json", exclude={"workers"}), "units": digest(units), "versions": versions}


def alone(unit: Unit, plan: Plan) -> str:
    """Return the command that runs a unit outside of a campaign, quoted for a shell."""
    options = {"--kernel": unit.kernel, "--op": unit.op, "--bind": unit.bind, "--contract": unit.contract}
    options |= {"--only": unit.only, "--checks": ",".join(plan.checks), "--dtype": unit.dtype}
    given = [f"{name} {shlex.quote(value)}" for name, value in options.items() if value]
    numbers = f"--examples {unit.examples} --seed {unit.seed} --seconds {plan.seconds:g}"
    return " ".join(["verify-norm", *given, numbers])


def run(
    plan: Plan,
    units: tuple[Unit, ...],
    path: str,
    executor: Executor,
    *,
    shard: Shard = WHOLE,
    seconds: float = inf,
    progress: Progress = lambda store: None,
) -> None:
    """Examine the units of a shard that the file does not have yet, and enter their outcomes.

    Units of accelerators that the executor does not have stay missing. After `seconds` no further unit begins.
    `progress` is called after each outcome. A unit that ends its process is given to another, and is a finding after
    LOSSES times. Raises UsageError as `Store.writing`, and where an outcome cannot be written; Ctrl-C ends the units
    under way.
    """
    deadline = time.monotonic() + seconds
    with closing(executor), Store.writing(path, units, facts(plan, units)) as store:
        waiting = [unit for unit in store.pending() if unit in shard]
        for unit, outcome in _examined(executor, waiting, store, deadline):
            store.enter(unit, outcome, alone(unit, plan))
            progress(store)


def _examined(
    executor: Executor, units: Sequence[Unit], store: Store, deadline: float
) -> Iterator[tuple[Unit, Outcome]]:
    """Yield the units and their outcomes; at most as many are under way as the executor examines at the same time."""
    under_way: dict[Future[Outcome], Unit] = {}
    waiting = {kind: deque(unit for unit in units if unit.accelerator == kind) for kind in executor.places}
    threads = ThreadPoolExecutor(sum(executor.places.values()))
    try:
        while True:
            busy = Counter(unit.accelerator for unit in under_way.values())
            for kind, number in executor.places.items():
                while waiting[kind] and busy[kind] < number and time.monotonic() < deadline:
                    unit = waiting[kind].popleft()
                    under_way[threads.submit(executor.examine, unit)] = unit
                    busy[kind] += 1
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                unit, outcome = under_way.pop(future), future.result()
                if not outcome.ended:
                    yield unit, outcome
                    continue
                times = store.lose(outcome)
                if times < LOSSES:
                    waiting[unit.accelerator].appendleft(unit)
                else:
                    words = f"the unit has ended the process of {times} workers; the last time {outcome.ended}"
                    yield unit, replace(outcome, ended=words)
    finally:
        executor.close()
        threads.shutdown(cancel_futures=True)
