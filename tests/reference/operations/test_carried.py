"""Which sums are over rows: of what a row made, along the first axis."""

from dataclasses import replace

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, Arithmetic
from verify_norm.reference.operations.carried import carried

SINGLE = Arithmetic(u=2.0**-24, tiny=2.0**-126, huge=3.4e38)


def test_sums_over_rows_and_narrow_partial_sums():
    x, narrow = np.ones((1000, 3)), replace(SINGLE, partials_u=2.0**-8, atomic=True)
    strict, weak = (carried(x, a, by_row=True).sum(0).delta for a in (SINGLE, narrow))
    assert (weak > 1000 * strict).all()
    assert (carried(x, narrow, by_row=True).sum(-1).delta < 1e-5).all(), "partial sums are of rows"
    of_weights = [carried(x[:, 0], a).sum(0).delta for a in (SINGLE, narrow)]
    assert of_weights[0] == of_weights[1] == x[:, 0].sum() * SINGLE.summed(1000, DIVISION + 1) + 999 * SINGLE.tiny
    of_rows = carried(x, narrow, by_row=True).sum(-1) * np.where(carried(x, narrow, by_row=True) > 0, 1.0, 0.0)[:, 0]
    assert of_rows.sum(0).delta > 1000 * of_weights[1], "(M,) is of rows where a row made it"
