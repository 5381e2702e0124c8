"""GroupNorm with an activation: ours pass, unusual right ones too, and each usual mistake is detected by name."""

from dataclasses import replace

import pytest
import torch
from checking import ONE_WAY
from norms import groupnorm
from torch.nn import functional

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import FURTHER, LAWS, CaseSpec
from verify_norm.loading.registry import load

MANY = tuple(name for name in FURTHER if name != "effects")  # which repeats the kernel most, and hangs on no data
VALUES = ("memory", "distribution", "gradient", "degenerate", *LAWS)
IN_ALL_WAYS = CaseSpec((2, 6, 5, 4), num_groups=2, seed=6)
SPECS = (
    replace(IN_ALL_WAYS, **ONE_WAY),
    CaseSpec(
        (2, 6, 5, 4),
        num_groups=3,
        dtype="bfloat16",
        x_layout="channels_last",
        dy_layout="channels_last",
        seed=12,
        **ONE_WAY,
    ),
    CaseSpec((2, 4, 9), num_groups=2, dtype="float16", weight=False, seed=18, further=MANY, **ONE_WAY),
    # What follows is about values: further runs of such cases are those of GroupNorm without an activation.
    CaseSpec((1, 4, 40), num_groups=2, offset=100.0, bias=False, seed=24, further=VALUES),
    CaseSpec((1, 2, 600), num_groups=1, data="heavy", dtype="bfloat16", seed=30, further=VALUES),  # z far out
    CaseSpec((3, 4), num_groups=4, seed=36, further=VALUES),  # x̂ = 0: y is the activation of the bias
)
SLOPES = {
    "silu": lambda z: torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z))),
    "gelu": lambda z: 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327,
}


def shaped(p, x, default):
    column = (-1, *[1] * (x.dim() - 2))
    return torch.full((1,), default).reshape(*[1] * x.dim()) if p is None else p.float().reshape(column)


def normal(x, mean, rstd, num_groups):
    rows = x.float().reshape(x.shape[0] * num_groups, -1)
    return ((rows - mean.reshape(-1, 1)) * rstd.reshape(-1, 1)).reshape(x.shape)


def backward(act, mistake=""):
    def run(dy, x, weight, bias, mean, rstd, num_groups):
        w, b, xhat = shaped(weight, x, 1.0), shaped(bias, x, 0.0), normal(x, mean, rstd, num_groups)
        at = {"x̂": xhat, "without bias": xhat * w}.get(mistake, xhat * w + b)
        g = dy.float() * (1.0 if mistake == "forgotten" else SLOPES[act](at))
        axes = [d for d in range(x.dim()) if d != 1]
        rows, along = ((w * g).reshape(mean.numel(), -1), xhat.reshape(mean.numel(), -1))
        c1, c2 = (rows * along).mean(1, keepdim=True), rows.mean(1, keepdim=True)
        dx = (rstd.reshape(-1, 1) * (rows - c2 - along * c1)).reshape(x.shape).to(x.dtype)
        dweight, dbias = ((dy.float() if mistake == "dweight of dy" else g) * xhat).sum(axes), g.sum(axes)
        return (
            dx,
            None if weight is None else dweight.to(weight.dtype),
            None if bias is None else dbias.to(bias.dtype),
        )

    return run


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [f"groupnorm_{act}_{way}" for act in SLOPES for way in ("fwd", "bwd")])
def test_ours_pass_every_check(name, findings):
    """In all ways with one activation in each direction: with the other it is the same code around it."""
    first = IN_ALL_WAYS if name in ("groupnorm_silu_fwd", "groupnorm_gelu_bwd") else SPECS[0]
    assert findings(load(name), (first, *SPECS[1:])) == {}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("act", SLOPES)
def test_torchs_operations_pass(act, findings):
    own = getattr(functional, act)
    assert findings(Kernel("k", f"groupnorm_{act}_fwd", run=groupnorm(own)), SPECS) == {}
    assert findings(Kernel("k", f"groupnorm_{act}_bwd", run=backward(act), forward_run=groupnorm(own)), SPECS) == {}


@pytest.mark.slow
def test_a_wider_exponential_is_no_mistake(findings):
    def exact(z):
        return (z.double() * torch.sigmoid(z.double())).float()

    assert findings(Kernel("k", "groupnorm_silu_fwd", run=groupnorm(exact)), SPECS) == {}


@pytest.mark.parametrize(
    ("op", "act"),
    [
        ("groupnorm_gelu_fwd", lambda z: functional.gelu(z, approximate="tanh")),
        ("groupnorm_gelu_fwd", functional.silu),
        ("groupnorm_silu_fwd", lambda z: z),
        ("groupnorm_silu_fwd", lambda z: z * torch.sigmoid(z).bfloat16().float()),
        ("groupnorm_silu_fwd", lambda z: z * 0.5 * (1 + (0.5 * z).tanh().half().float())),
    ],
    ids=["tanh for erf", "silu for gelu", "none", "σ in bfloat16", "a coarse tanh"],
)
def test_wrong_values_are_detected(op, act, findings):
    assert ("accuracy", "y") in findings(Kernel("k", op, run=groupnorm(act)), SPECS, "accuracy")


@pytest.mark.parametrize("act", SLOPES)
@pytest.mark.parametrize(
    ("mistake", "outputs"),
    [
        ("forgotten", {"dx", "dweight", "dbias"}),
        ("x̂", {"dx", "dweight", "dbias"}),
        ("without bias", {"dx", "dweight", "dbias"}),
        ("dweight of dy", {"dweight"}),
    ],
)
def test_wrong_gradients_are_detected_by_name(act, mistake, outputs, findings):
    kernel = Kernel(
        "k", f"groupnorm_{act}_bwd", run=backward(act, mistake), forward_run=groupnorm(getattr(functional, act))
    )
    found = findings(kernel, SPECS, "accuracy", "gradient")
    assert {output for check, output in found if check == "accuracy"} == outputs
    assert {output for check, output in found if check == "gradient"} == outputs


def test_an_x_rounded_before_the_activation_is_not_the_strict_contract(findings):
    rounded = groupnorm(lambda z: functional.silu(z.bfloat16().float()))
    kernel = Kernel("k", "groupnorm_silu_fwd", run=rounded, contract=Contract())
    assert ("accuracy", "y") in findings(kernel, SPECS, "accuracy")
