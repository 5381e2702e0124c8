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
    cases = dispatch.array(OPS[op], KERNEL_DTYPES)
    assert len(cases) == len(set(cases)) <= 81
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
    cases = [choices(spec) for spec in dispatch.array(OPS[op], KERNEL_DTYPES)]
    values = {name: {case[name] for case in cases} for name in cases[0]}
    values = {name: some for name, some in values.items() if len(some) > 1}
    assert set(values) >= {"dtype", "weight", "layout", "samples", "size"}
    assert ("mode" in values) == (OPS[op].view == "channels")
    for names in combinations(values, 4):
        met = {tuple(case[name] for name in names) for case in cases}
        assert met == set(product(*(values[name] for name in names))), names


def test_positions_are_few_and_many_and_samples_one_and_several():
    cases = dispatch.array(OPS["instancenorm_fwd"], KERNEL_DTYPES)
    assert {prod(spec.shape[2:]) >= 1024 for spec in cases} == {True, False}
    assert {spec.shape[0] for spec in cases} == {1, 5}


def test_a_seed_gives_other_data_for_the_same_choices():
    one, two = (dispatch.array(OPS["rmsnorm_fwd"], KERNEL_DTYPES, seed) for seed in (0, 2**64 - 1))
    assert {spec.seed for spec in one}.isdisjoint(spec.seed for spec in two)
    assert [replace(spec, seed=0) for spec in one] == [replace(spec, seed=0) for spec in two]
    assert max(spec.seed for spec in two) < 2**64
