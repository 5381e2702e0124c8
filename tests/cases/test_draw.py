"""The values of a case's inputs: every family of data, each tensor from its own random stream."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from verify_norm.cases import draw, make
from verify_norm.cases.random import Random
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FAMILIES, WEIGHTS, CaseSpec
from verify_norm.core.tensors import WEIGHT


def made(op="layernorm_bwd", **fields):
    return make.case(CaseSpec(**{"shape": (3, 8)} | fields), OPS[op], Contract())


@pytest.mark.parametrize("data", FAMILIES)
@pytest.mark.parametrize("op", ["layernorm_fwd", "groupnorm_fwd"])
def test_families(data, op):
    x = made(op, shape=(64, 32, 4), num_groups=4, data=data).exact["x"]
    assert x.shape == (64, 32, 4)
    assert np.isfinite(x).all()
    rows = x.reshape(64, -1) if op == "groupnorm_fwd" else x
    together = x.reshape(256, -1) if op == "groupnorm_fwd" else x.reshape(2048, -1)
    if data == "constant":
        assert (rows == rows[..., :1]).all()
        assert np.unique(rows[..., 0]).size > 1
    elif data == "channel":
        axis = 1 if op == "groupnorm_fwd" else 2
        size = np.sort(np.abs(x).mean(tuple(i for i in range(3) if i != axis)))
        assert size[-1] > 300 * size[-2]
        usual = made(op, shape=(64, 32, 4), num_groups=4).exact["x"]
        assert set(np.rint(x / usual).flat) == {1, 1000}
    elif data == "alternating":
        assert set(np.unique(x)) == {-1.0, 1.0}
        assert (together[:, 1:] == -together[:, :-1]).all()
    elif data == "integers":
        assert set(np.unique(np.abs(x))) == set(range(9))
        assert {True, False} == set(np.signbit(x[x == 0])) == set(np.signbit(x[x != 0]))
    elif data == "heavy":
        assert np.abs(x).max() > 20
        assert np.median(np.abs(x)) == pytest.approx(0.8165, abs=0.05)
    elif data == "zero":
        assert not x.any()
    elif data in ("sorted", "ramp", "steps"):  # each row or group grows from its first element to its last
        assert (together[:, -1] > together[:, 0]).all()
        assert together.mean(0)[-1] - together.mean(0)[0] > 1
    elif data == "uneven":
        mean, scale = together.mean(1), together.std(1)
        assert 2.0**18 < scale.max() / scale.min() < 2.0**26  # std of four elements varies too
        assert np.abs(mean).max() > 2.0**19 * np.abs(mean).min()
    elif data == "padded":
        zero = (together == 0).all(1)
        assert zero[0]
        assert not zero[-1]
        assert 0.3 < zero.mean() < 0.7
        assert np.signbit(together[together == 0]).all()
        led = (together[~zero] == 0) & (
            np.arange(together.shape[1]) < 3
        )  # the others, and every third of them begins so
        assert ((together[~zero] == 0) == led).all()
        assert led.any() == (OPS[op].view == "rows")
        assert abs(together[~zero].mean()) < 0.2
    else:
        assert 0.5 < np.median(np.abs(x)) < 1.0


@pytest.mark.parametrize(("length", "first"), [(1, 0), (2, 1), (9, 8), (255, 8), (256, 128), (700, 128)])
def test_padded_rows_begin_with_a_vector_or_a_block_of_zeros(length, first):
    """A kernel may take a row for padding by its first vector, or a block of zeros for a row of zeros."""
    for op in ("add_rmsnorm_quant_group_fwd", "layernorm_fwd"):
        case = make.case(CaseSpec((2, 30, length), data="padded"), OPS[op], Contract())
        for name in {"x", "residual"} & case.exact.keys():
            rows = case.exact[name].reshape(60, length)[1::3]
            assert not rows[:, :first].any()
            assert rows[:, first : first + 1].any() == (length > first)


def test_of_some_padded_rows_one_element_alone_is_not_zero():
    x = made("rmsnorm_fwd", shape=(60, 33), data="padded").exact["x"]
    alone = x[7::12]
    assert not alone[:, :-1].any()
    assert alone[:, -1].any()
    assert all((row != 0).sum() > 1 for row in x[1::12] if row.any())


@pytest.mark.parametrize(
    ("op", "fields", "rows", "columns"),
    [
        ("layernorm_bwd", {"shape": (4, 3, 10)}, (12, 10), (1,)),
        ("groupnorm_bwd", {"shape": (6, 4, 5), "num_groups": 2}, (6, 20), None),
        ("batchnorm_bwd", {"shape": (6, 4, 5)}, (6, 20), None),
        ("layernorm_bwd", {"shape": (7,)}, (1, 7), (1,)),
    ],
)
def test_dy_is_zero_where_its_data_says(op, fields, rows, columns):
    def zero(dy_data):
        return made(op, dy_data=dy_data, **fields).exact["dy"] == 0

    assert zero("zero").all()
    assert (made(op, dy_data="one", **fields).exact["dy"] == 1).all()
    assert not (zero("random") | zero("ramp") | zero("uneven")).any()
    masked = zero("zero_rows").reshape(rows)
    left = (~masked).sum(1)
    assert {*left} <= {0, 1, rows[1]}
    assert {*np.flatnonzero(left == 1) % 5} <= {2}
    assert 0 < masked.mean() < 1 or rows[0] == 1
    assert masked[0].all(), "a kernel may look at the first row and decide for all"
    assert rows[0] == 1 or not masked[-1].any(), "or at the last one"
    across = zero("zero_columns")
    across = across.reshape(rows) if columns else across.transpose(1, 0, 2).reshape(4, -1).T
    assert (across == across[:1]).all()
    assert 0 < across.mean() < 1
    assert made("add_rmsnorm_bwd", shape=(2, 4), dy_data="zero").exact["dresidual_out"].all()


def test_a_gradient_may_be_that_of_a_few_elements_or_of_a_part_of_y():
    def zero(dy_data, shape):
        return made("layernorm_bwd", shape=shape, dy_data=dy_data).exact["dy"].reshape(-1, shape[-1]) == 0

    picked = zero("zero_rows", (6, 10, 40))
    assert (picked.sum(1) == 39).sum() >= 3
    for length, tile in ((384, 128), (1024, 256), (8192, 512), (48, 16)):
        tiles = zero("zero_columns", (2, length))
        assert (tiles == (np.arange(length) // tile % 3 == 1)).all()
    normalized = made("layernorm_bwd", shape=(2, 6, 64), normalized_ndim=2, dy_data="zero_columns").exact["dy"]
    assert np.array_equal(normalized.reshape(2, 384) == 0, zero("zero_columns", (2, 384)))
    for length in (40, 101):  # and of single columns: the first, but not the last
        single = zero("zero_columns", (2, length))[0]
        assert (single[0], single[-1]) == (True, False)
        assert len({*np.flatnonzero(single) // 4}) > 5


def test_the_elements_that_a_gradient_picks_are_at_different_places():
    dy = made("layernorm_bwd", shape=(40, 40), dy_data="zero_rows").exact["dy"]
    places = [int(np.flatnonzero(row)[0]) for row in dy if np.count_nonzero(row) == 1]
    assert len(set(places)) == len(places) > 2
    assert made("layernorm_bwd", shape=(60, 1), dy_data="zero_rows").exact["dy"][2::5].all(), "rows of one element"


def test_rows_may_end_with_zeros_or_go_on_at_another_level():
    x = made("layernorm_fwd", shape=(4, 9, 1024), data="padded").exact["x"].reshape(36, 1024)
    last = [row for row in x[2::6] if row[:512].any()]
    assert last
    assert not np.any([row[512:] for row in last])
    assert np.all([row[:512] for row in last])
    assert np.mean([row[:512] for row in last]) == pytest.approx(3, abs=0.2)
    level = x[4::6]
    assert not level[:, :128].any()
    assert level[level[:, 128:].any(1), 128:].mean() == pytest.approx(100, abs=0.2)
    other = x[::6]
    assert other[other.any(1)].mean() == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize(("length", "half"), [(15, 15), (16, 8), (17, 9)])
def test_rows_of_16_elements_may_end_with_zeros_or_go_on_at_another_level(length, half):
    x = made("layernorm_fwd", shape=(60, length), data="padded").exact["x"]
    ended, level = (rows[rows.any(1)] for rows in (x[2::6], x[4::6]))
    assert ended[:, :half].all()
    assert not ended[:, half:].any()
    assert (ended[:, :half].mean() > 2) == (level[:, 8:].mean() > 50) == (length > 15)


def test_of_a_new_model_scale_and_the_gradient_of_the_stream_are_zero():
    """adaLN-zero, and a residual stream whose gradient has not begun: a kernel may leave a sum out there."""
    assert not made("modulate_rmsnorm_fwd", shape=(3, 4), weight_data="initial").exact["scale"].any()
    assert made("modulate_rmsnorm_fwd", shape=(3, 4), weight_data="initial").exact["shift"].any()
    assert made("modulate_rmsnorm_fwd", shape=(3, 4)).exact["scale"].any()
    assert (made("modulate_rmsnorm_fwd", shape=(1, 4)).exact["scale"] == -1).any(), "1 + scale is 0 in a short row too"
    assert not made("add_rmsnorm_bwd", shape=(3, 4), weight_data="initial").exact["dresidual_out"].any()


def test_of_a_new_model_running_statistics_are_zero_and_one():
    new = made("batchnorm_fwd", shape=(3, 6), weight_data="initial", log2_scale=-8, offset=3.0).exact
    assert (new["running_mean"] == 0).all()
    assert (new["running_var"] == 1).all()


def test_running_variances_may_be_zero_where_eps_is_not():
    dead = made("batchnorm_fwd", shape=(3, 6), data="padded", training=False).exact["running_var"] == 0
    assert dead.tolist() == [False, True, False, False, True, False]
    for other in ({"data": "normal"}, {"data": "padded", "eps": 0.0}):
        assert (made("batchnorm_fwd", shape=(3, 6), training=False, **other).exact["running_var"] > 0).all()


@pytest.mark.parametrize("data", ["constant", "channel", "ramp", "padded", "uneven"])
def test_families_by_channel(data):
    x = made("batchnorm_fwd", shape=(5, 8, 30), data=data).exact["x"].transpose(1, 0, 2).reshape(8, -1)
    if data == "constant":
        assert (x == x[:, :1]).all()
        assert np.unique(x[:, 0]).size == 8
    elif data == "channel":
        size = np.sort(np.abs(x).mean(1))
        assert size[-1] > 300 * size[-2]
    elif data == "ramp":  # over all samples, not over each
        assert np.abs(x - np.linspace(0, 2, 150)).max() < 0.1
    elif data == "padded":
        assert ((x == 0).all(1) == (x == 0).any(1)).all()
        assert 0 < (x == 0).mean() < 1
    else:
        assert 2.0**18 < x.std(1).max() / x.std(1).min() < 2.0**22


@pytest.mark.parametrize("data", ["padded", "uneven"])
def test_groups_of_one_number_differ_between_samples(data):
    x = made("groupnorm_fwd", shape=(8, 4, 6), num_groups=2, data=data).exact["x"].reshape(8, 2, -1)
    kinds = (x == 0).all(-1) if data == "padded" else np.rint(np.log2(x.std(-1)))
    assert len(np.unique(kinds, axis=0)) > 1


@pytest.mark.parametrize("weight_data", WEIGHTS)
def test_weights_that_are_zero_or_one(weight_data):
    for op, shape, offset in (
        ("layernorm_bwd", (2, 30), 0.0),
        ("rmsnorm_bwd", (2, 30), 1.0),
        ("groupnorm_bwd", (2, 30, 4), 0.0),
    ):
        case = made(op, shape=shape, num_groups=2, weight_data=weight_data, weight_offset=offset)
        zero = case.exact["weight"] + offset == 0
        one = case.exact["weight"] + offset == 1
        vanishing = weight_data == "subnormal" and offset  # beside 1
        assert zero.mean() == {"zero": 1.0, "some_zero": 1 / 3}.get(weight_data, 1 / 3 if vanishing else 0.0)
        assert one.mean() == {"one": 1.0, "initial": 1.0, "some_one": 1 / 3}.get(weight_data, 0.0)
        assert "bias" not in case.exact or case.exact["bias"].any() == (weight_data not in ("initial", "subnormal"))
        assert (case.expected["dx"].value == 0).all() == (weight_data == "zero")
        assert case.expected["dweight"].value.all()
    if weight_data == "subnormal":
        for dtype in ("float32", "float16", "bfloat16"):
            form, few = FORMATS[dtype], made("layernorm_bwd", shape=(2, 30), dtype=dtype, weight_data=weight_data)
            subnormal = np.abs(few.exact["weight"]) < 2.0**form.emin
            assert few.exact["weight"].all()
            assert subnormal.reshape(-1, 3).tolist() == [[True, False, False]] * 10
            usual = made("layernorm_bwd", shape=(2, 30), dtype=dtype).exact["weight"]
            powers = np.log2(few.exact["weight"] / usual)[subnormal]
            assert np.abs(powers - (form.emin - 2)).max() < 0.1, "some keep only a few bits, none is rounded to 0"


def test_leaving_out_one_tensor_changes_no_other():
    full, without = made(), made(bias=False, weight=False)
    assert without.arguments["weight"] is None
    assert without.arguments["bias"] is None
    assert without.expected["dweight"] is None
    assert np.array_equal(full.exact["x"], without.exact["x"])
    assert np.array_equal(full.exact["dy"], without.exact["dy"])


def test_weights_are_away_from_one_and_zero():
    weight = made(shape=(2, 500)).exact["weight"]
    assert np.abs(weight).min() >= 0.49
    assert (weight < 0).any()
    gemma = made("rmsnorm_fwd", shape=(2, 500), weight_offset=1.0).exact["weight"]
    assert np.abs(gemma + 1.0).min() >= 0.49


def test_weights_are_of_all_magnitudes_where_the_case_says():
    """By 41 powers of two, with what a modulation adds; other values are of about 1."""
    wide, usual = (made("modulate_layernorm_fwd", shape=(900, 3), weight_data=data) for data in ("wide", "random"))
    for name in ("scale", "shift"):
        ratio = wide.exact[name][usual.exact[name] != 0] / usual.exact[name][usual.exact[name] != 0]
        assert set(np.log2(ratio)) == set(range(-20, 21)), name
    wide, usual = (
        made("layernorm_fwd", shape=(2, 30, 30), normalized_ndim=2, weight_data=data) for data in ("wide", "random")
    )
    for name in ("weight", "bias"):
        assert set(np.log2(wide.exact[name] / usual.exact[name]).flat) == set(range(-20, 21)), name
        assert 0.5 < np.median(np.abs(usual.exact[name])) < 1.4


@pytest.mark.parametrize("fields", [{"dtype": "float16"}, {"weight_dtype": "float16"}])
def test_weights_beside_float16_do_not_overflow_it(fields):
    wide, usual = (made("rmsnorm_bwd", shape=(2, 900), weight_data=data, **fields) for data in ("wide", "random"))
    assert set(np.log2(wide.exact["weight"] / usual.exact["weight"]).flat) == set(range(-10, 11))


@pytest.mark.parametrize("weight_dtype", [None, "float32"])
def test_some_results_overflow_float16(weight_dtype):
    case = made("rmsnorm_fwd", dtype="float16", weight_dtype=weight_dtype, shape=(4, 900), weight_data="wide")
    large = np.abs(case.exact["weight"]) > 2.0**12
    assert large.nonzero()[0].tolist() == list(range(5, 900, 16))
    beyond = np.abs(case.expected["y"].value) > 65504
    assert 0.1 < beyond[:, large].mean() < 0.6
    assert not beyond[:, ~large].any()
    of_few_bits = made("rmsnorm_quant_fwd", dtype="float16", shape=(4, 900), weight_data="wide")
    assert np.abs(of_few_bits.exact["weight"]).max() < 2.0**13


@pytest.mark.parametrize("weight_data", WEIGHTS)
def test_what_is_positive_is_neither_zero_nor_negative(weight_data):
    spec, op = CaseSpec((2, 6, 5), normalized_ndim=2, weight_data=weight_data), OPS["rmsnorm_fwd"]
    some, positive = (draw.exact_values(spec, op, replace(WEIGHT, positive=positive)) for positive in (False, True))
    assert np.array_equal(positive, np.where(some == 0, 1.0, np.abs(some)))


def test_running_statistics_are_those_of_a_batch_like_x():
    exact = made("batchnorm_fwd", shape=(2, 2000), offset=3.0, log2_scale=4).exact
    assert exact["running_mean"].mean() / 16 == pytest.approx(3.0, abs=0.1)
    assert exact["running_mean"].std() / 16 == pytest.approx(1.0, abs=0.1)
    assert exact["running_var"].min() / 256 == pytest.approx(0.5, abs=0.01)
    assert np.median(exact["running_var"]) / 256 == pytest.approx(1.17, abs=0.1)


def test_scale_offset_and_special():
    x = made(log2_scale=-20, offset=1e3, shape=(50, 50)).exact["x"]
    assert abs(x.mean() - 1e3 * 2.0**-20) < 1e-4 * 2.0**-10
    assert np.isnan(made(special="nan").exact["x"][0, 0])
    for offset in (4.0, -4.0):
        assert np.isfinite(made(dtype="float16", log2_scale=15, offset=offset).exact["x"]).all()


@pytest.mark.parametrize("layout", ["expanded", "scalar"])
def test_expanded_gradients_hold_what_they_can(layout):
    dy = made(dy_layout=layout).exact["dy"]
    assert (dy == dy[:1]).all()
    assert (np.unique(dy).size == 1) == (layout == "scalar")


def test_the_same_spec_is_the_same_case():
    one, two = made(seed=5), made(seed=5)
    assert np.array_equal(one.exact["x"], two.exact["x"])
    assert not np.array_equal(one.exact["x"], made(seed=6).exact["x"])


@pytest.mark.parametrize("data", ["sorted", "ramp", "steps"])
def test_ordered_data_are_what_they_are_called(data):
    rows, place = made("rmsnorm_fwd", shape=(3, 512), data=data).exact["x"], (np.arange(512) + 0.5) / 512
    noise = made("rmsnorm_fwd", shape=(3, 512)).exact["x"] / 64
    ordered = {"sorted": stats.norm.ppf(place), "ramp": 2 * place, "steps": np.repeat(np.arange(8) / 4, 64)}[data]
    assert np.abs(rows - ordered - noise).max() < 1e-6
    alone = made("rmsnorm_fwd", shape=(4, 1), data=data).exact["x"]
    assert np.abs(alone - {"sorted": 0, "ramp": 1, "steps": 1}[data]).max() < 0.1


def test_the_mean_of_uneven_rows_is_that_of_their_scale_or_none():
    x = made("rmsnorm_fwd", shape=(40, 2000), data="uneven").exact["x"]
    means = x.mean(1) / x.std(1)
    assert set(np.rint(means)) == {-8, 0, 8}
    assert np.abs(means - np.rint(means)).max() < 0.5


def test_one_channel_of_one_is_large():
    assert all(
        np.abs(made("rmsnorm_fwd", shape=(9, 1), data="channel", seed=n).exact["x"]).max() > 99 for n in range(5)
    )


def test_rows_that_are_masked_are_not_known_beforehand():
    """Of three rows the first is masked, the last is not; a kernel cannot know the one between."""
    seen = {tuple((made(shape=(3, 4), dy_data="zero_rows", seed=n).exact["dy"] == 0).all(1)) for n in range(12)}
    assert seen == {(True, False, False), (True, True, False)}


def test_the_share_of_a_dropout_is_exact(monkeypatch):
    """Of numbers that are all drawn equally often, the share of those that leave an element out is its probability."""
    monkeypatch.setattr(Random, "integers", lambda rng, low, high, shape: np.resize(np.arange(low, high), shape) * 1.0)
    mask = made("dropout_add_rmsnorm_fwd", shape=(4, 8), dropout_p=3 / 2**20).exact["mask"]
    assert mask.tolist() == [[0.0] * 3 + [1.0] * 5] + [[1.0] * 8] * 3


def test_some_gates_are_far_out():
    """A seventh of them are sixteen times larger, where a sigmoid is 0 or 1."""
    gate = made("gated_rmsnorm_fwd", shape=(6, 70)).exact["gate"]
    ratio = np.rint(gate / Random(0, "gate").standard_normal((6, 70)))
    assert set(ratio.flat) == {0, 2, 32}
    assert [(ratio[:5] == one).mean() for one in (0, 32)] == [1 / 7, 1 / 7]
    assert not ratio[5].any(), "of a whole row"


def test_a_rotation_has_one_angle_in_any_turn_and_some_that_turn_nothing():
    exact = made("qk_norm_rope_fwd", shape=(5, 14, 8)).exact
    cos, sin = exact["cos"], exact["sin"]
    angle = 8 * Random(0, "angle").standard_normal(cos.shape)  # of both inputs, which have streams of their own
    still = (cos == 1) & (sin == 0)
    assert still.reshape(5, -1).mean() == pytest.approx(1 / 7, abs=0.02)
    assert np.abs(cos - np.cos(angle))[~still].max() < 1e-6
    assert np.abs(sin - np.sin(angle))[~still].max() < 1e-6
