"""The results of the zoo for people: the matrix, the false alarms, and the score of every class."""

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from verify_norm.core.finding import Finding
from verify_norm.core.serial import spec_text
from verify_norm.kernels.zoo.example import Example
from verify_norm.report.markup import escape
from verify_norm.report.terminal import table
from verify_norm.validation.zoo import Outcome, explains

POLICY = {None: "–", True: "detected", False: "passed"}


def show_zoo(outcomes: list[Outcome], left_out: Iterable[Example], console: Console) -> None:
    """Print all of it."""
    wrong = [outcome for outcome in outcomes if outcome.example.wrong]
    correct = [outcome for outcome in outcomes if not outcome.example.wrong]
    policies = sorted({name for outcome in outcomes for name in outcome.policies})
    for title, some in (("wrong kernels", wrong), ("correct kernels, some of them unusual", correct)):
        if some:
            console.print(_matrix(title, some, policies))
    for outcome in correct:
        for finding in outcome.findings:
            console.print(f"[red]false alarm[/]: {outcome.example.name}: {finding.check} {escape(finding.message)}")
            line = spec_text(outcome.example.name, finding.spec)
            console.print(f"  replay: verify-norm replay '{escape(line)}'", soft_wrap=True)
    for example in left_out:
        console.print(f"[dim]not run: {example.name}: {escape(example.reason or 'it needs a GPU')}[/]")
    if wrong:
        console.print(_score(wrong))
    for name in policies:
        console.print(escape(_policy(name, wrong, correct)))
    for outcome in outcomes:
        if outcome.gap:
            console.print(f"[yellow]no verdict[/]: {outcome.example.name}: {escape(outcome.gap)}")
    detected = sum(outcome.detected for outcome in wrong)
    flagged = sum(outcome.detected for outcome in correct)
    color = "green" if all(outcome.as_expected for outcome in outcomes) else "red"
    console.print(
        f"[{color} bold]{detected} of {len(wrong)} wrong kernels detected, {flagged} of {len(correct)} correct kernels "
        "falsely flagged[/]"
    )


def _matrix(title: str, outcomes: list[Outcome], policies: list[str]) -> Table:
    words = ("kernel", "class", "verdict", "smallest case", *policies)
    made = table(*words[:3], "after", "seconds", *words[3:], words=3, folded=words, title=title)
    for outcome in sorted(outcomes, key=lambda o: o.example.name):
        example, first = outcome.example, detecting(outcome)
        after = str(first.after if first else outcome.cases)
        case = "" if first is None else f"{'×'.join(map(str, first.spec.shape))} {first.spec.dtype}"
        others = [POLICY[outcome.policies[name].caught] for name in policies]
        made.add_row(
            example.name, example.kind, _verdict(outcome, first), after, f"{outcome.seconds:.1f}", case, *others
        )
    return made


def detecting(outcome: Outcome) -> Finding | None:
    """Return the first finding that names what is wrong, of a correct kernel any finding; None where there is none."""
    found = (f for f in outcome.findings if not outcome.example.wrong or explains(outcome.example, f))
    return next(found, None)


def _verdict(outcome: Outcome, first: Finding | None) -> str:
    if first is None and outcome.gap:
        return "[yellow]no verdict[/]"
    if first is None:
        return "[red]MISSED[/]" if outcome.example.wrong else "[green]passes[/]"
    words = f"{first.check} {first.output or ''}".strip()
    return f"[green]{words}[/]" if outcome.example.wrong else f"[red]{words}[/]"


def _score(wrong: list[Outcome]) -> Table:
    classes: defaultdict[str, list[bool]] = defaultdict(list)
    for outcome in wrong:
        classes[outcome.example.kind].append(outcome.detected)
    made = table(title="score")
    made.show_header = False
    for kind, detected in sorted(classes.items()):
        made.add_row(kind, f"{sum(detected)} of {len(detected)}")
    return made


def _policy(name: str, wrong: list[Outcome], correct: list[Outcome]) -> str:
    """Return how many of the kernels to which a policy applies it detects, and how many correct ones it flags."""
    answers = [outcome.policies[name].caught for outcome in wrong if name in outcome.policies]
    alarms = [outcome.policies[name].caught for outcome in correct if name in outcome.policies]
    judged, flagged = ([caught for caught in some if caught is not None] for some in (answers, alarms))
    detected = f"{sum(judged)} of {len(judged)} wrong kernels detected ({len(answers) - len(judged)} not applicable)"
    return f"under {name}'s policy: {detected}, {sum(flagged)} of {len(flagged)} correct kernels falsely flagged"
