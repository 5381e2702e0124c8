"""The results of a comparison of two kernels, as frozen data."""

import shlex
from dataclasses import dataclass
from math import prod
from typing import Literal

from verify_norm.core.case_words import count
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage, barely
from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.serial import spec_text
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip

SCHEMA = 1
Side = Literal["A", "B"]
Axis = Literal["N", "M"]


@dataclass(frozen=True, slots=True)
class Subject:
    """Who one of the two kernels is."""

    kernel: str
    target: str
    backend: str
    contract: Contract
    bind: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one output differs in cases with x of one type. In `zeros` of them it differs in signs of 0 alone."""

    output: str
    dtype: str  # of x
    cases: int
    differing: int
    zeros: int = 0


@dataclass(frozen=True, slots=True)
class Onset:
    """The smallest size at which one output differs with x of one type, and the largest below at which it is equal.

    "N" is the length of a row or group, "M" the number of rows or samples. At every size tried below `since` there is
    no difference. `equal` is None where no smaller size was compared. It is `sure` if half of the further cases of the
    size `since` differ too: a rare difference may begin earlier than it shows.
    """

    output: str
    dtype: str
    axis: Axis
    since: int
    equal: int | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Element:
    """The first element that differs: its values, and how far they are from each other and from the truth, in ulps.

    The unit is the output's type. `apart` is in ulps of the smaller binade of the two, so that neighbours are 1 apart.
    An error is None where the truth is not asked for.
    """

    index: tuple[int, ...]
    a: float
    b: float
    apart: float
    want: float | None = None
    a_error: float | None = None
    b_error: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """An output in which two calls on one case differ; no `output` where only one of them returned."""

    output: str | None
    words: str  # what differs
    element: Element | None = None  # None: presence, type or shape differ
    count: int = 0  # elements that differ
    shape: tuple[int, ...] = ()  # of the output
    most: float | None = None  # the largest distance, in ulps
    zeros: bool = False  # only signs of 0 differ

    @property
    def size(self) -> int:
        """The number of elements of the output."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Difference:
    """One output in which the kernels differ, on the smallest case that shows it.

    `alike` are the outputs that have the same bits in that case. `cases` counts the cases that show the difference.
    """

    gap: Gap
    spec: CaseSpec
    cases: int
    alike: tuple[str, ...] = ()
    note: str = ""

    @property
    def output(self) -> str | None:
        """The output; None where one of the kernels fails."""
        return self.gap.output


@dataclass(frozen=True, slots=True)
class Unstable:
    """An output in which one kernel differs from itself: two runs of one case."""

    side: Side
    gap: Gap
    spec: CaseSpec


@dataclass(frozen=True, slots=True)
class Contrast:
    """A property of the arithmetic that the kernels do not share, and the field of the contract that it belongs to.

    `field` is "" where no contract speaks of it, for example of the divisor. It is not `sure` where the evidence on one
    kernel decides nothing.
    """

    field: str
    name: str
    dtype: str
    a: str
    b: str
    evidence: tuple[str, str]
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Declared:
    """A field in which the declared contracts differ."""

    field: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Exact:
    """What differs in a case whose sums over a row are exact in any order: no outputs if all have the same bits."""

    spec: CaseSpec
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What fingerprints tell apart and what they find alike, what the contracts declare, and what exact sums change."""

    contrasts: tuple[Contrast, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()  # property and value
    declared: tuple[Declared, ...] = ()
    exact: Exact | None = None


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether two kernels of one operator return the same bits, and the evidence."""

    a: Subject
    b: Subject
    op: str
    settings: Settings
    environment: dict[str, str]
    cases: int  # that both kernels take
    seconds: float
    tallies: tuple[Tally, ...]
    differences: tuple[Difference, ...]
    unstable: tuple[Unstable, ...]
    onsets: tuple[Onset, ...]
    arithmetic: Arithmetic | None  # None where nothing differs
    skipped: tuple[Skip, ...]
    coverage: Coverage
    interrupted: bool = False
    schema: int = SCHEMA

    @property
    def unfinished(self) -> str:
        """How many corner cases ran and why not all of them; "" if all ran."""
        done = self.coverage
        if done.corners_done == done.corners and not self.interrupted:
            return ""
        return f"{done.corners_done} of {done.corners} corner cases ran: {done.ended}"

    @property
    def verdict(self) -> Exit:
        """The exit status: FINDINGS where the kernels differ or one of them differs from itself."""
        if self.differences or self.unstable:
            return Exit.FINDINGS
        compared, tried = self.coverage.compared, self.cases + self.coverage.refused
        if tried and barely(compared, tried):
            return Exit.NOTHING
        if self.unfinished and not self.settings.allow_incomplete:
            return Exit.INCOMPLETE
        return Exit.PASS if compared else Exit.NOTHING

    @property
    def ok(self) -> bool:
        """Whether every case that both take gave the same bits, over the whole table."""
        return self.verdict is Exit.PASS

    def raise_for_findings(self) -> None:
        """Raise FindingsError where the kernels differ, nothing was compared, or the run is incomplete."""
        if not self.ok:
            raise FindingsError("\n".join(failures(self)))


def per_type(found: Equality) -> list[str]:
    """Return a line for each type of x: how many cases are identical, or since which size which outputs differ."""
    lines = []
    for dtype in dict.fromkeys(tally.dtype for tally in found.tallies):
        here = [tally for tally in found.tallies if tally.dtype == dtype]
        differ = [since(found, tally) for tally in here if tally.differing]
        alike = f"identical in {count(max(tally.cases for tally in here), 'case')}"
        lines.append(f"{dtype}: {'; '.join(differ) or alike}")
    return lines


def since(found: Equality, tally: Tally) -> str:
    """Return since which sizes an output differs, such as "y differs from N = 1025 on (identical up to 1024)"."""
    here = [one for one in found.onsets if (one.output, one.dtype) == (tally.output, tally.dtype)]
    sizes = [f"{one.axis} = {one.since} on (identical up to {one.equal})" for one in here if one.equal and one.sure]
    words = [f"in {tally.differing} of {count(tally.cases, 'case')}"]
    if sizes:
        words.insert(0, f"from {' and '.join(sizes)}")
    if tally.zeros == tally.differing:
        words.append("by signs of 0 alone")
    if not sizes and not all(one.sure for one in here):
        words.append("too rarely to say from which size on")
    return f"{tally.output} differs {', '.join(words)}"


def replay_line(found: Equality, spec: CaseSpec) -> str:
    """Return the command that compares both kernels in one case again; a call, if no command can find them."""
    line = spec_text(found.a.kernel, spec, found.op)
    if not (found.a.target and found.b.target):
        return f"verify_norm.same(<A>, <B>, replay={line!r})"
    words = ["verify-norm same", shlex.quote(found.a.kernel), shlex.quote(found.b.kernel)]
    for option, one in (("--bind-a", found.a), ("--bind-b", found.b)):
        if one.bind:
            words.append(f"{option} {shlex.quote(one.bind)}")
    return " ".join([*words, f"--replay {shlex.quote(line)}"])


def failures(found: Equality) -> list[str]:
    """Return why two kernels are not the same, one line each; none if they are."""
    lines = [f"{one.gap.words}; {replay_line(found, one.spec)}" for one in found.differences]
    lines += [f"{one.side} itself differs from run to run: {one.gap.words}" for one in found.unstable]
    if found.verdict is Exit.NOTHING:
        lines.append(nothing(found))
    elif found.verdict is Exit.INCOMPLETE:
        lines.append(f"incomplete: {found.unfinished}")
    return [f"{found.op}: {line}" for line in lines]


def nothing(found: Equality) -> str:
    """Return that nothing was compared, or almost nothing, and why."""
    why = "; ".join(dict.fromkeys(f"{skip.what}: {skip.reason}" for skip in found.skipped))
    tried = count(found.cases + found.coverage.refused, "case")
    return f"too little was compared: outputs were compared in {found.coverage.compared} of {tried}. {why}"
