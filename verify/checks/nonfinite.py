"""NaN and infinity: where they come out, and where a number hides them."""

from collections.abc import Iterable

import numpy as np

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.rerun import element
from verify_norm.core.judge import worst
from verify_norm.core.spec import Finding, Run


def _looks(run: Run) -> bool:
    known = (expected.value for name, (_, expected) in compared(run).items() if name != "amax")
    return run.case.spec.special is not None and run.case.spec.eps != 0 and any(~np.isfinite(v).all() for v in known)


@check(looks=_looks)
def nonfinite(run: Run) -> Iterable[Finding]:
    """NaN or infinity in the input comes out where it must, and never as a plausible number.

    `accuracy` sees a leak into other rows, since it allows NaN in none of them. A case with eps = 0 is left out: a row
    without variance divides zero by zero, and a kernel's rounding may hide that. So is amax: torch's maximum keeps a
    NaN, those of C and of GPUs pass over it (IEEE 754-2019, maximum and maximumNumber).
    """
    for name, (output, expected) in compared(run).items():
        hidden = ~np.isfinite(expected.value) & np.isfinite(output.got)
        if hidden.any() and name != "amax":
            index = worst(hidden.astype(np.float64))
            got, want = float(output.got[index]), float(expected.value[index])
            message = (
                f"{element(name, index)}: expected {want} because x holds a {run.case.spec.special}, got {got:.6g}; "
                f"{int(hidden.sum())} elements hide it"
            )
            yield finding(run, "nonfinite", name, message, index=index, got=got, want=want)
