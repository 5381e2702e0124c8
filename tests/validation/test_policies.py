"""Other projects' tests, emulated: right kernels pass them, obviously wrong ones do not."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.kernels.adapters import torch_native
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES, Verdict, eager
from verify_norm.validation.policies.pytorch import computes_in_float64, opinfo
from verify_norm.validation.policies.trial import NotApplicableError, Subject

QUICK = ("assert_close", "Liger")
GRADCHECKS = ("gradcheck slow", "gradcheck fast")


def made(run, op, **options):
    return Kernel("made", op, run=run, **options)


def bent(name, bend):
    """Return the torch kernel of that name with its results changed by `bend`."""
    kernel = registry.load(name)

    def run(**arguments):
        found = kernel.run(**{k: arguments[k] for k in names})
        return bend(found if isinstance(found, tuple) else (found,))

    names = kernel.run.__annotations__.keys() - {"return"}
    return replace(kernel, run=run)


def larger(outputs):
    return (outputs[0] * 1.5, *outputs[1:])


@pytest.mark.slow
@pytest.mark.parametrize("policy", QUICK)
@pytest.mark.parametrize("kernel", ["layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd"])
def test_right_kernels_pass_the_quick_policies(policy, kernel):
    verdict = POLICIES[policy].judge(registry.load(kernel))
    assert verdict.caught is False, verdict.detail
    assert verdict.cases >= 4


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tutorial", "flash-attention"])
@pytest.mark.parametrize("kernel", ["layernorm_fwd_torch", "rmsnorm_fwd_torch"])
def test_right_kernels_pass_the_large_policies(policy, kernel):
    verdict = POLICIES[policy].judge(registry.load(kernel))
    assert verdict.caught is False, verdict.detail


@pytest.mark.parametrize("policy", ["tutorial", "assert_close", "Liger", "flash-attention"])
@pytest.mark.parametrize("name", ["layernorm_fwd_torch", "layernorm_bwd_torch", "rmsnorm_fwd_torch"])
def test_a_factor_of_one_and_a_half_is_caught_at_the_first_case(policy, name):
    verdict = POLICIES[policy].judge(bent(name, larger))
    assert verdict.caught is True
    assert verdict.cases == 1
    assert ("dx" if "bwd" in name else "y") in verdict.detail


@pytest.mark.parametrize("policy", GRADCHECKS)
@pytest.mark.parametrize("name", ["layernorm_bwd_torch", "rmsnorm_bwd_torch"])
def test_gradcheck_in_float64(policy, name):
    right = POLICIES[policy].judge(registry.load(name))
    assert right.caught is False, right.detail
    wrong = POLICIES[policy].judge(bent(name, larger))
    assert wrong.caught is True
    assert "Jacobian mismatch" in wrong.detail


@pytest.mark.parametrize("policy", GRADCHECKS)
def test_gradcheck_gives_the_reason_where_it_does_not_apply(policy):
    assert "float64" in not_applicable(POLICIES[policy].judge(registry.load("layernorm_bwd")))
    assert "forward" in not_applicable(POLICIES[policy].judge(registry.load("layernorm_fwd")))

    def narrow(dy, x, weight, bias, eps, normalized_shape):
        given = (None if t is None else t.float() for t in (dy, x, weight, bias))
        found = torch_native.layernorm_bwd_torch(*given, eps, normalized_shape)
        return tuple(None if t is None else t.double() for t in found)

    assert "computes in float32" in not_applicable(POLICIES[policy].judge(made(narrow, "layernorm_bwd")))


def test_a_wrong_gradient_in_float64_counts_as_one_in_float64():
    sample = next(opinfo(Subject(registry.load("layernorm_bwd_torch")), ("float64",)))
    assert computes_in_float64(bent("layernorm_bwd_torch", lambda g: (g[0] ** 2, *g[1:])), sample)


def test_a_kernel_that_raises_is_caught_and_one_for_gpus_does_not_apply():
    def raises(x):
        raise IndexError("row 3\nof 2")

    def gpu(x):
        raise RuntimeError("x must be a CUDA tensor")

    verdict = POLICIES["assert_close"].judge(made(raises, "layernorm_fwd"))
    assert verdict.caught is True
    assert verdict.detail.startswith("raised IndexError: row 3, at 1x2x3 float32")
    assert "CPU" in not_applicable(POLICIES["assert_close"].judge(made(gpu, "layernorm_fwd")))


def test_cases_that_the_kernel_does_not_take_are_left_out():
    def none(spec):
        return "one row only" if len(spec.shape) > 1 else None

    kernel = replace(registry.load("layernorm_fwd_torch"), unsupported=none)
    verdict = POLICIES["assert_close"].judge(kernel)
    assert (verdict.caught, verdict.cases) == (False, 3)
    assert "one row only" in verdict.detail
    assert "one row only" in not_applicable(POLICIES["Liger"].judge(kernel))


def test_operators_that_a_policy_has_no_test_of():
    for policy, name in (
        ("tutorial", "groupnorm_fwd"),
        ("Liger", "batchnorm_fwd"),
        ("flash-attention", "groupnorm_bwd"),
    ):
        assert name[:9] in not_applicable(POLICIES[policy].judge(registry.load(name)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("op", OPS)
def test_a_policy_has_samples_of_every_operator_or_does_not_apply(policy, op):
    samples = POLICIES[policy].samples(Subject(made(lambda **arguments: None, op)))
    with suppress(NotApplicableError):
        assert next(iter(samples)).inputs["x"] is not None


@pytest.mark.parametrize(
    ("policy", "name", "caught"),
    [
        ("Liger", "A31_dx_over_dy", False),  # its reference comes first, and has read dy
        ("Liger", "A32_db_after_overwrite", True),
        ("Liger", "A11_offset_bwd_forgotten", True),  # through Gemma's offset
        ("Liger", "A10_mem_efficient_gamma0", False),  # its weights are ones
        ("assert_close", "A35_empty_rows_launch", True),  # OpInfo has an empty sample
        ("assert_close", "A17_onepass_variance", False),  # and none with an offset
        ("assert_close", "A37_running_var_biased", True),
        ("assert_close", "A25_eps_none_low_precision", None),
    ],
)
def test_verdicts_that_follow_from_what_a_policy_does(policy, name, caught):
    assert POLICIES[policy].judge(ZOO[name].kernel, few=ZOO[name].few).caught is caught


def test_every_operator_has_eager_torch_to_compare_with():
    assert set(eager.TORCH) == {name.removesuffix("_fwd") for name, op in OPS.items() if op.forward is None}


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.forward and op.activation is None])
def test_the_gradients_of_eager_torch_through_the_statistics_that_kernels_get(op):
    """The statistics that a backward gets are those that its forward saves."""
    kernel = made(lambda **_: None, op)
    for sample in opinfo(Subject(kernel), ("float64",)):
        base = op.removesuffix("_bwd")
        outputs = eager.TORCH[base](
            sample.spec, {n: None if t is None else t.clone() for n, t in sample.inputs.items()}
        )
        x = outputs.get("residual_out", sample.inputs["x"])
        mean, rstd = eager.statistics(OPS[op], sample.spec, {**sample.inputs, "x": x})
        if x.numel() == 0:
            continue
        view = OPS[op].view
        shape = {"rows": (-1, *(1,) * sample.spec.normalized_ndim), "groups": (*rstd.shape, -1), "channels": (1, -1)}[
            view
        ]
        if view == "rows":
            lead = sample.spec.shape[: len(sample.spec.shape) - sample.spec.normalized_ndim]
            shape = (*lead, *shape[1:])
            xhat = (x - (0 if mean is None else mean.reshape(shape))) * rstd.reshape(shape)
        elif view == "groups":
            xhat = ((x.reshape(shape) - mean[..., None]) * rstd[..., None]).reshape(x.shape)
        else:
            xhat = (x.movedim(1, -1) - mean) * rstd
            xhat = xhat.movedim(-1, 1)
        affine = (1, -1, *(1,) * (x.dim() - 2))
        w, b = (
            None if t is None else t if view == "rows" else t.reshape(affine)
            for t in (sample.inputs["weight"], sample.inputs["bias"])
        )
        y = xhat * (1 if w is None else w) + (0 if b is None else b)
        assert torch.allclose(y, outputs["y"], rtol=1e-9, atol=1e-9)


def test_narrow_types_are_computed_in_float32():
    spec = CaseSpec((1151, 64), "float16")
    x, dy = (torch.randn(spec.shape, generator=torch.Generator().manual_seed(i)).half() for i in (0, 1))
    weight = torch.ones(64).half().requires_grad_()
    y = eager.layernorm(spec, {"x": x, "weight": weight, "bias": None})["y"]
    assert y.dtype == torch.float16
    y.backward(dy)
    exact = (dy.double() * torch.nn.functional.layer_norm(x.double(), (64,))).sum(0)
    half_ulp = torch.exp2(exact.abs().log2().floor() - 11)
    assert ((weight.grad - exact).abs() <= 1.01 * half_ulp).all()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_each_policy_names_its_source(policy):
    assert policy.summary
    assert any(project in policy.source for project in ("triton-lang/", "pytorch/", "linkedin/", "Dao-AILab/"))


def not_applicable(verdict: Verdict) -> str:
    assert verdict.caught is None
    assert verdict.cases == 0 or "CPU" in verdict.detail
    assert verdict.detail.startswith("not applicable: ")
    return verdict.detail
