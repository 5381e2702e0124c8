"""What was asked of an exhaustive run, and what it found so far, as frozen data that JSON holds both ways."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

from verify_norm.core.case_words import count, told_apart
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.tally import Tally

SCHEMA = 1
WRONG = {
    "accuracy": "exceed the error bound",
    "nonfinite": "are finite where the truth is NaN or infinite, or have the wrong one of these",
}
FEW = 3  # elements that are kept of each violation
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which items of which space, as a user says it: "" is the operator's usual space, the usual type, all items."""

    space: str = ""
    dtype: str = ""
    eps: float = 1e-5
    items: str = ""  # "first:last", the last one left out


@dataclass(frozen=True, slots=True)
class Asked:
    """A kernel and a space: its items `first` to before `last`, of `count` in all. An item is a row, or an eps.

    `source` is a digest of the kernel's file. Two runs that asked the same can be added.
    """

    kernel: str
    op: str
    target: str
    bind: str
    contract: Contract
    options: tuple[str, ...]  # --contract and --only, as the user gave them
    source: str
    space: str
    what: str  # the space in words
    dtype: str
    eps: float
    first: int
    last: int
    count: int

    @property
    def whole(self) -> bool:
        """Whether it is the whole space."""
        return (self.first, self.last) == (0, self.count)


@dataclass(frozen=True, slots=True)
class Element:
    """A wrong element: of which item, at which place of the output, and what the item was, in words."""

    item: int
    index: tuple[int, ...]
    given: str
    got: float
    want: float
    ulp: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Violation:
    """How many elements of an output break a rule, "accuracy" or "nonfinite", and the first of them."""

    rule: str
    output: str
    count: int
    elements: tuple[Element, ...]

    def merge(self, other: "Violation") -> "Violation":
        """Return the violations of both sets of items; those of `other` come later."""
        both = (*self.elements, *other.elements)[:FEW]
        return replace(self, count=self.count + other.count, elements=both)


@dataclass(frozen=True, slots=True)
class Part:
    """What some items showed. A `problem` is what the kernel raised or returned instead; it ends the run."""

    tallies: tuple[Tally, ...] = ()
    violations: tuple[Violation, ...] = ()
    problem: str = ""
    refused: bool = False  # the kernel does not take the case: the problem is not its fault

    def merge(self, other: "Part") -> "Part":
        """Return what both sets of items showed, neither with a problem; those of `other` come later."""
        tallies = _merged(self.tallies, other.tallies, lambda one: (one.output, one.dtype))
        violations = _merged(self.violations, other.violations, lambda one: (one.rule, one.output))
        return Part(tallies, violations)


def _merged(first: tuple[T, ...], second: tuple[T, ...], key: Callable[[T], Any]) -> tuple[T, ...]:
    """Return the members of both, those of one key merged."""
    groups: dict[Any, list[Any]] = {}
    for one in (*first, *second):
        groups.setdefault(key(one), []).append(one)
    return tuple(reduce(lambda one, other: one.merge(other), group) for group in groups.values())


@dataclass(frozen=True, slots=True)
class Exhausted:
    """What the items from `asked.first` to before `done` showed. `ended` says why it is not all that was asked."""

    asked: Asked
    environment: dict[str, str]
    done: int
    seconds: float = 0.0
    tallies: tuple[Tally, ...] = ()
    violations: tuple[Violation, ...] = ()
    problem: str = ""
    ended: str = ""
    schema: int = SCHEMA

    def add(self, part: Part, stop: int, seconds: float) -> "Exhausted":
        """Return this with the part that ends before the item `stop`; of a part with a problem nothing else counts."""
        if part.problem:
            return replace(self, problem=part.problem)
        seen = Part(self.tallies, self.violations).merge(part)
        seconds += self.seconds
        return replace(self, tallies=seen.tallies, violations=seen.violations, seconds=seconds, done=stop)

    @property
    def complete(self) -> bool:
        """Whether all that was asked is done."""
        return self.done == self.asked.last

    @property
    def judged(self) -> int:
        """How many elements had a bound."""
        return sum(one.elements - one.unjudged for one in self.tallies)

    @property
    def verdict(self) -> Exit:
        """The exit status."""
        if self.violations or self.problem:
            return Exit.FINDINGS
        if not self.complete:
            return Exit.INCOMPLETE
        return Exit.PASS if self.judged else Exit.NOTHING

    @property
    def ok(self) -> bool:
        """Whether all that was asked is done, and right."""
        return self.verdict is Exit.PASS

    def raise_for_findings(self) -> None:
        """Raise FindingsError if anything is wrong, not done, or nothing had a bound."""
        if not self.ok:
            raise FindingsError("\n".join((f"{self.asked.kernel}: {self.scope}", *self.lines())))

    @property
    def scope(self) -> str:
        """How much ran, such as "all 4,294,967,296 rows of 2 bfloat16 values"."""
        asked, ran = self.asked, self.done - self.asked.first
        if self.complete and asked.whole:
            return f"all {asked.count:,} {asked.what}"
        which = f" (numbers {asked.first:,} to {self.done - 1:,})" if ran else ""
        return f"{ran:,} of {asked.count:,} {asked.what}{which}"

    def lines(self) -> Iterable[str]:
        """Yield what is wrong, a line each, and why the run ended early."""
        if self.problem:
            yield self.problem
        for one in self.violations:
            yield summary(one)
            yield from (f"{words(one, element)}; {replay(self.asked, element)}" for element in one.elements)
        if self.ended and not self.problem:
            yield self.ended


def summary(violation: Violation) -> str:
    """Return how many elements are wrong, and how."""
    many = count(violation.count, "element")
    return f"{violation.rule}: {many} of {violation.output} {WRONG[violation.rule]}"


def words(violation: Violation, element: Element) -> str:
    """Return what is wrong with an element, in one line."""
    place = f"{violation.output}{list(element.index)}" if element.index else violation.output
    said = f"{place} of item {element.item:,}, {element.given}: got {element.got:.9g}, expected {element.want:.9g}"
    if violation.rule != "accuracy":
        return said
    off, allowed = told_apart(element.ulp, element.allowed)
    return f"{said}, {off} ULP away, {allowed} allowed"


def replay(asked: Asked, element: Element) -> str:
    """Return the command that runs this item alone; a call, if no command can find the kernel."""
    items = f"{element.item}:{element.item + 1}"
    if not asked.target:
        return f"verify_norm.exhaust(<the kernel>, {asked.op!r}, space={asked.space!r}, items={items!r})"
    given = {"--kernel": asked.kernel, "--op": asked.op, "--bind": asked.bind, "--space": asked.space}
    given |= {"--dtype": asked.dtype, "--eps": f"{asked.eps!r}", "--items": items}
    given |= dict(zip(("--contract", "--only"), asked.options, strict=True))
    return " ".join(["verify-norm exhaust", *(f"{name} {shlex.quote(text)}" for name, text in given.items() if text)])
