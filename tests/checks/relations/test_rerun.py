"""Further runs: which rows are taken, and what counts as a difference between two runs of one case."""

import torch
from checking import run_of
from norms import layernorm_bwd

from verify_norm.checks.relations.rerun import differences, rerun
from verify_norm.core.spec import CaseSpec


def test_infinities_and_nan_are_compared_as_what_they_are():
    def outputs(*dbias):
        rows = iter(dbias)

        def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
            dx, dweight, _ = layernorm_bwd("recomputed")(
                dy, x, weight, bias, torch.zeros(5), torch.zeros(5), eps, normalized_shape
            )
            return dx, dweight, torch.tensor(next(rows), dtype=bias.dtype)

        first = run_of(kernel, CaseSpec((5, 3), "float16"), "layernorm_bwd", deterministic=False, summation="atomic")
        return [d.count for d in differences(first, rerun(first), ("once", "again"))]

    nan, inf, top = float("nan"), float("inf"), 65504.0
    assert outputs([nan, inf, -inf], [nan, inf, -inf]) == []
    assert outputs([nan, 1.0, inf], [1.0, inf, -inf]) == [3]
    assert outputs([top, 0.0, 1.0], [inf, 0.0, 1.0]) == [1]  # the terms are too small to reach 65520
