"""Other values for the same shape: they change neither the shape nor the types, and meet what random cases meet."""

from dataclasses import fields, replace
from itertools import pairwise
from random import Random

import pytest

from verify_norm.cases import values
from verify_norm.core import geometry, ways
from verify_norm.core.ops import OPS
from verify_norm.core.spec import COTANGENTS, FAMILIES, WEIGHTS, CaseSpec

BUILT = CaseSpec(
    (3, 4, 8),
    "bfloat16",
    weight_dtype="float32",
    x_layout="row_strided",
    dy_layout="transposed",
    bias=False,
    special="nan",
    special_in="dy",
    special_at="row",
    further=("calls", "modes"),
    mode=ways.QUICK,
    variant=7,
    batch=9,
)
ANEW = {"eps", "data", "offset", "log2_scale", "dy_data", "dy_log2_scale", "weight_data", "seed", "poison"}
PLACES = {"special", "special_in", "special_at"}
ABSENT = {"further", "mode", "variant", "batch"}


def differing(one, other):
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


def others(spec, op, count):
    return list(values.others(spec, OPS[op], range(count)))


def test_others_differ_in_their_values_alone_and_make_no_further_run():
    some = others(BUILT, "layernorm_bwd", 300)
    assert set.union(*(differing(BUILT, one) for one in some)) == ANEW | PLACES | ABSENT
    assert {(one.further, one.mode, one.variant, one.batch) for one in some} == {((), "", 0, 0)}
    assert {one.data for one in some} == set(FAMILIES)
    assert {one.dy_data for one in some} == set(COTANGENTS)
    assert {one.weight_data for one in some} == set(WEIGHTS)
    assert {one.poison for one in some} == {"nan", "finite"}
    assert len({one.seed for one in some}) > 290
    assert max(one.seed for one in some) < values.SEEDS
    assert all(geometry.refusal(one, OPS["layernorm_bwd"]) is None for one in some)


def test_a_special_value_is_drawn_anew():
    some = others(BUILT, "layernorm_bwd", 300)
    special = [one for one in some if one.special]
    assert 15 < len(special) < 60
    assert {one.special_in for one in special} == {"x", "dy", "weight"}  # there is no bias
    assert {(one.special_in, one.special_at) for one in some if not one.special} == {("x", "first")}


def test_a_forward_has_no_values_of_dy():
    assert {one.dy_data for one in others(CaseSpec((3, 8)), "rmsnorm_fwd", 60)} == {"random"}


def test_others_are_the_same_each_time_and_those_of_other_numbers_and_cases_differ():
    op = OPS["layernorm_bwd"]
    some = others(BUILT, "layernorm_bwd", 6)
    assert others(BUILT, "layernorm_bwd", 6) == some
    assert list(values.others(BUILT, op, range(4, 6))) == some[4:]
    assert len(set(some)) == 6
    assert {one.seed for one in others(replace(BUILT, seed=1), "layernorm_bwd", 6)}.isdisjoint(o.seed for o in some)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sizes_are_those_of_the_type(dtype):
    chosen = [values.chosen(Random(seed).choice, OPS["layernorm_bwd"], dtype) for seed in range(200)]
    assert {one["log2_scale"] for one in chosen} == set(values._SCALES[dtype])
    assert {one["dy_log2_scale"] for one in chosen} == set(values._DY_SCALES[dtype])
    assert {one["offset"] for one in chosen} == set(values._OFFSETS)
    assert {one["eps"] for one in chosen} == set(values._EPS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_between_two_scales_no_path_of_a_kernel_stays_unseen(dtype):
    scales = sorted(scale for scale in set(values._SCALES[dtype]) if -70 <= scale <= 60)  # whose squares are judged
    assert max(two - one for one, two in pairwise(scales)) <= 14
    gradients = sorted(set(values._DY_SCALES[dtype]))
    assert max(two - one for one, two in pairwise(gradients)) <= 25
