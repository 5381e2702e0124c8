"""The verifier against the zoo: whether each wrong kernel is convicted, of the right output, and no right one is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import active_children, forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import pebble
import torch

from verify_norm import corners, interpreter, isolate, policies, registry
from verify_norm.checks import CHECKS
from verify_norm.environment import environment
from verify_norm.examine import examine
from verify_norm.kernels.zoo import ZOO as ZOO
from verify_norm.kernels.zoo import Specimen
from verify_norm.ops import OPS
from verify_norm.policies import Verdict
from verify_norm.report.json import jsonable
from verify_norm.report.model import Settings
from verify_norm.search import search
from verify_norm.spec import Finding

POLICY_SECONDS = 300.0  # ten times what the slowest takes alone, so that loads decide nothing
PATIENCE = 5.0  # seconds that workers have to end, twice


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has made of one specimen.

    `findings` are those of a right kernel, or the one that convicts a wrong one of what is wrong with it, reduced; else
    whatever was found. `policies` is what the specimen meets under other people's. `ended` is when it was done, in
    seconds from the beginning of the run over all.
    """

    specimen: Specimen
    findings: tuple[Finding, ...]
    cases: int
    seconds: float
    policies: dict[str, Verdict] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def right(self) -> bool:
        """Whether a wrong kernel is convicted of what is wrong with it, and a right one of nothing."""
        if not self.specimen.wrong:
            return not self.findings
        return any(names(self.specimen, finding) for finding in self.findings)

    def jsonable(self) -> dict[str, Any]:
        """As JSON has it."""
        one = self.specimen
        facts = {"name": one.name, "op": one.kernel.op, "class": one.kind, "wrong": one.wrong, "source": one.source}
        rest = {"right": self.right, "cases": self.cases, "seconds": round(self.seconds, 2)}
        found = [asdict(finding) for finding in self.findings]
        judged = {name: asdict(verdict) for name, verdict in self.policies.items()}
        line: dict[str, Any] = jsonable(facts | rest | {"findings": found, "policies": judged})
        return line


def names(specimen: Specimen, finding: Finding) -> bool:
    """Whether the finding is of an output that is wrong; of the call itself where no output is."""
    return finding.output in specimen.outputs if specimen.outputs else finding.output is None


def shown(device: str) -> Iterator[Specimen]:
    """Those specimens whose bug can show on the device."""
    there = {"cpu"} if device == "cpu" else {"cpu", "gpu"}
    nvidia = torch.version.hip is None and torch.cuda.is_available()
    if device != "cpu" and nvidia and torch.cuda.get_device_capability(device) >= (9, 0):
        there.add("sm_90")
    return (specimen for specimen in ZOO.values() if specimen.needs in there)


def audit(specimen: Specimen, settings: Settings, against: tuple[str, ...] = ()) -> Outcome:
    """A run over one specimen, which ends with the conviction of a wrong one; then other people's policies.

    Raises KeyboardInterrupt where the run was interrupted, since it says nothing then.
    """
    started = time.perf_counter()
    kernel = registry.ready(specimen.kernel)
    until: Callable[[Finding], bool] = lambda finding: specimen.wrong and names(specimen, finding)  # noqa: E731
    report = search(kernel, settings, until=until)
    if report.interrupted:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - started
    judged = {name: _under(name, specimen, settings.device) for name in against}
    return Outcome(specimen, report.findings, report.cases, seconds, judged)


def audit_all(
    settings: Settings, specimens: Iterable[Specimen] | None = None, *, against: tuple[str, ...] = (), jobs: int = 0
) -> Iterator[Outcome]:
    """A run over each, as they end: over all whose bug can show on the settings' device, if none are given.

    The right ones come first: nothing but the number of cases or the time ends theirs. What is at work when the caller
    stops, as Ctrl-C makes it, is ended.
    """
    started, others = time.perf_counter(), active_children()
    chosen = sorted(shown(settings.device) if specimens is None else specimens, key=lambda specimen: specimen.wrong)
    with ProcessPoolExecutor(jobs or os.cpu_count(), isolate.context(), _begin, (settings.device,)) as pool:
        pending = [pool.submit(_audit, specimen.name, settings, against) for specimen in chosen]
        try:
            for future in as_completed(pending):
                yield replace(future.result(), ended=time.perf_counter() - started)
        finally:
            if not all(future.done() for future in pending):
                pool.shutdown(wait=False, cancel_futures=True)
                _end(set(active_children()).difference(others))


def _end(workers: set[BaseProcess]) -> None:
    """Let the workers end, which Ctrl-C has reached as well; interrupt those that it has not, and kill the rest."""
    for number in (signal.SIGINT, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for pid in [worker.pid for worker in workers if worker.is_alive() and worker.pid]:
            os.kill(pid, number)


def _begin(device: str) -> None:
    """In a worker: start the server of its processes, with what they need; wait, so that no kernel's time pays for it.

    Without this module in it, a process would take a quarter of a second for its imports. On a GPU it is left out: it
    imports Triton, which there is the kernel's to import.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, and for a search
    if device != "cpu":
        return
    forkserver.set_forkserver_preload(["verify_norm.preload", "verify_norm.zoo"])
    forkserver.ensure_running()
    with pebble.ProcessPool(1, context=isolate.context()) as pool:
        pool.schedule(os.getpid).result()


def _audit(name: str, settings: Settings, against: tuple[str, ...]) -> Outcome:
    if settings.device == "cpu":
        interpreter.enable()
    return audit(ZOO[name], settings, against)


def _under(policy: str, specimen: Specimen, device: str) -> Verdict:
    """What one policy says, in a process that the kernel may crash: nothing guards the memory around its tensors."""
    started = time.perf_counter()
    with pebble.ProcessPool(1, context=isolate.context()) as pool:
        future = pool.schedule(_judge, args=(policy, specimen.name, device), timeout=POLICY_SECONDS)
        try:
            verdict: Verdict = future.result()
        except TimeoutError:
            return Verdict(None, f"not done after {POLICY_SECONDS:g} s", 0, POLICY_SECONDS)
        except pebble.ProcessExpired as error:
            return Verdict(True, f"its process ended with status {error.exitcode}", 0, time.perf_counter() - started)
    return verdict


def _judge(policy: str, name: str, device: str) -> Verdict:
    if device == "cpu":
        interpreter.enable()
        torch.set_num_threads(1)  # as many specimens as there are cores are at work
    return policies.POLICIES[policy].judge(registry.ready(ZOO[name].kernel), device=device)


def dump(outcomes: list[Outcome], settings: Settings, *, interrupted: bool = False) -> dict[str, Any]:
    """All of it as JSON has it, with what it depends on."""
    told = {name: asdict(replace(policy)) for name, policy in policies.POLICIES.items()}
    used = {name for outcome in outcomes for name in outcome.policies}
    sources = {name: {k: v for k, v in told[name].items() if isinstance(v, str)} for name in sorted(used)}
    facts: dict[str, Any] = {"environment": environment(settings.device), "settings": asdict(settings)}
    facts["policies"] = sources
    facts["seconds"] = round(max((outcome.ended for outcome in outcomes), default=0.0))
    facts["cores"] = os.cpu_count()
    facts["interrupted"] = interrupted
    whole: dict[str, Any] = jsonable(facts) | {"outcomes": [outcome.jsonable() for outcome in outcomes]}
    return whole


def convict(specimen: Specimen, settings: Settings) -> Finding | None:
    """The first finding that names what is wrong, by the checks that are to name it, in the corner table alone."""
    kernel, op = registry.ready(specimen.kernel), OPS[specimen.kernel.op]
    checks = tuple(name for name in specimen.caught_by if name in CHECKS and CHECKS[name].applies(op))
    dtypes = tuple(d for d in settings.dtypes if d in kernel.dtypes)
    for spec in corners.corners(op, dtypes, gpu=settings.device != "cpu"):
        for finding in examine(kernel, spec, checks, settings.device).findings:
            if names(specimen, finding):
                return finding
    return None
