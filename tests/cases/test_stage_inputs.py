"""What stages of a chain are given: values at which they do the least and the most, whatever x is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from verify_norm.cases import draw, make
from verify_norm.cases.device_array import DeviceArray, in_memory
from verify_norm.cases.random import Random
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tensors import WEIGHT


def exact(op, **fields):
    return make.exact_inputs(CaseSpec(**fields), OPS[op])


@pytest.mark.parametrize(("name", "gone"), [("scale", -1.0), ("shift", 0.0)])
def test_a_modulation_vanishes_in_each_column_somewhere(name, gone):
    values = exact("modulate_layernorm_fwd", shape=(32, 3, 64), log2_scale=9)[name]
    assert values.shape == (32, 64)
    assert (values == gone).any(0).all()
    assert (values == gone).mean() == pytest.approx(1 / 7, abs=0.01)
    assert values[values != gone].std() == pytest.approx(1.0, abs=0.1)


def test_angles_are_all_around_and_0_in_some_places():
    cos, sin = (exact("qk_norm_rope_fwd", shape=(50, 3, 64), log2_scale=9)[name] for name in ("cos", "sin"))
    assert np.allclose(cos**2 + sin**2, 1, rtol=0, atol=1e-6)
    still = (cos == 1) & (sin == 0)
    whole = np.arange(50) % 8 == 5
    assert still[whole].all()
    assert still[~whole].mean() == pytest.approx(1 / 7, abs=0.01)
    for values in (cos, sin):
        assert (values[~still] < 0).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("dropout_p", [0.0, 0.25, 0.75, 1 - 2**-10])
def test_a_mask_drops_the_share_that_the_case_says(dropout_p):
    mask = exact("dropout_add_rmsnorm_fwd", shape=(100, 100), data="zero", dropout_p=dropout_p)["mask"]
    assert set(np.unique(mask)) <= {0.0, 1.0}
    place = np.arange(100) % 8
    some = mask[(place != 5) & (place != 6)]
    assert (some == 0).mean() == pytest.approx(dropout_p, abs=0.02 if 0 < dropout_p < 0.9 else 0.001)
    assert mask[place == 6].all()
    assert mask[place == 5].any() == (dropout_p == 0)


def test_gates_are_of_the_size_of_their_stage_and_some_are_far_out():
    gate = exact("gated_rmsnorm_fwd", shape=(100, 100), data="zero", log2_scale=9)["gate"]
    off = np.arange(100) % 8 == 5
    assert not gate[off].any(), "of whole rows"
    assert (gate[~off] == 0).mean() == pytest.approx(1 / 7, abs=0.01)
    assert (gate[~off] == 0).any(0).all()
    assert np.median(np.abs(gate[gate != 0])) == pytest.approx(1.75, abs=0.1)
    far = np.abs(gate[~off]) > 10  # 1 - sigmoid(10) is below bfloat16's and float16's last bit
    assert far.mean() == pytest.approx(0.755 / 7, abs=0.01)
    assert far.any(0).mean() > 0.9


def test_rows_are_0_by_a_gate_before_the_norm_in_padded_data_alone():
    """A row of 0 has no variance, so a backward's use of the given rstd would not be judged."""
    for data, off in (("normal", 0), ("padded", 12)):
        gate = exact("gate_rmsnorm_bwd", shape=(100, 20), data=data)["gate"]
        assert (gate == 0).all(1).sum() == off
        assert (gate == 0).any(1).all()


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float16", "offset": 3.0, "x_layout": "transposed"}, {"residual_layout": "offset"}]
)
def test_a_residual_cancels_some_elements_and_some_rows(options):
    """There the sum is 0, which a kernel may divide by, or take for padding."""
    values = exact("add_layernorm_bwd", shape=(5, 8), **options)
    assert "residual" not in values
    values = exact("add_layernorm_fwd", shape=(20, 3, 40), **options)
    zero = (values["x"] + values["residual"] == 0).reshape(60, 40)
    whole = np.arange(60) % 8 == 6
    assert zero[whole].all()
    assert zero[~whole].mean() == pytest.approx(1 / 7, abs=0.02)
    marked = exact("add_layernorm_fwd", shape=(20, 3, 40), special="nan", special_at="row", **options)
    assert np.array_equal(marked["residual"], values["residual"]), "whatever x has besides"
    large = exact("add_layernorm_fwd", shape=(64, 257), **options)
    assert (large["x"] + large["residual"] == 0).mean() < 0.01


@pytest.mark.parametrize(
    ("op", "name", "scale", "value"),
    [
        ("rmsnorm_fp8_fwd", "scale", 4.0, 4.0),
        ("rmsnorm_fp8_fwd", "scale", 0.0, 0.0),
        ("rmsnorm | quantize(e4m3fn)_fwd", "y_scale", 4.0, 0.25),
        ("rmsnorm | quantize(e4m3fn)_fwd", "y_scale", 0.0, 1.0),
        ("rmsnorm | quantize(e4m3fn, per_token, scale_ub)_fwd", "scale_ub", 4.0, 75.0),
        ("rmsnorm | quantize(e4m3fn, per_token, scale_ub)_fwd", "scale_ub", 0.0, 300.0),
        ("rmsnorm | quantize(e2m1, nvfp4)_fwd", "global_scale", 4.0, 4.0),
    ],
)
def test_scales_of_y_are_those_of_the_case(op, name, scale, value):
    assert exact(op, shape=(2, 32), scale=scale)[name].tolist() == [value]


def test_a_weight_of_one_value_is_drawn_as_any_weight():
    op, one = OPS["layernorm_fwd"], replace(WEIGHT, extent="one")
    drawn = [draw.exact_values(CaseSpec((2, 3), seed=n), op, one) for n in range(9)]
    assert all(values.shape == (1,) for values in drawn)
    assert len(np.unique(drawn)) == 9
    assert draw.exact_values(CaseSpec((2, 3), weight_data="zero"), op, one).tolist() == [0.0]


@pytest.mark.parametrize("op", ["layernorm_bwd", "modulate_rmsnorm_fwd", "qk_norm_rope_fwd", "dropout_add_rmsnorm_fwd"])
def test_values_are_drawn_where_they_are_wanted_and_the_same_there(op, monkeypatch):
    asked = []

    def noted(seed, name, device=None):
        asked.append(device)
        return Random(seed, name, device)

    spec, op = CaseSpec((4, 6), special="nan"), OPS[op]
    here = {one.name: draw.exact_values(spec, op, one) for one in op.inputs if one.role != "saved"}
    monkeypatch.setattr(draw, "Random", noted)
    for one in op.inputs:
        if one.role != "saved":
            there = draw.exact_values(spec, op, one, torch.device("cpu"))
            assert isinstance(there, DeviceArray)
            assert np.array_equal(in_memory(there), here[one.name], equal_nan=True)
    assert set(asked) == {torch.device("cpu")}
    assert draw.exact_values(spec, op, WEIGHT, "meta").tensor.device.type == "meta"
