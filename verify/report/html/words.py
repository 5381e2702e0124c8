"""What a report says in words and numbers, for a page: the verdict, a case, an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from math import inf, isfinite
from typing import Any, Literal

from verify_norm.auditing.model import Audit, Document, Ladder, Rung, report_of
from verify_norm.report.model import Report, Skip
from verify_norm.report.text import cases
from verify_norm.spec import CaseSpec, Contract

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ALGORITHMS = {
    "two_pass": "two-pass", "one_pass": "one-pass", "shifted_one_pass": "shifted one-pass", "welford": "Welford",
}  # fmt: skip
STEPS = {"log2_scale": "scale 2^{}", "dy_log2_scale": "scale of dy 2^{}"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pass, fail, nothing checked or interrupted: in one word or two, and in a sentence."""

    kind: Literal["pass", "fail", "none", "part"]
    word: str
    line: str


def verdict(document: Document) -> Verdict:
    """What the page says first.

    It judges as `Audit.ok` does: a kernel whose arithmetic is not what its contract says does not pass.
    """
    report = report_of(document)
    against = len(document.disagreements) if isinstance(document, Audit) else 0
    basis = f"{cases(report)} in {report.seconds:.1f} s"
    broken = f"the fingerprint disagrees with the contract in {count(against, 'point')}" if against else ""
    if report.findings:
        also = f", and {broken}" if broken else ""
        cut = "; the run was interrupted" if report.interrupted else ""
        return Verdict("fail", "FAIL", f"{count(len(report.findings), 'finding')} in {basis}{also}{cut}.")
    if broken:
        return Verdict("fail", "FAIL", f"No finding in {basis}, but {broken}.")
    if not report.checked:
        why = "; ".join(skip_line(skip) for skip in report.skipped)
        return Verdict("none", "Nothing checked", f"This is no pass. {sentence(why)}".strip())
    if report.interrupted:
        return Verdict("part", "Interrupted", f"No finding so far, in {basis}. This is no pass.")
    ran = sum(check.cases > 0 for check in report.checks)
    return Verdict("pass", "Pass", f"No finding by {count(ran, 'check')} in {basis}.")


def evidence(report: Report) -> str:
    """What a run without a GPU says about one; "" where there was one."""
    if not report.checked or ("interpreter" not in report.environment and report.settings.device != "cpu"):
        return ""
    if report.backend == "torch":
        return "It ran on the CPU: this is no evidence about a GPU."
    where = "in Triton’s interpreter" if report.backend == "triton" else "on the CPU, Triton’s part in its interpreter"
    return f"It ran {where}: this is no evidence about a GPU."


def sentence(plain: str) -> str:
    """With a full stop at the end, if it is any."""
    return plain + "." * bool(plain and plain[-1] not in ".!?…")


def count(number: int, noun: str) -> str:
    """As "1 case" or "2,000 cases"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def skip_line(skip: Skip) -> str:
    """What was not checked, in how many cases, and why."""
    times = f" ({count(skip.cases, 'case')})" if skip.cases > 1 else ""
    return f"{skip.what}{times}: {skip.reason}"


def number(value: float) -> str:
    """An error in ulp or in bounds: two decimals where that says it, a power of ten where it does not.

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
    """A value that is set, as an offset or a length: short, and whole where it is.

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


def place(index: Sequence[int] | None) -> str:
    """An element's index, as in "[0, 3]"."""
    return "" if index is None else str(list(index))


def case(spec: CaseSpec) -> str:
    """A case in a few words: its shape and type, and what is unusual about it.

    >>> case(CaseSpec((2, 3), offset=-10.0, x_layout="transposed", log2_scale=4))
    '2×3 float32, offset -10.0, scale 2^4, x transposed'
    """
    odd = ", ".join(changed(spec, ("shape", "dtype", "seed")))
    return f"{'×'.join(map(str, spec.shape))} {spec.dtype}" + f", {odd}" * bool(odd)


def changed(spec: Any, but: tuple[str, ...] = ()) -> list[str]:
    """The fields that are not as they are by default."""
    said = []
    for one in fields(spec):
        value = getattr(spec, one.name)
        if one.name in but or (one.default is not MISSING and value == one.default):
            continue
        if one.name.endswith("_layout"):
            said.append(f"{one.name.removesuffix('_layout')} {value}")
        elif one.name == "data":
            said.append(str(value))
        else:
            said.append(STEPS.get(one.name, one.name.replace("_", " ") + " {}").format(value))
    return said


def contract(promised: Contract) -> str:
    """What a kernel promises, where that is not all."""
    odd = [f"{f.name}={getattr(promised, f.name)}" for f in fields(promised) if getattr(promised, f.name) != f.default]
    return ", ".join(odd) or "strict: float32 throughout, one rounding at the end"


def algorithm(name: str) -> str:
    """A textbook algorithm's name, as it is written."""
    return ALGORITHMS.get(name, name)


def likeness(ladder: Ladder) -> str:
    """Which algorithms the kernel's errors resemble."""
    names = [algorithm(name) for name in ladder.like]
    if len(names) == 1:
        return f"Like {names[0]}."
    if names and set(ladder.like) == {name for rung in ladder.rungs for name in rung.textbook}:
        return "Like all of these, which this does not tell apart."
    if names:
        return f"Like {', '.join(names[:-1])} or {names[-1]}, which this does not tell apart."
    return "Like none of these." if any(rung.textbook for rung in ladder.rungs) else ""


def unjudged(rung: Rung) -> bool:
    """Whether no bound applies to a rung's errors."""
    return rung.ratio == 0 and rung.error_ulp != 0


def climb(ladder: Ladder) -> str:
    """Whether and where a ladder leaves its bound, and why it ends."""
    none = [rung for rung in ladder.rungs if unjudged(rung)]
    said = (
        [f"Over its bound first at {ladder.unit} {step(ladder.first_over)}."] if ladder.first_over is not None else []
    )
    if not said and len(none) < len(ladder.rungs):
        said += ["Within its bound at every rung that has one." if none else "Within its bound at every rung."]
    said += [f"No bound applies at {count(len(none), 'rung')}, first at {step(none[0].value)}."] if none else []
    said += [likeness(ladder)]
    said += [f"Not every rung was climbed: {sentence(ladder.stopped)}"] if ladder.stopped else []
    return " ".join(part for part in said if part)
