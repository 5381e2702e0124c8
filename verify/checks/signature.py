"""Whether a kernel comes back at all, and what it returns, before any value is looked at."""

from collections.abc import Iterable

from verify_norm.checks.check import check, finding
from verify_norm.core.spec import Finding, Run


@check(looks=lambda run: False)
def crash(run: Run) -> Iterable[Finding]:
    """The kernel comes back: it does not crash, end its process, or hang.

    Only another process can see this, so `verify_norm.search.examine` counts the cases and writes the findings. What
    the kernel raises is a finding of `signature`.
    """
    return ()


@check()
def signature(run: Run) -> Iterable[Finding]:
    """The kernel runs, and every output has the right presence, shape and dtype."""
    if run.problem is not None:
        yield finding(run, "signature", None, run.problem, status="error")
    for name, output in run.outputs.items():
        expected = run.case.expected[name]
        if expected is None and output is not None:
            source = name.removeprefix("d")
            why = f"{source} needs no gradient" if source in run.case.spec.frozen else f"{source} is None"
            message = f"expected None because {why}, got a {output.dtype} tensor"
            yield finding(run, "signature", name, f"{name}: {message}")
        if expected is None:
            continue
        if output is None:
            yield finding(run, "signature", name, f"{name}: expected a {expected.dtype} tensor, got None")
            continue
        if output.ratio is None:
            message = f"{name}: expected shape {expected.value.shape}, got {output.shape}"
            yield finding(run, "signature", name, message)
        if output.dtype != expected.dtype:
            yield finding(run, "signature", name, f"{name}: expected {expected.dtype}, got {output.dtype}")
