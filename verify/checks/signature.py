"""Whether a kernel comes back at all, and what it returns, before any value is looked at."""

from collections.abc import Iterable

from verify_norm.checks.check import check, finding
from verify_norm.core.excess import unlike
from verify_norm.core.finding import Finding
from verify_norm.core.run import Run


@check(looks=lambda run: False, of_outputs=False)
def crash(run: Run) -> Iterable[Finding]:
    """The kernel comes back: it does not crash, end its process, or hang.

    An exception that the kernel raises is a finding of `signature`.
    """
    return ()  # only another process can see it: `verify_norm.search.examine` writes the findings


def _absent(run: Run) -> str | None:
    """Return the output that a kernel must return and does not: y of a forward, dx where a backward returns nothing."""
    first, *others = (tensor.name for tensor in run.case.op.outputs)
    required = (first, *others) if run.case.op.forward else (first,)
    return first if run.problem is None and not any(name in run.outputs for name in required) else None


@check(of_outputs=False)
def signature(run: Run) -> Iterable[Finding]:
    """The kernel runs, and every output has the right presence, shape and dtype.

    A forward may leave out all that follows y, and a backward all but one gradient.
    """
    if run.problem is not None:
        yield finding(run, "signature", None, run.problem, status="error")
    absent = _absent(run)
    if absent is not None:
        got = f"{', '.join(run.returned)} alone" if run.returned else "nothing"
        yield finding(run, "signature", absent, f"{absent}: expected a tensor, but the kernel returned {got}")
    for name, output in run.outputs.items():
        for message in unlike(name, output, run.case.expected[name], run.case.spec):
            yield finding(run, "signature", name, message)
