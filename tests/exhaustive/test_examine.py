"""Which outputs have a value for each item."""

import pytest

from verify_norm.core.ops import OPS
from verify_norm.exhaustive.examine import outputs

JUDGED = [
    ("layernorm_fwd", "rows2", ("y", "mean", "rstd")),
    ("layernorm_bwd", "rows2", ("dx",)),
    ("add_rmsnorm_fwd", "rows4", ("y", "residual_out", "rstd")),
    ("rmsnorm_fp8_fwd", "rows2", ("y", "rstd")),
    ("batchnorm_fwd", "x", ("y",)),
    ("batchnorm_fwd", "eps", ("y", "mean", "rstd", "running_mean", "running_var")),
    ("layernorm_bwd", "eps", ("dx", "dweight", "dbias")),
]


@pytest.mark.parametrize(("op", "space", "names"), JUDGED)
def test_sums_over_all_rows_and_constants_are_not_judged(op, space, names):
    assert outputs(OPS[op], space) == names
