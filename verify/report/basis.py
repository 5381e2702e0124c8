"""What the verdict of a report is based on, in words: its cases, what is proved, what the run spent, where it ran."""

from collections.abc import Iterable

from verify_norm.core import ways
from verify_norm.core.case_words import count
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.proved import sentences
from verify_norm.core.results import Report
from verify_norm.core.work import Compiled
from verify_norm.report.words import contract


def seen(report: Report) -> list[str]:
    """Return what the compared cases had in them, and the contract if it is not the strict one, a line for each fact.

    The last lines are what is proved, and what the run spent beside the cases. There are no others where no output was
    compared, and for a report of an older verify-norm.
    """
    saw, done = report.seen, report.coverage
    if saw is None or done is None or not done.compared:
        return sentences(report.proofs)
    lines = [_extent(saw, done)]
    if saw.ways:
        lines.append("; ".join(f"{check}: {', '.join(_listed(taken))}" for check, taken in saw.ways.items()))
    if report.contract != Contract():
        lines.append(f"contract: {contract(report.contract)}")
    called = [f"{name} in {times:,} of {count(done.compared, 'case')}" for name, times in saw.operators.items()]
    if called:
        lines.append(f"it calls torch's {', '.join(called)}")
    lines += [f"note: {words}, in {count(times, 'case')}" for words, times in saw.notes.items()]
    lines += sentences(report.proofs)
    work = spent(report)
    if work:
        lines.append(work)
    return lines


def _extent(saw: Seen, done: Coverage) -> str:
    """Return the largest sizes, the types, the layouts and the pairs of choices, in words."""
    sizes = [f"M = {saw.rows:,}", f"N = {saw.length:,}"]
    if saw.group:
        sizes.append(f"C/G = {saw.group:,}")
    sizes.append(count(saw.elements, "element"))
    parts = [f"at most {', '.join(sizes)}", ", ".join(saw.types)]
    if saw.weights:
        parts.append(f"weights also {', '.join(saw.weights)}")
    if saw.others:
        parts.append(f"other inputs also {', '.join(saw.others)}")
    layouts = sorted(saw.layouts, key=lambda name: (name != "contiguous", name))
    parts.append(", ".join(layouts).replace("_", " "))
    if done.possible:
        parts.append(f"{done.pairs:,} of {count(done.possible, 'pair')} of choices")
    return "; ".join(parts)


def _listed(taken: Iterable[str]) -> list[str]:
    """Return ways as a reader sees them: the sets of inputs that alone require a gradient, if several, as a number.

    >>> _listed(["under autocast", "where x, weight alone require a gradient", "where x alone requires a gradient"])
    ['under autocast', 'where some inputs alone require a gradient (2 sets of them)']
    """
    sets = [way for way in taken if way in ways.sets_of_leaves()]
    if len(sets) < 2:
        return list(taken)
    others = [way for way in taken if way not in sets]
    return [*others, f"where some inputs alone require a gradient ({len(sets)} sets of them)"]


def spent(report: Report) -> str:
    """Return how much of a run was compilation, and the start of processes; "" where it was neither.

    Seconds of processes that ran at the same time add up.
    """
    work = report.work
    if work is None or not (work.started or work.compiled.kernels or work.compiled.cached or work.compiled.graphs):
        return ""
    parts, total = [], f"{report.seconds:.1f} s"
    if work.workers > 1:
        parts.append(f"{work.workers} workers")
        total = f"{work.workers} × {total}"
    parts.append(_compiled(work.compiled, total))
    if work.compiled.cached:
        parts.append(f"{count(work.compiled.cached, 'kernel')} came from Triton's cache")
    if work.started:
        processes = "process" if work.started == 1 else "processes"
        parts.append(f"started {work.started} {processes} in {work.starting:.1f} s")
    return "; ".join(parts)


def _compiled(made: Compiled, total: str) -> str:
    """Return what was compiled, and in which part of the total time."""
    things = []
    if made.kernels:
        things.append(count(made.kernels, "kernel"))
    if made.graphs:
        things.append(f"{count(made.graphs, 'graph')} of torch.compile")
    return f"compiled {' and '.join(things)} in {made.seconds:.1f} s of {total}" if things else "compiled nothing"


def evidence(report: Report) -> str:
    """Return the warning of a run without a GPU that it says nothing about one; "" where it ran on a GPU."""
    if not report.checked or ("interpreter" not in report.environment and report.settings.device != "cpu"):
        return ""
    if report.backend == "torch":
        return "It ran on the CPU: this is no evidence about a GPU."
    inside = "in Triton’s interpreter"
    where = inside if report.backend == "triton" else "on the CPU, Triton code, if any, in its interpreter"
    return f"It ran {where}: this is no evidence about a GPU."
