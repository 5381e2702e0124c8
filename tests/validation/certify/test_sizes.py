"""The sizes of terms: they bound the results, and the condition of a mean by hand."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.validation.certify import exact, problems, sizes


@pytest.mark.slow
def test_sizes_bound_the_results():
    for problem in problems.every("groupnorm"):
        truth, mine = exact.evaluate(problem), sizes.Sizes(problem)
        for kind, size in (("values", mine.values()), ("gradients", mine.gradients())):
            for name in set(truth[kind]) & set(size):
                room = 3 if kind == "values" else 4 * np.sqrt(problem.dy.size)  # of as many terms, of either sign
                assert (np.abs(truth[kind][name].astype(float)) <= room * size[name]).all(), (problem.family, name)


def by_hand(op="layernorm"):
    """One row (1, 3), so xc = ∓1; with eps = 3 rstd is ½ of LayerNorm."""
    problem = next(p for p in problems.every(op) if p.family == "x alone")
    args = dict.fromkeys(problem.args) | {"x": np.array([[1.0, 3.0]])}
    tangents = dict.fromkeys(args) | {"x": np.array([[0.0, 4.0]])}
    options = problem.options | {"eps": 3.0}
    return replace(
        problem, args=args, dy=np.array([[2.0, 0.0]]), tangents=tangents, options=options, index=np.array([[0, 1]])
    )


def test_sizes_by_hand():
    mine = sizes.Sizes(by_hand())
    values, gradients = mine.values(), mine.gradients()
    assert (values["y"].tolist(), values["mean"].tolist(), values["rstd"].tolist()) == ([0.5, 0.5], [2.0], [0.5])
    # r·max(|dy|, |x̂|·mean|dy x̂|, mean|dy|) = ½·max(2, ½·½, 1), and ½·max(0, ½·½, 1)
    assert gradients["dx"].tolist() == [1.0, 0.5]
    assert (gradients["dweight"].tolist(), gradients["dbias"].tolist()) == ([1.0, 0.0], [2.0, 0.0])
    assert mine.jvp()["y"].tolist() == [1.0, 2.0]


def test_the_condition_is_the_offset_over_the_scale():
    assert sizes.condition(by_hand()) == 1.0  # ½·2
    assert sizes.condition(by_hand("rmsnorm")) == 0.0  # which subtracts nothing
    far = by_hand()
    far = replace(far, args=far.args | {"x": far.args["x"] + 1000.0})
    assert sizes.condition(far) == 501.0
