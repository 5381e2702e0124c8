"""The error bounds: sound and tight on a small study, and larger where less is promised."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from references import FLOAT32

from verify_norm.core.judge import ratio
from verify_norm.core.run import Expected
from verify_norm.reference import groupnorm, layernorm, rmsnorm
from verify_norm.reference.arithmetic import PRODUCTS
from verify_norm.reference.statistics_rounding import Given

LOOSER = [
    {"u": 2.0**-11},
    {"summation": "sequential"},
    {"expanded": True},
    {"variance": "shifted"},
    {"variance": "centered"},
    {"stats_u": 2.0**-8},
    {"xhat_u": 2.0**-8},
    {"partials_u": 2.0**-8},
    {"lanes": 8},
    {"atomic": True},
    *({"products": name} for name in PRODUCTS),
    {"offset_u": 2.0**-8},
    {"tiny": 1e-10},
]


def arrays(shape, channels, offset=3.0):
    rng = np.random.default_rng(1)
    return rng.normal(size=shape), rng.normal(size=shape) + offset, rng.normal(size=channels), rng.normal(size=channels)


def errors(arithmetic, offset=3.0):
    """Return all bounds of the three operators on one case each, flat."""
    dy, x, w, b = arrays((40, 64), 64, offset)
    common = {"eps": 1e-5, "arithmetic": arithmetic}
    out = [*layernorm.forward_error(x, w, b, **common), *layernorm.backward_error(dy, x, w, b, **common)]
    out += [*rmsnorm.forward_error(x, w, weight_offset=1.0, **common), *rmsnorm.backward_error(dy, x, w, **common)]
    dy, x, w, b = arrays((6, 8, 5, 5), 8, offset)
    out += [*groupnorm.forward_error(x, w, b, num_groups=2, **common)]
    out += [*groupnorm.backward_error(dy, x, w, b, num_groups=2, **common)]
    return np.concatenate([np.ravel(e) for e in out])


@pytest.mark.parametrize("change", LOOSER, ids=str)
def test_promising_less_allows_more(change):
    two_pass = replace(FLOAT32, variance="two_pass")
    strict, loose = errors(two_pass), errors(replace(two_pass, **change))
    assert np.isfinite(strict).all()
    assert (loose >= strict * (1 - 1e-12)).all()
    assert (loose > strict).any()


def test_an_offset_costs_accuracy():
    assert np.median(errors(FLOAT32, offset=1e4)) > 10 * np.median(errors(FLOAT32))


def test_nan_and_infinity_stay_in_their_row():
    dy, x, w, b = arrays((4, 8), 8)
    x[0, 3], x[2, 5] = np.nan, np.inf
    judged = np.isfinite(layernorm.forward_error(x, w, b, eps=1e-5, arithmetic=FLOAT32).y).all(axis=1)
    assert judged.tolist() == [False, True, False, True]
    judged = np.isfinite(layernorm.backward_error(dy, x, w, b, eps=1e-5, arithmetic=FLOAT32).dx).all(axis=1)
    assert judged.tolist() == [False, True, False, True]
    assert np.isfinite(layernorm.backward_error(dy, x, w, b, eps=1e-5, arithmetic=FLOAT32).dbias).all()


def test_a_possible_overflow_is_not_judged():
    x = np.array([[1e20, -1e20], [1.0, 2.0]])
    assert np.isfinite(rmsnorm.forward_error(x, None, eps=1e-5, arithmetic=FLOAT32).y[:, 0]).tolist() == [False, True]
    assert np.isfinite(layernorm.forward_error(x, None, None, eps=1e-5, arithmetic=FLOAT32).mean).all()
    half = replace(FLOAT32, stats_u=2.0**-11, narrow_tiny=2.0**-25, narrow_huge=65504.0)
    tiny = np.array([[1e-6, 2e-6]])  # rstd is about 1e6
    assert np.isinf(layernorm.backward_error(tiny, tiny, None, None, eps=0.0, arithmetic=half).dx).all()
    assert np.isfinite(layernorm.forward_error(tiny, None, None, eps=0.0, arithmetic=half).rstd).all()  # inf is right


@pytest.mark.parametrize("n", [1, 40])
def test_a_merge_with_an_empty_part_may_overflow(n):
    """The mean of an empty part is 0, so the merge squares x, as torch's LayerNorm does; two passes square only xc."""
    x = np.array([[2.0**64], [2.0**60]]) * np.ones(n)
    for variance, judged in (("centered", [False, True]), ("two_pass", [True, True])):
        error = layernorm.forward_error(x, None, None, eps=1e-5, arithmetic=replace(FLOAT32, variance=variance))
        assert np.isfinite(error.rstd).tolist() == judged
        assert np.isfinite(error.mean).all()


def test_an_error_larger_than_any_number_is_not_judged():
    """In dy·r + x·c2 + c3, c2 is 0 up to rounding; r³ = 10¹⁸ and x make the rounding overflow, to inf − inf."""
    x, dy = np.array([[2.0**60], [1.0]]), np.ones((2, 1))
    expanded = replace(FLOAT32, expanded=True)
    error = groupnorm.backward_error(dy, x, None, None, num_groups=1, eps=1e-12, arithmetic=expanded)
    assert np.isfinite(error.dx).tolist() == [[False], [True]]


def test_a_constant_row_with_a_tiny_eps_is_judged():
    """The mean's error cannot lessen the variance, so the bound of a constant row is finite."""
    x = np.full((1, 100), 1234.567)
    assert np.isfinite(layernorm.forward_error(x, None, None, eps=1e-12, arithmetic=FLOAT32).y).all()


def test_a_row_of_one_element_is_known_exactly():
    error = layernorm.forward_error(np.full((2, 1), 1e4), None, None, eps=1e-5, arithmetic=FLOAT32)
    assert (error.mean < 1e-30).all()
    assert (error.y < 1e-30).all()


def test_no_rows():
    error = layernorm.backward_error(np.empty((0, 4)), np.empty((0, 4)), np.ones(4), None, eps=1e-5, arithmetic=FLOAT32)
    assert error.dx.shape == (0, 4)
    assert error.dweight.tolist() == [0.0] * 4
    assert error.dbias is None


@pytest.fixture
def bounds(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    for name in ("bounds", "emulate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("bounds")


def reached(kernel, x, eps, arithmetic=FLOAT32):
    """Return the largest error over the allowed error of y, mean and rstd of float32 rows."""
    value = layernorm.forward(x.astype(float), None, None, eps=eps)
    error = layernorm.forward_error(x.astype(float), None, None, eps=eps, arithmetic=arithmetic)
    got = [np.reshape(out, want.shape).astype(float) for out, want in zip(kernel(x), value, strict=True)]
    expected = [Expected(want, delta, "float32") for want, delta in zip(value, error, strict=True)]
    return max(ratio(out, truth).max() for out, truth in zip(got, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ramp", "descending", "steps", "sine"])
@pytest.mark.parametrize("approximate", [0, 1, -1])
def test_welford_on_ordered_rows_is_no_false_alarm(bounds, family, approximate):
    """A running mean of 2048 updates a lane loses more than a sum of as many terms."""
    n = 1 << 18
    place = np.arange(n) / n
    row = {"ramp": place, "descending": 1 - place, "steps": np.floor(8 * place), "sine": np.sin(2 * np.pi * place)}
    method = bounds.Method(variance="welford", lanes=128, approximate=approximate)
    for offset, scale in ((0.0, 0.0037), (1.0, 0.0037), (100.0, 1.3)):
        x, eps = ((row[family] + offset) * scale).astype(np.float32)[None], 1e-5 * scale * scale
        assert reached(lambda x: bounds.emulate.forward(x, None, None, eps, method, centred=True), x, eps) <= 1  # noqa: B023


def test_the_means_of_tiles_by_matrix_products_are_no_false_alarm(bounds):
    """In sorted rows tiles differ, so that a merge feels what each mean of a tile is off by."""
    method, tf32 = bounds.Method(variance="chan", lanes=4, products="tf32"), replace(FLOAT32, products="tf32")

    def kernel(x):
        return bounds.emulate.forward(x, None, None, 1e-5, method, centred=True)

    for seed, offset in ((s, o) for s in range(5) for o in (0, 3, 10, 100)):
        x = np.float32(np.sort(np.random.default_rng(seed).standard_normal((4, 16)), axis=1) + offset)
        assert reached(kernel, x, 1e-5, tf32) <= 1 < reached(kernel, x, 1e-5)


def test_a_sum_of_few_lanes_passes_where_the_contract_says_so(bounds):
    """A CPU's matrix product adds a row in 4 to 32 runs (here 8): of equal terms that loses more than 128 runs do."""
    x = np.full((1, 1 << 17), 0.7, np.float32)
    total = bounds.emulate.halves(np.add.accumulate((x * x).reshape(1, 8, -1), axis=-1)[..., -1])
    rstd = 1 / np.sqrt(total / np.float32(x.size) + np.float32(1e-5))
    value, options = rmsnorm.forward(x.astype(float), None, eps=1e-5).rstd, {"weight_offset": 0.0, "eps": 1e-5}

    def allowed(lanes):
        error = rmsnorm.forward_error(x.astype(float), None, **options, arithmetic=replace(FLOAT32, lanes=lanes)).rstd
        return ratio(rstd.astype(float), Expected(value, error, "float32")).max()

    assert allowed(8) <= 1 < allowed(128)


def given_error(x, arithmetic=FLOAT32, **change):
    """Return the bound of dx of a kernel that uses the float32 mean and rstd, `change` of them, and of any kernel."""
    dy, w = np.random.default_rng(2).normal(size=x.shape), np.ones(x.shape[1])
    value = layernorm.forward(x, None, None, eps=1e-5)
    given = Given(*(v.astype(np.float32).astype(float) for v in (value.mean, value.rstd)))._replace(**change)
    options = {"eps": 1e-5, "arithmetic": arithmetic}
    return [layernorm.backward_error(dy, x, w, w, **options, given=g).dx for g in (given, None)]


def test_given_statistics_err_by_their_own_distance():
    noise = np.random.default_rng(3).normal(size=(64, 256))
    tight, wide = given_error(noise + 1e4)
    assert (tight < wide).all()
    assert np.median(wide / tight) > 10  # a rounding of the mean, not of the sum
    exact = np.tile([-1.0, 1.0], (2, 8))  # the mean is a number of float32
    (near, _), (far, _) = given_error(exact), given_error(exact + 2.0**13)
    assert (far < 1.001 * near).all()


def test_given_statistics_of_a_narrower_accumulation_are_rounded_once_more():
    half, x = replace(FLOAT32, u=2.0**-11), np.tile([-1.0, 1.0], (2, 8))
    (held, _), (rounded, _) = given_error(x + 128, half), given_error(x + 128.0625, half)  # 11 bits hold 128, 128.125
    assert (rounded > 1.5 * held).all()


def test_given_statistics_that_are_wrong_or_overflow():
    x = np.random.default_rng(3).normal(size=(4, 64))
    tight, _ = given_error(x)
    off, _ = given_error(x, mean=np.full(4, 0.5))
    assert (off > 100 * tight).all()  # what is given is that far from the truth
    tight, wide = given_error(np.ldexp(x, 127))
    assert not np.isfinite(wide).any()
    assert not np.isfinite(tight).any()  # sums of x may overflow in a right kernel


def test_one_atomic_addition_a_row_is_a_running_sum():
    dy, x, w, b = arrays((1024, 256), 256)
    atomic, one = (
        layernorm.backward_error(dy, x, w, b, eps=1e-5, arithmetic=replace(FLOAT32, **change))
        for change in ({"atomic": True}, {"summation": "sequential"})
    )
    assert (atomic.dbias == one.dbias).all()
    assert (atomic.dx < one.dx).all()  # rows are still summed in lanes


@pytest.mark.slow
def test_a_small_study_is_sound_tight_and_powerful(bounds, monkeypatch):
    """Cases 0 to 399 of the study, of at most 2^14 elements: no false alarm, and every mistake is detected."""
    monkeypatch.setattr(bounds, "ELEMENTS", 1 << 14)
    strict, weaker, wrong = bounds.study(0, range(400))
    assert [line for line in bounds.failures(strict, weaker, wrong) if "false alarms" in line] == []
    assert {key.split()[0] for key, row in wrong.items() if row["alarms"]} == set(bounds.emulate.WRONG)
    outputs = {key.split()[1] for key in strict}
    assert outputs == {"y", "mean", "rstd", "dx", "dweight", "dbias", "dx/given", "dweight/given"}
    for output in outputs:  # few cases: the closest approach over all operators and types
        assert max(row["largest"] for key, row in strict.items() if key.split()[1] == output) > 0.2
