"""What the numbers of a case are to be, wherever a user says them: in a replay line, a corpus or `--bind`. A leaf."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `least` to `most`, or the whole ones among them; without these, all that are finite."""

    least: float = -LARGEST
    most: float = LARGEST
    whole: bool = False

    def holds(self, value: Any) -> bool:
        """Whether the value is one of them; a flag is 0 or 1, as in unit_offset=True."""
        return isinstance(value, int if self.whole else (int, float)) and self.least <= value <= self.most

    def __str__(self) -> str:
        """In words."""
        kind = "a whole number" if self.whole else "a finite number"
        if self.most < LARGEST:
            return f"{kind} from {self.least} to {self.most}"
        return kind if self.least == -LARGEST else f"{kind}, {self.least} or more"


_POWERS = Range(-1074, 1024, whole=True)  # of two: float64's smallest, and one beyond its largest
RANGES: dict[str, Range] = {
    "eps": Range(least=0),
    "num_groups": Range(least=1, whole=True),
    "offset": Range(),
    "log2_scale": _POWERS,
    "dy_log2_scale": _POWERS,
    "weight_offset": Range(),
    "momentum": Range(0, 1),
    "scale": Range(least=0),
}


def wrong(name: str, value: Any) -> str | None:
    """What is wrong with the value of that field of a CaseSpec; None where nothing is: without a value, or of no range.

    >>> wrong("eps", -1), wrong("eps", 0.0)
    ('eps is to be a finite number, 0 or more, not -1', None)
    """
    known = RANGES.get(name)
    if known is None or value is None or known.holds(value):
        return None
    return f"{name} is to be {known}, not {value!r:.60}"
