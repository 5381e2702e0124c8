"""A Certificate for people: a line for each quantity, a column for each method, and the failures in words."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table

from verify_norm.report.markup import escape
from verify_norm.report.terminal import table
from verify_norm.validation.certify import Certificate, Result

COLUMNS = {  # a method and its heading
    "complex step": "complex step",
    "scipy": "scipy",
    "central difference": "central diff.",
    "50 digits": "ulp, terms",
    "50 digits, of the value": "value",
    "50 digits, relative": "50 digits",
    "as published": "float32",
    "device": "device",
}
LEGEND = (
    "the largest error of each method / the allowed error; complex step, scipy, central differences, 50 digits: "
    "relative to the terms; ulp: distance from fifty digits; float32: the usual check, differences with h = 1e-5, not "
    "judged"
)
OF_DEVICE = "; device: distance of its truth and bound from NumPy's, relative to the allowed error"


def show_certificate(certificate: Certificate, console: Console) -> None:
    """Print the whole certificate.

    >>> show_certificate(Certificate(()), Console(width=80))
    nothing was certified
    """
    for op, results in groupby(certificate.results, key=lambda result: result.op):
        console.print(_table(op, tuple(results)))
    if certificate.results:
        of_device = any(result.method == "device" for result in certificate.results)
        console.print(f"[dim]{LEGEND}{OF_DEVICE if of_device else ''}[/]", highlight=False)
    for op, reason in certificate.skipped:
        console.print(f"[dim]not certified: {escape(op)}: {escape(reason)}[/]", highlight=False)
    for line in _failures(certificate.failures):
        console.print(f"[red]✗[/] {escape(line)}", highlight=False)
    console.print(_verdict(certificate), highlight=False)


def _table(op: str, results: tuple[Result, ...]) -> Table:
    """Return the table of an operator: a row for each quantity, a column for each method that has a result."""
    methods = [method for method in COLUMNS if any(result.method == method for result in results)]
    made = table("quantity", *(COLUMNS[method] for method in methods), words=1, title=op)
    for quantity in dict.fromkeys(result.quantity for result in results):
        mine = [result for result in results if result.quantity == quantity]
        made.add_row(quantity, *(_cell([r for r in mine if r.method == method]) for method in methods))
    return made


def _cell(results: list[Result]) -> str:
    """Return the worst result of all families."""
    if not results:
        return ""
    worst = max(results, key=lambda r: (not r.ok, r.error / r.allowed if r.allowed else r.error))
    if worst.allowed is None:
        return f"[dim]{worst.error:.2g}[/]"
    text = f"{worst.error:.2g} / {worst.allowed:.1g}" if worst.allowed < 1 else f"{worst.error:.2g} / {worst.allowed:g}"
    return text if worst.ok else f"[red]{text}[/]"


def _failures(failures: Iterable[Result]) -> Iterator[str]:
    """Yield a line for each quantity and method, with all the families in which it failed."""
    grouped: defaultdict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in failures:
        grouped[result.op, result.quantity, result.method].append(result)
    for (op, quantity, method), results in grouped.items():
        worst = max(results, key=lambda r: r.error)
        families = ", ".join(result.family for result in results)
        off = f"off by {worst.error:.3g} {worst.unit}, allowed {worst.allowed:.3g} ({worst.why})"
        yield f"{op} {quantity}, by {method}: {worst.why if method == 'call' else off}; in {families}"


def _verdict(certificate: Certificate) -> str:
    judged = [result for result in certificate.results if result.allowed is not None]
    if not judged:
        return "[red bold]nothing was certified[/]"
    basis = f"{len(judged)} results, seed {certificate.seed}, {certificate.seconds:.1f} s"
    if certificate.ok:
        return f"[green bold]certified[/] {', '.join(dict.fromkeys(r.op for r in judged))}: {basis}"
    return f"[red bold]FAIL[/]: {len(certificate.failures)} of {basis}"
