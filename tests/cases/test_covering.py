"""The covering array: all possible pairs of choices meet, and what counts as a meeting."""

from dataclasses import replace
from math import prod

import pytest

from verify_norm.cases import covering
from verify_norm.cases.corners import corners
from verify_norm.cases.covering import Pairs
from verify_norm.core.geometry import refusal
from verify_norm.core.ops import OPS
from verify_norm.core.spec import LAYOUTS, CaseSpec

DTYPES = ("float32", "float16", "bfloat16")
SOME = ["rmsnorm_fwd", "layernorm_bwd", "add_rmsnorm_bwd", "groupnorm_bwd", "instancenorm_fwd", "batchnorm_fwd"]
REPEATED = "expanded_middle", "expanded_inner"  # of three dimensions and more
# Values that no case has together: each a part of the name of one value, and of the other.
IMPOSSIBLE = (
    (" weight", "no weight"),  # the layout of what is not there
    (" bias", "bias False"),
    (" dresidual_out", "dresidual_out False"),
    (" running_", "training without running statistics"),
    ("mode in evaluation, without", "training"),  # none are kept
    ("mode in evaluation, without", "evaluation"),
    ("special", "≤ 0"),  # no element
    ("rows", "0 leading dimensions"),  # there is one row
    ("channels_last", "0 leading dimensions"),
    ("positions", "0 spatial dimensions"),
    ("≤ 1", "0 spatial dimensions"),
    ("channels_last", "0 spatial dimensions"),
    ("channels_last", "positions ≤ 1"),
    ("float32", "float32 weights"),  # that is the type of x
    ("float16", "float16 weights"),
    ("bfloat16", "bfloat16 weights"),
    ("float16", "bfloat16 weights"),  # weights narrower than x, or of x's size, are those of a float32 x
    ("bfloat16", "float16 weights"),
    ("special", "special None"),
    ("transposed", "1 normalized dimensions"),
    ("slice", "0 leading dimensions"),
    ("slice", "0 spatial dimensions"),
    ("swapped", "0 leading dimensions"),  # of three dimensions and more
    ("swapped", "0 spatial dimensions"),
    *((layout, f"0 {which} dimensions") for layout in REPEATED for which in ("leading", "spatial")),
    ("channel_slice", "positions ≤ 1"),
    ("far", "samples ≤ 1"),  # a stride of one sample
    ("under autocast", "dtype float16"),  # it is tried in one 16-bit type
    ("vmap", "dtype float16"),  # torch's own norms round once more there
    ("vmap", "dtype bfloat16"),
    ("vmap", "float16 weights"),
    ("vmap", "float32 weights"),  # those of a float32 x are of x's type
    ("≤ 1", "≤ 1"),  # x̂ is 0, or there is no variance
)


def unmet(pairs):
    """Return the names of the values of each pair that has not met."""
    count = range(len(pairs.values))
    return [(pairs.values[i][1], pairs.values[j][1]) for i in count for j in range(i) if pairs.missing[i] >> j & 1]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("op", SOME)
def test_all_possible_pairs_meet(op):
    table = tuple(corners(OPS[op], DTYPES))
    array, pairs = covering.array(OPS[op], DTYPES, table), Pairs(OPS[op], DTYPES)
    for spec in table:
        pairs.enter(spec)
    assert pairs.met < 0.6 * array.pairs  # the table alone
    for spec in array.rows:
        before = pairs.met
        pairs.enter(spec)
        assert pairs.met > before  # no case is there for nothing
    assert pairs.met == array.pairs
    left = unmet(pairs)
    assert not [
        p for p in left if not any((a in p[0] and b in p[1]) or (a in p[1] and b in p[0]) for a, b in IMPOSSIBLE)
    ]
    assert len(left) < 0.015 * array.pairs
    assert len(array.rows) == len(set(array.rows)) < 550
    assert not [spec for spec in array.rows if refusal(spec, OPS[op]) or prod(spec.shape) > covering.ELEMENTS]


@pytest.mark.slow
def test_types_and_layouts_meet_every_length_and_option_by_threes():
    """A kernel is compiled for a type, a length and its options: here without the table."""
    rows = covering.array(OPS["layernorm_bwd"], DTYPES, ()).rows
    shown = [spec for spec in rows if abs(spec.log2_scale) <= 8 and spec.data not in ("zero", "constant")]
    for dtype in DTYPES:
        for low, high in ((2, 31), (32, 1024), (1025, 5000)):
            met = [s for s in shown if s.dtype == dtype and low <= prod(s.shape[-s.normalized_ndim :]) <= high]
            assert {s.weight for s in met} == {s.bias for s in met} == {True, False}
            assert 0.0 in {s.eps for s in met}
            assert {1e-12, 3e-8} & {s.eps for s in met}
            assert dtype == "float32" or {s.weight_dtype for s in met} >= {None, "float32"}
    layouts = {(s.x_layout, s.dy_layout) for s in shown}  # x without a variance hides where dy is
    placed = set(LAYOUTS) - {"contiguous", "loose"}  # which other layouts are too, where they do not apply to the shape
    assert layouts >= {(x, dy) for x in placed - {"scalar", "expanded_last", "expanded_inner"} for dy in placed}


def test_what_hides_the_rest_does_not_let_it_meet():
    pairs = Pairs(OPS["layernorm_bwd"], DTYPES)
    usual = CaseSpec((4, 64), x_layout="transposed", further=())

    def met(spec):
        return {
            tuple(sorted((pairs.values[a][1], pairs.values[b][1])))
            for a, others in pairs.of(spec)
            for b in range(len(pairs.values))
            if others >> b & 1 and a != b
        }

    assert ("N ≤ 1024", "transposed x") in met(usual)
    zeros = replace(usual, data="zero")
    assert ("N ≤ 1024", "data zero") in met(zeros)
    assert ("N ≤ 1024", "transposed x") not in met(zeros)
    assert not met(replace(zeros, eps=1e3))
    short, placed, plain = (pairs.number[name] for name in ("N ≤ 1024", "transposed x", "contiguous x"))
    assert pairs.gain(usual, short, plain) == pairs.gain(usual, plain, short) == 0
    assert pairs.most((usual, zeros), short, plain) is None
    assert pairs.most((zeros, usual), short, placed) == usual
    before, gain = pairs.left, pairs.gain(usual, short, placed)
    pairs.enter(usual)
    assert pairs.left == before - gain < before
    assert not pairs.gain(usual, short, placed)


def test_a_layout_that_does_not_apply_is_contiguous():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    flat = [pairs.values[a][1] for a, _ in pairs.of(CaseSpec((64,), x_layout="transposed", further=()))]
    assert "contiguous x" in flat
    assert "transposed x" not in flat
