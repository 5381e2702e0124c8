"""Failures become small."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core import ways
from verify_norm.core.geometry import refusal
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.search.shrink import reduce

LARGE = CaseSpec(
    shape=(3, 17, 2, 300), dtype="bfloat16", weight_dtype="float32", normalized_ndim=2, eps=1e-3, data="heavy",
    offset=1e4, log2_scale=-20, x_layout="transposed", dy_layout="every_other", bias=False, seed=77, batch=300,
)  # fmt: skip
CASES = {
    "anything": (lambda s: True, CaseSpec(shape=(1,))),
    "more than 40 columns": (lambda s: s.shape[-1] > 40, CaseSpec(shape=(41,))),
    "dy not contiguous": (lambda s: s.dy_layout != "contiguous", CaseSpec(shape=(1,), dy_layout="every_other")),
    "a batch": (lambda s: s.batch >= 256 and len(s.shape) > 1, CaseSpec(shape=(1, 1), batch=256)),
    "two rows": (lambda s: len(s.shape) > 1 and s.shape[0] > 1, CaseSpec(shape=(2, 1))),
    "bfloat16 at an offset": (
        lambda s: s.dtype == "bfloat16" and s.offset >= 100,
        CaseSpec(shape=(1,), dtype="bfloat16", offset=100.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_case_is_found(name):
    fails, smallest = CASES[name]
    assert reduce(LARGE, OPS["layernorm_bwd"], fails) == smallest


def test_the_way_that_matters_is_named_and_others_are_not():
    op = OPS["layernorm_fwd"]
    drawn = CaseSpec((3, 40), further=("modes", "calls"), mode=ways.QUICK, call=ways.MANY, called=ways.AS_IN_INFERENCE)

    def under_autocast(spec):
        return "modes" in spec.further and spec.mode in ("", ways.QUICK, ways.AUTOCAST)

    assert reduce(drawn, op, under_autocast, "modes") == CaseSpec((1,), mode=ways.AUTOCAST)
    named = replace(drawn, mode=ways.AUTOCAST)
    assert reduce(named, op, under_autocast, "modes") == CaseSpec((1,), mode=ways.AUTOCAST)
    assert reduce(named, op, lambda spec: True, "modes") == CaseSpec((1,))  # as of an effect that any call has
    assert reduce(named, op, lambda spec: True, "accuracy") == CaseSpec((1,))


def test_groups_stay_divisible_and_shrink():
    spec = CaseSpec(shape=(5, 24, 7, 3), num_groups=8, seed=3)
    seen = []

    def fails(candidate):
        seen.append(candidate)
        return candidate.shape[1] // candidate.num_groups > 1

    smallest = reduce(spec, OPS["groupnorm_bwd"], fails)
    assert smallest == CaseSpec(shape=(1, 2), num_groups=1)
    assert all(c.shape[1] % c.num_groups == 0 and len(c.shape) >= 2 for c in seen)
    assert len(seen) == len(set(seen))


def test_channels_keep_a_variance_or_running_statistics():
    spec = CaseSpec(
        shape=(3, 4, 5, 2),
        training=False,
        momentum=0.5,
        x_layout="channels_last",
        data="zero",
        weight_data="zero",
        seed=9,
    )
    seen = []

    def fails(candidate):
        seen.append(candidate)
        return True

    op = OPS["batchnorm_fwd"]
    assert reduce(spec, op, fails) == CaseSpec(shape=(1, 1), training=False)
    assert reduce(replace(spec, training=True, running=False), op, fails) == CaseSpec(shape=(2, 1))
    assert not any(refusal(candidate, op) for candidate in seen)
    assert reduce(spec, op, lambda s: np.prod(s.shape) // s.shape[1] > 6) == CaseSpec(shape=(7, 1))


def test_where_a_special_value_is_shrinks_away_unless_it_matters():
    spec = CaseSpec((4, 6), special="-inf", special_in="dy", special_at="rows", dy_data="ramp", weight_data="one")

    def shrunk(op, fails):
        return reduce(spec, OPS[op], fails)

    assert shrunk("layernorm_bwd", lambda s: s.special) == CaseSpec((1,), special="-inf")
    in_dy = CaseSpec((1,), special="-inf", special_in="dy")
    assert shrunk("layernorm_bwd", lambda s: s.special and s.special_in == "dy") == in_dy
    assert shrunk("layernorm_bwd", lambda s: s.dy_data == "ramp") == CaseSpec((1,), dy_data="ramp")
    weight = replace(spec, special_in="weight")
    assert all(s.weight for s in _tried(weight, "rmsnorm_bwd") if s.special_in == "weight" and s.special)


def _tried(spec, op):
    tried = []
    reduce(spec, OPS[op], lambda s: tried.append(s) or bool(s.special))
    return tried


def test_an_empty_x_keeps_no_special_value():
    spec = CaseSpec(shape=(2, 3), special="nan")
    assert reduce(spec, OPS["layernorm_fwd"], lambda s: s.special is not None) == CaseSpec(shape=(1,), special="nan")


def test_what_only_fails_as_it_is_stays():
    assert reduce(LARGE, OPS["layernorm_bwd"], lambda s: False) == LARGE
    assert reduce(replace(LARGE, seed=0), OPS["layernorm_bwd"], lambda s: False) == replace(LARGE, seed=0)
