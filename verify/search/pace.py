"""How long a case takes, as far as the cases so far tell: which sizes a kernel's time allows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from verify_norm.core.geometry import repeated, size
from verify_norm.core.op import Op
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.patience import kind

Size = tuple[int, int]  # rows and elements of x
# The sizes that every kernel runs: Triton's interpreter takes 5 ms a program.
ALWAYS: dict[str, Size] = {"cpu": (300, 2**19), "cuda": (300, 2**23)}
ALIKE = {"cpu": 1, "cuda": 2**22}  # elements: fewer cost the judge no less
JUDGED = 2**27  # elements: the judge compares a larger batch by its rows (`verify_norm.checks.relations.enormous`)
SHARE = {"cpu": 1 / 40, "cuda": 1 / 15}  # of the time: the most that a larger case may take
WIDE = 1 / 8  # of the time: the most that the largest corner cases may take together before the random ones
SPARE = 1 / 30  # of the time: what the largest corner cases leave that come behind the random ones
PROGRAM = 8  # elements that cost about as much as a row
FURTHER = 1 / 100  # of a larger case: the most that a further run may take; most checks make several


def cost(wanted: Size) -> int:
    """Return a number by which cases that cost less come first, whatever this run's cases take."""
    rows, elements = wanted
    return elements + PROGRAM * rows


@dataclass(slots=True)
class Pace:
    """The sizes and seconds of the cases of a run on one device, which has `seconds` in all.

    `seen` holds what each case took, and how much of it inside the kernel. `judge` is the device that judges them.
    """

    device: str
    seconds: float
    seen: list[tuple[Size, float, float]] = field(default_factory=list)
    judge: str = field(kw_only=True, default="")

    def __post_init__(self) -> None:
        """Let the device judge its own cases, unless another one does."""
        self.judge = self.judge or self.device

    @classmethod
    def of(cls, settings: Settings, op: Op) -> "Pace":
        """Return the pace of a run that has not begun; NumPy judges a user's operator, whatever the device."""
        return cls(kind(settings.device), settings.seconds, judge="cpu" if op.user_defined else "")

    def learn(self, taken: Size, seconds: float, inside: float | None = None) -> None:
        """Note the size of a case, the seconds that it took, and those inside the kernel: all of them if not known."""
        self.seen.append((taken, seconds, seconds if inside is None else min(inside, seconds)))

    def usual(self, wanted: Size) -> bool:
        """Return whether every kernel runs cases of that size."""
        rows, elements = ALWAYS[self.judge]
        return wanted[0] <= rows and wanted[1] <= elements

    def parted(self, table: Iterable[CaseSpec], op: Op) -> tuple[list[CaseSpec], list[CaseSpec]]:
        """Return the cases that every kernel runs, and those whose time must be known first."""
        usual: list[CaseSpec] = []
        large: list[CaseSpec] = []
        for spec in table:
            (usual if self.usual(size(repeated(spec), op)) else large).append(spec)
        return usual, large

    @property
    def most(self) -> float:
        """The seconds that a larger case may take."""
        return self.seconds * SHARE[self.device]

    @property
    def wide(self) -> float:
        """The seconds that the largest corner cases may take together."""
        return self.seconds * WIDE

    @property
    def rerun_seconds(self) -> float:
        """The seconds that a further run of a large case may take."""
        return self.most * FURTHER

    def over(self, limit: float) -> str:
        """Return why something that takes longer than a limit is left out, in words.

        >>> Pace("cpu", 20.0).over(0.5)
        'over 0.5 s, its share of the 20 s of the run (--seconds)'
        """
        return f"over {limit:.2g} s, its share of the {self.seconds:g} s of the run (--seconds)"

    def allows(self, wanted: Size) -> bool:
        """Return whether a case of that size takes a small part of the time.

        A case costs something for itself, for each row and for each element. So one that has k times as many of both,
        or less, takes at most k times as long.

        >>> pace = Pace("cpu", 60.0, [((300, 150_000), 0.2, 0.2)])
        >>> pace.allows((2000, 1_000_000)), pace.allows((4096, 150_000))
        (True, False)
        """
        if self.usual(wanted):
            return True
        if self.device == "cuda":  # a GPU's judge takes no time for rows
            return self.fits(wanted)
        rows, elements = wanted
        slower = (max(1.0, rows / max(r, 1), elements / max(e, 1)) * seconds for (r, e), seconds, _ in self.seen)
        return min(slower, default=inf) <= self.most

    def fits(self, wanted: Size) -> bool:
        """Return whether a case is expected to take a small part of the time, also one of a usual size.

        It looks at kernel and checks separately, since rows cost the kernel time, not the checks. A batch of the corner
        table runs several times, so `allows` decides about it.
        """
        return self.expected(wanted) <= self.most

    def expected(self, wanted: Size) -> float:
        """Return the most seconds that a case of that size may take, by the cases so far; inf before the first one."""
        rows, elements = wanted
        outside = kernel = inf
        for (r, e), seconds, inside in self.seen:
            judged, run = max(e, ALIKE[self.judge]), max(e, ALIKE[self.device])
            outside = min(outside, max(1.0, min(elements, JUDGED) / judged) * (seconds - inside))
            kernel = min(kernel, max(1.0, elements / run, rows / max(r, 1)) * inside)
        return outside + kernel
