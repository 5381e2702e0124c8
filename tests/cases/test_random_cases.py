"""Random cases: each field has all of its values, each as often as it should."""

from random import Random

import pytest
from choices import drawn
from hypothesis import strategies as st

from verify_norm.cases import strategies
from verify_norm.cases import values as values_of
from verify_norm.cases.corner_lines import DROPOUTS, OUTPUT_SCALES, THIRD
from verify_norm.core import geometry, ways
from verify_norm.core.layouts import aliases
from verify_norm.core.ops import OPS
from verify_norm.core.spec import COTANGENTS, FAMILIES, WEIGHTS, CaseSpec
from verify_norm.core.tensors import WEIGHT, X

DTYPES = ("float32", "float16", "bfloat16")


def some(op, dtype, count=250):
    return drawn(strategies.specs(OPS[op], (dtype,), 2**8), count)


def values(specs, field):
    return {getattr(spec, field) for spec in specs}


def test_values_of_a_backward():
    specs = some("add_layernorm_bwd", "float32")
    assert values(specs, "data") == set(FAMILIES)
    assert values(specs, "dy_data") == set(COTANGENTS)
    assert values(specs, "weight_data") == set(WEIGHTS)
    assert values(specs, "weight_dtype") == {None, "float16", "bfloat16"}
    assert values(specs, "offset") == {0.0, 1.0, -10.0, 100.0, -1e3, 1e4}
    assert values(specs, "eps") == {1e-5, 1e-6, 1e-12, 1e-3, 1e-1, 0.0, 1e3, 1.5e-5, 3e-8, 2.0**-7}
    between = {-13, -20, -32, -45, -58, -70, 14, 26, 38, 49, 60}
    assert values(specs, "log2_scale") == {0, *between, -127, -140, 125, 128}
    assert values(specs, "dy_log2_scale") == {0, -12, 10, -36, 35, -60, 60}
    assert values(specs, "special") == {None, "nan", "inf", "-inf", "nan+inf"}
    assert values(specs, "special_at") == {"first", "middle", "last", "rows", "row"}
    assert values(specs, "alias") == {"", *aliases(OPS["add_layernorm_bwd"])}
    seeds = [spec.seed for spec in specs]
    assert 2**15 < max(seeds) <= 2**16
    assert all(spec.batch == 0 or spec.batch > spec.shape[0] for spec in specs)


def test_values_of_a_forward_in_a_narrow_type():
    specs = some("layernorm_fwd", "float16")
    assert values(specs, "weight_dtype") == {None, "float32"}
    assert values(specs, "log2_scale") == {0, -8, -12, -15, -20, 11, 16}
    assert values(specs, "dy_log2_scale") == {0, -12, 10, -20, 13}
    assert values(specs, "dy_data") == {"random"}
    assert values(specs, "dresidual_out") == {True}
    assert values(specs, "frozen") == {()}


USUAL = {  # a field, its usual value, and between which shares of the cases have it
    "weight": (True, 0.68, 0.85),
    "bias": (True, 0.68, 0.85),
    "dresidual_out": (True, 0.4, 0.6),
    "dy_data": ("random", 0.6, 0.8),
    "weight_data": ("random", 0.4, 0.65),
    "special": (None, 0.8, 0.95),
    "alias": ("", 0.85, 0.98),
    "batch": (0, 0.85, 0.99),
    "offset": (0.0, 0.2, 0.4),
}


def test_what_is_usual_is_drawn_more_often():
    specs = some("add_layernorm_bwd", "float32")
    shares = {field: sum(getattr(spec, field) == value for spec in specs) / 250 for field, (value, *_) in USUAL.items()}
    assert {field: share for field, share in shares.items() if not USUAL[field][1] < share < USUAL[field][2]} == {}


def test_batchnorm_has_layouts_and_modes():
    specs = some("batchnorm_bwd", "bfloat16", 60)
    assert values(specs, "training") == {True, False}
    assert len(values(specs, "x_layout")) > 3
    assert values(specs, "batch") == {0}


def test_ways_of_torchs_autograd_are_those_of_cases_with_frozen_inputs():
    plain, frozen = (drawn(strategies.specs(OPS["rmsnorm_bwd"], DTYPES, 2**8, frozen=f), 80) for f in (False, True))
    assert values(plain, "autograd") == {""}
    assert {"", ways.QUICK} < values(frozen, "autograd")


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        (CaseSpec((3, 8)), {"x", "dy", "weight", "bias"}),
        (CaseSpec((3, 8), weight=False), {"x", "dy", "bias"}),
        (CaseSpec((0, 8), weight=False, bias=False), set()),
    ],
)
def test_a_special_value_is_in_an_input_that_can_hold_it(spec, inputs):
    op = OPS["layernorm_bwd"]
    specials = [one for seed in range(300) if (one := values_of.special(Random(seed).choice, spec, op))]
    assert {one["special_in"] for one in specials} == inputs
    assert all(one["special"] for one in specials)
    assert 20 < len(specials) < 50 or not inputs


def test_the_usual_is_drawn_in_half_of_the_cases():
    layouts = drawn(strategies._usually("contiguous", ("own", "offset")), 200)
    assert set(layouts) == {"contiguous", "own", "offset"}
    assert 80 < layouts.count("contiguous") < 120


def test_one_in_four_is_one_of_some():
    found = drawn(strategies._one_in_four(("own", "offset"), None), 2000)
    assert set(found) == {None, "own", "offset"}
    assert 0.72 < found.count(None) / 2000 < 0.78


@pytest.mark.parametrize(("ndim", "transposed"), [(1, False), (2, True)])
def test_layouts_of_a_weight_are_those_that_it_can_have(ndim, transposed):
    layouts = strategies._layouts(WEIGHT, OPS["rmsnorm_fwd"], ndim)
    assert "contiguous" not in layouts
    assert ("transposed" in layouts) == transposed
    assert "transposed" in strategies._layouts(X, OPS["rmsnorm_fwd"], 1)


def test_one_case_in_four_has_its_rows_first(monkeypatch):
    monkeypatch.setattr(strategies, "_tall_shape", lambda elements, rows: st.just(("tall", elements, rows)))
    monkeypatch.setattr(strategies, "_row_shape", lambda elements, rows: st.just(("usual", elements, rows)))
    shapes = drawn(strategies._shape.__wrapped__(OPS["rmsnorm_fwd"], 2**9, 77), 300)
    assert set(shapes) == {("tall", 2**9, 77), ("usual", 2**9, 77)}
    assert 50 < shapes.count(("tall", 2**9, 77)) < 100


@pytest.mark.parametrize(
    ("op", "samples", "options"),
    [
        ("groupnorm_fwd", {0, 1, 2, 3, 5, 17}, {"num_groups"}),
        ("instancenorm_fwd", {0, 1, 2, 3, 5, 17}, set()),
        ("batchnorm_fwd", {0, 1, 2, 3, 5, 17, 64, 257, 1000}, set()),
    ],
)
def test_samples_are_as_many_as_an_operator_may_have(op, samples, options):
    shapes = drawn(strategies._shape.__wrapped__(OPS[op], 2**13, 1100), 200)
    assert {shape[0] for shape, _ in shapes} == samples
    assert {name for _, has in shapes for name in has} == options


@pytest.mark.parametrize(
    ("fields", "elements", "batches"),
    [
        ({"shape": (3, 2, 8)}, 300, (4, 5, 7, 8, 9)),  # 18 rows
        ({"shape": (3, 2, 8)}, 128, (4, 5, 7, 8)),  # 128 elements
        ({"shape": (3, 16)}, 144, (4, 5, 7, 8, 9)),
        ({"shape": (9, 16)}, 144, ()),
        ({"shape": (0, 16)}, 144, ()),
        ({"shape": (16,)}, 144, ()),
        ({"shape": (3, 16), "normalized_ndim": 2}, 144, ()),
    ],
)
def test_batches_have_more_rows_than_the_case_but_not_too_many(fields, elements, batches):
    assert strategies._batches(CaseSpec(**fields), OPS["rmsnorm_fwd"], elements, 18) == batches
    assert strategies._batches(CaseSpec((3, 2, 8)), OPS["batchnorm_fwd"], elements, 18) == ()


def test_cases_have_the_options_of_their_operator():
    """Those of a fused one, of which each is drawn."""
    for name, field, values in (
        ("rmsnorm_fwd", "weight_offset", {0.0, 1.0, THIRD, -0.25}),
        ("add_layernorm_bwd", "weight_offset", {0.0, 1.0, THIRD, -0.25}),
        ("rmsnorm_bwd", "frozen", {(), ("x",), ("weight",)}),
        ("modulate_rmsnorm_fwd", "modulation", {"sample", "token"}),
        ("dropout_add_rmsnorm_fwd", "dropout_p", set(DROPOUTS)),
        ("qk_norm_rope_fwd", "rotary", {"full", "half", "quarter"}),
        ("rmsnorm_fp8_fwd", "scale", set(OUTPUT_SCALES)),
        ("layernorm_fwd", "scale", {1.0}),
        ("l2norm_fwd", "weight_offset", {0.0}),
        ("layernorm_fwd", "variance_size", {None}),
        ("layernorm_fwd", "modulation", {"sample"}),
        ("layernorm_fwd", "rotary", {"full"}),
    ):
        some = drawn(strategies.specs(OPS[name], DTYPES, 2**8, frozen=True), 60)
        assert {getattr(spec, field) for spec in some} == values
    assert {spec.dtype for spec in some} == set(DTYPES)
    assert {spec.eps for spec in some} <= {1e-5, 1e-6, 1e-12, 1e-3, 1e-1, 0.0, 1e3, 1.5e-5, 3e-8, 2.0**-7}
    assert {spec.bias for spec in some} == {spec.weight for spec in some} == {True, False}


def test_a_partial_norm_takes_any_part_of_a_row():
    op = OPS["partial_rmsnorm_fwd"]
    specs = drawn(strategies.specs(op, DTYPES, 2**8), 90)
    assert [spec for spec in specs if spec.variance_size == 1 and geometry.row_length(spec, op) > 2]
    some = {spec.variance_size: geometry.row_length(spec, op) for spec in specs}
    usual = {None, 1, 2, 7, 64, 2**20}
    assert usual < some.keys()
    assert all(size == max(3 * some[size] // 4, 1) for size in some.keys() - usual)


def test_layouts_are_contiguous_in_half_of_the_cases_and_often_alike():
    some = drawn(strategies.specs(OPS["layernorm_bwd"], DTYPES, 2**8), 120)
    plain = sum(spec.weight_layout == "contiguous" for spec in some)
    assert 40 < plain < 80
    alike = [spec for spec in some if spec.x_layout == spec.dy_layout != "contiguous"]
    assert 12 < len(alike) < 60
    assert {spec.x_layout for spec in alike} - {spec.weight_layout for spec in some}  # weights have others
    transposed = [spec for spec in some if spec.bias_layout == "transposed"]
    assert transposed
    assert min(spec.normalized_ndim for spec in transposed) == 2


def test_rows_of_a_modulation_are_also_the_tokens_of_one_sample():
    some = drawn(strategies.specs(OPS["modulate_rmsnorm_fwd"], DTYPES, 2**8), 120)
    tall = [spec for spec in some if len(spec.shape) == 2 + spec.normalized_ndim and spec.shape[0] == 1]
    assert len(tall) > 22
    assert max(len(spec.shape) for spec in some) == 5
    assert [spec for spec in some if len(spec.shape) == 1 + spec.normalized_ndim and spec.shape[0] > 1]


def test_without_being_asked_no_input_is_frozen_and_no_run_needs_a_gpu():
    of_gpu, op = "in a CUDA graph with new values", OPS["rmsnorm_bwd"]
    plain, asked = (drawn(strategies.specs(op, DTYPES, 2**8, **options), 300) for options in ({}, {"gpu": True}))
    assert {spec.frozen for spec in plain} == {()}
    assert of_gpu in {spec.mode for spec in asked} - {spec.mode for spec in plain}


def test_rows_without_a_modulation_have_no_sample_of_their_own():
    some = drawn(strategies.specs(OPS["rmsnorm_fwd"], DTYPES, 2**8), 120)
    assert sum(len(spec.shape) == 1 + spec.normalized_ndim for spec in some) > 34


def test_how_often_a_choice_is_the_usual_one(monkeypatch):
    """Of all that is offered; what is drawn is near it."""
    offered, op = [], OPS["layernorm_bwd"]
    monkeypatch.setattr(strategies, "_among", lambda values: st.sampled_from(offered.append([*values]) or offered[-1]))
    monkeypatch.setattr(strategies, "_batches", lambda *_: (7, 9))
    drawn(strategies.specs(op, DTYPES, 2**8), 40)
    for usual, others, share in (
        ("random", COTANGENTS[1:], 13 / (12 + len(COTANGENTS))),
        ("random", WEIGHTS[1:], 7 / (6 + len(WEIGHTS))),
        ("", aliases(op), 32 / 34),
        (0, (7, 9), 30 / 32),
        (None, ("nan", "inf", "-inf", "nan+inf"), 8 / 9),
        (None, (8, 16, 64, 128, 256), 2 / 3),  # tiles
    ):
        assert {values.count(usual) / len(values) for values in offered if {*values} == {usual, *others}} == {share}


def test_unless_told_a_case_has_at_most_1100_rows_and_its_batch_16_times_its_elements(monkeypatch):
    asked = set()
    monkeypatch.setattr(strategies, "_batches", lambda spec, op, *most: asked.add(most) or ())
    drawn(strategies.specs(OPS["rmsnorm_fwd"], DTYPES, 2**8), 3)
    drawn(strategies.specs(OPS["rmsnorm_fwd"], DTYPES, 2**8, rows=7), 3)
    assert asked == {(2**12, 1100), (2**12, 7)}
