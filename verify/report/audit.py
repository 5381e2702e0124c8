"""Audits and hunts for people: tables on standard output, below those of the checks."""

from rich.console import Console
from rich.table import Table

from verify_norm.auditing.fingerprint.statement import Fingerprint
from verify_norm.auditing.model import Audit, Hunt, Ladder, UlpReport, WorstCase
from verify_norm.core.errors import Exit
from verify_norm.core.report_text import command, replay_line
from verify_norm.report import terminal
from verify_norm.report.markup import escape
from verify_norm.report.numbers import ascii_number, percent
from verify_norm.report.terminal import table
from verify_norm.report.words import failures

MEASURES = {"ratio": "error/bound", "ulp": "ULP"}


def show_audit(audit: Audit, console: Console) -> None:
    """Print the whole audit; the verdict on the checks comes first, as in any run."""
    terminal.show_report(audit.report, console)
    if audit.ulps:
        _show_errors(audit, console)
    if audit.ladders:
        console.print(
            "\n[bold]ladders[/]: the error of the worst row, in ULP of its size, as one property of the data grows; "
            "and the textbook algorithms that lose as much on the same data"
        )
        console.print(_ladders(audit.ladders))
    if audit.fingerprint is not None and audit.fingerprint.statements:
        console.print(f"\n[bold]fingerprint[/]: what {audit.fingerprint.runs} crafted runs reveal")
        console.print(_fingerprint(audit.fingerprint))
    for line in audit.disagreements:
        console.print(f"[red bold]contract[/] {escape(line)}")
    for skip in audit.skipped:
        console.print(f"[dim]not done: {escape(skip.what)}: {escape(skip.reason)}[/]")
    console.print(verdict(audit))


def verdict(audit: Audit) -> str:
    """Return one line: the verdict on the checks and on the contract, and the time."""
    name, taken = escape(audit.report.kernel), f"audit of {audit.seconds:.0f} s"
    if audit.verdict is Exit.PASS:
        agrees = audit.fingerprint is not None and audit.fingerprint.statements
        contract = ", and the arithmetic agrees with its contract" if agrees else ""
        return f"[green bold]PASS[/] {name}: every check passes{contract}; {taken}"
    if audit.verdict is Exit.NOTHING:
        return f"[red bold]nothing checked[/]: {name}; {taken}"
    if audit.verdict is Exit.INCOMPLETE:
        missing = [audit.report.unfinished] if audit.report.unfinished else []
        if audit.lost:
            missing.append(f"not done: {', '.join(audit.lost)}")
        return f"[yellow bold]INCOMPLETE[/] {name}: no finding so far; {escape('; '.join(missing))}; {taken}"
    return f"[red bold]FAIL[/] {name}: {failures(audit)}; {taken}"


def _show_errors(audit: Audit, console: Console) -> None:
    """Print the errors in typical data, the averages beyond what is explained, and the worst case of each output."""
    console.print("\n[bold]errors in typical data[/]: random rows of usual lengths; in ULP")
    heads = ("output", "dtype", "cases", "max", "p99.9", "p99", "p50", "mean", "bias")
    made = table(*heads, "correctly rounded", "error/bound")
    for one in audit.ulps:
        sizes = map(ascii_number, (one.maximum, one.p999, one.p99, one.p50, one.mean))
        numbers = (*sizes, f"{one.bias:+.3f}", percent(one.correct), f"{one.ratio:.2f}")
        made.add_row(one.output, one.dtype, str(one.cases), *numbers)
    console.print(made)
    for one in audit.ulps:
        line = _unexplained(one)
        if line:
            console.print(line)
    worst: dict[str, WorstCase] = {}
    for one in audit.ulps:
        for case in one.by_ratio:
            if one.output not in worst or case.ratio > worst[one.output].ratio:
                worst[one.output] = case
    for name, case in worst.items():
        words = f"worst {name}: {ascii_number(case.ulp)} ULP, {case.ratio:.2f} of its bound"
        console.print(f"[dim]{words}: {escape(replay_line(audit.report, case.spec))}[/]", soft_wrap=True)


def _unexplained(one: UlpReport) -> str:
    """Return that an average exceeds what rounding and the bound explain; "" where it does not."""
    seen = one.averages
    if seen is None or (seen.excess <= seen.excess_allowed and abs(seen.bias) <= seen.bias_allowed):
        return ""
    return (
        f"[red bold]{one.output} {one.dtype}[/]: mean error {seen.excess:.3g} ULP beyond correct rounding "
        f"({seen.excess_allowed:.3g} explained), bias {seen.bias:+.3g} ({seen.bias_allowed:.3g} explained)"
    )


def _ladders(ladders: tuple[Ladder, ...]) -> Table:
    """Return a table with a row for each ladder: where it begins and ends, its errors, and what it resembles."""
    words = ("over its bound", "like")
    made = table("what grows", "output", "from", "to", "least", "most", *words, folded=words)
    for one in ladders:
        errors = [rung.error_ulp for rung in one.rungs]
        over = "never" if one.first_over is None else f"[red]from {one.first_over:.3g}[/]"
        ends = (f"{one.rungs[0].value:.3g}", f"{one.rungs[-1].value:.3g}") if one.rungs else ("", "")
        spread = (ascii_number(min(errors)), ascii_number(max(errors))) if errors else ("", "")
        made.add_row(escape(one.unit), one.output, *ends, *spread, over, _likeness(one))
    return made


def _likeness(one: Ladder) -> str:
    """Return the algorithms that the kernel resembles."""
    known = {name for rung in one.rungs for name in rung.textbook}
    if len(known) > 1 and known == set(one.like):
        return "any of them"  # where they do not differ
    names = list(one.like)
    if len(names) > 1 and all(name.endswith(" sums") for name in names):  # the word once, behind the last
        names = [*(name.removesuffix(" sums") for name in names[:-1]), names[-1]]
    return escape(", ".join(names)) or "none of them"


def _fingerprint(printed: Fingerprint) -> Table:
    made = table("property", "x", "value", "confidence", "evidence", words=5, folded=("value", "evidence"), whole=True)
    made.columns[2].max_width = 32
    for one in printed.statements:
        confidence = f"{100 * one.confidence:.0f} %" if one.confidence else "–"
        made.add_row(one.name, one.dtype, f"[bold]{escape(one.said)}[/]", confidence, escape(one.evidence))
    return made


def show_hunt(hunt: Hunt, console: Console, bind: str = "", contract: str = "") -> None:
    """Print the worst cases of a hunt, with a replay line for each."""
    for one in hunt.worst:
        further = f"; {one.beyond:.3g} where its data are moved too" if one.beyond > one.value * 1.001 else ""
        console.print(f"[bold]{one.output}[/] {MEASURES[one.measure]} {one.value:.3g} ({one.found}{further})")
        console.print(f"  replay: {escape(command(hunt.kernel, hunt.op, one.spec, bind, contract))}", soft_wrap=True)
    console.print(
        f"{hunt.cases:,} cases in {hunt.seconds:.0f} s: {hunt.drawn:,} drawn, {hunt.evolved:,} evolved, "
        f"{hunt.moved:,} with their data moved"
    )
