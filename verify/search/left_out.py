"""What a run says of cases that it leaves out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from verify_norm.core.coverage import UNTIMED
from verify_norm.core.geometry import repeated
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip

NAMED = 16  # shapes: more are a number


def skips(
    skipped: Counter[tuple[str, str]], too_slow: Mapping[str, Sequence[CaseSpec]], *, timed: bool = True
) -> Iterator[Skip]:
    """Yield what was not checked by reason, with the shapes of cases that are too slow: if any case was `timed`."""
    untimed = 0
    for (what, reason), count in skipped.items():
        specs = too_slow.get(reason, ()) if what == "cases" else ()
        if specs and not timed:
            untimed += count
        else:
            yield Skip(what, f"{reason}: {shapes(specs)}" if specs else reason, count)
    if untimed:
        yield Skip("cases", UNTIMED, untimed)


def shapes(specs: Sequence[CaseSpec]) -> str:
    """Return the shapes of cases in words, the first ones.

    >>> shapes([CaseSpec((4, 64)), CaseSpec((4, 64), "float16"), CaseSpec((2, 8), batch=300)])
    '4×64 float32, 4×64 float16, 300×8 float32'
    """
    named = list(dict.fromkeys(f"{'×'.join(map(str, repeated(spec).shape))} {spec.dtype}" for spec in specs))
    more = len(named) - NAMED
    return ", ".join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")
