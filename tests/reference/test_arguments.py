"""What every operator's reference and bound do with their arguments, whatever its formulas are."""

from inspect import signature

import numpy as np
import pytest
from references import EPS, FLOAT32

from verify_norm.core.ops import OPS
from verify_norm.reference.statistics_rounding import Given

ROWS = [name for name, op in OPS.items() if op.view == "rows"]
DATA = ("dy", "x", "residual", "residual_out", "dresidual_out", "gate", "shift")
OPTIONS = {"eps": EPS, "num_groups": 2, "training": True, "momentum": 0.25, "scale": 2.0, "largest": 448.0}
OPTIONS |= {"variance_size": 3, "dropout_p": 0.25}
OPTIONS |= {"arithmetic": FLOAT32}


def call(function, shape=(3, 4, 4), affine=None, **changes):
    """What a reference or a bound returns of random arguments, by name."""
    rng = np.random.default_rng(2)
    given = {name: rng.normal(size=shape) + 0.5 for name in DATA}
    affine = shape[1:2] if affine is None else affine
    names = ("weight", "bias", "running_mean", "running_var")
    given["residual_out"] = given["x"] + given["residual"]
    given |= {name: np.abs(rng.normal(size=affine)) + 0.5 for name in names} | OPTIONS | changes
    if "mask" in signature(function).parameters:
        given["mask"] = np.ones(shape)
        given["residual_out"] = given["x"] / (1 - OPTIONS["dropout_p"]) + given["residual"]
    if "shift" in signature(function).parameters:
        given["scale"] = given["residual"]  # a modulation's, in the shape of x
    given |= {"cos": np.full((1, 2), 0.6), "sin": np.full((1, 2), 0.8)}  # one token, all rows its heads
    taken = {name: value for name, value in given.items() if name in signature(function).parameters}
    return function(**taken)._asdict()


def both(name):
    return OPS[name].reference, OPS[name].error


@pytest.mark.parametrize("name", ROWS)
def test_several_normalized_dimensions_are_one_row(name):
    for function in both(name):
        several = call(function, (2, 3, 4, 5), (4, 5), normalized_shape=(4, 5))
        flat = call(function, (6, 20), (20,), normalized_shape=None)
        for output, value in several.items():
            assert np.array_equal(np.ravel(value), np.ravel(flat[output])), output
        assert several.get("dx", several.get("y")).shape == (2, 3, 4, 5)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if "weight_offset" in op.attrs])
def test_nothing_is_added_to_the_weight_unless_it_is_said(name):
    for function in both(name):
        alone, added, more = call(function), call(function, weight_offset=0.0), call(function, weight_offset=2.0)
        for output, value in alone.items():
            assert np.array_equal(value, added[output]), output
        output = "dx" if "dx" in alone else "y"
        assert (alone[output] != more[output]).any()


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if any(t.role == "weight" for t in op.inputs)])
def test_a_bound_grows_with_the_weight_and_the_bias(name):
    error, output = OPS[name].error, "dx" if OPS[name].forward else "y"
    if OPS[name].quantized or OPS[name].quantizer:
        output = "amax" if OPS[name].quantized else "y_scale"
    plain, loud = (call(error, weight=np.full(4, w), bias=np.full(4, 0.0))[output] for w in (2.0, 2000.0))
    passed = "dresidual_out" in signature(error).parameters or OPS[name].stages
    if not OPS[name].linear:
        loud, plain = loud.max(), plain.max()  # far below 0 an activation is flat
    assert (loud > (1 if passed else 900) * plain).all()
    if "bias" in signature(error).parameters and not OPS[name].forward:
        offset = call(error, weight=np.full(4, 2.0), bias=np.full(4, 1e6))[output]
        assert ((offset if OPS[name].linear else offset.max()) > 2 * plain).all()


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if "given" in signature(op.error).parameters])
@pytest.mark.parametrize("statistic", [0, 1])
def test_a_backward_is_as_far_off_as_the_statistics_that_it_is_given(name, statistic):
    error = OPS[name].error
    forward = call(OPS[OPS[name].forward].reference)
    saved = [forward.get("mean"), forward["rstd"]]
    if saved[statistic] is None:
        return
    own = call(error, given=Given(*saved))
    saved[statistic] = saved[statistic] * 1.5 + 0.1
    other = call(error, given=Given(*saved))
    for output in {"dx", "dweight"} & set(own):
        assert (other[output] > 1e3 * own[output]).all(), output


@pytest.mark.parametrize("name", OPS)
def test_an_output_is_none_where_its_argument_is_and_nowhere_else(name):
    outputs = {tensor.name for tensor in OPS[name].outputs}
    for function in both(name):
        whole, without = call(function), call(function, weight=None, bias=None)
        assert {output for output, value in whole.items() if value is not None} == outputs
        assert {output for output, value in without.items() if value is None} == outputs & {"dweight", "dbias"}
