"""The part of a page on a fingerprint: what a kernel does, the evidence, and the orders of its sums as drawings."""

from __future__ import annotations

from collections.abc import Iterator

from verify_norm.auditing.model import Audit
from verify_norm.fingerprint.statement import NAMES, UNDECIDED, Statement, Tree
from verify_norm.report.html.markup import Html, folded, join, table, tag
from verify_norm.report.html.summation import draw
from verify_norm.report.html.words import sentence

HEADS = ("property", "what it is", "evidence", "type of x", "confidence")
KEY = (
    "Summands stand at the bottom, over their indices; a bar joins what is added together. What hangs from a lower bar "
    "is added first."
)
LONGEST = 1500  # characters of an order that is also written out


def fingerprint(audit: Audit) -> Html | None:
    """The whole part; None where nothing was probed, or nothing could be said."""
    printed = audit.fingerprint
    if printed is None or not printed.statements:
        return None
    lead = (
        f"What the kernel does, by what it returned for crafted inputs, in {printed.runs:,} runs on {printed.device}. "
        "Nothing here is compared with a reference; what the evidence leaves open is undecided."
    )
    rows = map(_row, _alike(printed.statements))
    return join((
        tag("p", lead, class_="lead"), table("Arithmetic, as it shows", HEADS, rows, words=4, prose=True),
        *_orders(printed.statements),
    ))  # fmt: skip


def _alike(statements: tuple[Statement, ...]) -> list[list[Statement]]:
    """Statements that say the same of several types together; what is undecided last."""
    groups: dict[tuple[object, ...], list[Statement]] = {}
    for one in statements:
        groups.setdefault((one.name, one.said, one.evidence, one.confidence), []).append(one)
    return sorted(groups.values(), key=lambda group: group[0].said == UNDECIDED)


def _row(group: list[Statement]) -> tuple[object, ...]:
    one = group[0]
    name = join((one.name, tag("small", NAMES[one.name]) if one.name in NAMES else None))
    open_ = one.said == UNDECIDED
    types = ", ".join(dict.fromkeys(other.dtype for other in group))
    return name, tag("span", one.said, class_="open" if open_ else "said"), one.evidence, types, _confidence(one)


def _confidence(one: Statement) -> Html | str:
    if one.said == UNDECIDED:
        return "–"
    meter = tag("i", style=f"width:{100 * min(max(one.confidence, 0.0), 1.0):.0f}%")
    return join((f"{one.confidence:.2f}", tag("span", meter, class_="meter", aria_hidden="true")))


def _orders(statements: tuple[Statement, ...]) -> Iterator[Html]:
    """Each order of a sum, once for all sums that have it."""
    groups: dict[tuple[str, str], tuple[Tree, list[str]]] = {}
    for one in statements:
        if one.tree is not None:
            groups.setdefault((one.said, _brackets(one)), (one.tree, []))[1].append(one.name)
    if groups:
        yield join((tag("h4", "Orders of summation"), tag("p", KEY, class_="key")))
    for (order, written), (tree, names) in groups.items():
        title = " and ".join(dict.fromkeys(names))
        yield tag(
            "figure", tag("figcaption", tag("h5", title), tag("p", sentence(order))),
            tag("div", draw(tree, f"{title}, {order}"), class_="wide", tabindex=0, role="region", aria_label=title),
            folded("In brackets", tag("code", written)) if len(written) <= LONGEST else None,
        )  # fmt: skip


def _brackets(one: Statement) -> str:
    """A tree as nested brackets; of one that is too deep to be written so, what tells it from others."""
    try:
        return str(one.tree)
    except RecursionError:
        return one.name + " " * LONGEST
