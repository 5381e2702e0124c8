"""The check `degenerate`: kernels that only it convicts, and its table, held against torch line by line."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from norms import layernorm, layernorm_bwd
from torch.nn import functional

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.checks.degenerate import RULES
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
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
