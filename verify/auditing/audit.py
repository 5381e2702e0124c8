"""The audit of one kernel: errors in ulp, heat maps, ladders and a fingerprint, added to the report of the checks."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.auditing.fingerprint.statement import Fingerprint, disagreements
from verify_norm.auditing.hunt import HuntOptions, hunt
from verify_norm.auditing.ladders import ladders
from verify_norm.auditing.model import LOST, Audit, Heat, Hunt, UlpReport
from verify_norm.auditing.survey import heat, survey, typical
from verify_norm.cases import make
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.tally import Skip
from verify_norm.running.execute import execute
from verify_norm.running.patience import LostError, Time
from verify_norm.running.runners import runner

CASES = 300  # of the survey, unless SECONDS pass first
SECONDS = 10.0  # time of the survey
PATIENCE = 240.0  # seconds after which a part counts as lost


def audit(
    kernel: Kernel, report: Report, settings: Settings, announce: Callable[[str], None] = lambda part: None
) -> Audit:
    """Return the audit of `kernel`; a part in which the kernel crashes or hangs is skipped, with the reason.

    `report` is that of the checks. `settings` supplies dtypes, seed, device, and whether the kernel runs in a child
    process. `announce` is called with the name of each part before it starts.
    """
    started = time.perf_counter()
    device, seed = settings.device, settings.seed
    dtypes = tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)
    parts: dict[str, Callable[[Kernel], Any]] = {
        "errors": partial(_errors, device=device, dtypes=dtypes, seed=seed, count=CASES),
        "ladders": partial(ladders, device=device, seed=seed),
        "fingerprint": partial(fingerprint, device=device),
    }
    found: dict[str, Any] = {}
    skipped: list[Skip] = []
    for name, part in parts.items():
        announce(name)
        try:
            with closing(runner(kernel, device, isolate=settings.isolate)) as process:
                found[name] = process.call(part, Time(PATIENCE))
        except LostError as lost:
            skipped.append(Skip(name, f"{LOST}{lost}"))
    ulps, maps = found.get("errors", ((), ()))
    printed: Fingerprint | None = found.get("fingerprint")
    if printed is not None and not printed.statements:
        skipped.append(Skip("fingerprint", f"no probe of {kernel.op} returned a result"))
    contradicted = () if printed is None else disagreements(kernel.contract, printed)
    seconds = report.seconds + time.perf_counter() - started
    return Audit(report, ulps, maps, found.get("ladders", ()), printed, contradicted, tuple(skipped), seconds)


def _errors(
    kernel: Kernel, device: str, dtypes: tuple[str, ...], seed: int, count: int
) -> tuple[tuple[UlpReport, ...], tuple[Heat, ...]]:
    """Return the errors in typical data, and a heat map of the worst case of each output."""
    op = OPS[kernel.op]
    reports = survey(kernel, typical(op, dtypes, device, seed, count), device, seconds=SECONDS)
    worst = {one.output: one.by_ulp[0].spec for one in reversed(reports) if one.by_ulp}  # in the first dtype
    names = [name for name in dict.fromkeys(one.output for one in reports) if name in worst]
    maps = (
        heat(execute(kernel, make.case(worst[name], op, kernel.contract, device)), name)
        for name in names
        if name not in ("mean", "rstd")
    )
    return reports, tuple(one for one in maps if one is not None)


def hunted(kernel: Kernel, options: HuntOptions, *, isolate: bool) -> Hunt:
    """Return the result of `hunt`, run in a child process if `isolate`.

    Raises UsageError: the kernel ended the child process, or did not return.
    """
    try:
        with closing(runner(kernel, options.device, isolate=isolate)) as process:
            return process.call(partial(hunt, options=options), Time(options.seconds + PATIENCE, ends=True))
    except LostError as lost:
        hint = "run verify-norm --kernel to see in which case"
        raise UsageError(f"{kernel.name} was lost during the hunt: {lost}; {hint}") from lost
