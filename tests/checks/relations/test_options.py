"""Cases that differ in one option, and kernels whose plan of a shape forgets that option alone."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.checks.relations import options
from verify_norm.checks.relations.options import FEW, NEAR, one_option
from verify_norm.core import geometry, ways
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

SPEC = CaseSpec((2, 6, 4), num_groups=3)
GIVEN = ("weight", "bias", "dresidual_out")  # or not


def changed(op, spec=SPEC, made=False, **kernel):
    """The options that cases of all variants change, and how many a case changes; what is `made` has its truth."""
    found, counts = {}, set()
    for variant in range(24):
        case = Case(replace(spec, variant=variant), OPS[op], {"x": SimpleNamespace(device="cpu")}, {}, {})
        others = list(one_option(Run(Kernel("k", op, **kernel), case, {})))
        counts.add(len(others))
        for other, words in others:
            assert geometry.refusal(other, OPS[op]) is None
            names = {f.name for f in fields(CaseSpec) if getattr(other, f.name) != getattr(case.spec, f.name)}
            (name,) = names - {"seed", "special", "alias"}
            assert (other.special, other.alias, other.seed) == (None, "", case.spec.seed ^ 8)
            if made and name not in found:
                make.case(other, OPS[op], Kernel("k", op).contract)
            found[name] = getattr(other, name)
            now = {True: "a", False: "no"}.get(found[name], "another") if name in GIVEN else "another"
            assert words in (
                f"{now} {name}",
                f"another layout of {name.removesuffix('_layout')}",
                "weights of another type",
            )
    return found, counts


ROWS = {"weight": False, "weight_dtype": "bfloat16", "x_layout": "row_strided", "weight_layout": "every_other"}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("rmsnorm_fwd", ROWS | {"weight_offset": 1.0, "normalized_ndim": 2}),
        ("layernorm_bwd", {"bias": False, "dy_layout": "row_strided", "normalized_ndim": 2}),
        ("add_rmsnorm_bwd", {"dresidual_out": False, "residual_out_layout": "row_strided"}),
        ("partial_rmsnorm_fwd", {"variance_size": 1}),
        ("qk_norm_rope_fwd", {"rotary": "half"}),
        ("modulate_rmsnorm_fwd", {"modulation": "token", "scale_layout": "row_strided"}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.5, "mask_layout": "row_strided", "residual_layout": "row_strided"}),
        ("groupnorm_fwd", {"num_groups": 1, "bias": False}),
        ("batchnorm_fwd", {"momentum": 0.9, "training": False}),
    ],
)
def test_one_option_is_another_and_each_has_its_turn(op, expected):
    found, counts = changed(op)
    assert FEW <= max(counts) <= FEW + 3
    assert found | expected == found
    assert "eps" not in found
    assert "shape" not in found


def test_options_that_the_kernel_does_not_take_are_passed_over():
    assert "weight" not in changed("rmsnorm_fwd", unsupported=lambda spec: None if spec.weight else "no")[0]
    assert changed("rmsnorm_fwd", fit=lambda spec: SPEC)[0] == {}
    assert "x_layout" not in changed("rmsnorm_fwd", replace(SPEC, shape=(4,)))[0]  # a row alone has no such layout
    assert changed("rmsnorm_fwd", replace(SPEC, weight_dtype="bfloat16", x_layout="transposed"))[0] == ROWS | {
        "weight_dtype": None, "x_layout": "contiguous", "weight_offset": 1.0, "normalized_ndim": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "changes", "expected"),
    [
        ("rmsnorm_fwd", {}, {"weight_offset": NEAR}),
        ("add_layernorm_bwd", {}, {"weight_offset": NEAR}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.25}, {"dropout_p": 0.25 + NEAR}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.97}, {"dropout_p": 0.97 - NEAR}),
        ("batchnorm_fwd", {"momentum": 1.0}, {"momentum": 1.0 - NEAR}),
        ("batchnorm_fwd", {"momentum": 0.0}, {"momentum": NEAR}),
    ],
)
def test_a_real_number_has_two_digits_of_the_other_in_a_third_of_the_cases(op, changes, expected):
    some = [options._numbers(replace(SPEC, variant=variant, **changes), OPS[op]) for variant in range(6)]
    assert [expected in list(numbers) for numbers in some] == [False, True, False] * 2


def test_data_and_an_alias_that_few_kernels_take_are_left_out():
    changed("add_rmsnorm_fwd", replace(SPEC, special="nan", alias="x:residual", seed=5))


@pytest.mark.parametrize(
    ("op", "changes", "expected"),
    [
        ("rmsnorm_fwd", {"weight": False}, {"weight"}),  # of no weight there is no other type, nor layout
        ("l2norm_fwd", {}, set()),
        ("layernorm_fwd", {"weight": False}, {"weight", "bias", "weight_dtype", "bias_layout"}),
        ("batchnorm_fwd", {"weight": False, "bias": False}, {"weight", "bias", "weight_dtype", "running_mean_layout"}),
        ("rmsnorm_fp8_fwd", {}, {"weight", "weight_dtype", "weight_layout"}),  # its scale is one number
        ("rmsnorm_bwd", {}, {"weight", "weight_dtype", "weight_layout", "dy_layout"}),  # what is saved stays
        (
            "batchnorm_bwd",
            {"weight": False, "bias": False},
            {"weight", "bias", "weight_dtype", "running_mean_layout", "dy_layout"},
        ),
        ("qk_norm_rope_fwd", {}, {"weight", "weight_dtype", "weight_layout"}),
    ],
)
def test_an_input_that_is_not_there_has_no_type_and_no_layout(op, changes, expected):
    spec = replace(SPEC, **changes)
    found = [name for change, _ in options._changes(spec, OPS[op]) for name in change]
    assert {*found} == expected | {"x_layout"} | ({"running_var_layout"} if "batch" in op else set())


@pytest.mark.parametrize(
    ("op", "changes", "expected"),
    [
        ("rmsnorm_fwd", {"weight_offset": 1.0}, {"weight_offset": 0.0}),
        ("layernorm_bwd", {"weight_offset": 1.0}, {"weight_offset": 0.0}),
        ("rmsnorm_fwd", {"shape": (3, 4)}, None),  # with one dimension less there are no rows
        ("rmsnorm_fwd", {"shape": (3, 0, 4)}, None),
        ("rmsnorm_fwd", {"normalized_ndim": 2}, {"normalized_ndim": 1}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.5}, {"dropout_p": 0.25}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.25}, {"dropout_p": 0.5}),
        ("groupnorm_fwd", {"num_groups": 3}, {"num_groups": 1}),
        ("groupnorm_fwd", {"num_groups": 1}, {"num_groups": 6}),
        ("groupnorm_fwd", {"num_groups": 1, "shape": (6, 2)}, {"num_groups": 2}),
        ("groupnorm_fwd", {"num_groups": 1, "shape": (6, 1)}, None),
        ("partial_rmsnorm_fwd", {"variance_size": 4}, {"variance_size": 2}),
        ("partial_rmsnorm_fwd", {"variance_size": 2}, {"variance_size": 1}),
        ("partial_rmsnorm_fwd", {"variance_size": 1}, {"variance_size": 4}),
        ("partial_rmsnorm_fwd", {"variance_size": 1, "shape": (6, 2)}, {"variance_size": 2}),
        ("partial_rmsnorm_fwd", {"variance_size": 1, "shape": (6, 1)}, None),
        ("batchnorm_fwd", {}, {"training": False}),
        ("batchnorm_fwd", {"momentum": 0.9}, {"momentum": 0.1}),
        ("batchnorm_fwd", {"momentum": 0.5}, {"momentum": 0.9}),
        ("batchnorm_fwd", {"training": False}, {"training": True}),
        ("modulate_rmsnorm_fwd", {"modulation": "sample"}, {"modulation": "token"}),
        ("modulate_rmsnorm_fwd", {"modulation": "token"}, {"modulation": "sample"}),
        ("modulate_rmsnorm_fwd", {"modulation": "token", "shape": (3, 4)}, None),  # a sample is a token
        ("qk_norm_rope_fwd", {"rotary": "full"}, {"rotary": "half"}),
        ("qk_norm_rope_fwd", {"rotary": "half"}, {"rotary": "full"}),
    ],
)
def test_a_number_is_another_one(op, changes, expected):
    found = list(options._numbers(replace(SPEC, **changes), OPS[op]))
    named = {name for change in found for name in change}
    if expected is None:
        assert named <= {"weight_offset"}
    else:
        assert expected in found
    assert ("normalized_ndim" in named) is (op in ("rmsnorm_fwd", "layernorm_bwd") and expected is not None)
    if op == "batchnorm_fwd":
        assert len(found) == 1 + changes.get("training", True)


@pytest.mark.parametrize(
    ("dtype", "weights", "other"),
    [
        ("float32", None, "bfloat16"),
        ("bfloat16", None, "float32"),
        ("float16", "float16", "float32"),
        ("float32", "bfloat16", None),
    ],
)
def test_weights_of_another_type(dtype, weights, other):
    changes = list(options._changes(replace(SPEC, dtype=dtype, weight_dtype=weights), OPS["rmsnorm_fwd"]))
    assert ({"weight_dtype": other}, "weights of another type") in changes


@pytest.mark.parametrize(
    ("op", "dtype", "residual", "other"),
    [
        ("add_rmsnorm_fwd", "float16", None, ["float32"]),
        ("add_rmsnorm_fwd", "bfloat16", "float32", [None]),
        ("add_rmsnorm_fwd", "float32", None, []),
        ("add_rmsnorm_bwd", "float16", None, []),
        ("rmsnorm_fwd", "float16", None, []),
    ],
)
def test_a_residual_of_another_type(op, dtype, residual, other):
    changes = options._changes(replace(SPEC, dtype=dtype, residual_dtype=residual), OPS[op])
    assert [change["residual_dtype"] for change, _ in changes if "residual_dtype" in change] == other


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 1)])
def test_each_case_can_be_made(op, shape):
    changed(op, CaseSpec(shape, num_groups=1), made=True)


def normed(x, weight, eps, offset, dims=(-1,)):
    """An RMSNorm in float64."""
    wide = x.double()
    y = wide * (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * (weight.double() + offset)).to(x.dtype)


FORGOTTEN = {
    "another weight_offset": lambda x, weight, offset: offset,
    "another layout of x": lambda x, weight, offset: x.stride(),
    "weights of another type": lambda x, weight, offset: (x if weight is None else weight).dtype,
    "a weight": lambda x, weight, offset: weight is None,
}
FIRST = {"weights of another type": {"weight_dtype": "bfloat16"}, "a weight": {"weight": False}}  # which the plan keeps


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_plan_by_shape_and_eps_that_forgets_one_option(forgotten):
    """The same kernel is right where the plan is by all options."""
    for right in (False, True):
        plans = {}

        def rmsnorm_fwd(x, weight, eps, weight_offset, right=right, plans=plans):
            options = {name: of(x, weight, weight_offset) for name, of in FORGOTTEN.items()}
            key = x.shape, x.dtype, eps, *(value for name, value in options.items() if right or name != forgotten)
            offset, strides, kind, none = plans.setdefault(key, tuple(options.values()))
            x = x.as_strided(x.shape, strides)
            weight = None if none or weight is None else weight.to(kind)
            return normed(x, weight, eps, offset), (x.double().square().mean(-1) + eps).rsqrt().float().flatten()

        said = []
        for variant in range(0, 6, FEW):
            more = FIRST.get(forgotten, {})
            spec = CaseSpec((8, 4), call=ways.BETWEEN, called=ways.AS_USUAL, variant=variant, **more)
            kernel = Kernel("k", "rmsnorm_fwd", run=rmsnorm_fwd)
            run = execute(kernel, make.case(spec, OPS["rmsnorm_fwd"], kernel.contract))
            said += [one.message for one in CHECKS["calls"].function(run) if isinstance(one, Finding)]
        if right:
            assert said == []
        else:
            assert any(f"of the same shape (8, 4) and eps with {forgotten}" in words for words in said)
