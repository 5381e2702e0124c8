"""What runs in a worker's process: one unit after the other. Importing this module loads no torch."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from verify_norm.campaign.model import Outcome, Unit
from verify_norm.core.errors import UsageError, one_line
from verify_norm.running.fork_server import end_with_caller


def begin(gpu: str) -> None:
    """Prepare this process, before it imports torch: it sees the one `gpu` of that number or UUID, or all if "".

    Ctrl-C is for the parent alone; without it this process ends. What a kernel prints goes to standard error. The
    process leads a group of its own, so that its end can be that of all it has started.
    """
    with suppress(PermissionError):  # it leads one already
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.dup2(2, 1)
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    end_with_caller(lambda: os.killpg(0, signal.SIGKILL))


def overdue(limit: float) -> str:
    """Return in words how a unit ended its process that was not done within its outer time limit."""
    return f"it was not done after {limit:g} s, and was ended"


def examine(unit: Unit, settings: Mapping[str, Any], worker: str) -> Outcome:
    """Return the outcome of a unit under the settings of its plan: its report, or the problem why there is none.

    A copy of this process that the kernel's file has forked ends here.
    """
    started, process = time.time(), os.getpid()
    try:
        (report, traits), problem = _search(unit, settings), ""
    except UsageError as error:
        report, traits, problem = None, {}, str(error)
    except Exception as error:  # of ours, or of the kernel's file
        report, traits, problem = None, {}, one_line(error)
    if os.getpid() != process:
        os._exit(0)
    return Outcome(unit.id, worker, started, time.time(), report, problem, traits=traits)


def _search(unit: Unit, settings: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Return the report of a unit; if it is the first of a kernel on an accelerator, also what is compared there."""
    from verify_norm.campaign.plan import source_digest
    from verify_norm.search.request import request
    from verify_norm.search.search import search

    own = {"contract": unit.contract, "only": unit.only, "dtypes": (unit.dtype,)}
    given = {**settings, **own, "seed": unit.seed, "examples": unit.examples}
    asked = request(unit.kernel, given, op=unit.op, bind=unit.bind)
    kernel = asked.only()
    if source_digest(kernel) != unit.source:
        raise UsageError("the kernel's file here is not the one that the plan was made of")
    report = search(kernel, replace(asked.settings, tables=unit.block == 0))
    if unit.block or not unit.accelerator:
        return report, {}
    from verify_norm.campaign.traits import traits

    return report, traits(kernel, unit.dtype, asked.settings.device)
