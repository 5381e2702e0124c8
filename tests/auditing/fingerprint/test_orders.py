"""The order of a sum, alone: the tree of an emulated kernel, and none where no tree gives its bits."""

import emulations as em
import pytest

from verify_norm.auditing.fingerprint.orders import orders
from verify_norm.auditing.fingerprint.rig import Rig
from verify_norm.auditing.fingerprint.statement import UNDECIDED
from verify_norm.auditing.fingerprint.sums import bits_of, sums


def of(name, op, run):
    """The statements about one sum of a kernel in float32."""
    found = next(s for s in sums(Rig(em.kernel(op, run), "cpu"), "float32") if s.name == name)
    return {s.name: s for s in orders(found, bits_of(found))}


@pytest.mark.parametrize(
    ("total", "order", "long"),
    [
        (em.sequential, "sequential", "sequential"),
        (em.pairwise, "pairwise", "in parts"),
        (em.folded, "folded in halves", "in parts"),
    ],
)
def test_the_order_over_a_row(total, order, long):
    found = of("row", "layernorm_fwd", em.layernorm_fwd(total=total))
    assert found["row order"].said == order
    assert found["long row sum"].said == long
    assert "2016 masked pairs of 64 summands" in found["row order"].evidence


def test_the_order_over_rows_is_that_of_dbias():
    found = of("dbias", "layernorm_bwd", em.layernorm_bwd(columns=em.lanes, total=em.pairwise))
    assert found["dbias order"].said == "8 lanes interleaved (sequential), then folded in halves"
    assert found["dbias order"].confidence > 0.95  # it gives the bits of sums of random numbers, too


@pytest.mark.parametrize("columns", [em.shuffled, em.kahan])
def test_what_has_no_fixed_tree_is_undecided_and_its_long_sum_is_not_tried(columns):
    found = of("dbias", "layernorm_bwd", em.layernorm_bwd(columns=columns))
    assert {name: s.said for name, s in found.items()} == {"dbias order": UNDECIDED}
