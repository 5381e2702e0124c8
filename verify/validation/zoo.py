"""The verifier on the zoo: whether it detects each wrong kernel by an output that is wrong, and flags no right one."""

import os
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import active_children, forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.report_text import gap
from verify_norm.core.serial import jsonable
from verify_norm.core.settings import Settings
from verify_norm.kernels.zoo import ZOO
from verify_norm.kernels.zoo.example import Example
from verify_norm.loading import registry
from verify_norm.running.environment import environment
from verify_norm.running.fork_server import Child, EndedError, context, end_with_caller, without_interrupts
from verify_norm.running.interpreter import patch
from verify_norm.search import PRELOAD
from verify_norm.search.search import search
from verify_norm.validation.policies import POLICIES, Verdict

POLICY_SECONDS = 300.0  # ten times what the slowest takes alone, so that a loaded machine changes no verdict
# The runs share the machine, with one process each. A wrong kernel's run ends once its bug is detected, so it may take
# longer than the run of a user, who runs one kernel.
LONGER = 3
PATIENCE = 5.0  # seconds in which workers may end, before each of two signals
_interrupted = False  # this process, a worker, by Ctrl-C


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run on one example kernel, and the verdicts of other projects' tests.

    `findings` are all of a right kernel, or the reduced one that detects the bug of a wrong kernel; else whatever was
    found. `ended` counts seconds from the start of the run over all examples. `gap` says why a right kernel without
    findings has no verdict: its run is incomplete, or checked nothing. `error` is the traceback of an internal error,
    after which there is no verdict either.
    """

    example: Example
    findings: tuple[Finding, ...]
    cases: int
    seconds: float
    policies: dict[str, Verdict] = field(default_factory=dict)
    ended: float = 0.0
    gap: str = ""
    error: str = ""

    @property
    def detected(self) -> bool:
        """Whether a wrong kernel's bug is detected, or a right kernel has a finding."""
        return any(not self.example.wrong or explains(self.example, finding) for finding in self.findings)

    @property
    def verdict(self) -> Exit:
        """FINDINGS for a right kernel that is flagged and a wrong one that is missed; INCOMPLETE for a gap."""
        if self.error:
            return Exit.INTERNAL
        if self.detected != self.example.wrong:
            return Exit.FINDINGS
        return Exit.INCOMPLETE if self.gap else Exit.PASS

    @property
    def as_expected(self) -> bool:
        """Whether a wrong kernel's bug is detected, or a right kernel passes."""
        return self.verdict is Exit.PASS

    def jsonable(self) -> dict[str, Any]:
        """Return plain data for json.dumps."""
        one = self.example
        facts: dict[str, Any] = {"name": one.name, "op": one.kernel.op, "class": one.kind, "wrong": one.wrong}
        facts |= {"source": one.source, "right": self.as_expected, "gap": self.gap, "error": self.error}
        facts |= {"cases": self.cases}
        facts |= {"seconds": round(self.seconds, 2), "findings": self.findings}
        facts["policies"] = {name: asdict(verdict) for name, verdict in self.policies.items()}
        return dict(jsonable(facts))


def explains(example: Example, finding: Finding) -> bool:
    """Return whether the finding is about an output that is wrong, or about the call where no output is."""
    return finding.output in example.outputs if example.outputs else finding.output is None


def detectable(device: str) -> Iterator[Example]:
    """Yield the examples whose bug can show on the device."""
    there = {"cpu", "host"} if device == "cpu" else {"cpu", "gpu"}
    nvidia = torch.version.hip is None and torch.cuda.is_available()
    if device != "cpu" and nvidia and torch.cuda.get_device_capability(device) >= (9, 0):
        there.add("sm_90")
    return (example for example in ZOO.values() if example.needs in there)


def run(example: Example, settings: Settings, against: tuple[str, ...] = ()) -> Outcome:
    """Search one example, a wrong one until its bug is detected; then apply the policies named in `against`.

    Raises KeyboardInterrupt where the search was interrupted, because its result says nothing then.
    """
    started = time.perf_counter()
    seconds = settings.seconds * (LONGER if example.wrong else 1)
    kernel, settings = registry.limited(example.kernel), replace(settings, workers=1, seconds=seconds)
    report = search(kernel, settings, until=lambda found: example.wrong and explains(example, found))
    if report.interrupted:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - started
    verdicts = {name: _under(name, example, settings.device) for name in against}
    missing = "" if example.wrong else gap(report)
    return Outcome(example, report.findings, report.cases, seconds, verdicts, gap=missing)


def run_all(
    settings: Settings, examples: Iterable[Example] | None = None, *, against: tuple[str, ...] = (), jobs: int = 0
) -> Iterator[Outcome]:
    """Yield the outcome of each example as it ends; by default of all whose bug can show on the settings' device.

    Right kernels start first: only the number of cases or the time ends their runs.
    """
    chosen = sorted(detectable(settings.device) if examples is None else examples, key=lambda example: example.wrong)
    for _, outcome in run_each([(example, settings) for example in chosen], against=against, jobs=jobs):
        yield outcome


def run_each(
    tasks: Sequence[tuple[Example, Settings]], *, against: tuple[str, ...] = (), jobs: int = 0
) -> Iterator[tuple[Settings, Outcome]]:
    """Yield the settings and the outcome of each task as it ends; all tasks have one kind of device.

    When the caller stops, for example after Ctrl-C, the workers are ended.
    """
    started, others = time.perf_counter(), active_children()
    workers = jobs or os.cpu_count()
    pending: dict[Future[Outcome], Settings] = {}
    with ProcessPoolExecutor(workers, context(PRELOAD), _start_server, (tasks[0][1].device,)) as pool:
        try:
            with without_interrupts():  # a worker that is half started could not end
                pending |= {pool.submit(_run, example.name, settings, against): settings for example, settings in tasks}
            for future in as_completed(pending):
                yield pending[future], replace(future.result(), ended=time.perf_counter() - started)
        finally:
            if not all(future.done() for future in pending):
                kept = vars(pool).copy()  # shutdown drops semaphores that a worker which starts still looks up
                pool.shutdown(wait=False, cancel_futures=True)
                _end(set(active_children()).difference(others))
                kept.clear()


def _end(workers: set[BaseProcess]) -> None:
    """Wait for the workers, which Ctrl-C reaches too; interrupt those that it does not reach, and kill the rest."""
    for number in (signal.SIGINT, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for pid in [worker.pid for worker in workers if worker.is_alive() and worker.pid]:
            os.kill(pid, number)


def _start_server(device: str) -> None:
    """Start the worker's fork server with the imports that its processes need, so that no kernel's time includes them.

    No server on a GPU: this module imports Triton, and there the kernel has to. The worker ends with its caller. Ctrl-C
    reaches it from here on; a search handles it, and beside one it is remembered.
    """
    end_with_caller()
    signal.signal(signal.SIGINT, _remember)
    if device == "cpu":
        forkserver.set_forkserver_preload([PRELOAD, __name__])
        forkserver.ensure_running()
        first = context(PRELOAD).Process(target=os.getpid)  # no pool: its semaphores would outlive a kill
        first.start()
        first.join()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # isolate's server and all its children block it


def _run(name: str, settings: Settings, against: tuple[str, ...]) -> Outcome:
    if _interrupted:
        raise KeyboardInterrupt
    if settings.device == "cpu":
        patch.enable()
    try:
        return run(ZOO[name], settings, against)
    except KeyboardInterrupt:
        _remember()
        raise
    except Exception as error:  # the other examples go on
        last = traceback.format_exception_only(error)[-1].strip()
        return Outcome(ZOO[name], (), 0, 0.0, gap=f"internal error: {last}", error=traceback.format_exc())


def _remember(*_: object) -> None:
    """Let the worker run no further example: some wait in its queue, where their futures cannot be cancelled."""
    global _interrupted
    _interrupted = True


def _under(policy: str, example: Example, device: str) -> Verdict:
    """Return a policy's verdict, from a process that the kernel may crash: its tensors have no guarded memory."""
    started = time.perf_counter()
    with closing(Child(context(PRELOAD))) as child:
        try:
            return child.ask(POLICY_SECONDS, _judge, policy, example.name, device)
        except TimeoutError:
            return Verdict(None, f"not done after {POLICY_SECONDS:g} s", 0, POLICY_SECONDS)
        except EndedError as error:
            return Verdict(True, str(error), 0, time.perf_counter() - started)


def _judge(policy: str, name: str, device: str) -> Verdict:
    if device == "cpu":
        patch.enable()
        torch.set_num_threads(1)  # one worker runs on each core
    example = ZOO[name]
    return POLICIES[policy].judge(registry.limited(example.kernel), device=device, few=example.few)


def dump(outcomes: list[Outcome], settings: Settings, *, interrupted: bool = False) -> dict[str, Any]:
    """Return all outcomes, the settings, the environment and the policies as plain data for json.dumps."""
    used = [POLICIES[name] for name in sorted({name for outcome in outcomes for name in outcome.policies})]
    facts = {
        "environment": environment(settings.device),
        "settings": asdict(settings),
        "policies": {p.name: {"name": p.name, "summary": p.summary, "source": p.source} for p in used},
        "seconds": round(max((outcome.ended for outcome in outcomes), default=0.0)),
        "cores": os.cpu_count(),
        "interrupted": interrupted,
    }
    return dict(jsonable(facts)) | {"outcomes": [outcome.jsonable() for outcome in outcomes]}
