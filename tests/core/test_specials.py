"""The special value of a spec: its input, its place, and its words."""

from dataclasses import replace

import pytest

from verify_norm.core import geometry
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.core.specials import special_lost, special_words, specials


@pytest.mark.parametrize(
    ("special", "op", "words"),
    [
        ({}, None, ""),
        ({"special": "nan"}, None, "nan in the first element of x"),
        ({"special": "inf", "special_in": "dy", "special_at": "rows"}, "rmsnorm_bwd", "inf in every other row of dy"),
        ({"special": "nan", "special_at": "last"}, "add_rmsnorm_bwd", "nan in the last element of residual_out"),
        ({"special": "nan", "special_at": "middle"}, "rmsnorm_bwd", "nan in the middle element of x"),
    ],
)
def test_a_special_value_and_its_place_in_words(special, op, words):
    assert special_words(CaseSpec((2, 3), **special), op and OPS[op]) == words


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("rmsnorm_bwd", ["dy", "x", "weight"]),  # no saved statistic
        ("rmsnorm_fp8_fwd", ["x", "weight"]),  # its scale is a single number
        ("modulate_rmsnorm_fwd", ["x", "weight", "scale", "shift"]),
        ("batchnorm_fwd", ["x", "weight", "bias", "running_mean", "running_var"]),
    ],
)
def test_which_inputs_may_hold_a_special_value(op, names):
    assert specials(OPS[op]) == names


def test_a_special_value_needs_an_input_with_elements():
    spec = CaseSpec((0, 3), special="nan", special_in="scale")
    assert geometry.refusal(spec, OPS["modulate_rmsnorm_fwd"]) == "a scale without elements holds no nan"
    single = "a scale that is None or not used holds no nan"
    assert geometry.refusal(replace(spec, shape=(2, 3)), OPS["rmsnorm_fp8_fwd"]) == single
    assert special_lost(CaseSpec((2, 3), bias=False, special_in="bias")) is False  # there is none to lose
    both = CaseSpec((2, 3), special="nan+inf", special_at="row")
    assert special_words(both) == "nan and inf in all of the middle row of x"
