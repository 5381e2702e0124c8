"""What the verifier has made of the zoo, for people: the matrix, the false alarms, the score of every class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_norm.kernels.zoo import Specimen
from verify_norm.report.json import spec_text
from verify_norm.spec import Finding
from verify_norm.zoo import Outcome, names


def show(outcomes: list[Outcome], left_out: Iterable[Specimen], console: Console) -> None:
    """Print all of it."""
    wrong = [outcome for outcome in outcomes if outcome.specimen.wrong]
    right = [outcome for outcome in outcomes if not outcome.specimen.wrong]
    policies = sorted({name for outcome in outcomes for name in outcome.policies})
    if wrong:
        console.print(_matrix("wrong kernels", wrong, policies))
    if right:
        console.print(_matrix("right kernels, some of them unusual", right, policies))
    for outcome in right:
        for finding in outcome.findings:
            console.print(f"[red]false alarm[/]: {outcome.specimen.name}: {finding.check} {escape(finding.message)}")
            console.print(f"  replay: verify-norm replay '{escape(spec_text(outcome.specimen.name, finding.spec))}'")
    for specimen in left_out:
        console.print(f"[dim]not run: {specimen.name}: {escape(specimen.reason or 'it needs a GPU')}[/]")
    if wrong:
        console.print(_score(wrong))
    for name in policies:
        console.print(escape(_policy(name, wrong, right)))
    caught, passed = sum(o.right for o in wrong), sum(o.right for o in right)
    color = "green" if caught == len(wrong) and passed == len(right) else "red"
    console.print(
        f"[{color} bold]{caught} of {len(wrong)} wrong kernels convicted, {len(right) - passed} false alarms on "
        f"{len(right)} right ones[/]"
    )


def _matrix(title: str, outcomes: list[Outcome], policies: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for head in ("kernel", "class", "verdict", "after", "seconds", "smallest case", *policies):
        table.add_column(head, justify="right" if head in ("after", "seconds") else "left", overflow="fold")
    for outcome in sorted(outcomes, key=lambda o: o.specimen.name):
        first = convicting(outcome)
        said = [{None: "–", True: "caught", False: "passed"}[outcome.policies[p].caught] for p in policies]
        after = str(first.after if first else outcome.cases)
        case = "" if first is None else "×".join(map(str, first.spec.shape)) + f" {first.spec.dtype}"
        verdict = _verdict(outcome, first)
        table.add_row(
            outcome.specimen.name, outcome.specimen.kind, verdict, after, f"{outcome.seconds:.1f}", case, *said
        )
    return table


def convicting(outcome: Outcome) -> Finding | None:
    """The finding that names what is wrong; of a right kernel any."""
    found = (f for f in outcome.findings if not outcome.specimen.wrong or names(outcome.specimen, f))
    return next(found, None)


def _verdict(outcome: Outcome, first: Finding | None) -> str:
    if first is None:
        return "[red]MISSED[/]" if outcome.specimen.wrong else "[green]passes[/]"
    words = f"{first.check} {first.output or ''}".strip()
    return f"[green]{words}[/]" if outcome.specimen.wrong else f"[red]{words}[/]"


def _score(wrong: list[Outcome]) -> Table:
    classes: defaultdict[str, list[bool]] = defaultdict(list)
    for outcome in wrong:
        classes[outcome.specimen.kind].append(outcome.right)
    table = Table(title="score", title_justify="left", box=None, show_header=False, pad_edge=False, title_style="bold")
    for kind, caught in sorted(classes.items()):
        table.add_row(kind, f"{sum(caught)} of {len(caught)}")
    return table


def _policy(name: str, wrong: list[Outcome], right: list[Outcome]) -> str:
    """How many of those to which it applies are caught under one policy, and how many right ones."""
    judged = [o.policies[name].caught for o in wrong if name in o.policies]
    alarms = [o.policies[name].caught for o in right if name in o.policies]
    applies, accused = [c for c in judged if c is not None], [c for c in alarms if c is not None]
    return (
        f"under {name}'s policy: {sum(applies)} of {len(applies)} wrong kernels are caught "
        f"({len(judged) - len(applies)} not applicable), {sum(accused)} of {len(accused)} right ones accused"
    )
