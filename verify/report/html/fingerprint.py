"""The part of a page on a fingerprint: what a kernel computes, the evidence, and the orders of its sums as drawings."""

from typing import Any

from verify_norm.auditing.fingerprint.statement import NAMES, UNDECIDED, Statement, Tree
from verify_norm.auditing.model import Audit
from verify_norm.report.html.summation import BASE, draw
from verify_norm.report.words import sentence

LONGEST = 1500  # characters of an order that is also written out


def fingerprint(audit: Audit) -> dict[str, Any] | None:
    """Return the content of the part; None where there is no statement."""
    printed = audit.fingerprint
    if printed is None or not printed.statements:
        return None
    return {
        "runs": printed.runs,
        "device": printed.device,
        "statements": _grouped(printed.statements),
        "orders": _orders(printed.statements),
        "explained": NAMES,
        "undecided": UNDECIDED,
        "margin": BASE,
    }


def _grouped(statements: tuple[Statement, ...]) -> list[tuple[Statement, str]]:
    """Return one statement for all types of x with the same value and evidence, and the types; undecided ones last."""
    groups: dict[tuple[object, ...], list[Statement]] = {}
    for one in statements:
        groups.setdefault((one.name, one.said, one.evidence, one.confidence), []).append(one)
    ordered = sorted(groups.values(), key=lambda group: group[0].said == UNDECIDED)
    return [(group[0], ", ".join(dict.fromkeys(one.dtype for one in group))) for group in ordered]


def _orders(statements: tuple[Statement, ...]) -> list[dict[str, Any]]:
    """Return each order of a sum, once for all sums that have it."""
    groups: dict[tuple[str, str], tuple[Tree, list[str]]] = {}
    for one in statements:
        if one.tree is not None:
            groups.setdefault((one.said, _brackets(one)), (one.tree, []))[1].append(one.name)
    found = []
    for (order, written), (tree, names) in groups.items():
        title = " and ".join(dict.fromkeys(names))
        drawing = draw(tree, f"{title}, {order}")
        written = written if len(written) <= LONGEST else ""
        found.append({"title": title, "sentence": sentence(order), "drawing": drawing, "written": written})
    return found


def _brackets(one: Statement) -> str:
    """Return a tree as nested brackets; of a tree that is too deep for that, a long text of its own."""
    try:
        return str(one.tree)
    except RecursionError:
        return one.name + " " * LONGEST
