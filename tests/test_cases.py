"""From a spec to data: every family, the truth at the rounded inputs, and streams that do not disturb each other."""

import numpy as np
import pytest
import torch

from verify_norm import cases, memory
from verify_norm.dtypes import FORMATS
from verify_norm.ops import OPS
from verify_norm.spec import FAMILIES, CaseSpec, Contract


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
