"""How much the numbers of a kernel may get worse from one run to another."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

Factor = Annotated[float, Ge(1)]
Part = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class RegressionLimits:
    """How much a number may get worse. `[tool.verify-norm.compare]` in pyproject.toml sets any of them.

    Parameters
    ----------
    ratio : factor of error/bound.
    mean : factor of the mean error. An error above 16 ULP counts as 16; a rise below 0.05 ULP does not count.
    bias : of the mean signed error, in ULP.
    p99 : factor of the 99th percentile.
    share : part of a 16-bit or 8-bit output's elements that may no longer be rounded correctly.
    cases : part of the old run's cases that the new run has to check.
    """

    ratio: Factor = 1.5
    mean: Factor = 1.5
    bias: Part = 0.05
    p99: Factor = 2.0
    share: Part = 0.01
    cases: Part = 0.5
