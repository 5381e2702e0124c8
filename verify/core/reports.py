"""Several reports as one: those of a differentiable kernel, one a direction."""

from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.finding import Finding
from verify_norm.core.rendering import Rendered
from verify_norm.core.report_text import failures
from verify_norm.core.results import Report, worst_of


class Reports(Rendered, tuple[Report, ...]):
    """The reports of a differentiable kernel, one a direction, with the properties of one report."""

    __slots__ = ()

    def _each(self) -> tuple[Report, ...]:
        return tuple(self)

    @property
    def ok(self) -> bool:
        """Whether every report is ok."""
        return bool(self) and all(report.ok for report in self)

    @property
    def verdict(self) -> Exit:
        """The worst verdict."""
        return worst_of((report.verdict for report in self), every=True)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all reports."""
        return tuple(finding for report in self for finding in report.findings)

    def raise_for_findings(self) -> None:
        """Raise FindingsError if a report has findings, has checked nothing, or is incomplete."""
        if texts := [text for report in self if (text := failures(report))]:
            raise FindingsError("\n\n".join(texts))
