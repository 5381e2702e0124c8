"""Whether a kernel comes back at all."""

from __future__ import annotations

from collections.abc import Iterable

from verify_norm.checks import check
from verify_norm.spec import Finding, Run


@check(looks=lambda run: False)
def crash(run: Run) -> Iterable[Finding]:
    """The kernel comes back: it does not crash, end its process, or hang.

    It takes a process of its own to tell: `verify_norm.isolate` counts the cases and writes the findings. What the
    kernel merely raises is for `signature` to tell.
    """
    return ()
