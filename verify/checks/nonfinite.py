"""NaN and infinity: what poisons a result, and how far it spreads."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from verify_norm.checks import check
from verify_norm.execute import worst
from verify_norm.spec import Finding, Run


@check(looks=lambda run: run.case.spec.special is not None and run.case.spec.eps != 0)
def nonfinite(run: Run) -> Iterable[Finding]:
    """NaN or infinity in the input comes out where it must, and never as a plausible number.

    That it does not leak into other rows is for `accuracy` to tell, which allows NaN nowhere. With eps = 0 there is
    nothing to tell: a row without variance divides zero by zero, and a kernel's rounding may hide that. Nor of amax:
    the maximum of torch keeps a NaN, those of C and of GPUs pass over it (IEEE 754-2019, maximum and maximumNumber).
    """
    for name, output in run.outputs.items():
        expected = run.case.expected[name]
        if output is None or expected is None or output.ratio is None or name == "amax":
            continue
        swallowed = ~np.isfinite(expected.value) & np.isfinite(output.got)
        if not swallowed.any():
            continue
        index = worst(swallowed.astype(np.float64))
        got, want = float(output.got[index]), float(expected.value[index])
        yield Finding(
            kernel=run.kernel.name,
            check="nonfinite",
            output=name,
            status="fail",
            message=(
                f"{name}[{', '.join(map(str, index))}] is {got:.6g} where x holds a {run.case.spec.special} and the "
                f"result is {want}; {int(swallowed.sum())} elements hide it"
            ),
            spec=run.case.spec,
            index=index,
            got=got,
            want=want,
        )
