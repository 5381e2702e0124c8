"""A share of a plan's units, for machines that do not know of each other."""

from dataclasses import dataclass

from typing_extensions import Self

from verify_norm.campaign.model import Unit
from verify_norm.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """Every n-th unit of a plan, beginning with the i-th: what one of `n` machines does."""

    i: int = 1
    n: int = 1

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the shard of a text; raises UsageError.

        >>> Shard.of("1/4")
        Shard(i=1, n=4)
        """
        i, _, n = text.partition("/")
        if i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n):
            return cls(int(i), int(n))
        raise UsageError(f"--shard: expected I/N with 1 <= I <= N, such as 1/4, got {text}")

    def __contains__(self, unit: Unit) -> bool:
        """Return whether a unit belongs to it."""
        return unit.number % self.n == self.i - 1


WHOLE = Shard()
