"""The tiny cases in which any four choices meet on which a kernel dispatches."""

from dataclasses import replace
from itertools import combinations, product
from math import prod

import pytest

from verify_norm.cases import dispatch
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.geometry import refusal
from verify_norm.core.ops import OPS


@pytest.mark.parametrize("op", OPS)
def test_the_cases_are_few_small_and_of_their_operator(op):
    cases = dispatch.tiny(OPS[op], KERNEL_DTYPES)
    assert len(cases) == len(set(cases)) <= 101
    assert max(prod(spec.shape) for spec in cases) < 2**15
    assert [spec for spec in cases if refusal(spec, OPS[op])] == []
    assert {spec.dtype for spec in cases} == set(KERNEL_DTYPES)
    assert not any(spec.further for spec in cases)


def choices(spec):
    """What a kernel may dispatch on, by name."""
    kind = "none" if not spec.weight else "alike" if spec.weight_dtype in (None, spec.dtype) else "other"
    names = {
        "dtype": spec.dtype,
        "weight": kind,
        "bias": spec.bias,
        "layout": (spec.x_layout, spec.residual_out_layout),
    }
    names |= {"samples": spec.shape[0], "size": spec.shape[-1], "mode": (spec.training, spec.running)}
    return names | {"weight_offset": spec.weight_offset}


@pytest.mark.parametrize(
    "op", ["layernorm_bwd", "add_rmsnorm_bwd", "groupnorm_fwd", "instancenorm_fwd", "batchnorm_bwd"]
)
def test_any_four_choices_meet(op):
    cases = [choices(spec) for spec in dispatch.tiny(OPS[op], KERNEL_DTYPES)]
    values = {name: {case[name] for case in cases} for name in cases[0]}
    values = {name: some for name, some in values.items() if len(some) > 1}
    assert set(values) >= {"dtype", "weight", "layout", "samples", "size"}
    assert ("mode" in values) == (OPS[op].view == "channels")
    for names in combinations(values, 4):
        met = {tuple(case[name] for name in names) for case in cases}
        assert met == set(product(*(values[name] for name in names))), names


def test_positions_are_few_and_many_and_samples_one_and_several():
    cases = dispatch.tiny(OPS["instancenorm_fwd"], KERNEL_DTYPES)
    assert {prod(spec.shape[2:]) >= 1024 for spec in cases} == {True, False}
    assert {spec.shape[0] for spec in cases} == {1, 5}
    assert {(len(spec.shape), spec.x_layout, spec.dtype) for spec in cases} >= {
        (rank, layout, dtype)
        for rank in (4, 5)
        for layout in ("contiguous", "channels_last")
        for dtype in KERNEL_DTYPES
    }


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "layernorm_bwd", "qk_norm_rope_fwd"])
def test_each_length_of_a_model_meets_any_other_choice(op):
    """A kernel may have a path of its own for a hidden size of 3840, and go wrong there without a bias alone."""
    found = dispatch.lengths(OPS[op], KERNEL_DTYPES)
    assert len(found) == len(set(found)) <= 3 * len(dispatch.HIDDEN + dispatch.HEADS)
    assert [spec for spec in found if refusal(spec, OPS[op]) or spec.further] == []
    assert sum(prod(spec.shape) for spec in found) < 5 * 2**18
    cases = [choices(spec) for spec in found]
    values = {name: {case[name] for case in cases} for name in cases[0]}
    assert values["size"] == {*dispatch.HIDDEN, *dispatch.HEADS}
    for name in ("dtype", "weight", "layout", "bias", "weight_offset"):
        met = {(case["size"], case[name]) for case in cases}
        assert len(met) == len(values["size"]) * len(values[name]), name
    assert all(len(spec.shape) == (4 if spec.shape[-1] in dispatch.HEADS else 2) for spec in found)


@pytest.mark.parametrize("op", ["groupnorm_fwd", "batchnorm_bwd", "instancenorm_fwd"])
def test_each_side_and_each_number_of_channels_of_a_model_meets_any_other_choice(op):
    found = dispatch.lengths(OPS[op], KERNEL_DTYPES)
    assert len(found) == len(set(found)) <= 4 * len(dispatch.SIDES + dispatch.WIDTHS)
    assert [spec for spec in found if refusal(spec, OPS[op]) or spec.further] == []
    assert sum(prod(spec.shape) for spec in found) < 2**20
    cases = [{**choices(spec), "size": spec.shape[1:]} for spec in found]
    values = {name: {case[name] for case in cases} for name in cases[0]}
    sizes = {(dispatch.CHANNELS, side, side) for side in dispatch.SIDES}
    assert values["size"] == sizes | {(width, 2, 3) for width in dispatch.WIDTHS}
    for name in ("dtype", "weight", "layout", "bias", "mode"):
        assert len({(case["size"], case[name]) for case in cases}) == len(values["size"]) * len(values[name]), name
    of_widths = {spec.num_groups for spec in found if spec.shape[1] in dispatch.WIDTHS}
    assert of_widths == {32 if "num_groups" in OPS[op].attrs else None}


def test_many_rows_and_a_long_row_are_beyond_usual_thresholds_without_weight_or_bias():
    def rows(spec):
        return prod(spec.shape[: -spec.normalized_ndim])

    cases = dispatch.large(OPS["layernorm_bwd"], KERNEL_DTYPES)
    many, long = ([s for s in cases if rows(s) > 65535], [s for s in cases if prod(s.shape) // rows(s) > 32768])
    for some in (many, long):
        assert {spec.weight for spec in some} == {spec.bias for spec in some} == {True, False}
        assert {spec.dtype for spec in some} == set(KERNEL_DTYPES)


def test_a_seed_gives_other_data_for_the_same_choices():
    one, two = (dispatch.tiny(OPS["rmsnorm_fwd"], KERNEL_DTYPES, seed) for seed in (0, 2**64 - 1))
    assert {spec.seed for spec in one}.isdisjoint(spec.seed for spec in two)
    assert [replace(spec, seed=0) for spec in one] == [replace(spec, seed=0) for spec in two]
    assert max(spec.seed for spec in two) < 2**64


@pytest.mark.parametrize("op", OPS)
def test_larger_cases_are_of_their_operator_and_leave_time(op):
    cases = dispatch.large(OPS[op], KERNEL_DTYPES)
    assert len(cases) == len(set(cases)) <= 64
    assert sum(prod(spec.shape) for spec in cases) < 2**24
    assert [spec for spec in cases if refusal(spec, OPS[op])] == []
    assert {spec.dtype for spec in cases} == set(KERNEL_DTYPES)


def large_choices(spec, op):
    """What a kernel may dispatch on beyond a threshold of size, by name."""
    apart = {spec.x_layout, spec.dy_layout if OPS[op].forward else spec.x_layout} & {"transposed", "expanded"}
    layout = "apart" if apart else (spec.x_layout, spec.dy_layout if OPS[op].forward else None)
    names = {**choices(spec), "layout": layout, "normalized": spec.normalized_ndim}
    groups = {1: "one", spec.shape[1 if spec.num_groups else 0]: "all"}.get(spec.num_groups, "some")
    names |= {"groups": groups, "samples": None}
    if OPS[op].view == "rows":
        names["samples"] = len(spec.shape) - spec.normalized_ndim
        rows, length = prod(spec.shape[: -spec.normalized_ndim]), prod(spec.shape[-spec.normalized_ndim :])
        return names | {"size": (rows > 1, rows > 4096, length > 8000), "tile": length % 8 == 0}
    return names | {"size": spec.shape}


@pytest.mark.parametrize(
    "op", ["layernorm_bwd", "add_rmsnorm_bwd", "groupnorm_bwd", "instancenorm_bwd", "batchnorm_bwd"]
)
def test_a_large_size_meets_any_two_choices(op):
    """A kernel may go wrong beyond a threshold of size, and there without a weight or in one layout alone."""
    cases = [large_choices(spec, op) for spec in dispatch.large(OPS[op], KERNEL_DTYPES)]
    values = {name: {case[name] for case in cases} for name in cases[0]}
    others = [name for name, some in values.items() if len(some) > 1 and name != "size"]
    assert {"dtype", "weight", "layout"} <= set(others)
    for names in combinations(others, 2):
        met = {(case["size"], *(case[name] for name in names)) for case in cases}
        if not set(names) <= {"normalized", "samples"}:  # one choice of three
            assert len(met) == len(values["size"]) * prod(len(values[name]) for name in names), names


@pytest.mark.parametrize("array", [dispatch.tiny, dispatch.large])
def test_eps_is_none_that_a_path_of_a_kernel_would_have(array):
    assert {spec.eps for spec in array(OPS["groupnorm_fwd"], KERNEL_DTYPES)} == {dispatch.EPS}


def test_gradients_of_many_rows_are_transposed_and_expanded():
    cases = [spec for spec in dispatch.large(OPS["rmsnorm_bwd"], KERNEL_DTYPES) if spec.shape[0] > 4096]
    assert {"contiguous", "row_strided", "transposed"} <= {spec.dy_layout for spec in cases}
    assert any(spec.dy_layout == "expanded" for spec in dispatch.large(OPS["rmsnorm_bwd"], KERNEL_DTYPES))
