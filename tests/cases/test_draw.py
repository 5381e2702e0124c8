"""The values of a case's inputs: every family of data, each tensor from its own random stream."""

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FAMILIES, WEIGHTS, CaseSpec, Contract


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
    elif data == "alternating":
        assert set(np.unique(x)) == {-1.0, 1.0}
    elif data == "integers":
        assert (x == np.rint(x)).all()
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
        assert (together[~zero] != 0).all()
    else:
        assert 0.5 < np.median(np.abs(x)) < 1.0


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
    assert (masked == masked[:, :1]).all()
    assert 0 < masked.mean() < 1 or rows[0] == 1
    assert masked[0].all(), "a kernel may look at the first row and decide for all"
    assert rows[0] == 1 or not masked[-1].any(), "or at the last one"
    across = zero("zero_columns")
    across = across.reshape(rows) if columns else across.transpose(1, 0, 2).reshape(4, -1).T
    assert (across == across[:1]).all()
    assert 0 < across.mean() < 1
    assert made("add_rmsnorm_bwd", shape=(2, 4), dy_data="zero").exact["dresidual_out"].all()


PLACES = {"first": [(0, 0, 0)], "middle": [(2, 1, 3)], "last": [(4, 2, 5)], "rows": [(0, 0, 0), (2, 1, 1), (4, 2, 2)]}


@pytest.mark.parametrize("at", PLACES)
def test_a_special_value_is_in_one_input_where_the_case_says(at):
    spec = {"shape": (5, 3, 6), "special": "-inf", "special_at": at}
    for name in ("x", "residual", "weight"):
        exact = made("add_layernorm_fwd", special_in=name, **spec).exact
        assert [n for n, values in exact.items() if np.isinf(values).any()] == [name]
        if name != "weight":
            assert [tuple(map(int, place)) for place in np.argwhere(exact[name] == -np.inf)] == PLACES[at]
    shared = made("layernorm_bwd", special_in="dy", dy_layout="expanded", **spec).exact["dy"]
    assert (shared == shared[:1]).all()
    assert np.isinf(shared).any()
    assert np.isinf(made("add_rmsnorm_bwd", **spec).exact["residual_out"]).any()  # which stands for x
    assert np.isinf(made("batchnorm_fwd", special_in="running_var", **spec).exact["running_var"]).any()


@pytest.mark.parametrize("data", ["constant", "channel"])
def test_families_by_channel(data):
    x = made("batchnorm_fwd", shape=(5, 8, 3), data=data).exact["x"].transpose(1, 0, 2).reshape(8, -1)
    if data == "constant":
        assert (x == x[:, :1]).all()
        assert np.unique(x[:, 0]).size == 8
    else:
        size = np.sort(np.abs(x).mean(1))
        assert size[-1] > 300 * size[-2]


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


def test_scale_offset_and_special():
    x = made(log2_scale=-20, offset=1e3, shape=(50, 50)).exact["x"]
    assert abs(x.mean() - 1e3 * 2.0**-20) < 1e-4 * 2.0**-10
    assert np.isnan(made(special="nan").exact["x"][0, 0])
    assert np.isfinite(made(dtype="float16", log2_scale=15, offset=4.0).exact["x"]).all()


@pytest.mark.parametrize("layout", ["expanded", "scalar"])
def test_expanded_gradients_hold_what_they_can(layout):
    dy = made(dy_layout=layout).exact["dy"]
    assert (dy == dy[:1]).all()
    assert (np.unique(dy).size == 1) == (layout == "scalar")


def test_the_same_spec_is_the_same_case():
    one, two = made(seed=5), made(seed=5)
    assert np.array_equal(one.exact["x"], two.exact["x"])
    assert not np.array_equal(one.exact["x"], made(seed=6).exact["x"])
