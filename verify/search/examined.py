"""The results of the checks on one case, as small frozen data."""

from dataclasses import dataclass

from verify_norm.core.finding import Finding, SmallestError
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.core.work import NOTHING, Compiled

# Reasons why a case did not run.
NO_ROOM = "the case does not fit into GPU memory"
NO_MEMORY = "the case does not fit into the memory of this machine"


@dataclass(frozen=True, slots=True)
class Examined:
    """The results of the checks on one case. They cross from the kernel's process to ours, and are in the journal.

    `looked` names the checks that had something to check, `left_out` those that did not fit into GPU memory, and `slow`
    those whose further runs would take too long. `unsupported` is the reason why the kernel was not run; `problem` and
    `limits` are those of its run. `near` names the tensors whose "far" layout did not fit into memory. `detectable`
    holds smallest errors, each after the name of its check, and `ways` which of its ways a check took. `operators` are
    the norm operators of torch that ran inside the kernel, in the case itself or on such a way; `notes` say what checks
    noticed besides findings. `missing` names the outputs that were not returned. `dead`: the process of the kernel can
    run nothing more, as after the kernel broke its CUDA context. `hung`: the kernel did not return; without a finding
    this is no fault, because the time of the run was over. `compiled` is what this process compiled for the case.
    """

    spec: CaseSpec
    unsupported: str | None = None
    problem: str | None = None
    limits: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    tallies: tuple[Tally, ...] = ()
    findings: tuple[Finding, ...] = ()
    looked: tuple[str, ...] = ()
    detectable: tuple[tuple[str, SmallestError], ...] = ()
    observed: tuple[tuple[str, bool], ...] = ()
    ways: tuple[tuple[str, str], ...] = ()
    operators: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    seconds: float = 0.0  # inside the kernel, without compilation
    compiled: Compiled = NOTHING
    dead: bool = False
    hung: bool = False

    @property
    def ratio(self) -> float:
        """The largest error/bound of any output."""
        return max((tally.ratio for tally in self.tallies), default=0.0)
