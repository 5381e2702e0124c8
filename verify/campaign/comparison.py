"""Compares what a kernel does on several accelerators: its findings, the bits of its outputs, its arithmetic.

`verify_norm.campaign.traits` collects the bits and the arithmetic. Importing this module loads no torch.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from verify_norm.campaign.store import Store

BITS = "bits of "  # the trait of an output: a digest for each case
NONE = "-"  # in place of the bits of a case that gave none
SAME = "same findings, same bits, same arithmetic"


@dataclass(frozen=True, slots=True)
class Compared:
    """One kernel in one type on several accelerators, and each thing in which one is unlike the first."""

    kernel: str
    op: str
    dtype: str
    accelerators: tuple[str, ...]
    differences: tuple[str, ...]


@dataclass(slots=True)
class _On:
    """What one accelerator has shown of a kernel; `open` counts its units without a report or finding."""

    name: str
    open: int = 0
    findings: dict[tuple[str, str], None] = field(default_factory=dict)
    traits: dict[str, str] = field(default_factory=dict)


def compared(store: Store) -> tuple[Compared, ...]:
    """Return each kernel and type of a plan with several accelerators; nothing for another plan."""
    found: defaultdict[tuple[str, ...], dict[str, _On]] = defaultdict(dict)  # by kernel and type, then by accelerator
    key = 'kernel, op, dtype, bind, contract, units."only", accelerator'
    joined = "JOIN units ON unit = id WHERE accelerator != ''"
    units = (
        f"SELECT {key}, sum(unit IS NULL OR problem != '') FROM units LEFT JOIN outcomes ON unit = id "
        f"WHERE accelerator != '' GROUP BY {key} ORDER BY min(number)"
    )
    for *who, name, left in store.query(units):
        found[tuple(who)][name] = _On(name, left)
    for *who, name, check, output in store.query(f'SELECT {key}, "check", output FROM findings {joined}'):
        found[tuple(who)][name].findings[check, output or "the call"] = None
    for *who, name, trait, said in store.query(f"SELECT {key}, name, said FROM traits {joined} ORDER BY traits.rowid"):
        found[tuple(who)][name].traits[trait] = said
    return tuple(_compared(who, list(on.values())) for who, on in found.items() if len(on) > 1)


def _compared(who: tuple[str, ...], on: list[_On]) -> Compared:
    """Return in what the accelerators that are done are unlike the first of them, and which are not done."""
    first, *others = [one for one in on if not one.open] or on
    lines = [line for other in others if not other.open for line in _differences(first, other)]
    lines += [f"not done on {one.name}" for one in on if one.open]
    kernel, op, dtype = who[:3]
    return Compared(kernel, op, dtype, tuple(one.name for one in on), tuple(lines))


def _differences(one: _On, other: _On) -> Iterator[str]:
    """Yield each difference of two accelerators in words."""
    for here, there in ((one, other), (other, one)):
        for check, output in here.findings:
            if (check, output) not in there.findings:
                yield f"{check} of {output} fails on {here.name}, not on {there.name}"
    for name in {**one.traits, **other.traits}:
        said, says = one.traits.get(name, "not seen"), other.traits.get(name, "not seen")
        if name.startswith(BITS):
            pairs = [pair for pair in zip(said.split(","), says.split(","), strict=False) if NONE not in pair]
            unlike = sum(digest != its_digest for digest, its_digest in pairs)
            if unlike:
                output = name.removeprefix(BITS)
                yield f"{output} has other bits on {other.name} than on {one.name} in {unlike} of {len(pairs)} cases"
        elif said != says:
            yield f"{name}: {said} on {one.name}, {says} on {other.name}"
    if not one.traits or not other.traits:
        yield f"the bits were not compared on {one.name} and {other.name}"
