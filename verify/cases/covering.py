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
from verify_norm.cases.axes import HIDING, Axis, axes
from verify_norm.cases.corners import scaled
from verify_norm.cases.sizes import classes, shaped
from verify_norm.core import ways
from verify_norm.core.geometry import differentiable, refusal, row_length, thawed
from verify_norm.core.layouts import aliased
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

ELEMENTS = 2**17  # of x: a case in which two values meet need not be larger
TRIES = 4  # cases made for a pair, of which the best is taken
LAST_TRIES = 100  # more, of random values: if none of them has the pair, no case is taken to have it
ENOUGH = 24  # of these that have it: the best of them is as good as the best of all
T = TypeVar("T")


class Pairs:
    """Which pairs of values have met in the cases that were entered.

    Beside one value of `HIDING` only its own pairs meet, beside two none.
    """

    def __init__(self, op: Op, dtypes: Sequence[str], *, frozen: bool = False, gpu: bool = False) -> None:
        """Begin without a case."""
        self.op, self.axes = op, axes(op, dtypes, frozen=frozen, gpu=gpu)
        self.offered = ways.offered(op, autograd=frozen, gpu=gpu)
        self.free = [axis for axis in self.axes if axis.free]
        self.values = [(axis, value) for axis in self.axes for value in axis.ways]
        self.ways = [axis.ways[value] for axis, value in self.values]
        self.number = {value: n for n, (_, value) in enumerate(self.values)}
        self.hiding = sum(1 << self.number[value] for value in HIDING & set(self.number))
        self.usual = {a.name: [self.number[name] for name in a.ways if name not in HIDING] for a in self.axes}
        # Sets of values are integers, one bit a value. Of each value: those that it has not met, and shall meet.
        self.missing = [sum(1 << n for n, two in enumerate(self.values) if _meet(one, two)) for one in self.values]
        self.all = self.left

    @property
    def left(self) -> int:
        """The number of pairs that have not met."""
        return sum(some.bit_count() for some in self.missing) // 2

    @property
    def met(self) -> int:
        """The number of pairs that have met."""
        return self.all - self.left

    def enter(self, spec: CaseSpec) -> None:
        """Note the pairs of a case."""
        for value, others in self.of(spec):
            self.missing[value] &= ~others

    def of(self, spec: CaseSpec) -> list[tuple[int, int]]:
        """Return each value that meets others in the case, and the set of those."""
        if prod(spec.shape) and row_length(spec, self.op) == 1 and self.op.view != "rows":
            return []  # x̂ is 0
        found = self.present(spec)
        present = sum(1 << value for value in found)
        return [(value, others) for value in found if (others := self.beside(value, present))]

    def present(self, spec: CaseSpec) -> list[int]:
        """Return the values of a case."""
        return [self.number[v] for axis in self.axes if (v := axis.read(spec)) is not None and v in self.number]

    def beside(self, value: int, present: int) -> int:
        """Return the set of those values of a case that do meet one of them."""
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
        met = dict(self.of(spec))
        if not met.get(one, 0) >> two & 1:
            return 0
        return sum((self.missing[value] & others).bit_count() for value, others in met.items()) // 2

    def taken(self, field: str, value: str, spec: CaseSpec) -> list[int]:
        """Return the ways that a further run of the case takes where a field has this value."""
        meant = ways.meant(value, self.offered[field])
        return [self.number[f"{field} {way}"] for way in meant if ways.fits(way, spec)]

    def new(self, value: int, others: int) -> int:
        """Return how many of its pairs with other values of a case have not met."""
        return (self.missing[value] & self.beside(value, others)).bit_count()

    def most(self, specs: Iterable[CaseSpec | None], one: int, two: int, enough: int | None = None) -> CaseSpec | None:
        """Return the first case of the largest gain for two values that have not met; None if they meet in none.

        It looks at no more than `enough` cases in which they meet, if that is given.
        """
        gains = ((self.gain(spec, one, two), spec) for spec in specs if spec is not None)
        return max(islice((pair for pair in gains if pair[0]), enough), key=itemgetter(0), default=(0, None))[1]

    def has(self, spec: CaseSpec, value: int) -> bool:
        """Return whether a case has a value."""
        axis, name = self.values[value]
        return axis.read(spec) == name


def _meet(one: tuple[Axis, str], two: tuple[Axis, str]) -> bool:
    """Return whether two values shall meet: those that hide others do not show where elements are."""
    if one[0] is two[0]:
        return False
    for (axis, value), (other, its) in ((one, two), (two, one)):
        if (axis.beside and other.name not in axis.beside) or (value in HIDING and (its in HIDING or other.of_memory)):
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
        found = (_case(pairs, one, two, rng, greedy=greedy) for _ in range(tries))
        made = pairs.most(found, one, two, ENOUGH)
        if made is not None:  # it names all checks: now those of a turn
            turned = (further_runs.drawn(made, number + turn, pairs.op) for turn in range(further_runs.ROUND))
            return pairs.most(_named(pairs, made, turned, (one, two), number), one, two)
    return None


def _named(
    pairs: Pairs, made: CaseSpec, turned: Iterable[CaseSpec], two: tuple[int, int], number: int
) -> Iterator[CaseSpec]:
    """Yield a case with the further runs of others, and of their ways that of the two values, or the most useful."""
    others = sum(1 << value for value in pairs.present(made))

    @cache  # turns differ in the fields that they ask for
    def choose(field: str, values: tuple[str, ...]) -> str:
        taken = {value: pairs.taken(field, value, made) for value in values}
        gains = {
            value: (not set(two).isdisjoint(numbers), sum(pairs.new(n, others) for n in numbers))
            for value, numbers in taken.items()
        }
        most = max(gains.values())
        best = tuple(value for value in values if gains[value] == most)
        place = crc32(f"{field} {number}".encode())
        return best[place % len(best)] if any(most) else ways.pick(values, place)

    for spec in turned:
        yield ways.named(replace(spec, poison=made.poison), pairs.offered, choose)


def _case(pairs: Pairs, one: int, two: int, rng: Random, *, greedy: bool) -> CaseSpec | None:
    """Return a case with two values; the values of other axes let most pairs meet, or are random."""
    chosen: dict[str, int] = {}
    for value in (one, two):
        axis, name = pairs.values[value]
        follows = [way for way in axis.ways[name] if isinstance(way, tuple)]
        for part in (pairs.number[other] for way in follows for other in way) if follows else (value,):
            if chosen.setdefault(pairs.values[part][0].name, part) != part:
                return None
    present = sum(1 << value for value in chosen.values())
    free = [axis.name for axis in pairs.free if axis.name not in chosen]
    for name in rng.sample(free, len(free)) if greedy else free:
        values = pairs.usual[name]
        if greedy:
            beside = present & pairs.hiding or present
            gains = [(pairs.missing[v] & beside).bit_count() for v in values]
            most = max(gains)
            values = [v for v, gain in zip(values, gains, strict=True) if gain == most]
        chosen[name] = one = _choice(values, rng)
        present |= 1 << one
    return _spec(pairs, chosen, rng)


def _choice(values: Sequence[T], rng: Random) -> T:
    """Choose as `rng.choice` does, in less than half of its time: an array makes half a million choices."""
    number = len(values)
    if number == 1:
        return values[0]
    bits = number.bit_length()
    while (place := rng.getrandbits(bits)) >= number:
        pass
    return values[place]


def _spec(pairs: Pairs, chosen: dict[str, int], rng: Random) -> CaseSpec | None:
    """Return the case with these values of all axes; None if there is none, or if it is large."""
    op, sizes = pairs.op, len(classes(pairs.op)) + 2
    choices = [_choice(pairs.ways[chosen[axis.name]], rng) for axis in pairs.free]
    *numbers, leading, inner = choices[:sizes]
    shape = shaped(tuple(numbers), leading, inner, op)
    if shape is None or prod(shape["shape"]) > ELEMENTS:
        return None
    fields = {field: value for choice in choices[sizes:] for field, value in choice.items()}
    spec = CaseSpec(**shape, **scaled(fields, fields["dtype"]), seed=rng.randrange(2**16))
    spec = aliased(thawed(spec, differentiable(op)), op)
    return None if refusal(spec, op) else spec
