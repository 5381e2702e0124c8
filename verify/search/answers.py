"""Asks the checks about a run: what they yield, and which of them looked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from verify_norm.cases import gpu_memory
from verify_norm.checks import CHECKS
from verify_norm.core.finding import NoData, Tried
from verify_norm.core.run import Run

T = TypeVar("T")


@dataclass(slots=True)
class Answers:
    """What checks say of a run: the items that they yield, each with the name of its check.

    `looked` and `left_out` are those of `Examined`.
    """

    items: list[tuple[str, object]] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def of(self, kind: type[T]) -> list[tuple[str, T]]:
        """Return the items of a kind."""
        return [(name, item) for name, item in self.items if isinstance(item, kind)]


def ask(run: Run, checks: tuple[str, ...], announce: Callable[[str], None]) -> Answers:
    """Return what these checks say of a run; after a thread of the kernel has ended, no further one looks."""
    answers = Answers()
    for name in checks:
        check = CHECKS[name]
        if not check.looks(run):
            continue
        announce(name)
        items = None
        with gpu_memory.WhereItFits():
            items = list(check.function(run))
        if items is None:
            answers.left_out.append(name)
            continue
        answers.items += [(name, item) for item in items]
        if NoData() not in items:
            answers.looked.append(name)
        if any(isinstance(item, Tried) and item.ended for item in items):
            break
    return answers
