"""A covering array of strength 2: cases in which any two values of different axes meet, beside a given table.

The cases are made one by one, as in D. M. Cohen, S. R. Dalal, M. L. Fredman and G. C. Patton, "The AETG system: an
approach to testing based on combinatorial design", IEEE Transactions on Software Engineering 23 (1997). Each begins
with a pair that has not met, and takes for every other axis the value with which the most such pairs meet.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import prod
from operator import itemgetter
from random import Random
from typing import TypeVar
from zlib import crc32

from verify_norm.cases import further_runs
from verify_norm.cases.axes import HIDING, axes
from verify_norm.cases.axis import Axis
from verify_norm.cases.corners import scaled
from verify_norm.cases.sizes import classes, shaped
from verify_norm.core import ways
from verify_norm.core.geometry import differentiable, refusal, row_length, thawed
from verify_norm.core.layouts import aliased
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

ELEMENTS = 2**17  # of x, at most
TRIES = 4  # greedy cases that are made for a pair: the best one is taken
LAST_TRIES = 100  # random cases that are made where no greedy one has the pair; if none has it, it is impossible
ENOUGH = 24  # cases with the pair: the best of them is as good as the best of all
T = TypeVar("T")


class Pairs:
    """Which pairs of values have met in the cases that were entered.

    A value is a number, its place in `values`; a set of values is an integer, one bit a value. In a case with one value
    of `HIDING` only the pairs with that value meet, in a case with two none.
    """

    def __init__(self, op: Op, dtypes: Sequence[str], *, frozen: bool = False, gpu: bool = False) -> None:
        """Begin without a case."""
        self.op, self.axes = op, axes(op, dtypes, frozen=frozen, gpu=gpu)
        self.offered = ways.offered(op, autograd=frozen, gpu=gpu)
        self.free = [axis for axis in self.axes if axis.free]
        self.values = [(axis, value) for axis in self.axes for value in axis.choices]
        self.choices = [axis.choices[value] for axis, value in self.values]
        self.number = {value: n for n, (_, value) in enumerate(self.values)}
        self.hiding = sum(1 << self.number[value] for value in HIDING & set(self.number))
        self.usual = {a.name: [self.number[name] for name in a.choices if name not in HIDING] for a in self.axes}
        # By value: the set of those that it has to meet, and has not met.
        self.missing = [sum(1 << n for n, two in enumerate(self.values) if _meet(one, two)) for one in self.values]
        self.total = self.left

    @property
    def left(self) -> int:
        """The number of pairs that have not met."""
        return sum(others.bit_count() for others in self.missing) // 2

    @property
    def met(self) -> int:
        """The number of pairs that have met."""
        return self.total - self.left

    def enter(self, spec: CaseSpec) -> None:
        """Note the pairs of a case."""
        for value, others in self.meetings(spec):
            self.missing[value] &= ~others

    def meetings(self, spec: CaseSpec) -> list[tuple[int, int]]:
        """Return each value that meets others in the case, and the set of those."""
        if prod(spec.shape) and row_length(spec, self.op) == 1 and self.op.view != "rows":
            return []  # x̂ is 0
        values = self.present(spec)
        present = sum(1 << value for value in values)
        pairs = [(value, self.partners(value, present)) for value in values]
        return [(value, partners) for value, partners in pairs if partners]

    def present(self, spec: CaseSpec) -> list[int]:
        """Return the values of a case."""
        names = [axis.read(spec) for axis in self.axes]
        return [self.number[name] for name in names if name is not None and name in self.number]

    def partners(self, value: int, present: int) -> int:
        """Return the set of those values of a case that meet one of them, given the set of all."""
        hidden = present & self.hiding
        if not hidden:
            return present
        if hidden.bit_count() > 1:
            return 0
        return present if hidden == 1 << value else hidden

    def gain(self, spec: CaseSpec, one: int, two: int) -> int:
        """Return how many pairs meet in the case for the first time; 0 if these two values do not meet."""
        if not self.has(spec, one) or not self.has(spec, two):  # as in most cases of random values
            return 0
        met = dict(self.meetings(spec))
        if not met.get(one, 0) >> two & 1:
            return 0
        return sum((self.missing[value] & others).bit_count() for value, others in met.items()) // 2

    def ways_taken(self, field: str, value: str, spec: CaseSpec) -> list[int]:
        """Return the ways that a further run of the case takes where a field has this value."""
        meant = ways.meant(value, self.offered[field])
        return [self.number[f"{field} {way}"] for way in meant if ways.fits(way, spec)]

    def unmet(self, value: int, others: int) -> int:
        """Return how many of its pairs with other values of a case have not met."""
        return (self.missing[value] & self.partners(value, others)).bit_count()

    def best(self, specs: Iterable[CaseSpec | None], one: int, two: int, enough: int | None = None) -> CaseSpec | None:
        """Return the first case of the largest gain for two values that have not met; None if they meet in none.

        It looks at no more than `enough` cases in which they meet, if that is given.
        """
        gains = ((self.gain(spec, one, two), spec) for spec in specs if spec is not None)
        useful = islice(((gain, spec) for gain, spec in gains if gain), enough)
        return max(useful, key=itemgetter(0), default=(0, None))[1]

    def has(self, spec: CaseSpec, value: int) -> bool:
        """Return whether a case has a value."""
        axis, name = self.values[value]
        return axis.read(spec) == name


def _meet(one: tuple[Axis, str], two: tuple[Axis, str]) -> bool:
    """Return whether two values have to meet: beside a value of `HIDING`, where elements lie does not show."""
    if one[0] is two[0]:
        return False
    for (axis, value), (other_axis, other_value) in ((one, two), (two, one)):
        if axis.beside and other_axis.name not in axis.beside:
            return False
        if value in HIDING and (other_value in HIDING or other_axis.of_memory):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Array:
    """Cases in which all pairs meet that do not meet in a table, and how many pairs meet in both together.

    Pairs that meet in neither are taken to be impossible, such as a layout of a weight that is None.
    """

    rows: tuple[CaseSpec, ...]
    pairs: int


@cache
def array(
    op: Op,
    dtypes: tuple[str, ...],
    table: tuple[CaseSpec, ...],
    seed: int = 0,
    *,
    frozen: bool = False,
    gpu: bool = False,
) -> Array:
    """Return a covering array beside a table; the same arguments give the same cases."""
    pairs = Pairs(op, dtypes, frozen=frozen, gpu=gpu)
    for spec in table:
        pairs.enter(spec)
    rng, rows = Random(seed), list[CaseSpec]()
    for one in sorted(range(len(pairs.values)), key=lambda value: -pairs.missing[value].bit_count()):
        while pairs.missing[one]:
            two = pairs.missing[one].bit_length() - 1
            best = _best(pairs, one, two, rng, further_runs.STRIDE * len(rows))
            if best is None:  # taken to be impossible, but a later case may have it by chance
                pairs.missing[one] &= ~(1 << two)
                pairs.missing[two] &= ~(1 << one)
            else:
                pairs.enter(best)
                rows.append(best)
    together = Pairs(op, dtypes, frozen=frozen, gpu=gpu)
    for spec in (*table, *rows):
        together.enter(spec)
    return Array(tuple(rows), together.met)


def _best(pairs: Pairs, one: int, two: int, rng: Random, number: int) -> CaseSpec | None:
    """Return a case in which two values meet, and many others for the first time; None if none is found."""
    for tries, greedy in ((TRIES, True), (LAST_TRIES, False)):
        candidates = (_case(pairs, one, two, rng, greedy=greedy) for _ in range(tries))
        case = pairs.best(candidates, one, two, ENOUGH)
        if case is not None:  # it has the further runs of all checks: now it gets those of a turn
            turns = (further_runs.drawn(case, number + turn, pairs.op) for turn in range(further_runs.ROUND))
            return pairs.best(_named(pairs, case, turns, (one, two), number), one, two)
    return None


def _named(
    pairs: Pairs, case: CaseSpec, turns: Iterable[CaseSpec], two: tuple[int, int], number: int
) -> Iterator[CaseSpec]:
    """Yield a case with the further runs of each turn, in the ways of the `two` values, else the most useful ones."""
    others = sum(1 << value for value in pairs.present(case))

    def usefulness(field: str, value: str) -> tuple[bool, int]:
        taken = pairs.ways_taken(field, value, case)
        return not set(two).isdisjoint(taken), sum(pairs.unmet(way, others) for way in taken)

    @cache  # turns differ in the fields that they ask for
    def choose(field: str, values: tuple[str, ...]) -> str:
        gains = {value: usefulness(field, value) for value in values}
        largest = max(gains.values())
        best = tuple(value for value in values if gains[value] == largest)
        place = crc32(f"{field} {number}".encode())
        return best[place % len(best)] if any(largest) else ways.pick(values, place)

    for spec in turns:
        yield ways.named(replace(spec, poison=case.poison), pairs.offered, choose)


def _case(pairs: Pairs, one: int, two: int, rng: Random, *, greedy: bool) -> CaseSpec | None:
    """Return a case with two values, None if they exclude each other. Other values are random, or `greedy`.

    A greedy value is one with which the most pairs meet for the first time, among the values chosen so far.
    """
    chosen: dict[str, int] = {}  # by axis
    for value in (one, two):
        for part in _parts(pairs, value):
            if chosen.setdefault(pairs.values[part][0].name, part) != part:
                return None
    present = sum(1 << value for value in chosen.values())
    free = [axis.name for axis in pairs.free if axis.name not in chosen]
    for name in rng.sample(free, len(free)) if greedy else free:
        values = pairs.usual[name]
        if greedy:
            partners = present & pairs.hiding or present
            gains = [(pairs.missing[value] & partners).bit_count() for value in values]
            largest = max(gains)
            values = [value for value, gain in zip(values, gains, strict=True) if gain == largest]
        chosen[name] = _choice(values, rng)
        present |= 1 << chosen[name]
    return _spec(pairs, chosen, rng)


def _parts(pairs: Pairs, value: int) -> list[int]:
    """Return the values of free axes that a value follows from: itself, if its own axis is free."""
    axis, name = pairs.values[value]
    followed = [choice for choice in axis.choices[name] if isinstance(choice, tuple)]
    return [pairs.number[other] for choice in followed for other in choice] if followed else [value]


def _choice(values: Sequence[T], rng: Random) -> T:
    """Choose as `rng.choice` does, in less than half of its time: an array makes half a million choices."""
    count = len(values)
    if count == 1:
        return values[0]
    bits = count.bit_length()
    place = rng.getrandbits(bits)
    while place >= count:
        place = rng.getrandbits(bits)
    return values[place]


def _spec(pairs: Pairs, chosen: dict[str, int], rng: Random) -> CaseSpec | None:
    """Return the case with these values of all axes; None if there is none, or if it is large."""
    op, sizes = pairs.op, len(classes(pairs.op)) + 2
    choices = [_choice(pairs.choices[chosen[axis.name]], rng) for axis in pairs.free]
    *numbers, leading, inner = choices[:sizes]
    shape = shaped(tuple(numbers), leading, inner, op)
    if shape is None or prod(shape["shape"]) > ELEMENTS:
        return None
    fields = {field: value for choice in choices[sizes:] for field, value in choice.items()}
    spec = CaseSpec(**shape, **scaled(fields, fields["dtype"]), seed=rng.randrange(2**16))
    spec = aliased(thawed(spec, differentiable(op)), op)
    return None if refusal(spec, op) else spec
