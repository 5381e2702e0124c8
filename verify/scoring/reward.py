"""The reward of a kernel in a loop of agents: correct, why not, how fast, and what the run would have detected."""

import secrets
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verify_norm.core.errors import UnknownOpError, UsageError, texts
from verify_norm.core.report_text import gap, replay_line
from verify_norm.core.results import Report
from verify_norm.core.settings import Seconds
from verify_norm.loading.builtin import BUILTIN, known
from verify_norm.scoring.forms import narrowed, subject
from verify_norm.search.options import least, options
from verify_norm.search.request import SECRET, request

MOST = 60.0  # seconds: a loop of agents waits no longer
SEARCHED = 0.7  # the share of the time that is for correctness


@dataclass(frozen=True, slots=True)
class Reward:
    """What a kernel gets: whether it is `correct`, and `why` not; "" where it is.

    `speedup` is the time of the baseline over that of the kernel, in calls whose outputs were right; None where the
    kernel is wrong, there is no baseline, or both are lost in the noise of the channel. `power` has the smallest
    relative error in all elements that the run would have detected, by output and type. The same `seed` gives the same
    cases; `replay` runs the first finding again.
    """

    correct: bool
    why: str
    speedup: float | None = None
    power: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    cases: int = 0
    baseline: str = ""
    replay: str = ""


def reward(
    kernel: str,
    op: str | None = None,
    *,
    form: str = "function",
    problem: str | int = "",
    baseline: str | None = None,
    dtypes: Any = None,
    contract: str = "",
    only: str = "",
    bind: str = "",
    shape: tuple[int, ...] | None = None,
    seconds: float = MOST,
    seed: int | None = None,
    device: str = "auto",
    untrusted: bool = True,
) -> Reward:
    """Return whether a kernel of one operator is correct, and how fast; it cannot reach who judges it.

    Parameters
    ----------
    kernel, op, dtypes, contract, only, bind, device : as in `verify_norm.verify`. The operator has one direction.
    form, problem : what the file is, and which problem it solves (`verify_norm.scoring.forms`).
    baseline : the kernel that it has to beat, a name or a target of one that is trusted; torch's own if None, "" for
        none.
    shape : that of x in the timed calls.
    seconds : at most 60, for all of it, besides the start of processes and a call that hangs.
    seed : of the cases; the system draws it if None.

    Raises
    ------
    UsageError : an option is wrong, or a file is not in its form. A kernel that cannot be loaded is not correct.
    """
    problem = str(problem) if isinstance(problem, int) else problem
    texts(kernel=kernel, op=op or "", problem=problem, baseline=baseline or "", bind=bind)
    if not least(Seconds) <= seconds <= MOST:
        raise UsageError(f"seconds: expected at most {MOST:g}, and {least(Seconds):g} or more, got {seconds!r:.60}")
    seed = secrets.randbits(SECRET) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="verify-norm-") as folder:
        found = narrowed(subject(kernel, op, form, problem, Path(folder)), only, bind)
        given: dict[str, Any] = {"contract": contract, "only": found.only, "seed": seed, "device": device}
        given |= {"seconds": seconds * SEARCHED, "untrusted": untrusted}
        if dtypes is not None:
            given["dtypes"] = dtypes
        options(**given)  # a wrong option is no fault of the kernel's
        if found.op is not None:
            known(found.op)
        if baseline:
            request(baseline, {"device": device}, op=found.op)
        try:
            asked = request(found.target, given, op=found.op, bind=found.bind)
        except UnknownOpError:
            hint = f"{kernel} does not tell"
            raise UsageError(f"op: expected an operator, such as rmsnorm_fwd: {hint}; got none") from None
        except UsageError as error:
            return Reward(False, str(error), seed=seed)
        from verify_norm.scoring.timing import TimedWrongError, speedup  # as search, after Triton's interpreter is on
        from verify_norm.search.search import search

        judged = asked.only()
        answer = _answer(search(judged, asked.settings), seed)
        against = _baseline(judged.op) if baseline is None else baseline
        if not answer.correct or not against:
            return answer
        try:
            faster = speedup(judged, against, asked.settings, shape, seconds * (1 - SEARCHED))
        except TimedWrongError as error:
            return replace(answer, correct=False, why=f"in a timed call {error}")
        return replace(answer, speedup=faster, baseline=against)


def _baseline(op: str) -> str:
    """Return the name of torch's own kernel of an operator; "" if there is none."""
    return next((name for name in (f"{op}_torch", op) if name in BUILTIN), "")


def _answer(report: Report, seed: int) -> Reward:
    """Return the verdict; a kernel that refuses cases in words, which nobody has declared, is not correct."""
    refused = [skip.reason for skip in report.skipped if skip.limit]
    power = {f"{one.output} {one.dtype}": one.everything for one in report.detectable if one.check == "accuracy"}
    common: dict[str, Any] = {"power": power, "seed": seed, "cases": report.cases}
    if report.findings:
        first = report.findings[0]
        return Reward(False, f"{first.check}: {first.message}", replay=replay_line(report, first.spec), **common)
    why = gap(report)
    if why:
        return Reward(False, why, **common)
    if refused:
        return Reward(False, f"it refuses cases: {refused[0]}; only=… declares what it takes", **common)
    return Reward(True, "", **common)
