"""The audit of one kernel: its errors in ulp, a map of them, ladders and a fingerprint, beside the checks' report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from verify_norm import cases
from verify_norm.auditing.heat import heat
from verify_norm.auditing.hunt import hunt
from verify_norm.auditing.ladders import ladders
from verify_norm.auditing.model import Audit, Heat, Hunt, Ladder, UlpReport
from verify_norm.auditing.ulps import survey, typical
from verify_norm.bind import UsageError
from verify_norm.execute import execute
from verify_norm.fingerprint.compare import disagreements
from verify_norm.fingerprint.probing import fingerprint
from verify_norm.fingerprint.statement import Fingerprint
from verify_norm.isolate import InProcess, Isolated, LostError, runner
from verify_norm.ops import OPS
from verify_norm.report.model import Report, Settings, Skip
from verify_norm.spec import CaseSpec, Kernel

CASES = 300  # of the survey of errors, or what fits in its time
SECONDS = 10.0  # of that survey; a rung of a ladder takes up to 2 s
PATIENCE = 240.0  # seconds after which a part is given up


def audit(kernel: Kernel, report: Report, settings: Settings, say: Callable[[str], None] = lambda part: None) -> Audit:
    """All parts of an audit but the checks, whose report is given; a part in which the kernel is lost is skipped.

    Parameters
    ----------
    kernel
        ready to run, as `registry.load` returns it.
    report
        of the checks.
    settings
        its types, seed and device are used; `isolate` says whether the kernel runs in a process of its own.
    say
        is told the name of each part before it begins.
    """
    started = time.perf_counter()
    device, dtypes = settings.device, tuple(d for d in settings.dtypes if d in kernel.dtypes)
    found: dict[str, Any] = {}
    skipped: list[Skip] = []
    parts: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
        ("errors", _errors, (device, dtypes, settings.seed)),
        ("ladders", _ladders, (device, settings.seed)),
        ("fingerprint", fingerprint, (device,)),
    )
    for name, function, args in parts:
        say(name)
        where = runner(kernel, device, isolate=settings.isolate)
        try:
            found[name] = _done(where, function, args)
        except LostError as lost:
            skipped.append(Skip(name, f"the kernel was lost: {lost}"))
        finally:
            where.close()
    ulps, grids = found.get("errors", ((), ()))
    climbed: tuple[Ladder, ...] = found.get("ladders", ())
    printed: Fingerprint | None = found.get("fingerprint")
    against = disagreements(kernel.contract, printed) if printed is not None else ()
    if printed is not None and not printed.statements:
        skipped.append(Skip("fingerprint", f"no probe of {kernel.op} gave anything"))
    seconds = report.seconds + time.perf_counter() - started
    return Audit(report, ulps, grids, climbed, printed, against, tuple(skipped), seconds)


def _done(where: InProcess | Isolated, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return where.call(function, PATIENCE, *args)


def _errors(
    kernel: Kernel, device: str, dtypes: tuple[str, ...], seed: int
) -> tuple[tuple[UlpReport, ...], tuple[Heat, ...]]:
    """The errors in typical data; and a map of the worst case of each output, in the widest type."""
    op = OPS[kernel.op]
    found = survey(kernel, typical(op, dtypes, device, seed, CASES), device, seconds=SECONDS)
    return found, tuple(_maps(kernel, found, device))


def _maps(kernel: Kernel, found: tuple[UlpReport, ...], device: str) -> Iterator[Heat]:
    for name in dict.fromkeys(one.output for one in found):
        worst = next((one.by_ulp[0] for one in found if one.output == name and one.by_ulp), None)
        if worst is not None and name not in ("mean", "rstd"):
            made = heat(execute(kernel, cases.make(worst.spec, OPS[kernel.op], kernel.contract, device)), name)
            yield from [] if made is None else [made]


def _ladders(kernel: Kernel, device: str, seed: int) -> tuple[Ladder, ...]:
    return ladders(kernel, device, seed=seed)


def hunted(
    kernel: Kernel, seconds: float, output: str | None, device: str, seed: int, dtypes: tuple[str, ...],
    corpus: tuple[CaseSpec, ...], isolate: bool,
) -> Hunt:  # fmt: skip
    """`hunt.hunt`, in a process of the kernel's own; raises UsageError where the kernel is lost."""
    where = runner(kernel, device, isolate=isolate)
    try:
        return where.call(_hunt, seconds + PATIENCE, seconds, output, device, seed, dtypes, corpus)
    except LostError as lost:
        raise UsageError(
            f"{kernel.name} was lost in the hunt: {lost}; verify-norm --kernel tells in which case"
        ) from lost
    finally:
        where.close()


def _hunt(
    kernel: Kernel, seconds: float, output: str | None, device: str, seed: int, dtypes: tuple[str, ...],
    corpus: tuple[CaseSpec, ...],
) -> Hunt:  # fmt: skip
    return hunt(kernel, seconds, output, device, seed, dtypes=dtypes or None, corpus=corpus)
