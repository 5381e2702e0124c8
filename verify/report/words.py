"""The parts of a report in words and numbers: its verdict, a case, an error. The page uses most of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Literal

from verify_norm.auditing.model import Audit, Document, Ladder, Rung, report_of
from verify_norm.core import ways
from verify_norm.core.case_words import count
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.errors import Exit, alternatives
from verify_norm.core.proved import sentences
from verify_norm.core.report_text import cases, unchecked
from verify_norm.core.results import Report
from verify_norm.core.tally import CheckResult, Skip
from verify_norm.core.work import Compiled

CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}  # to their pictures
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ALGORITHMS = {
    "two_pass": "two-pass",
    "one_pass": "one-pass",
    "shifted_one_pass": "shifted one-pass",
    "welford": "Welford",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """A verdict in one word or two, and in a sentence."""

    kind: Literal["pass", "fail", "none", "part"]
    word: str
    line: str


def headline(document: Document) -> Headline:
    """Return the verdict. As for `Audit.ok`, a disagreement with the contract fails a kernel."""
    report = report_of(document)
    basis = f"{cases(report)} in {report.seconds:.1f} s"
    broken = ""
    if isinstance(document, Audit) and document.disagreements:
        points = count(len(document.disagreements), "point")
        broken = f"the fingerprint disagrees with the contract in {points}"
    cut = f"; {report.unfinished}" if report.unfinished else ""
    if report.findings:
        also = f", and {broken}" if broken else ""
        return Headline("fail", "FAIL", f"{count(len(report.findings), 'finding')} in {basis}{also}{cut}.")
    if broken:
        return Headline("fail", "FAIL", f"No finding in {basis}, but {broken}.")
    if document.verdict is Exit.NOTHING:
        return Headline("none", "Nothing checked", f"This is not a pass: {sentence(unchecked(report))}")
    if document.verdict is Exit.INCOMPLETE:
        missing = f"; not done: {', '.join(document.lost)}" if isinstance(document, Audit) and document.lost else ""
        return Headline("part", "Incomplete", f"No finding so far, in {basis}{cut}{missing}. This is not a pass.")
    ran = sum(check.cases > 0 for check in report.checks)
    return Headline("pass", "PASS", f"No finding by {count(ran, 'check')} in {basis}{report.within}{cut}.")


def failures(document: Document) -> str:
    """Return the number of findings and, of an audit, of disagreements with the contract, in words; "" if none."""
    parts = []
    findings = report_of(document).findings
    if findings:
        parts.append(count(len(findings), "finding"))
    if isinstance(document, Audit) and document.disagreements:
        parts.append(f"{count(len(document.disagreements), 'disagreement')} with its contract")
    return " and ".join(parts)


def facts_of(environment: Mapping[str, str]) -> str:
    """Return where a run was made, and with which versions, on one line."""
    return ", ".join(f"{name} {value}" for name, value in environment.items())


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


def printable(value: object) -> str:
    """Return the value as text that UTF-8 can encode, with control characters as their pictures.

    >>> printable("a\\x00b")
    'a␀b'
    """
    return str(value).translate(CONTROLS).encode("utf-8", "replace").decode()


def sentence(plain: str) -> str:
    """Return the text with a full stop at its end, "" unchanged."""
    return plain if not plain or plain.endswith((".", "!", "?", "…")) else f"{plain}."


def no_data(check: CheckResult) -> str:
    """Return that a check had nothing to look at, and why."""
    return f"no data: {check.no_data}" if check.no_data else "no data"


def skip_line(skip: Skip) -> str:
    """Return what was not checked, in how many cases, and why."""
    times = f" ({count(skip.cases, 'case')})" if skip.cases > 1 else ""
    return f"{skip.what}{times}: {skip.reason}"


def number(value: float) -> str:
    """Return an error in ulp or in bounds: with two decimals, or with a power of ten.

    >>> number(0.5), number(12345.6), number(1.2e-9), number(float("inf"))
    ('0.50', '12,346', '1.2 × 10⁻⁹', '∞')
    """
    if value != value:
        return "NaN"
    sign = "−" if value < 0 else ""
    size = abs(value)
    if size == inf:
        return sign + "∞"
    if size == 0 or 0.005 <= size < 999.995:
        return f"{sign}{size:.2f}" if size else "0"
    if 999.995 <= size < 999_999.5:
        return f"{sign}{size:,.0f}"
    digits, power = f"{size:.1e}".split("e")
    return f"{sign}{digits} × 10{str(int(power)).translate(RAISED)}"


def step(value: float) -> str:
    """Return a value that is set, such as an offset or a length: short, and whole where it is whole.

    >>> step(262144.0), step(1e-30), step(31.622776)
    ('262,144', '10⁻³⁰', '31.6')
    """
    if isfinite(value) and value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    if not isfinite(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("-", "−")
    digits, power = f"{value:.2e}".split("e")
    times = "" if float(digits) == 1 else f"{float(digits):g} × "
    return f"{times}10{str(int(power)).translate(RAISED)}"


def short(value: float) -> float:
    """Return the value with four digits: a figure shows no more."""
    return float(f"{value:.4g}")


def percent(share: float) -> str:
    """Return a share as a percentage with two decimals."""
    return f"{100 * share:.2f} %"


def contract(promised: Contract) -> str:
    """Return the fields of a contract that differ from the strict one, in words."""
    odd = [f"{f.name}={getattr(promised, f.name)}" for f in fields(promised) if getattr(promised, f.name) != f.default]
    return ", ".join(odd) or "strict: float32 throughout, one rounding at the end"


def setting(value: object) -> str:
    """Return a setting of a run in words."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "the default" if value is None else str(value)


def algorithm(name: str) -> str:
    """Return a textbook algorithm's name, as it is written in prose."""
    return ALGORITHMS.get(name, name)


def likeness(ladder: Ladder) -> str:
    """Return a sentence on the algorithms that the kernel's errors resemble; "" where there is no algorithm."""
    names = [algorithm(name) for name in ladder.like]
    if len(names) == 1:
        return f"Like {names[0]}."
    if names and set(ladder.like) == {name for rung in ladder.rungs for name in rung.textbook}:
        return "Like all of these: this data does not tell them apart."
    if names:
        return f"Like {alternatives(names)}: this data does not tell them apart."
    return "Like none of these." if any(rung.textbook for rung in ladder.rungs) else ""


def unjudged(rung: Rung) -> bool:
    """Return whether no bound applies to the errors of a step."""
    return rung.ratio == 0 and rung.error_ulp != 0


def climb(ladder: Ladder) -> str:
    """Return whether and where a ladder exceeds its bound, and why it ends."""
    unbounded = [rung for rung in ladder.rungs if unjudged(rung)]
    words = []
    if ladder.first_over is not None:
        words.append(f"Over its bound first at {ladder.unit} {step(ladder.first_over)}.")
    elif len(unbounded) < len(ladder.rungs):
        words.append("Within its bound at every step that has one." if unbounded else "Within its bound at every step.")
    if unbounded:
        words.append(f"No bound applies at {count(len(unbounded), 'step')}, first at {step(unbounded[0].value)}.")
    words.append(likeness(ladder))
    if ladder.stopped:
        words.append(f"It ends early: {sentence(ladder.stopped)}")
    return " ".join(filter(None, words))
