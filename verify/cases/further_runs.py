"""Draws the further runs of a case: which checks run the kernel again, in which way, and what unwritten memory holds.

A further run costs as much as the case itself, so a check makes one in a share of the cases only. `CaseSpec.further`
names the checks, the fields of `verify_norm.core.ways` their ways, and `CaseSpec.poison` the unwritten memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal, TypeVar
from zlib import crc32

from verify_norm.core import ways
from verify_norm.core.op import Op
from verify_norm.core.spec import FURTHER, LAWS, CaseSpec

T = TypeVar("T")
EVERYTHING: dict[str, Any] = {
    "poison": "nan",
    "further": FURTHER,
    "variant": 0,
    "batch": 0,
    **dict.fromkeys(ways.WAYS, ""),
}
# By check (n, r): it makes its further run in the cases whose number leaves the remainder r when divided by n.
SHARES = {
    "memory": (2, 0),
    "distribution": (2, 0),
    "batch_invariance": (2, 1),
    "determinism": (3, 0),
    "calls": (6, 5),
    "effects": (12, 8),
    "honesty": (12, 2),
    "modes": (4, 3),
    "autograd": (6, 1),
    "gradient": (3, 0),
    "degenerate": (4, 1),
    "power": (4, 0),
}
BATCHED = frozenset({"batch_invariance", "determinism"})  # the checks that run a case's batch
LAW_SHARE = 2  # one case in this many tries one law of `identities`
OF_DY = ("scale_dy", "linearity")  # laws of a backward
OF_NORMS = ("distribution", "gradient", *LAWS)  # what a user's own operator does not have
ROUND = 12  # numbers after which all shares begin anew
VARIANTS = 120  # a multiple of every number of directions
STRIDE = 53  # coprime to 2, 3 and 5: a short table meets all remainders, and many variants


def checks(op: Op) -> tuple[str, ...]:
    """Return the checks and laws that run a kernel of this operator again."""
    if op.user_defined:
        excluded: tuple[str, ...] = OF_NORMS
    else:
        excluded = () if op.forward else OF_DY
    return tuple(name for name in FURTHER if name not in excluded)


def drawn(spec: CaseSpec, number: int, op: Op) -> CaseSpec:
    """Return the case with the poison, the further runs and the variant that a random number stands for."""
    laws = tuple(law for law in LAWS if law in checks(op))
    further = [name for name, (divisor, remainder) in SHARES.items() if number % divisor == remainder]
    if spec.batch and "batch_invariance" not in further:
        further.append("batch_invariance")  # what the batch is for
    if laws and number % LAW_SHARE == 0:
        further.append(laws[number // LAW_SHARE % len(laws)])
    fours, rounds = number // 2 % 2, number // (ROUND * VARIANTS) % 2  # a check of every fourth case meets both too
    poison: Literal["nan", "finite"] = "finite" if fours != rounds else "nan"
    return replace(spec, poison=poison, further=tuple(further), variant=number // ROUND % VARIANTS)


def named(spec: CaseSpec, offered: ways.Offered, number: int) -> CaseSpec:
    """Return the random case with the ways of its further runs that a random number stands for."""

    def chosen(field: str, offers: tuple[str, ...]) -> str:
        return ways.pick(offers, crc32(f"{field} {number}".encode()), ways.EXPENSIVE_IN_RANDOM)

    return ways.named(spec, offered, chosen)


def in_turn(specs: Iterable[CaseSpec], offered: ways.Offered) -> list[CaseSpec]:
    """Return the cases of a table with the ways of their further runs: each type meets all of them."""
    counters: defaultdict[tuple[str, str], count[int]] = defaultdict(count)  # by field and type

    def with_ways(spec: CaseSpec) -> CaseSpec:
        return ways.named(spec, offered, lambda field, offers: ways.pick(offers, next(counters[field, spec.dtype])))

    return [with_ways(spec) for spec in specs]


def also(spec: CaseSpec, names: Sequence[str]) -> CaseSpec:
    """Return the case with these further runs besides its own."""
    return replace(spec, further=(*spec.further, *(name for name in names if name not in spec.further)))


def of_type(spec: CaseSpec, number: int, dtype: int, op: Op) -> CaseSpec:
    """Return `drawn` for a case of a table, given its number among the cases of its type, and that of the type.

    So each type meets everything, and neighbours in the table, which have different types, differ.
    """
    return drawn(spec, STRIDE * (number + dtype), op)


def laws(spec: CaseSpec) -> tuple[str, ...]:
    """Return the laws that the case names."""
    return tuple(law for law in LAWS if law in spec.further)


def variant(spec: CaseSpec, options: Sequence[T]) -> T:
    """Return the option that the case's variant stands for."""
    return options[spec.variant % len(options)]


def from_variant(spec: CaseSpec, options: Sequence[T]) -> tuple[T, ...]:
    """Return all options, from the case's variant on."""
    first = spec.variant % len(options)
    return (*options[first:], *options[:first])
