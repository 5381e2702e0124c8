"""Failures become small."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core import ways
from verify_norm.core.geometry import refusal
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.search import shrink
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


@pytest.mark.parametrize(
    ("op", "spec", "shapes"),
    [
        # Rows may lose dimensions at the front; normalized dimensions may become one.
        ("layernorm_fwd", CaseSpec((41, 6, 5), normalized_ndim=2), [
            (41, 30), (6, 5), *((n, 6, 5) for n in (1, 2, 10, 20, 30, 40)), *((41, n, 5) for n in (1, 2, 3, 4, 5)),
            *((41, 6, n) for n in (1, 2, 3, 4))]),
        ("rmsnorm_fwd", CaseSpec((3, 2)), [(2,), (1, 2), (2, 2), (3, 1)]),
        ("rmsnorm_fwd", CaseSpec((2, 2, 2)), [(4, 2), (2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1)]),
        # Samples and channels stay, the number of channels in steps of the groups.
        ("groupnorm_fwd", CaseSpec((2, 24, 3), num_groups=4), [
            (2, 24), (1, 24, 3), *((2, n, 3) for n in (4, 8, 12, 20)), (2, 24, 1), (2, 24, 2)]),
        ("groupnorm_fwd", CaseSpec((1, 41), num_groups=1), [(1, n) for n in (1, 2, 10, 20, 30, 40)]),
        # BatchNorm's positions may become samples.
        ("batchnorm_fwd", CaseSpec((3, 2, 5)), [
            (15, 2), (3, 2), (1, 2, 5), (2, 2, 5), (3, 1, 5), *((3, 2, n) for n in (1, 2, 3, 4))]),
        ("batchnorm_fwd", CaseSpec((3, 1, 2)), [(6, 1), (3, 1), (1, 1, 2), (2, 1, 2), (3, 1, 1)]),
        ("batchnorm_fwd", CaseSpec((2, 0, 2)), [(0, 0), (2, 0), (1, 0, 2), (2, 0, 1)]),
        ("batchnorm_fwd", CaseSpec((2, 3)), [(1, 3), (2, 1), (2, 2)]),
    ],
)  # fmt: skip
def test_the_smaller_shapes_that_are_tried(op, spec, shapes):
    found = list(shrink._smaller(spec, OPS[op]))
    assert [shape for shape, _ in found] == shapes
    flat = spec.normalized_ndim > 1
    assert [ndim for _, ndim in found] == [1] * flat + [spec.normalized_ndim] * (len(found) - flat)


@pytest.mark.parametrize(
    ("op", "changes", "simpler"),
    [
        ("rmsnorm_fwd", {"batch": 41}, [{"batch": n} for n in (0, 10, 20, 30, 40)] + [{"batch": 0}]),
        ("rmsnorm_fwd", {"batch": 1}, [{"batch": 0}] * 2),
        ("rmsnorm_fwd", {"offset": -40.0, "eps": 0.5}, [{}, {"eps": 1e-5}, {"offset": 0.0}, {"offset": -4.0}]),
        ("rmsnorm_fwd", {"shape": (2, 2), "normalized_ndim": 2}, [{}]),
        ("rmsnorm_fwd", {"special": "nan", "special_in": "weight"}, [{}, {"special": None}, {"special_in": "x"}]),
        ("add_rmsnorm_bwd", {"special": "nan", "special_in": "residual_out"}, [{}, {"special": None}]),
        ("groupnorm_fwd", {"shape": (1, 6), "num_groups": 1}, [{}]),
        ("groupnorm_fwd", {"shape": (1, 6, 2, 3), "num_groups": 2}, [
            {}, {"num_groups": 1, "shape": (1, 3, 2, 3)}, {"num_groups": 1}]),
        ("groupnorm_fwd", {"shape": (1, 8), "num_groups": 4}, [
            {}, {"num_groups": 1, "shape": (1, 2)}, {"num_groups": 1},
            {"num_groups": 2, "shape": (1, 4)}, {"num_groups": 2}]),
        ("groupnorm_fwd", {"shape": (1, 6, 2), "num_groups": 3}, [
            {}, {"num_groups": 1, "shape": (1, 2, 2)}, {"num_groups": 1},
            {"num_groups": 2, "shape": (1, 4, 2)}, {"num_groups": 2}]),
    ],
)  # fmt: skip
def test_the_simpler_cases_that_are_tried(op, changes, simpler, monkeypatch):
    """Besides smaller shapes: smaller batches, fewer groups, defaults, and a smaller offset."""
    monkeypatch.setattr(shrink, "_smaller", lambda spec, op: [])
    spec = replace(CaseSpec((5,)), **changes)
    assert list(shrink._candidates(spec, OPS[op], "")) == [replace(spec, **one) for one in simpler]


def test_a_line_that_names_no_way_is_of_all_ways():
    """As one that is written by hand."""
    drawn = CaseSpec((3, 40), further=("modes",))
    fails = lambda spec: "modes" in spec.further and spec.mode in ("", ways.AUTOCAST)  # noqa: E731
    assert reduce(drawn, OPS["layernorm_fwd"], fails, "modes") == CaseSpec((1,), mode=ways.AUTOCAST)
