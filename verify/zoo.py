"""The verifier against the zoo: whether each wrong kernel is convicted, of the right output, and no right one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verify_norm import corners, registry
from verify_norm.checks import CHECKS
from verify_norm.examine import examine
from verify_norm.kernels.zoo import ZOO, Specimen
from verify_norm.ops import OPS
from verify_norm.report.model import Settings
from verify_norm.search import search
from verify_norm.spec import Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has made of one specimen."""

    specimen: Specimen
    findings: tuple[Finding, ...]
    cases: int
    seconds: float

    @property
    def right(self) -> bool:
        """Whether a wrong kernel is convicted of what is wrong with it, and a right one of nothing."""
        if not self.specimen.wrong:
            return not self.findings
        return any(names(self.specimen, finding) for finding in self.findings)

    @property
    def checks(self) -> tuple[tuple[str, str | None], ...]:
        """Which checks have found something, and on which output."""
        return tuple(sorted({(f.check, f.output) for f in self.findings}, key=str))


def names(specimen: Specimen, finding: Finding) -> bool:
    """Whether the finding is of an output that is wrong; of the call itself where no output is."""
    return finding.output in specimen.outputs if specimen.outputs else finding.output is None


def shown(device: str) -> Iterator[Specimen]:
    """Those specimens whose bug can show on the device."""
    there = ("cpu",) if device == "cpu" else ("cpu", "gpu")
    return (specimen for specimen in ZOO.values() if specimen.needs in there)


def audit(specimen: Specimen, settings: Settings) -> Outcome:
    """A whole run over one specimen."""
    report = search(registry.ready(specimen.kernel), settings)
    return Outcome(specimen, report.findings, report.cases, report.seconds)


def audit_all(settings: Settings, specimens: Iterable[Specimen] | None = None) -> Iterator[Outcome]:
    """A run over each: over all whose bug can show on the settings' device, if none are given."""
    for specimen in shown(settings.device) if specimens is None else specimens:
        yield audit(specimen, settings)


def convict(specimen: Specimen, settings: Settings) -> Finding | None:
    """The first finding that names what is wrong, by the checks that are to name it, in the corner table alone."""
    kernel, op = registry.ready(specimen.kernel), OPS[specimen.kernel.op]
    checks = tuple(name for name in specimen.caught_by if name in CHECKS and CHECKS[name].applies(op))
    for spec in corners.corners(op, tuple(d for d in settings.dtypes if d in kernel.dtypes)):
        for finding in examine(kernel, spec, checks, settings.device).findings:
            if names(specimen, finding):
                return finding
    return None
