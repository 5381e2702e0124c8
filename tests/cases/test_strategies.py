"""Drawn specs fit their operator; a seed draws the same ones, and large values are sought."""

import random
import threading
from dataclasses import replace
from math import prod

import pytest
from choices import fits
from hypothesis import given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.data import ConjectureData

from verify_norm.cases import strategies
from verify_norm.cases.corner_lines import DROPOUTS
from verify_norm.cases.strategies import explore
from verify_norm.core import geometry
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

DTYPES = ("float32", "float16", "bfloat16")


LARGE = ("layernorm_bwd", "groupnorm_bwd", "batchnorm_bwd")  # one of each kind of shape


@pytest.mark.slow
@pytest.mark.parametrize("op", LARGE)
def test_large_specs_fit_their_operator(op):
    """Those of usual size, and what all of them reach, are in test_drawn."""

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(OPS[op], DTYPES, 2**19))
    def drawn(spec):
        assert fits(spec, OPS[op], 2**19)

    with strategies.whatever_is_imported:
        drawn()


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "said"), [(True, None), (False, "no input needs a gradient")])
def test_a_case_has_something_to_differentiate(weight, said):
    op, spec = OPS["rmsnorm_bwd"], CaseSpec((2, 3), weight=weight, frozen=("x",))
    assert geometry.refusal(spec, op) == said
    assert geometry.refusal(replace(spec, frozen=()), op) is None

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(op, DTYPES, 2**10, frozen=True))
    def drawn(spec):
        assert geometry.refusal(spec, op) is None

    drawn()


def explored(seed, value=lambda spec: 0.0, examples=60):
    seen = []

    def one(spec):
        seen.append(spec)
        return {"value": value(spec)}

    explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=examples, seed=seed)
    return seen


def test_a_seed_draws_the_same_specs():
    assert explored(1) == explored(1) != explored(2)


@pytest.mark.slow
def test_threads_draw_what_one_draws_and_change_no_generator():
    """The first to begin ends first, as Hypothesis restores the generators only of threads that are nested."""
    alone = [explored(seed, examples=20) for seed in (1, 2)]
    inside, begun, ended, drawn = threading.Event(), threading.Event(), threading.Event(), {}

    def first(spec):
        inside.set()
        begun.wait(10)
        return 0.0

    def second(spec):
        begun.set()
        ended.wait(10)
        return 0.0

    def run(seed, value):
        drawn[seed] = explored(seed, value, examples=20)

    before = random.getstate(), providers._get_local_constants
    threads = [threading.Thread(target=run, args=arguments) for arguments in ((1, first), (2, second))]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    threads[0].join()
    ended.set()
    threads[1].join()
    assert [drawn[1], drawn[2]] == alone
    assert (random.getstate(), providers._get_local_constants) == before


@pytest.mark.slow
def test_large_values_are_sought():
    aimed, blind = (explored(3, value, 300) for value in (lambda spec: float(spec.seed), lambda spec: 0.0))
    assert sum(spec.seed for spec in aimed) > 1.2 * sum(spec.seed for spec in blind)


def test_what_ends_the_run_is_raised():
    class Over(BaseException):
        pass

    def one(spec):
        raise Over

    with pytest.raises(Over):
        explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=5, seed=0)


def drawn(strategy, count):
    """Return what a strategy draws, each anew."""
    numbers = random.Random(0)
    with strategies.whatever_is_imported:
        return [ConjectureData(random=numbers).draw(strategy) for _ in range(count)]


def test_groups_have_the_numbers_of_models_and_small_ones():
    shapes = drawn(strategies._group_shape(2**10), 200)
    assert {options["num_groups"] for _, options in shapes} == {1, 2, 3, 4, 6, 8, 16, 32}
    assert {shape[0] for shape, _ in shapes} == {0, 1, 2, 3, 5, 17}
    assert {len(shape) for shape, _ in shapes} == {2, 3, 4, 5}
    assert max(shape[1] for shape, _ in shapes) == 32
    assert {type(n) for shape, _ in shapes for n in shape} == {int}
    assert all(shape[1] % options["num_groups"] == 0 for shape, options in shapes)


@pytest.mark.parametrize(("elements", "most"), [(512 * 40, 40), (512 * 40 - 1, 36)])
def test_many_elements_have_more_channels(elements, most):
    assert max(shape[1] for shape, _ in drawn(strategies._group_shape(elements), 300)) == most


@pytest.mark.parametrize("elements", [64, 2**10])
def test_groups_fill_the_elements_and_hold_no_more(elements):
    shapes = [shape for shape, _ in drawn(strategies._group_shape(elements), 200)]
    room = [max(elements // (shape[1] * max(shape[0], 1)), 1) for shape in shapes]
    assert all(prod(shape[2:]) <= most for shape, most in zip(shapes, room, strict=True))
    for samples in (0, 1, 3):
        filled = [prod(s[2:]) == most > 1 for s, most in zip(shapes, room, strict=True) if s[0] == samples]
        assert any(filled) or elements > 64


@pytest.mark.parametrize(("op", "samples"), [("instancenorm_fwd", 17), ("batchnorm_fwd", 257)])
def test_channels_and_samples_are_at_most_the_elements(op, samples):
    shapes = [shape for shape, _ in drawn(strategies._shape(OPS[op], 2**10, 1100), 200)]
    assert max(shape[1] for shape in shapes) > 256
    assert max(shape[0] for shape in shapes) >= samples
    assert min(shape[0] for shape in shapes) == 0
    room = [max(2**10 // (shape[1] * max(shape[0], 1)), 1) for shape in shapes]
    assert all(prod(shape[2:]) <= most for shape, most in zip(shapes, room, strict=True))


def test_rows_are_few_enough_and_some_are_many():
    shapes = drawn(strategies._shape(OPS["rmsnorm_fwd"], 2**12, 600), 300)
    ranks = {(len(shape), options["normalized_ndim"]) for shape, options in shapes}
    assert {normalized for _, normalized in ranks} == {1, 2}
    assert {rank for rank, _ in ranks} == {1, 2, 3, 4, 5}
    rows = [prod(shape[: len(shape) - options["normalized_ndim"]]) for shape, options in shapes]
    assert 256 < max(rows) <= 600
    assert min(rows) == 0
    assert max(prod(shape) for shape, _ in shapes) <= 2**12
    assert max(shape[-1] for shape, _ in shapes) > 2**11


@pytest.mark.parametrize(
    ("fields", "batches"),
    [
        ({"shape": (3, 2, 8)}, (4, 5, 7, 8, 9)),  # of 16 elements: at most 150, and 18 rows
        ({"shape": (3, 16), "normalized_ndim": 1}, (4, 5, 7, 8, 9)),
        ({"shape": (9, 16)}, ()),
        ({"shape": (0, 16)}, ()),
        ({"shape": (16,)}, ()),
        ({"shape": (3, 16), "normalized_ndim": 2}, ()),
    ],
)
def test_batches_have_more_rows_than_the_case_but_not_too_many(fields, batches):
    assert strategies._batches(CaseSpec(**fields), OPS["rmsnorm_fwd"], 150, 18) == batches
    assert strategies._batches(CaseSpec((3, 2, 8)), OPS["batchnorm_fwd"], 150, 18) == ()


@pytest.mark.parametrize(
    ("shape", "modes"), [((1, 3, 1), {False}), ((2, 3), {True, False}), ((1, 3, 2), {True, False})]
)
def test_batchnorm_evaluates_channels_of_one_value_and_only_with_running_statistics(shape, modes):
    some = drawn(strategies._mode(shape), 60)
    assert {one["training"] for one in some} == modes
    assert {one["running"] for one in some if not one["training"]} == {True}
    assert {one["running"] for one in some if one["training"]} == ({True, False} if True in modes else set())
    assert {one["momentum"] for one in some} == {0.1, 1e-3, 0.5, 1.0, 0.0}


def test_a_size_may_lie_between_all_the_usual_ones():
    some = drawn(strategies._magnitude(1000), 200)
    assert min(some) >= 1
    assert max(some) <= 1000
    assert {n.bit_length() for n in some} == set(range(1, 11))
    usual = drawn(strategies._size((100, 200), 5, 1000), 100)
    assert {100, 200, 1, 2, 3, 4, 5} < set(usual)
    assert max(usual) > 200


def test_cases_have_the_options_of_their_operator():
    """Those of a fused one, of which each is drawn."""
    for name, field, values in (
        ("partial_rmsnorm_fwd", "variance_size", {None, 1, 2, 7, 64, 2**20}),
        ("rmsnorm_fwd", "weight_offset", {0.0, 1.0, 0.5, -0.25}),
        ("rmsnorm_bwd", "frozen", {(), ("x",), ("weight",)}),
        ("modulate_rmsnorm_fwd", "modulation", {"sample", "token"}),
        ("dropout_add_rmsnorm_fwd", "dropout_p", set(DROPOUTS)),
        ("qk_norm_rope_fwd", "rotary", {"full", "half", "quarter"}),
        ("layernorm_fwd", "weight_offset", {0.0}),
        ("layernorm_fwd", "variance_size", {None}),
    ):
        some = drawn(strategies.specs(OPS[name], DTYPES, 2**8, frozen=True), 60)
        assert {getattr(spec, field) for spec in some} == values
    assert {spec.dtype for spec in some} == set(DTYPES)
    assert {spec.eps for spec in some} <= {1e-5, 1e-6, 1e-12, 1e-3, 1e-1, 0.0, 1e3, 1.5e-5, 3e-8, 2.0**-7}
    assert {spec.bias for spec in some} == {spec.weight for spec in some} == {True, False}


def test_layouts_are_contiguous_in_half_of_the_cases_and_often_alike():
    some = drawn(strategies.specs(OPS["layernorm_bwd"], DTYPES, 2**8), 120)
    plain = sum(spec.weight_layout == "contiguous" for spec in some)
    assert 40 < plain < 80
    alike = [spec for spec in some if spec.x_layout == spec.dy_layout != "contiguous"]
    assert 12 < len(alike) < 60
    assert {spec.x_layout for spec in alike} - {spec.weight_layout for spec in some}  # weights have others
    transposed = [spec for spec in some if spec.bias_layout == "transposed"]
    assert transposed
    assert {spec.normalized_ndim for spec in transposed} == {2}


def test_rows_of_a_modulation_are_also_the_tokens_of_one_sample():
    some = drawn(strategies.specs(OPS["modulate_rmsnorm_fwd"], DTYPES, 2**8), 120)
    tall = [spec for spec in some if len(spec.shape) == 2 + spec.normalized_ndim and spec.shape[0] == 1]
    assert len(tall) > 5
    assert [spec for spec in some if len(spec.shape) == 1 + spec.normalized_ndim and spec.shape[0] > 1]


def test_constants_of_modules_are_as_before_when_the_last_thread_leaves():
    names = ("_get_local_constants", "CONSTANTS_CACHE")
    before = [getattr(providers, name) for name in names]

    def kept():
        return [getattr(providers, name) is value for name, value in zip(names, before, strict=True)]

    for _ in range(2):
        with strategies.whatever_is_imported:
            with strategies.whatever_is_imported:
                assert kept() == [False, False]
            assert kept() == [False, False]
        assert kept() == [True, True]


@pytest.mark.parametrize("name", ["_get_local_constants", "CONSTANTS_CACHE"])
def test_a_hypothesis_that_keeps_its_constants_elsewhere_draws_too(monkeypatch, name):
    monkeypatch.delattr(providers, name)
    with strategies.whatever_is_imported:
        assert not hasattr(providers, name)
