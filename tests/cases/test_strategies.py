"""Drawn specs fit their operator; a seed draws the same ones, and large values are sought."""

import random
import threading
from dataclasses import replace
from math import prod

import pytest
from choices import drawn, fits
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from verify_norm.cases import strategies
from verify_norm.cases.exploration import explore, whatever_is_imported
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

    with whatever_is_imported:
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


@pytest.mark.parametrize("kind", [BaseException, RuntimeError])
def test_what_ends_the_run_is_raised_at_once(kind):
    """Hypothesis runs the case of an Exception again."""
    ran = []

    class Over(kind):
        pass

    def one(spec):
        ran.append(spec)
        raise Over

    with pytest.raises(Over) as caught:
        explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=5, seed=0)
    assert len(ran) == 1
    assert caught.value.__cause__ is None


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
    shapes = drawn(strategies._shape(OPS["rmsnorm_fwd"], 2**12, 600), 500)
    ranks = {(len(shape), options["normalized_ndim"]) for shape, options in shapes}
    assert {normalized for _, normalized in ranks} == {1, 2, 3}
    assert {rank for rank, _ in ranks} == {1, 2, 3, 4, 5}
    rows = [prod(shape[: len(shape) - options["normalized_ndim"]]) for shape, options in shapes]
    assert 256 < max(rows) <= 600
    assert min(rows) == 0
    assert max(prod(shape) for shape, _ in shapes) <= 2**12
    assert max(shape[-1] for shape, _ in shapes) > 2**11


@pytest.mark.parametrize(
    ("shape", "modes"), [((1, 3, 1), {False}), ((2, 3), {True, False}), ((1, 3, 2), {True, False})]
)
def test_batchnorm_evaluates_channels_of_one_value_and_only_with_running_statistics(shape, modes):
    some = drawn(strategies._mode(shape), 60)
    assert {one["training"] for one in some} == modes
    assert {one["running"] for one in some if not one["training"]} == {True}
    assert {one["running"] for one in some if one["training"]} == ({True, False} if True in modes else set())
    assert {one["momentum"] for one in some} == {0.1, 0.3, 1e-3, 0.9, 1.0, 0.0}


def test_a_size_may_lie_between_all_the_usual_ones():
    some = drawn(strategies._magnitude(1000), 200)
    assert min(some) >= 1
    assert max(some) <= 1000
    assert {n.bit_length() for n in some} == set(range(1, 11))
    usual = drawn(strategies._size((100, 200), 5, 1000), 100)
    assert {100, 200, 1, 2, 3, 4, 5} < set(usual)
    assert max(usual) > 200
    assert sum(n <= 5 for n in usual) > 30
    assert sum(n in (100, 200) for n in usual) > 20


def test_each_magnitude_is_drawn_as_often():
    """Of 1 to 7, a third is 1, and a third is above 3."""
    numbers = drawn(strategies._magnitude.__wrapped__(7), 300)
    assert 75 < numbers.count(1) < 125
    assert 75 < sum(n > 3 for n in numbers) < 125


def test_how_often_batchnorm_trains_and_keeps_running_statistics():
    """In two cases of three it trains, and in three of four of these it has running statistics."""
    training = [one["running"] for one in drawn(strategies._mode((2, 3)), 300) if one["training"]]
    assert 180 < len(training) < 220
    assert 0.65 < sum(training) / len(training) < 0.85


@pytest.mark.parametrize(
    ("elements", "most", "rows"), [(17, 600, 17), (2**10, 17, 17), (2**10, 16, 16), (2**12, 600, 257)]
)
def test_many_rows_are_at_most_those_asked_for_and_at_most_the_elements(elements, most, rows):
    shapes = [shape for shape, _ in drawn(strategies._tall_shape(elements, most), 200)]
    assert max(shape[0] for shape in shapes) == rows
    assert min(shape[0] for shape in shapes) == 0
    assert all(prod(shape) <= elements for shape in shapes)


@pytest.mark.parametrize(("elements", "longest"), [(40, 40), (64, 64), (2**12, 64)])
def test_many_rows_are_at_most_64_long(elements, longest):
    shapes = [shape for shape, _ in drawn(strategies._tall_shape(elements, 2), 400)]
    for rows in (0, 1):
        assert max(shape[1] for shape in shapes if shape[0] == rows) == longest


def test_rows_of_one_element_have_shapes_too():
    shapes = [shape for shape, _ in drawn(strategies._row_shape(1, 5), 60)]
    assert {n for shape in shapes for n in shape} == {0, 1}


def test_a_tile_or_a_number_of_heads_may_be_all_that_there_is(monkeypatch):
    offered = []
    monkeypatch.setattr(strategies, "_among", lambda values: st.sampled_from(offered.append([*values]) or offered[-1]))
    monkeypatch.setattr(strategies, "_size", lambda *_: st.just(1))
    drawn(strategies._row_shape.__wrapped__(8, 8), 30)
    assert {values[-1] for values in offered if values[0] is None} == {8}
    assert [1, 2, 3] * 4 + [8] in offered


def sized(monkeypatch, length, rows):
    """Return 300 shapes of rows whose length and number are these, and what was asked for."""
    asked, answers = [], []

    def size(usual, small, most):
        asked.append((usual[-1], max(usual), small, most))
        answers[:] = answers or [length, rows]
        return st.just(answers.pop(0))

    monkeypatch.setattr(strategies, "_size", size)
    monkeypatch.setattr(strategies, "_TILES", ())
    strategy = strategies._row_shape.__wrapped__(60 * 97, 97)
    return drawn(strategy, 300), asked


def test_lengths_and_numbers_of_rows_fit_the_elements(monkeypatch):
    """Up to all of them; small ones are tried more often."""
    _, asked = sized(monkeypatch, 60, 97)
    assert {one[1:] for one in asked[::2]} == {(5376, 600, 60 * 97)}
    assert {one[1:] for one in asked[1::2]} == {(97, 70, 97)}


def test_rows_have_up_to_four_leading_dimensions_and_one_to_three_normalized_ones(monkeypatch):
    """Few have three. One leading dimension is as long as it takes, the others are small or a number of heads."""
    shapes, _ = sized(monkeypatch, 60, 97)
    two = [shape for shape, options in shapes if options["normalized_ndim"] == 2]
    assert 70 < len(two) < 130
    assert {shape[-2] for shape in two} == {1, 2, 3, 4, 5}
    leading = [sorted(shape[: len(shape) - options["normalized_ndim"]]) for shape, options in shapes]
    assert {len(some) for some in leading} == {0, 1, 2, 3, 4}
    assert {1, 2, 3, 8} <= {n for some in leading for n in some[:-1]}
    assert {41, 47, 55, 61} & {n for some in leading for n in some}
    assert all(97 < 2 * prod(some) <= 2 * 97 for some in leading if some)


def test_a_third_of_the_lengths_are_whole_tiles_in_odd_numbers_too():
    shapes = drawn(strategies._row_shape(2**14, 97), 300)
    lengths = [prod(shape[-options["normalized_ndim"] :]) for shape, options in shapes]
    assert {33, 35, 37, 39, 41, 43, 45, 47} & {length // 128 for length in lengths if length % 128 == 0}
    assert 80 < sum(length % 64 == 0 for length in lengths) < 220


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_in_several_dimensions_stay_some_and_none_stays_none(monkeypatch, rows):
    shapes, _ = sized(monkeypatch, 60, rows)
    leading = [shape[: len(shape) - options["normalized_ndim"]] for shape, options in shapes]
    assert {prod(some) > 0 for some in leading if some} == {rows > 0}


def test_usual_numbers_of_channels_and_any_others_fill_the_elements(monkeypatch):
    asked = []
    monkeypatch.setattr(strategies, "_magnitude", lambda most: asked.append(most) or st.just(13))
    shapes = [shape for shape, _ in drawn(strategies._channel_shape(64, (1, 2, 3, 0, 5, 17)), 400)]
    assert {shape[1] for shape in shapes} == {1, 2, 3, 5, 8, 32, 16, 64, 13}
    assert {shape[0] for shape in shapes if shape[1] == 64} == {0, 1}
    assert max(prod(shape) for shape in shapes) == 64
    single = [prod(shape[2:]) for shape in shapes if shape[:2] == (1, 1)]
    assert max(single) > 32
    drawn(strategies._channel_shape(2**15, (1,)), 1)
    assert set(asked) == {64, 2**14}


def test_one_element_has_one_channel():
    assert {shape[1] for shape, _ in drawn(strategies._channel_shape(1, (1, 0)), 20)} == {1}


def test_half_of_the_spaces_are_small_and_the_last_dimension_is_the_longest():
    spaces = drawn(strategies._space(10**6), 300)
    assert {len(space) for space in spaces} == {0, 1, 2, 3}
    some = [space for space in spaces if space]
    assert 0.35 < sum(prod(space) <= 64 for space in some) / len(some) < 0.65
    assert max(prod(space) for space in some) <= 10**6
    assert all(space[-1] >= space[0] == space[len(space) // 2 - 1] >= 1 for space in some)


def test_small_spaces_are_of_up_to_64_positions(monkeypatch):
    asked, integers = set(), st.integers
    monkeypatch.setattr(st, "integers", lambda *bounds: asked.add(bounds) or integers(*bounds))
    drawn(strategies._space(10**6), 3)
    drawn(strategies._space(9), 3)
    assert asked == {(1, 64), (1, 10**6), (1, 9), (0, 3)}


def test_constants_of_modules_are_as_before_when_the_last_thread_leaves():
    names = ("_get_local_constants", "CONSTANTS_CACHE")
    before = [getattr(providers, name) for name in names]

    def kept():
        return [getattr(providers, name) is value for name, value in zip(names, before, strict=True)]

    for _ in range(2):
        with whatever_is_imported:
            with whatever_is_imported:
                assert kept() == [False, False]
            assert kept() == [False, False]
        assert kept() == [True, True]


@pytest.mark.parametrize("name", ["_get_local_constants", "CONSTANTS_CACHE"])
def test_a_hypothesis_that_keeps_its_constants_elsewhere_draws_too(monkeypatch, name):
    monkeypatch.delattr(providers, name)
    with whatever_is_imported:
        assert not hasattr(providers, name)
