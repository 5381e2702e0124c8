"""From a spec to data: every family, the truth at the rounded inputs, and streams that do not disturb each other."""

import numpy as np
import pytest
import torch

from verify_norm import cases, memory
from verify_norm.dtypes import FORMATS
from verify_norm.ops import OPS
from verify_norm.spec import FAMILIES, WEIGHTS, CaseSpec, Contract


def make(op="layernorm_bwd", **fields):
    return cases.make(CaseSpec(**{"shape": (3, 8)} | fields), OPS[op], Contract())


@pytest.mark.parametrize("op", OPS)
def test_arguments_are_what_the_operator_takes(op):
    case = make(op, shape=(2, 4, 3), num_groups=2, dtype="bfloat16", weight_dtype="float32")
    assert set(case.arguments) == {t.name for t in OPS[op].inputs} | set(OPS[op].attrs)
    assert case.arguments["x" if "x" in case.arguments else "residual_out"].dtype == torch.bfloat16
    assert case.arguments["weight"].dtype == torch.float32
    for name in ("mean", "rstd"):
        if name in case.arguments:
            assert case.arguments[name].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_truth_is_taken_at_the_inputs_the_kernel_gets(dtype):
    case = make(dtype=dtype, offset=100.0, shape=(4, 16))
    for name in ("x", "dy", "weight", "bias"):
        assert np.array_equal(memory.to_float64(case.arguments[name]), case.exact[name])
    x, w, b = (torch.tensor(case.exact[n], requires_grad=True) for n in ("x", "weight", "bias"))
    y = torch.nn.functional.layer_norm(x, (16,), w, b, case.spec.eps)
    dx, dweight, dbias = torch.autograd.grad(y, (x, w, b), torch.tensor(case.exact["dy"]))
    for name, want in (("dx", dx), ("dweight", dweight), ("dbias", dbias)):
        assert np.allclose(case.expected[name].value, want.numpy(), rtol=1e-9, atol=1e-12), name


def test_saved_statistics_are_the_truth_rounded():
    case = make(offset=10.0)
    mean = case.exact["x"].mean(-1)
    assert np.array_equal(memory.to_float64(case.arguments["mean"]), FORMATS["float32"].round(mean))


@pytest.mark.parametrize("data", FAMILIES)
@pytest.mark.parametrize("op", ["layernorm_fwd", "groupnorm_fwd"])
def test_families(data, op):
    x = make(op, shape=(64, 32, 4), num_groups=4, data=data).exact["x"]
    assert x.shape == (64, 32, 4)
    assert np.isfinite(x).all()
    rows = x.reshape(64, -1) if op == "groupnorm_fwd" else x
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
    else:
        assert 0.5 < np.median(np.abs(x)) < 1.0


@pytest.mark.parametrize("data", ["constant", "channel"])
def test_families_by_channel(data):
    x = make("batchnorm_fwd", shape=(5, 8, 3), data=data).exact["x"].transpose(1, 0, 2).reshape(8, -1)
    if data == "constant":
        assert (x == x[:, :1]).all()
        assert np.unique(x[:, 0]).size == 8
    else:
        size = np.sort(np.abs(x).mean(1))
        assert size[-1] > 300 * size[-2]


@pytest.mark.parametrize("weight_data", WEIGHTS)
def test_weights_that_vanish(weight_data):
    for op, shape, offset in (
        ("layernorm_bwd", (2, 30), 0.0),
        ("rmsnorm_bwd", (2, 30), 1.0),
        ("groupnorm_bwd", (2, 30, 4), 0.0),
    ):
        case = make(op, shape=shape, num_groups=2, weight_data=weight_data, weight_offset=offset)
        zero = case.exact["weight"] + offset == 0
        assert zero.mean() == {"random": 0.0, "zero": 1.0, "some_zero": 1 / 3}[weight_data]
        assert (case.expected["dx"].value == 0).all() == (weight_data == "zero")
        assert case.expected["dweight"].value.all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [("float32", None), ("bfloat16", None), ("float16", "float32")])
def test_running_statistics(training, dtype, weight_dtype):
    """They have the weight's type, as torch wants it, and a positive variance; training alone moves them."""
    for log2_scale in (0, -20, 16):
        fields = {"shape": (4, 3, 5), "dtype": dtype, "weight_dtype": weight_dtype, "log2_scale": log2_scale}
        case = make("batchnorm_fwd", training=training, **fields)
        for name in ("running_mean", "running_var"):
            assert case.arguments[name].dtype == case.arguments["weight"].dtype
            assert case.expected[name].dtype == str(case.arguments["weight"].dtype).removeprefix("torch.")
            assert (case.expected[name].value == case.exact[name]).all() == (not training)
            assert np.isfinite(case.exact[name]).all()
        assert (case.exact["running_var"] > 0).all()
        assert {"training", "momentum", "eps"} <= set(case.arguments)
        assert "momentum" not in make("batchnorm_bwd", training=training, **fields).arguments
    none = make("batchnorm_fwd", shape=(4, 3), running=False)
    assert none.arguments["running_mean"] is none.expected["running_var"] is None


@pytest.mark.parametrize("training", [True, False])
def test_saved_statistics_are_those_that_made_y(training):
    case = make("batchnorm_bwd", shape=(4, 3, 5), training=training)
    x, want = case.exact["x"], case.exact["running_mean"]
    mean = x.mean((0, 2)) if training else want
    assert np.array_equal(memory.to_float64(case.arguments["mean"]), FORMATS["float32"].round(mean))


@pytest.mark.parametrize(
    ("op", "fields", "said"),
    [
        ("groupnorm_fwd", {"shape": (2, 3)}, "needs num_groups"),
        ("batchnorm_fwd", {"shape": (1, 3)}, "more than one value a channel"),
        ("batchnorm_bwd", {"shape": (1, 3, 1)}, "more than one value a channel"),
        ("batchnorm_fwd", {"shape": (4, 3), "training": False, "running": False}, "needs running statistics"),
        ("layernorm_fwd", {"shape": (0, 3), "special": "nan"}, "holds no nan"),
    ],
)
def test_what_is_no_case_is_refused(op, fields, said):
    with pytest.raises(ValueError, match=said):
        make(op, **fields)


def test_one_value_a_channel_is_a_case_of_evaluation():
    assert make("batchnorm_fwd", shape=(1, 3), training=False).expected["y"].value.shape == (1, 3)
    assert make("instancenorm_fwd", shape=(1, 3)).expected["mean"].value.shape == (1, 3)


def test_leaving_out_one_tensor_changes_no_other():
    full, without = make(), make(bias=False, weight=False)
    assert without.arguments["weight"] is None
    assert without.arguments["bias"] is None
    assert without.expected["dweight"] is None
    assert np.array_equal(full.exact["x"], without.exact["x"])
    assert np.array_equal(full.exact["dy"], without.exact["dy"])


def test_weights_are_away_from_one_and_zero():
    weight = make(shape=(2, 500)).exact["weight"]
    assert np.abs(weight).min() >= 0.49
    assert (weight < 0).any()
    gemma = make("rmsnorm_fwd", shape=(2, 500), weight_offset=1.0).exact["weight"]
    assert np.abs(gemma + 1.0).min() >= 0.49


def test_scale_offset_and_special():
    x = make(log2_scale=-20, offset=1e3, shape=(50, 50)).exact["x"]
    assert abs(x.mean() - 1e3 * 2.0**-20) < 1e-4 * 2.0**-10
    assert np.isnan(make(special="nan").exact["x"][0, 0])
    assert np.isfinite(make(dtype="float16", log2_scale=15, offset=4.0).exact["x"]).all()


@pytest.mark.parametrize("layout", ["expanded", "scalar"])
def test_expanded_gradients_hold_what_they_can(layout):
    dy = make(dy_layout=layout).exact["dy"]
    assert (dy == dy[:1]).all()
    assert (np.unique(dy).size == 1) == (layout == "scalar")


def test_the_same_spec_is_the_same_case():
    one, two = make(seed=5), make(seed=5)
    assert np.array_equal(one.exact["x"], two.exact["x"])
    assert not np.array_equal(one.exact["x"], make(seed=6).exact["x"])


def test_a_looser_contract_allows_more():
    spec = CaseSpec(shape=(8, 64), dtype="bfloat16", offset=10.0)
    strict = cases.make(spec, OPS["rmsnorm_bwd"], Contract()).expected["dweight"].delta
    for loose in (
        Contract(xhat="x"),
        Contract(stats="bfloat16"),
        Contract(partials="x"),
        Contract(accumulate="float16"),
    ):
        assert (cases.make(spec, OPS["rmsnorm_bwd"], loose).expected["dweight"].delta > 2 * strict).all(), loose
