"""The result of `verify-norm gradcheck`, as frozen data, JSON and text."""

from dataclasses import asdict, dataclass

from verify_norm.core.serial import by_lines, jsonable

ROW = "{:<14}{:<10}{:>8}{:>15}{:>13}{:>13}  {}"  # of a comparison in the text


@dataclass(frozen=True, slots=True)
class GradFinding:
    """One way in which a gradient is wrong: the check, the input, the type and a message."""

    check: str
    output: str
    dtype: str
    message: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One direction of one input: the worst unit's error over its tolerance, and the smallest errors it can detect.

    `power` is the smallest relative error of a whole gradient that the typical unit detects, `local` that of one
    element; None where nothing was judged.
    """

    output: str
    dtype: str
    direction: str
    units: int
    judged: int
    ratio: float
    power: float | None
    local: float | None


@dataclass(frozen=True, slots=True)
class Untold:
    """A gradient that is neither right nor wrong for sure in this type, and the reason."""

    output: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True)
class GradReport:
    """The verdict on the gradients of one function, and the data behind it."""

    target: str
    dtypes: tuple[str, ...]
    inputs: dict[str, tuple[int, ...]]
    compared: tuple[Compared, ...]
    findings: tuple[GradFinding, ...]
    untold: tuple[Untold, ...]
    notes: tuple[str, ...]
    seconds: float
    seed: int
    environment: dict[str, str]

    @property
    def told(self) -> tuple[str, ...]:
        """The gradients that could be judged, each with its type where several types were checked."""
        untold = {(u.output, u.dtype) for u in self.untold}
        every = dict.fromkeys((c.output, c.dtype) for c in self.compared)
        return tuple(self._named(*each) for each in every if each not in untold)

    @property
    def checked(self) -> bool:
        """Whether a gradient could be judged, or there is a finding."""
        return bool(self.findings or self.told)

    @property
    def ok(self) -> bool:
        """Whether a gradient could be judged, and there is no finding; `untold` are those that could not."""
        return self.checked and not self.findings

    @property
    def verdict(self) -> str:
        """The verdict in words: a pass names the gradients that it does not cover."""
        count, none = len(self.findings), ", ".join(self._named(u.output, u.dtype) for u in self.untold)
        if count:
            return f"FAIL: {count} finding{'s' * (count != 1)}"
        if not self.told:
            return "inconclusive"
        return f"pass for {', '.join(self.told)}; inconclusive for {none}" if none else "pass"

    def _named(self, output: str, dtype: str) -> str:
        return f"{output} ({dtype})" if len(self.dtypes) > 1 else output


def dump(report: GradReport) -> str:
    """Return the report as JSON."""
    verdict = {"ok": report.ok, "checked": report.checked, "told": report.told, "verdict": report.verdict}
    return by_lines(jsonable(asdict(report) | verdict))


def text(report: GradReport) -> str:
    """Return the report for people: a line a comparison, the findings, the notes, the verdict."""
    shapes = ", ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in report.inputs.items())
    lines = [f"{report.target} of {shapes}, in {', '.join(report.dtypes)}"]
    if report.compared:
        lines.append(ROW.format("gradient", "dtype", "units", "error/allowed", "would show", "one element", "along"))
    for c in report.compared:
        units = f"{c.judged}/{c.units}" if c.judged < c.units else str(c.units)
        powers = ("nothing" if power is None else f"{power:.1e}" for power in (c.power, c.local))
        lines.append(ROW.format(c.output, c.dtype, units, f"{c.ratio:.2g}", *powers, c.direction))
    lines += [f"✗ {f.check} ({f.dtype}): {f.message}" for f in report.findings]
    lines += [f"? {u.output} ({u.dtype}): inconclusive: {u.reason}" for u in report.untold]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, f"{report.verdict}; {report.seconds:.2f} s"])
