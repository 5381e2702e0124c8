"""Further runs: which rows are taken, and what counts as a difference between two runs of one case."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of
from norms import layernorm, layernorm_bwd

from verify_norm.checks.relations.rerun import (
    NearbyError,
    cheap,
    differences,
    has_rows,
    nearby,
    other_shape,
    rerun,
    slow,
    taken,
)
from verify_norm.core.spec import CaseSpec


def test_a_further_run_has_the_truth_of_the_run_where_its_values_and_contract_are_the_same():
    run = run_of(layernorm(), CaseSpec((5, 3)), "layernorm_fwd")
    case, x = run.case, {"x": 2 * run.case.exact["x"]}
    coarse = replace(run.kernel, contract=replace(run.kernel.contract, products="tf32"))
    assert rerun(run).case.expected == {}
    assert rerun(run, truth=True).case.expected["y"] is case.expected["y"]
    other = rerun(run, x, truth=True).case.expected["y"]
    assert (other.value != case.expected["y"].value).any()
    wider = rerun(replace(run, kernel=coarse), truth=True).case.expected["y"]
    assert (wider.delta > case.expected["y"].delta).all()
    half = rerun(run, spec=replace(case.spec, dtype="bfloat16"), truth=True).case.expected["y"]
    assert half.dtype == "bfloat16"


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


@pytest.mark.parametrize(
    ("spec", "further", "left_out"),
    [
        (CaseSpec((8, 512), further=("calls",)), 0.0, ()),  # so few elements always run again
        (CaseSpec((8, 513), further=("calls", "memory", "power")), 0.0, ("memory", "calls")),
        (CaseSpec((8, 513), further=("calls",)), 10.0, ()),
        (CaseSpec((8, 513), further=("determinism", "effects"), batch=16), 0.0, ("effects",)),
    ],
)
def test_a_large_case_runs_again_if_its_run_was_fast(spec, further, left_out):
    run = replace(run_of(layernorm(), spec), seconds=1.0, further=further)
    assert slow(run) == left_out
    assert cheap(run) is not bool(left_out)


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_another_shape_is_one_that_the_kernel_takes(variant):
    """More rows, longer ones, or both, from the case's variant on; a smaller case would find what a larger one left."""
    shapes = {"rows": (9, 6), "length": (4, 13), "both": (9, 13)}
    order = [*shapes, *shapes][variant : variant + 3]
    spec = CaseSpec((4, 6), variant=variant)
    for refused in range(4):
        none = {shapes[way] for way in order[:refused]}
        run = run_of(layernorm(), spec)
        run = replace(
            run, kernel=replace(run.kernel, unsupported=lambda s, none=none: "no" if s.shape in none else None)
        )
        other = other_shape(run)
        assert (other and other.shape) == (shapes[order[refused]] if refused < 3 else None)
        assert other is None or other.seed != spec.seed


def test_the_taken_rows_bring_their_statistics_and_not_the_parameters():
    run = run_of(layernorm_bwd(), CaseSpec((4, 3, 5)), "layernorm_bwd")  # 12 rows, three for each of the first four
    some, exact = taken(run.case, np.array([2, 0])), run.case.exact
    assert (some["x"] == exact["x"][[2, 0]]).all()
    assert some["rstd"].tolist() == [*exact["rstd"][6:9], *exact["rstd"][:3]]
    assert some["weight"] is exact["weight"]


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("rmsnorm_fwd", {"shape": (4, 5)}, True),
        ("rmsnorm_fwd", {"shape": (1, 5)}, False),
        ("rmsnorm_fwd", {"shape": (5,)}, False),
        ("rmsnorm_fwd", {"shape": (4, 5), "normalized_ndim": 2}, False),  # all of x is one row
        ("groupnorm_fwd", {"shape": (4, 6), "num_groups": 3}, True),
        ("rmsnorm_fwd", {"shape": (4, 0, 5)}, False),
    ],
)
def test_which_first_dimension_counts_rows(op, fields, expected):
    assert has_rows(run_of(lambda x: x, CaseSpec(**fields), op).case) == expected


def test_a_rerun_is_of_fresh_buffers_and_of_the_given_values():
    seen = []

    def kernel(x, weight, bias, eps, normalized_shape):
        seen.append(x.clone())
        x.zero_()  # which the next run must not see
        return layernorm()(seen[-1], weight, bias, eps, normalized_shape)

    run = run_of(kernel)
    again = rerun(run)
    assert list(differences(run, again, ("once", "again"))) == []
    assert torch.equal(*seen)
    doubled = rerun(run, {"x": 2 * run.case.exact["x"]})
    assert torch.equal(seen[2], 2 * seen[0])
    assert {d.output for d in differences(run, doubled, ("once", "doubled"))} == {"y", "mean", "rstd"}
    assert again.outputs["y"].ratio is None  # without the truth nothing is judged


def test_a_case_nearby_that_fails_says_why_and_one_that_is_not_offered_says_nothing():
    def few(x, weight, bias, eps, normalized_shape):
        if len(x) == 9:
            raise IndexError("row 8 is out of bounds")
        assert len(x) < 9, "more than nine rows are not supported"
        return layernorm()(x, weight, bias, eps, normalized_shape)

    run = run_of(few, CaseSpec((4, 8)))
    nine = {"x": np.zeros((9, 8))}
    with pytest.raises(NearbyError, match="row 8 is out of bounds"):
        nearby(run, nine, CaseSpec((9, 8)))
    picky = replace(run, kernel=replace(run.kernel, unsupported=lambda spec: "no"))
    with pytest.raises(NearbyError, match=r"^$"):
        nearby(picky, nine, CaseSpec((9, 8)))
    with pytest.raises(NearbyError, match=r"^$"):  # refused in words
        nearby(run, {"x": np.zeros((10, 8))}, CaseSpec((10, 8)))
