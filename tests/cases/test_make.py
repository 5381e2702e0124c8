"""From a spec to a case: the arguments, and the truth at the rounded inputs."""

import functools
import inspect
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from verify_norm.cases import contents, make
from verify_norm.cases.device_array import DeviceArray, in_memory
from verify_norm.core import layouts
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


def made(op="layernorm_bwd", **fields):
    return make.case(CaseSpec(**{"shape": (3, 8)} | fields), OPS[op], Contract())


@pytest.mark.parametrize("op", OPS)
def test_arguments_are_what_the_operator_takes(op):
    case = made(op, shape=(2, 4, 3), num_groups=2, dtype="bfloat16", weight_dtype="float32")
    assert set(case.arguments) == {t.name for t in OPS[op].inputs} | set(OPS[op].attrs)
    assert case.arguments["x" if "x" in case.arguments else "residual_out"].dtype == torch.bfloat16
    assert case.arguments.get("weight", torch.zeros(())).dtype == torch.float32
    for name in ("mean", "rstd"):
        if name in case.arguments:
            assert case.arguments[name].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_truth_is_taken_at_the_inputs_the_kernel_gets(dtype):
    case = made(dtype=dtype, offset=100.0, shape=(4, 16))
    for name in ("x", "dy", "weight", "bias"):
        assert np.array_equal(contents.to_float64(case.arguments[name]), case.exact[name])
    x, w, b = (torch.tensor(case.exact[n], requires_grad=True) for n in ("x", "weight", "bias"))
    y = torch.nn.functional.layer_norm(x, (16,), w, b, case.spec.eps)
    dx, dweight, dbias = torch.autograd.grad(y, (x, w, b), torch.tensor(case.exact["dy"]))
    for name, want in (("dx", dx), ("dweight", dweight), ("dbias", dbias)):
        assert np.allclose(case.expected[name].value, want.numpy(), rtol=1e-9, atol=1e-12), name


def test_saved_statistics_are_the_truth_rounded():
    case = made(offset=10.0)
    mean = case.exact["x"].mean(-1)
    assert np.array_equal(contents.to_float64(case.arguments["mean"]), FORMATS["float32"].round(mean))


def test_a_fused_addition_saves_the_statistics_of_the_sum():
    case = made("add_layernorm_bwd", offset=10.0)
    x = case.exact["residual_out"]
    mean, rstd = x.mean(-1), 1 / np.sqrt(x.var(-1) + case.spec.eps)
    for name, value in (("mean", mean), ("rstd", rstd)):
        assert np.array_equal(case.exact[name], FORMATS["float32"].round(value)), name


def test_what_needs_no_gradient_has_none():
    frozen = made(frozen=("x", "bias"))
    assert {name for name, one in frozen.expected.items() if one is None} == {"dx", "dbias"}


def test_both_poisons_show():
    """One in most arithmetic, the other in comparisons; each type holds it, and it is far from the data and from 0."""
    nan, finite = make.POISONS["nan"], make.POISONS["finite"]
    assert np.isnan(nan)
    assert 1e3 < finite < FORMATS["float16"].largest
    assert all(form.round(np.array(finite)) == finite for form in map(FORMATS.get, ("float32", "float16", "bfloat16")))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [("float32", None), ("bfloat16", None), ("float16", "float32")])
def test_running_statistics(training, dtype, weight_dtype):
    """They have the weight's type, as torch wants it, and a positive variance; training alone moves them."""
    for log2_scale in (0, -20, 16):
        fields = {"shape": (4, 3, 5), "dtype": dtype, "weight_dtype": weight_dtype, "log2_scale": log2_scale}
        case = made("batchnorm_fwd", training=training, **fields)
        for name in ("running_mean", "running_var"):
            assert case.arguments[name].dtype == case.arguments["weight"].dtype
            assert case.expected[name].dtype == str(case.arguments["weight"].dtype).removeprefix("torch.")
            assert (case.expected[name].value == case.exact[name]).all() == (not training)
            assert np.isfinite(case.exact[name]).all()
        assert (case.exact["running_var"] > 0).all()
        assert {"training", "momentum", "eps"} <= set(case.arguments)
        assert "momentum" not in made("batchnorm_bwd", training=training, **fields).arguments
    none = made("batchnorm_fwd", shape=(4, 3), running=False)
    assert none.arguments["running_mean"] is none.expected["running_var"] is None


@pytest.mark.parametrize("training", [True, False])
def test_saved_statistics_are_those_that_made_y(training):
    case = made("batchnorm_bwd", shape=(4, 3, 5), training=training)
    x, want = case.exact["x"], case.exact["running_mean"]
    mean = x.mean((0, 2)) if training else want
    assert np.array_equal(contents.to_float64(case.arguments["mean"]), FORMATS["float32"].round(mean))


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
        made(op, **fields)


def test_one_value_a_channel_is_a_case_of_evaluation():
    assert made("batchnorm_fwd", shape=(1, 3), training=False).expected["y"].value.shape == (1, 3)
    assert made("instancenorm_fwd", shape=(1, 3)).expected["mean"].value.shape == (1, 3)


def test_two_inputs_that_are_one_tensor():
    pairs = {"layernorm_bwd": ("x:dy", "weight:bias"), "add_rmsnorm_fwd": ("x:residual",)}
    pairs |= {"gated_rmsnorm_fwd": ("x:gate",), "modulate_rmsnorm_bwd": ("scale:shift",)}
    for op, pair in [(op, pair) for op, each in pairs.items() for pair in each]:
        one, two = pair.split(":")
        case = made(op, alias=pair, x_layout="transposed", dy_layout="transposed")
        assert case.arguments[one] is case.arguments[two]
        assert case.exact[one] is case.exact[two]
        again = make.build(case.spec, case.op, Contract(), "cpu", {**case.exact, two: case.exact[two] + 1})
        assert again.arguments[one] is not again.arguments[two], "values differ"
        if two in ("dy", "residual"):
            written = make.case(case.spec, case.op, Contract(inplace=(f"dx:{two}",)))
            assert written.arguments[one] is not written.arguments[two]
    assert made(alias="weight:bias", bias=False).arguments["bias"] is None
    assert made(alias="x:dy", special="nan").arguments["dy"].isfinite().all()


@pytest.mark.parametrize(
    ("op", "pair"),
    [
        ("add_rmsnorm_fwd", "x+residual"),
        ("gated_rmsnorm_bwd", "x+gate"),
        ("modulate_rmsnorm_fwd", "scale+shift"),
        ("qk_norm_rope_fwd", "cos+sin"),
    ],
)
def test_two_inputs_that_are_chunks_of_one_tensor(op, pair):
    one, two = pair.split("+")
    spec = layouts.aliased(CaseSpec((3, 2, 16), alias=pair), OPS[op])
    case = make.case(spec, OPS[op], Contract())
    first, second = case.arguments[one], case.arguments[two]
    whole = torch.from_numpy(np.concatenate([case.exact[one], case.exact[two]], -1))
    for part, wanted in zip((first, second), whole.chunk(2, -1), strict=True):
        assert part.stride() == wanted.stride()
        assert torch.equal(part.double(), wanted)
    assert second.data_ptr() - first.data_ptr() == first.shape[-1] * first.element_size()
    odd = replace(spec, shape=(3, 2, 15))
    written = make.case(spec, OPS[op], Contract(inplace=(f"y:{two}",)))
    for other in (
        written,
        make.case(replace(spec, alias=""), OPS[op], Contract()),
        make.case(odd, OPS[op], Contract()),
    ):
        parts = [other.arguments[name].untyped_storage().data_ptr() for name in (one, two)]
        assert parts[0] != parts[1]


def test_saved_statistics_have_strides():
    strided = {"mean_layout": "every_other", "rstd_layout": "scalar"}
    case = made(shape=(4, 8), **strided)
    assert case.arguments["mean"].stride() == (2,)
    assert case.arguments["rstd"].stride() == (1,), "its values differ"
    equal = made(shape=(4, 8), x_layout="expanded", **strided)
    assert equal.arguments["rstd"].stride() == (0,)
    assert np.array_equal(contents.to_float64(equal.arguments["rstd"]), equal.exact["rstd"])
    case = made("batchnorm_fwd", shape=(4, 3, 2), running_mean_layout="every_other", running_var_layout="offset")
    assert case.arguments["running_mean"].stride() == (2,)
    assert case.arguments["running_var"].storage_offset() > 2**16


@pytest.mark.parametrize(
    ("elements", "device", "judge"),
    [
        (make.LARGE, "cuda:1", "cuda:1"),
        (make.LARGE, "cuda", "cuda"),
        (make.LARGE - 1, "cuda:1", None),
        (make.LARGE, "cpu", None),
        (make.LARGE, "mps:0", None),
    ],
)
def test_a_gpu_judges_large_cases(elements, device, judge):
    assert make.judge_of(CaseSpec((elements,)), OPS["rmsnorm_fwd"], device) == judge
    assert make.judge_of(CaseSpec((elements,)), replace(OPS["rmsnorm_fwd"], user_defined=True), device) is None


def judged_on(monkeypatch, device):
    monkeypatch.setattr(make, "LARGE", 1)
    monkeypatch.setattr(make, "JUDGES", frozenset({device}))


def test_a_case_that_a_device_judges_is_the_same_and_lies_there(monkeypatch):
    spec, op = CaseSpec((4, 6), bias=False, x_layout="transposed"), OPS["layernorm_bwd"]
    usual = make.case(spec, op, Contract())
    judged_on(monkeypatch, "cpu")
    moved, drawn = make.case(spec, op, Contract()), make.exact_inputs(spec, op)
    for exact in (drawn, moved.exact):
        assert {name for name, values in exact.items() if values is None} == {"bias"}
        assert all(isinstance(values, DeviceArray | None) for values in exact.values())
        assert all(
            np.array_equal(in_memory(exact[name]), values) for name, values in usual.exact.items() if name != "bias"
        )
    assert isinstance(moved.expected["dx"].value, DeviceArray)
    assert moved.arguments["x"].stride() == (1, 4)
    assert torch.equal(moved.arguments["x"], usual.arguments["x"])


def test_given_values_come_to_lie_where_they_are_judged(monkeypatch):
    spec, op = CaseSpec((4, 6), bias=False), OPS["layernorm_bwd"]
    exact = make.exact_inputs(spec, op)
    judged_on(monkeypatch, "meta")
    built = make.build(spec, op, Contract(), "meta", exact)
    assert {name for name, values in built.exact.items() if values is None} == {"bias"}
    there = [values.tensor for values in built.exact.values() if values is not None]
    there += [value for value in built.arguments.values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in there} == {"meta"}


def test_a_case_of_given_values_has_no_truth_and_the_poison_that_is_wanted():
    spec, op, contract = CaseSpec((4, 6)), OPS["layernorm_fwd"], Contract(saturate="overflow")
    exact = make.exact_inputs(spec, op)
    built = make.build(spec, op, contract, "cpu", exact, poison=7.0)
    assert (built.expected, built.poison, built.contract) == ({}, 7.0, contract)
    assert built.arguments["x"].as_strided((1,), (1,), 0).item() == 7.0
    usual = make.build(replace(spec, poison="finite"), op, contract, "cpu", exact, truth=True)
    assert usual.poison == make.POISONS["finite"]
    assert usual.expected["y"].saturate == "overflow"


def test_freed_memory_is_kept_after_one_block_that_glibc_maps():
    tracemalloc.start()
    make._keep_freed_memory.__wrapped__()
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 2**24 < size < 2**25  # M_MMAP_THRESHOLD grows up to 32 MiB


class WithoutHash:
    """A reference that cannot be kept by what it is."""

    __hash__ = None

    def __call__(self, x, eps):
        return x + eps


@pytest.mark.parametrize(
    ("function", "names"),
    [(lambda x, eps: x, ["x", "eps"]), (lambda x, **rest: x, ["x", "eps", "dy"]), (WithoutHash(), ["x", "eps"])],
)
def test_a_function_is_given_the_arguments_that_it_names(function, names):
    for _ in range(2):  # the second time its names are known
        assert list(make.named(function, {"x": 1, "eps": 2, "dy": 3})) == names


def test_what_wraps_a_function_anew_is_known_by_its_own_names(monkeypatch):
    def function(x, eps):
        return x

    def wrapped(signature=None):
        def wrapper(*given, **options):
            return function(*given, **options)

        functools.update_wrapper(wrapper, function)
        if signature is not None:
            wrapper.__signature__ = signature
        return wrapper

    offered = {"x": 1, "eps": 2, "dy": 3}
    assert list(make.named(wrapped(), offered)) == ["x", "eps"]
    assert list(make.named(wrapped(inspect.signature(lambda dy: dy)), offered)) == ["dy"]
    monkeypatch.setattr(make.inspect, "signature", lambda function: pytest.fail("it is known"))
    assert list(make.named(wrapped(), offered)) == ["x", "eps"]
