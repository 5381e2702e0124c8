"""The check `degenerate`: kernels that only it convicts, and its table, held against torch line by line."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from counted import PLAIN, TWO_PASS, N, U, case_of, half, run_of
from norms import layernorm, layernorm_bwd
from torch.nn import functional

from verify_norm.cases import make
from verify_norm.checks import CHECKS, degenerate
from verify_norm.checks.degenerate import RULES, Compared, Rule
from verify_norm.checks.relations.rerun import NearbyError
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo.stages import l2norm
from verify_norm.running.execute import execute

SPEC = CaseSpec(shape=(4, 6), further=("degenerate",))
ZEROS = replace(SPEC, eps=0.0, data="zero", further=())
EQUAL = replace(SPEC, shape=(4, 300), x_layout="expanded", further=())
PROMISED = Contract(batch_invariant=True)


def rescaled(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    """Against overflow, in float16."""
    most = dy.float().abs().max()
    return [g * most for g in layernorm_bwd()(dy / most, x, weight, bias, mean, rstd, eps, normalized_shape)]


def findings(function, spec=SPEC, op="layernorm_fwd", contract=None):
    contract = contract or Contract()
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    assert CHECKS["degenerate"].looks(run)
    checks = [c for c in CHECKS.values() if c.applies(OPS[op]) and c.looks(run)]
    return [f for c in checks for f in c.function(run) if isinstance(f, Finding)]


def rules(spec, op="layernorm_fwd", contract=None, function=None):
    """Which lines of the table hold."""
    contract = contract or Contract()
    function = function or (layernorm() if op.endswith("fwd") else layernorm_bwd())
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    return {rule.name for rule in RULES if rule.holds(run)}


@pytest.mark.parametrize(
    ("function", "spec", "op", "outputs", "words"),
    [
        (layernorm("guard"), ZEROS, "layernorm_fwd", {"y", "rstd"}, "eps = 0, no variance"),
        (layernorm_bwd("guard"), ZEROS, "layernorm_bwd", {"dx", "dweight"}, "eps = 0, no variance"),
        (rescaled, SPEC, "layernorm_bwd", {"dx", "dweight", "dbias"}, "dy = 0"),
        (layernorm("hard-coded eps"), SPEC, "layernorm_fwd", {"y", "rstd"}, "eps huge"),
        (layernorm("by place"), EQUAL, "layernorm_fwd", {"mean"}, "equal rows"),
    ],
)
def test_a_wrong_kernel_that_no_other_check_sees(function, spec, op, outputs, words):
    promised = PROMISED if words == "equal rows" else None
    found = findings(function, spec, op, promised)
    assert {f.check for f in found} == {"degenerate"}
    assert outputs <= {f.output for f in found}
    assert all(f.message.startswith(words) and f.index is not None for f in found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        ZEROS,
        EQUAL,
        replace(SPEC, bias=False),
        replace(SPEC, weight=False, bias=False),
        replace(SPEC, shape=(4, 1)),
        replace(SPEC, weight_data="zero"),
        replace(SPEC, offset=100.0),
        replace(SPEC, weight_dtype="float32"),
    ],
)
def test_a_right_kernel_passes(spec, dtype):
    assert findings(layernorm(), replace(spec, dtype=dtype), contract=PROMISED) == []
    if spec.weight and spec.bias and spec.weight_dtype is None and spec is not EQUAL:
        assert findings(layernorm_bwd(), replace(spec, dtype=dtype), "layernorm_bwd") == []


def test_a_fused_addition_passes_on_what_it_was_given():
    def right(dy, dresidual_out, residual_out, weight, rstd, lost=False):
        xhat, g = residual_out * rstd[:, None], dy * weight
        dx = rstd[:, None] * (g - xhat * (g * xhat).mean(1, keepdim=True))
        return dx + (dresidual_out * (dy.abs().max() > 0) if lost else dresidual_out), (dy * xhat).sum(0)

    assert findings(right, SPEC, "add_rmsnorm_bwd") == []

    def lost(dy, dresidual_out, residual_out, weight, rstd):
        return right(dy, dresidual_out, residual_out, weight, rstd, lost=True)

    assert {(f.check, f.output) for f in findings(lost, SPEC, "add_rmsnorm_bwd")} == {("degenerate", "dx")}


def test_a_kernel_that_fails_without_a_gradient_is_told():
    def failing(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        assert dy.any(), "no gradient"
        return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)

    (found,) = findings(failing, SPEC, "layernorm_bwd")
    assert (found.status, found.output) == ("error", None)
    assert "dy = 0: AssertionError: no gradient" in found.message


def test_which_line_holds_where():
    assert rules(SPEC) == {"eps huge"}
    assert rules(SPEC, "layernorm_bwd") == {"dy = 0"}
    assert rules(ZEROS) == {"eps = 0, no variance"}
    assert rules(EQUAL) == set()
    assert rules(EQUAL, contract=PROMISED) == {"equal rows"}
    assert rules(EQUAL, "modulate_layernorm_fwd", PROMISED) == set()  # each row has a scale and shift of its own
    for options in ({"further": ()}, {"special": "nan"}, {"shape": (0, 6)}, {"shape": (70, 70)}, {"log2_scale": 60}):
        assert rules(replace(SPEC, **options)) == set()
    assert rules(replace(ZEROS, data="constant", offset=3.0)) == set()  # a rounded mean may leave a variance
    assert rules(replace(ZEROS, shape=(3, 1), data="normal")) == set()  # x̂ of one element may be 0 by definition


def test_a_huge_eps_is_no_larger_than_x_asks_for():
    """A kernel that scales a tiny x before it squares it divides eps by the square of that scale."""
    for scale in (-127, 0):
        spec = CaseSpec(shape=(3,), log2_scale=scale, further=("degenerate",))
        assert rules(spec, "l2norm_fwd", function=l2norm) == {"eps huge"}
        assert findings(l2norm, spec, "l2norm_fwd") == []


# The table, held against torch on the CPU.

X, W, B = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.full((4,), 2.0), torch.arange(4.0)
NORMS = {
    "layernorm": lambda x, w, b, eps: functional.layer_norm(x, (x.shape[1],), w, b, eps),
    "rmsnorm": lambda x, w, b, eps: functional.rms_norm(x, (x.shape[1],), w, eps),
    "groupnorm": lambda x, w, b, eps: functional.group_norm(x[..., None], 1, w, b, eps)[..., 0],
}


def gradients(norm, x, dy, eps=1e-5, w=W, b=B):
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    return torch.autograd.grad(NORMS[norm](*leaves, eps), leaves, dy, allow_unused=True)


@pytest.mark.parametrize("norm", NORMS)
def test_torch_divides_zero_by_zero(norm):
    assert NORMS[norm](0 * X, W, B, 0.0).isnan().all()
    dx, dweight, dbias = gradients(norm, 0 * X, X, eps=0.0)
    assert dx.isnan().all()
    assert dweight.isnan().all()
    assert dbias is None or torch.equal(dbias, X.sum(0))
    assert torch.native_layer_norm(0 * X, (4,), W, B, 0.0)[2].isinf().all()
    if norm != "rmsnorm":
        one = X[:, :1].contiguous()
        assert NORMS[norm](one, W[:1], B[:1], 0.0).isnan().all()


def test_torch_does_not_in_batchnorm():
    y, _, rstd = torch.native_batch_norm(0 * X, W, B, None, None, True, 0.1, 0.0)
    assert torch.equal(y, B.expand(3, 4))
    assert not rstd.any()


@pytest.mark.parametrize("norm", NORMS)
def test_torch_has_no_gradient_without_dy_and_no_x_beside_a_huge_eps(norm):
    assert not any(g is not None and g.any() for g in gradients(norm, X, 0 * X))
    bias = 0 * B if norm == "rmsnorm" else B
    assert torch.allclose(NORMS[norm](X, W, B, 4.0**42), bias, rtol=0.0, atol=8 * 2.0**-40)


@pytest.mark.parametrize("norm", ["layernorm", "groupnorm"])
def test_torch_on_what_other_checks_hold_a_kernel_to(norm):
    one, dy = X[:, :1].contiguous(), torch.ones(3, 1)
    rounding = 8 * 2.0**-24 * 2 * X.abs().max() / 1e-5**0.5  # of x·a + b, as torch computes it (`Contract.expanded`)
    assert (NORMS[norm](one, W[:1], B[:1] + 1, 1e-5) - 1).abs().max() <= rounding  # N = 1: y = b
    dx, dweight, _ = gradients(norm, one, dy, w=W[:1], b=B[:1])
    assert dx.abs().max() <= rounding / 1e-5**0.5
    assert dweight.abs().max() <= 3 * rounding
    assert torch.equal(NORMS[norm](0 * X, W, B, 1e-5), B.expand(3, 4))  # zero rows
    assert torch.equal(NORMS[norm](X, 0 * W, B, 1e-5), B.expand(3, 4))  # zero weights
    assert not gradients(norm, X, X, w=0 * W)[0].any()
    if norm == "layernorm":  # group_norm takes no empty batch everywhere
        dx, dweight, dbias = gradients(norm, X[:0], X[:0])
        assert dx.shape == (0, 4)
        assert not dweight.any()
        assert not dbias.any()
    spoiled = X.clone()
    spoiled[0, 0] = torch.nan
    y = NORMS[norm](spoiled, W, B, 1e-5)
    assert y[0].isnan().all()
    assert torch.equal(y[1:], NORMS[norm](X, W, B, 1e-5)[1:])


def test_minus_zero_counts_as_zero():
    def negative(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        return [
            torch.where(v == 0, -0.0, v)
            for v in layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        ]

    assert np.signbit(-0.0)
    assert findings(negative, SPEC, "layernorm_bwd") == []


def test_zero_has_the_sign_of_its_factors():
    def by_sign(x, weight, eps):
        y, rstd = right(x.abs(), weight, eps)
        return torch.where(x > 0, y, -y), rstd

    def added(x, weight, eps):
        """A −0 that meets a zero is one no longer: IEEE 754 allows that in some order."""
        y, rstd = right(x, weight, eps)
        return torch.zeros_like(y) + y, rstd

    def right(x, weight, eps):
        rstd = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x * rstd * weight).to(x.dtype), rstd.flatten().float()

    for data, words in (("zero", {"the sign of zero"}), ("padded", set())):  # 0 and −0
        spec = replace(SPEC, data=data, further=())
        assert {f.message.partition(":")[0] for f in findings(by_sign, spec, "rmsnorm_fwd")} == words
        assert findings(right, spec, "rmsnorm_fwd") == findings(added, spec, "rmsnorm_fwd") == []


# The lines alone, on outputs made by hand.


def line(name, run):
    """What a line of the table compares in a run where it holds, by output."""
    (rule,) = (rule for rule in RULES if rule.name == name)
    assert rule.holds(run)
    with np.errstate(all="ignore"):  # as in a check
        found = list(rule.compare(run))
    assert all(one.words and one.got.shape == one.want.shape == one.wrong.shape for one in found)
    return {one.output: one for one in found}


def with_got(run, **got):
    """The run with other values of its outputs."""
    outputs = {name: replace(run.outputs[name], got=values, shape=values.shape) for name, values in got.items()}
    return replace(run, outputs=run.outputs | outputs)


def true_run(spec, op, contract=None):
    contract = contract or Contract()
    return run_of(make.case(spec, OPS[op], contract), contract)


@pytest.mark.parametrize(
    ("op", "fields", "holds"),
    [
        ("layernorm_fwd", {}, True),
        ("layernorm_fwd", {"shape": (4, 2)}, True),
        ("layernorm_fwd", {"shape": (1, 1)}, False),
        ("rmsnorm_fwd", {"shape": (1, 1)}, True),  # which subtracts no mean
        ("rmsnorm_fwd", {"shape": (0, 4)}, False),
        ("rmsnorm_fwd", {"shape": (4, 2, 3), "normalized_ndim": 2}, True),
        ("groupnorm_fwd", {"shape": (2, 4, 3), "num_groups": 2}, True),
        ("groupnorm_fwd", {"shape": (2, 4), "num_groups": 4}, False),
        ("instancenorm_fwd", {"shape": (2, 4, 3)}, False),
        ("batchnorm_fwd", {}, False),
        ("partial_rmsnorm_fwd", {}, False),
    ],
)
def test_where_a_row_without_variance_must_give_no_number(op, fields, holds):
    assert RULES[0].holds(true_run(replace(ZEROS, **fields), op)) == holds


def test_numbers_of_rows_without_variance():
    """All that depends on x̂ is no number; dbias is one, as far as a sum of it cannot overflow."""
    spec = replace(ZEROS, shape=(2, 4), dropout_p=0.5)
    run = true_run(spec, "dropout_add_layernorm_bwd")
    assert not any(one.wrong.any() for one in line("eps = 0, no variance", run).values())
    run.case.expected["dbias"].value[:] = 1.0, 9999.0, 1e4, -3.0
    zeros = {name: np.zeros(run.outputs[name].shape) for name in ("dx", "dresidual", "dweight")}
    found = line("eps = 0, no variance", with_got(run, **zeros, dbias=np.array([np.inf, np.nan, np.inf, 5.0])))
    mask = run.case.exact["mask"]
    assert 0 < mask.sum() < mask.size
    assert np.array_equal(found["dx"].wrong, mask != 0)  # what is dropped is 0
    assert found["dresidual"].wrong.all()
    assert found["dweight"].wrong.all()
    assert found["dbias"].wrong.tolist() == [True, True, False, False]
    assert np.array_equal(found["dbias"].want, run.case.expected["dbias"].value)
    assert np.isinf(found["dbias"].got[0])


def test_a_quantized_y_of_a_row_without_variance_is_a_number():
    assert [*line("eps = 0, no variance", true_run(ZEROS, "rmsnorm_quant_fwd"))] == ["rstd"]


@pytest.mark.parametrize("op", ["add_rmsnorm_bwd", "dropout_add_rmsnorm_bwd"])
def test_without_dy_only_what_is_passed_on_is_left(monkeypatch, op):
    run = true_run(replace(SPEC, dropout_p=0.5), op)
    monkeypatch.setattr(degenerate, "nearby", lambda run, exact: run)  # it ignores that dy is 0
    found = line("dy = 0", run)
    dh = OPS[op].dh
    assert {*found} == {dh, "dweight"}
    assert np.array_equal(found[dh].want, run.case.exact["dresidual_out"])
    assert not found["dweight"].want.any()
    assert [found[name].words.startswith("dresidual_out") for name in (dh, "dweight")] == [True, False]
    assert found["dweight"].words.startswith("0")


@pytest.mark.parametrize("op", ["partial_rmsnorm_fwd", "batchnorm_fwd"])
def test_a_huge_eps_decides_nothing_where_no_law_or_no_own_statistic_holds(op):
    contract = Contract()
    case = make.case(replace(SPEC, training=False), OPS[op], contract)
    assert not RULES[2].holds(run_of(case, contract))


def vanishing(monkeypatch, case, contract=TWO_PASS, **off):
    """What is compared where the outputs of the run with a huge eps are off by so much."""

    def nearby(run, exact, spec):
        return run_of(make.build(spec, run.case.op, contract, "cpu", run.case.exact, truth=True), contract, **off)

    monkeypatch.setattr(degenerate, "nearby", nearby)
    return line("eps huge", run_of(case, contract))


AGAIN = replace(PLAIN, weight=True, bias=True)
ZERO_WEIGHT = {"weight": np.zeros(N)}


@pytest.mark.parametrize("output", ["y", "amax"])
def test_beside_a_huge_eps_a_value_may_be_off_by_exactly_its_bound(monkeypatch, output):
    """Without a weight nothing is left but the rounding of the bias, and that of the sum."""
    op = "layernorm_fp8_fwd" if output == "amax" else "layernorm_fwd"
    case = case_of(AGAIN, op, bias=np.full(N, 2.0), **ZERO_WEIGHT)
    allowed = 2 * U + half("float32", 2.0)
    for error in (allowed, -allowed):
        assert not vanishing(monkeypatch, case, **{output: error})[output].wrong.any()
    assert vanishing(monkeypatch, case, **{output: allowed * 1.000001})[output].wrong.all()


def test_beside_a_huge_eps_rstd_may_be_off_by_exactly_8_roundings(monkeypatch):
    case = case_of(AGAIN, "layernorm_fwd")
    exact = vanishing(monkeypatch, case)["rstd"]
    k = -np.log2(exact.want[0])
    error = exact.want + 8 * U * exact.want - exact.got
    assert k == degenerate.HUGE
    assert not vanishing(monkeypatch, case, rstd=error)["rstd"].wrong.any()
    found = vanishing(monkeypatch, case, rstd=error + 2.0**-90)["rstd"]
    assert found.wrong.all()
    assert found.words.startswith("1/√eps")
    assert "4^40" in found.words


@pytest.mark.parametrize(("bias", "seen"), [(223.0, True), (224.0, False)])
def test_beside_a_huge_eps_no_y_is_judged_that_may_overflow(monkeypatch, bias, seen):
    """Half of the largest number of float8_e4m3fn is 224."""
    case = case_of(AGAIN, "layernorm_fp8_fwd", bias=np.full(N, bias), **ZERO_WEIGHT)
    found = vanishing(monkeypatch, case, y=100.0)["y"]
    assert found.wrong.all() == seen
    assert "scale" in found.words


def test_beside_a_huge_eps_a_scale_multiplies_the_bias(monkeypatch):
    case = case_of(replace(AGAIN, scale=2.0), "layernorm_fp8_fwd", bias=np.full(N, 3.0), **ZERO_WEIGHT)
    found = vanishing(monkeypatch, case)
    assert (found["y"].want == 6.0).all()
    assert found["amax"].want == 3.0


def test_beside_a_huge_eps_the_stages_are_named_and_a_scale_of_roundings_is_left_out(monkeypatch):
    found = vanishing(monkeypatch, case_of(replace(AGAIN, num_groups=1), "groupnorm_silu_fwd"))
    assert found["y"].words.startswith("silu of the bias")
    assert {*vanishing(monkeypatch, case_of(AGAIN, "rmsnorm_quant_fwd"))} == {"y", "rstd"}


VANISHED = 2.0 ** (1 - degenerate.HUGE)
LOST = {  # operator, fields of the case and of the contract: what |w·x̂| may be more than VANISHED, as a factor
    "roundings": ("layernorm_fwd", {}, {}, 1.0, 1.0),
    "a weight": ("layernorm_fwd", {}, {}, 3.0, 1.0),
    "an offset of the weight": ("rmsnorm_fwd", {"weight_offset": 1.0}, {}, 3.0, 4.0 / 3.0),
    "an offset of LayerNorm's weight": ("layernorm_fwd", {"weight_offset": 1.0}, {}, 3.0, 4.0 / 3.0),
    "matrix products": ("layernorm_fwd", {}, {"products": "bf16"}, 1.0, 1 + 2.0**-7),
    "a narrow x̂": ("rmsnorm_fwd", {}, {"xhat": "bfloat16"}, 1.0, 1 + 2.0**-8),
    "a narrow offset": (
        "rmsnorm_fwd",
        {"weight_offset": 1.0, "dtype": "bfloat16"},
        {"offset_weight": "weight"},
        1.0,
        2 * (1 + 2.0**-8),
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_left_of_x_beside_a_huge_eps(name):
    op, fields, promised, weight, factor = LOST[name]
    contract = Contract(**promised)
    run = run_of(case_of(replace(AGAIN, **fields), op, contract, weight=np.full(N, weight)), contract)
    b, tau, amax, off = degenerate._bias_alone(run)
    roundings = (N + 17) * U / (1 - (N + 17) * U)
    assert not b.any()
    assert tau == pytest.approx(VANISHED * weight * factor * (1 + roundings), rel=1e-9, abs=0)
    assert (amax, off) == (0.0, tau.max())


def test_a_modulation_is_applied_to_the_bias():
    values = {"bias": np.full(N, 3.0), "scale": np.full((4, N), 2.0), "shift": np.full((4, N), -2.0)}
    run = run_of(case_of(AGAIN, "modulate_layernorm_fwd", **ZERO_WEIGHT, **values))
    run = replace(run, case=replace(run.case, exact=run.case.exact | values))
    b, _, amax, _ = degenerate._bias_alone(run)
    assert (b == (1 + 2.0) * 3.0 - 2.0).all()
    assert amax == 7.0


SIGNED = np.array([[0.0, -0.0, 1.0, 2.0]])
SUMS = {  # operator, fields, values: the outputs in which a zero has a known sign, and where that is +0
    "a sum": ("add_rmsnorm_fwd", {}, {"residual": -SIGNED}, "residual_out", [True, True, True, True]),
    "a sum that is no zero": ("add_rmsnorm_fwd", {}, {"residual": SIGNED}, "residual_out", [True, False, False, False]),
    "y of a sum": ("add_rmsnorm_fwd", {}, {"residual": -SIGNED, "weight": np.ones(4)}, "y", [True, True, True, True]),
    "a weight of 0": ("rmsnorm_fwd", {}, {"weight": np.zeros(4)}, "y", [True, False, True, True]),
    "a weight of -1": ("rmsnorm_fwd", {}, {"weight": -np.ones(4)}, "y", [False, True, False, False]),
    "a weight less its offset": (
        "rmsnorm_fwd",
        {"weight_offset": 1.0},
        {"weight": -np.ones(4)},
        "y",
        [True, False, True, True],
    ),
    "no weight": ("l2norm_fwd", {}, {}, "y", [True, False, False, False]),
}


@pytest.mark.parametrize("name", SUMS)
def test_which_zeros_have_a_sign_that_is_known(name):
    op, fields, values, output, plus = SUMS[name]
    case = make.case(replace(SPEC, shape=(1, 4), further=(), **fields), OPS[op], Contract())
    run = run_of(replace(case, exact=case.exact | {"x": SIGNED} | values))
    found = line("the sign of zero", with_got(run, **{output: np.full((1, 4), -0.0)}))[output]
    assert found.wrong.tolist() == [plus]
    assert not found.want.any()


def equal(op):
    spec = replace(SPEC, shape=(3, N), further=())
    return run_of(case_of(spec, op, PROMISED, x=np.ones((3, N)), dy=np.ones((3, N))), PROMISED)


@pytest.mark.parametrize(
    ("op", "outputs"),
    [
        ("layernorm_fwd", ["y", "mean", "rstd"]),
        ("layernorm_fp8_fwd", ["y", "mean", "rstd"]),  # amax is of all rows
        ("layernorm_bwd", ["dx"]),  # as are dweight and dbias
    ],
)
def test_which_outputs_are_equal_in_equal_rows(op, outputs):
    run = equal(op)
    found = line("equal rows", run)
    assert [*found] == outputs
    assert not any(one.wrong.any() for one in found.values())
    for name in outputs:
        for lost in (None, replace(run.outputs[name], ratio=None)):
            left = line("equal rows", replace(run, outputs=run.outputs | {name: lost}))
            assert [*left] == [other for other in outputs if other != name]


def test_equal_rows_may_all_be_nan_but_not_one_alone():
    run = equal("layernorm_fwd")
    nan, one, other = np.array([np.nan, 1.0, np.nan]), np.ones(3), np.array([1.0, 1.0, np.nan])
    for got, wrong in ((nan, [0, 1, 0]), (one, [0, 0, 0]), (other, [0, 0, 1]), (np.full(3, np.nan), [0, 0, 0])):
        assert line("equal rows", with_got(run, mean=got))["mean"].wrong.tolist() == wrong


def off_at(output, *places):
    """A comparison of four elements, wrong in these places."""
    wrong = np.isin(np.arange(4), places)
    return Compared(output, np.arange(4.0), np.full(4, 9.0), wrong, "nine")


def fails(*why):
    raise NearbyError(*why)


TABLES = {  # what the lines that hold compare: the outputs of what is found, and whether there was anything to look at
    "all is right": ([lambda run: [off_at("y")]], [], True),
    "nothing is compared": ([lambda run: []], [], False),
    "one of two is compared": ([lambda run: [off_at("y")], lambda run: []], [], True),
    "an output is reported once": ([lambda run: [off_at("y", 1)], lambda run: [off_at("y", 2)]], ["y"], True),
    "each output is reported": ([lambda run: [off_at("y", 1), off_at("mean", 0)]], ["y", "mean"], True),
    "no such case": ([lambda run: fails()], [], False),
    "no such case, then a wrong one": ([lambda run: fails(), lambda run: [off_at("y", 1)]], ["y"], True),
    "it fails": ([lambda run: fails("it broke")], [None], True),
}


@pytest.mark.parametrize("name", TABLES)
def test_what_the_lines_that_hold_say_together(monkeypatch, name):
    compare, outputs, looked = TABLES[name]
    lines = [Rule(f"line {number}", lambda run: True, one) for number, one in enumerate(compare)]
    monkeypatch.setattr(degenerate, "RULES", (*lines, Rule("no", lambda run: False, lambda run: fails("wrong"))))
    said = degenerate.degenerate(true_run(SPEC, "layernorm_fwd"))
    found = [one for one in said if isinstance(one, Finding)]
    assert [one.output for one in found] == outputs
    assert any(isinstance(one, NoData) for one in said) != looked
    assert all(one.check == "degenerate" for one in found)
    for one in found:
        if one.output is None:
            assert (one.status, "line 0" in one.message, "it broke" in one.message) == ("error", True, True)
        else:
            assert (one.status, one.got, one.want) == ("fail", one.index[0], 9.0)
            assert f"{one.output}[{one.index[0]}]" in one.message
            assert "1 of 4" in one.message
