"""A comparison of the bits of two kernels for people, on standard output."""

from rich.console import Console

from verify_norm.core.case_words import case, count
from verify_norm.core.errors import Exit
from verify_norm.equality.model import Arithmetic, Difference, Equality, nothing, per_type, replay_line
from verify_norm.report.markup import escape
from verify_norm.report.terminal import table
from verify_norm.report.words import facts_of, skip_line

CPU = "It ran on the CPU: this is no evidence about a GPU."
NOTE = "Bit for bit: NaN equals NaN of any sign and payload; 0 and −0 differ."


def show(found: Equality, console: Console) -> None:
    """Print the whole comparison; the verdict is the last line."""
    for side, one in (("A", found.a), ("B", found.b)):
        console.print(f"[bold]{side}[/] {escape(one.kernel)}")
    if found.tallies:
        made = table("output", "x", "cases", "differ", "by signs of 0 alone")
        for tally in found.tallies:
            color = "red" if tally.differing else "green"
            numbers = (str(tally.cases), f"[{color}]{tally.differing}[/]", str(tally.zeros))
            made.add_row(tally.output, tally.dtype, *numbers)
        console.print(made)
    for skip in found.skipped:
        console.print(f"[dim]not compared: {escape(skip_line(skip))}[/]")
    for difference in found.differences:
        _difference(found, difference, console)
    for moving in found.unstable:
        line = f"{moving.side} itself differs from run to run, so equal bits mean nothing: {moving.gap.words}"
        console.print(f"\n[red bold]UNSTABLE[/] {escape(line)}")
        console.print(
            f"  case      {case(moving.spec)}\n  replay    {escape(replay_line(found, moving.spec))}", soft_wrap=True
        )
    if found.arithmetic is not None:
        _arithmetic(found.arithmetic, console)
    note = f"{NOTE} {CPU}" if found.settings.device == "cpu" else NOTE
    console.print(f"[dim]{escape(facts_of(found.environment))}[/]\n[dim]{note}[/]")
    for line in per_type(found):
        console.print(escape(line), soft_wrap=True)
    console.print(verdict(found), soft_wrap=True)


def _difference(found: Equality, difference: Difference, console: Console) -> None:
    """Print in which output two kernels differ, and below it a row for each fact about the smallest case."""
    gap, element = difference.gap, difference.gap.element
    console.print(f"\n[red bold]DIFFER[/] {escape(gap.words)}", soft_wrap=True)
    rows = {"case": case(difference.spec)}
    if element is not None:
        rows["A"] = _value(element.a, element.a_error)
        rows["B"] = _value(element.b, element.b_error)
        rows["truth"] = "" if element.want is None else repr(element.want)
        rows["differ"] = f"{gap.count} of {count(gap.size, 'element')}, by at most {gap.most:.3g} ULP"
    rows["identical"] = ", ".join(difference.alike)
    rows["seen in"] = count(difference.cases, "case")
    rows["note"] = difference.note
    rows["replay"] = replay_line(found, difference.spec)
    for name, value in rows.items():
        if value:
            console.print(f"  {name:<9} {escape(value)}", soft_wrap=True)


def _value(value: float, error: float | None) -> str:
    """Return a value, and if known how far it is from the truth."""
    return repr(value) if error is None else f"{value!r}   {error:.2f} ULP from the truth"


def _arithmetic(how: Arithmetic, console: Console) -> None:
    """Print which fields of the contract differ, by which evidence; or that none shows."""
    for one in how.contrasts:
        where = f" for {one.dtype}" if one.dtype not in ("", "float32") else ""
        what = f"{one.field or 'no field'}: {one.name}{where} is {one.a} in A, {one.b} in B"
        perhaps = "" if one.sure else " (not sure)"
        console.print(f"[red bold]contract[/] [bold]{escape(what)}[/]{perhaps}", soft_wrap=True)
        for side, evidence in zip("AB", one.evidence, strict=True):
            console.print(f"  [dim]{side}: {escape(evidence)}[/]", soft_wrap=True)
    if how.declared:
        fields = "; ".join(f"{one.field}={one.a} in A, {one.b} in B" for one in how.declared)
        console.print(f"[bold]declared[/] {escape(fields)}", soft_wrap=True)
    if any(one.sure for one in how.contrasts):
        return
    seen = "; ".join(f"{name}: {value}" for name, value in how.alike)
    line = "the fingerprints show no certain difference" + (f"; both have {seen}" if seen else "")
    console.print(f"[bold]contract[/] {escape(line)}", soft_wrap=True)
    if how.exact is not None:
        size = f"x = ±1, whose sums over a row are exact in any order ({case(how.exact.spec)})"
        names = ", ".join(how.exact.differing)
        if names:
            line = f"{names} still differs with {size}: the order of sums is not the only cause"
        else:
            line = (
                f"nothing differs with {size}: how a row is summed differs (summation, lanes, accumulate or variance)"
            )
        console.print(f"[bold]sums[/] {escape(line)}", soft_wrap=True)


def verdict(found: Equality) -> str:
    """Return one line: whether the kernels are the same, in how many cases, and in which time."""
    names = escape(f"{found.a.kernel} and {found.b.kernel}")
    basis = f"{count(found.coverage.compared, 'case')} in {found.seconds:.1f} s"
    cut = f"; {escape(found.unfinished)}" if found.unfinished else ""
    if found.verdict is Exit.FINDINGS:
        word = "DIFFER" if found.differences else "UNSTABLE"
        return f"[red bold]{word}[/] {names}: {basis}{cut}"
    if found.verdict is Exit.NOTHING:
        return f"[red bold]nothing compared[/]: {names}: {escape(nothing(found))}"
    if found.verdict is Exit.INCOMPLETE:
        return f"[yellow bold]INCOMPLETE[/] {names}: no difference so far; {basis}{cut}"
    return f"[green bold]SAME[/] {names}: identical in {basis}{cut}"
