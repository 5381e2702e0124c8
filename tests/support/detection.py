"""Whether the checks that name an example's bug detect it."""

from verify_norm.cases import corners
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.kernels.zoo.example import Example
from verify_norm.loading import functions, registry
from verify_norm.search.examine import examine
from verify_norm.validation.zoo import explains


def detect(example: Example, settings: Settings) -> Finding | None:
    """Return the first finding on a wrong output in the corner tables, by the checks in `example.caught_by`."""
    functions.remember(functions.Functions())  # as where a search begins
    try:
        return _detect(example, settings)
    finally:
        functions.remember(None)


def _detect(example: Example, settings: Settings) -> Finding | None:
    kernel, op = registry.limited(example.kernel), OPS[example.kernel.op]
    checks = tuple(name for name in example.caught_by if name in CHECKS and CHECKS[name].applies(op))
    dtypes = tuple(d for d in settings.dtypes if d in kernel.dtypes)
    table = corners.corners(op, dtypes, frozen=kernel.autograd, gpu=settings.device != "cpu")
    wide = [] if kernel.backend == "triton" else corners.wide(op, dtypes)  # which an interpreter runs for seconds
    for spec in (*table, *wide):
        for finding in examine(kernel, kernel.fitted(spec), checks, settings.device).findings:
            if explains(example, finding):
                return finding
    return None
