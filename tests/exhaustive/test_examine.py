"""Which outputs have a value for each item."""

import numpy as np
import pytest

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Expected, Output, Run
from verify_norm.exhaustive import spaces
from verify_norm.exhaustive.examine import _violations, outputs
from verify_norm.exhaustive.model import Asked

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


NAN, INF = np.nan, np.inf
WRONG = {  # of one element: its ratio, its value, the truth, whether its row has a NaN, and the rule that it breaks
    "within its bound": (0.99, 1.0, 1.0, False, ""),
    "beyond it": (1.01, 1.1, 1.0, False, "accuracy"),
    "a number for a NaN": (0.0, 1.0, NAN, True, "nonfinite"),
    "an infinity for a NaN": (0.0, INF, NAN, True, "nonfinite"),
    "an infinity for ∞ − ∞": (0.0, INF, NAN, False, ""),
    "a NaN": (0.0, NAN, NAN, True, ""),
    "a number for an infinity": (0.0, 1.0, INF, False, "nonfinite"),
    "the other infinity": (0.0, -INF, INF, False, "nonfinite"),
    "the infinity": (0.0, INF, INF, False, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_element_that_breaks_a_rule_is_named_with_its_item(name):
    """In the third of four rows of two, of which the first is item 100."""
    ratio, got, want, nan, rule = WRONG[name]
    asked = Asked(
        "k", "layernorm_fwd", "", "", Contract(), ("", ""), "", "rows2", "", "bfloat16", 1e-5, 0, 2**32, 2**32
    )
    arrays = [np.full((4, 2), value) for value in (0.0, 0.5, 0.5, 1.0)]  # ratios, results, truths, x
    for array, value in zip(arrays, (ratio, got, want, NAN if nan else 1.0), strict=True):
        array[2, 1] = value
    expected = Expected(arrays[2], np.zeros((4, 2)), "bfloat16")
    case = Case(spaces.spec_of(asked, 4, 1e-5), OPS["layernorm_fwd"], {}, {"x": arrays[3]}, {"y": expected})
    output = Output("bfloat16", (4, 2), arrays[1], arrays[0])
    run = Run(Kernel("k", "layernorm_fwd"), case, {"y": output})
    found = list(_violations(asked, run, 100, "y", output, expected))
    assert [one.rule for one in found] == [rule] * bool(rule)
    for one in found:
        (element,) = one.elements
        assert (one.output, one.count, element.item, element.index) == ("y", 1, 102, (1,))
        np.testing.assert_equal([element.got, element.want], [got, want])
        assert element.given == spaces.given(asked, 102)
