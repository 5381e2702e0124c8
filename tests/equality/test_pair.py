"""Two calls of one case compared bit for bit."""

import numpy as np
import pytest

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Output
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.pair import Returned, called, gaps, judged
from verify_norm.running.isolate import InProcess

OP = OPS["layernorm_fwd"]


def returned(dtype="float32", **outputs):
    arrays = {name: np.array(values, dtype=float) for name, values in outputs.items()}
    return Returned({name: Output(dtype, values.shape, values, None) for name, values in arrays.items()})


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 2**-22], "y[1] is 2 from A, 2.00000024 from B, 1 ULP apart"),
        ([1.0], [1 - 2**-24], "y[0] is 1 from A, 0.99999994 from B, 1 ULP apart"),
        ([0.0], [-0.0], "y[0] is 0 from A, -0 from B: the sign of 0 differs"),
        ([np.nan], [1.0], "y[0] is nan from A, 1 from B"),
        ([np.inf], [-np.inf], "y[0] is inf from A, -inf from B"),
        ([[1.0], [2.0]], [1.0, 2.0], "y is float32 of shape (2, 1) from A and float32 of shape (2,) from B"),
    ],
)
def test_a_gap_says_where_and_how_far(a, b, words):
    (gap,) = gaps(returned(y=a), returned(y=b), OP)
    assert gap.words == words
    (gap,) = gaps(returned(mean=[0.0], y=a), returned(mean=[0.0], y=b), OP)
    assert gap.output == "y"


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [np.inf, -np.inf, 1.5]])
def test_equal_bits_have_no_gap(values):
    assert not list(gaps(returned(y=values), returned(y=values), OP))


def test_nan_equals_nan_of_any_sign():
    assert not list(gaps(returned(y=[np.nan]), returned(y=[-np.nan]), OP))


def test_a_statistic_may_have_a_dimension_of_one():
    assert not list(gaps(returned(mean=[[1.0], [2.0]]), returned(mean=[1.0, 2.0]), OP))
    (gap,) = gaps(returned(mean=[[1.0], [2.0]]), returned(mean=[1.0, 3.0]), OP)
    assert gap.words == "mean[1, 0] is 2 from A, 3 from B, 4.19e+06 ULP apart"


def test_presence_and_type_are_compared():
    (gap,) = gaps(returned(y=[1.0]), returned("bfloat16", y=[1.0]), OP)
    assert "float32 of shape (1,) from A and bfloat16 of shape (1,) from B" in gap.words
    (gap,) = gaps(Returned({"y": None}), returned(y=[1.0]), OP)
    assert gap.words == "y is None from A and float32 of shape (1,) from B"
    assert not list(gaps(Returned({"y": None}), Returned({"y": None}), OP))
    assert not list(gaps(Returned(problem="ValueError: a"), Returned(problem="KeyError: b"), OP))


def test_a_gap_counts_its_elements():
    (gap,) = gaps(returned(y=[1.0, 0.0, 3.0]), returned(y=[1.0, -0.0, 3.0 + 2**-20]), OP)
    assert (gap.count, gap.size, gap.most, gap.zeros) == (2, 3, 4.0, False)


def test_both_errors_are_against_the_truth():
    spec = CaseSpec((1, 2), weight=False, bias=False, data="alternating", eps=0.0)
    (gap,) = gaps(returned(y=[[1.0, -1.0]]), returned(y=[[1.0 + 2**-22, -1.0]]), OP)
    element = judged(gap, spec, OP, Contract()).element
    assert (element.a_error, element.b_error, element.want) == (0.0, 2.0, element.a)


def test_a_call_says_why_there_is_nothing():
    def raises(x, weight, bias, eps, normalized_shape):
        raise ValueError("no")

    def run(**fields):
        return called(InProcess(Kernel("k", "layernorm_fwd", run=raises, **fields), "cpu"), CaseSpec((2, 3)), 1.0)

    assert run().problem == "ValueError: no"
    assert run(unsupported=lambda spec: "never").refused == "never"
