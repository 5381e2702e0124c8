"""Second derivatives of torch functions: right ones agree, missing ones raise, silently wrong ones are detected."""

import pytest
import torch
from torch.autograd.function import once_differentiable

from verify_norm.core.errors import UsageError
from verify_norm.gradcheck.second import second_order
from verify_norm.kernels import groupnorm, layernorm, rmsnorm

F = torch.nn.functional
DOUBLE = {f"double backward {name}" for name in ("dy", "x", "weight")}


def outcomes(function, op="layernorm", **options):
    found = second_order(function, op, **options)
    assert all(d.message and "\n" not in d.message for d in found)
    return {d.quantity: d.outcome for d in found}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("function", "op"), [(F.layer_norm, "layernorm"), (F.rms_norm, "rmsnorm_bwd"), (F.group_norm, "groupnorm_fwd")]
)
def test_torchs_own_agree_in_float64(function, op, seed):
    found = second_order(function, op, seed=seed)
    assert {d.quantity for d in found} == DOUBLE | {"jvp"}
    assert {d.outcome for d in found} == {"agrees"}, [d.message for d in found]
    assert all(d.allowed < 1e-12 and "in float64" in d.message for d in found)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (layernorm.LayerNormFunction, "layernorm"),
        (layernorm.LayerNormFunction.apply, "layernorm"),
        (rmsnorm.RMSNormFunction, "rmsnorm"),
        (groupnorm.GroupNormFunction, "groupnorm"),
    ],
)
def test_the_kernels_say_that_they_do_not_offer_it(function, op, device):
    found = {d.quantity: d for d in second_order(function, op, device=device)}
    assert {name: d.outcome for name, d in found.items()} == {"double backward": "not offered", "jvp": "not offered"}
    assert "once_differentiable" in found["double backward"].message


class Rows(torch.autograd.Function):
    """RMSNorm of rows; its subclasses differ in what autograd can make of their gradient."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def gradients(dy, x, weight, rstd):
        xhat, g = x * rstd, dy * weight
        return rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True)), (dy * xhat).sum(0), None


class Numpys(Rows):
    """Leaves torch and comes back, as a kernel does, and does not say so."""

    @staticmethod
    def backward(ctx, dy):
        return Rows.gradients(dy.detach(), *(t.detach() for t in ctx.saved_tensors))


class Honest(Rows):
    backward = staticmethod(once_differentiable(Numpys.backward))


class SavedStatistics(Rows):
    """Differentiable, but rstd was saved as a number: how it depends on x is lost."""

    @staticmethod
    def backward(ctx, dy):
        return Rows.gradients(dy, *ctx.saved_tensors)


class Recomputed(Rows):
    """Right: rstd is computed anew from x."""

    @staticmethod
    def backward(ctx, dy):
        x, weight, _ = ctx.saved_tensors
        return Rows.gradients(dy, x, weight, (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt())


class WeightCut(Rows):
    """dx is differentiable, dweight is not."""

    @staticmethod
    def backward(ctx, dy):
        dx, dweight, _ = Recomputed.backward(ctx, dy)
        return dx, dweight.detach(), None


def test_a_gradient_without_a_graph_is_found():
    found = second_order(Numpys, "rmsnorm")
    assert {d.quantity for d in found} == DOUBLE | {"jvp"}
    for d in found:
        if d.quantity in DOUBLE:
            assert d.outcome == "finding"
            assert "missing, which counts as 0" in d.message
            assert "dx and dweight came back without a graph; mark backward with once_differentiable" in d.message
        else:
            assert d.outcome == "not offered"


def test_one_that_says_so_is_no_finding():
    assert outcomes(Honest, "rmsnorm") == {"double backward": "not offered", "jvp": "not offered"}


def test_statistics_saved_as_numbers_are_found():
    found = outcomes(SavedStatistics, "rmsnorm")
    assert found["double backward x"] == "finding"  # the part of it that comes through rstd
    assert found["double backward dy"] == found["double backward weight"] == "agrees"
    assert all(outcome != "finding" for outcome in outcomes(Recomputed, "rmsnorm").values())


def test_one_gradient_of_two_that_is_cut_is_found():
    found = {d.quantity: d for d in second_order(WeightCut, "rmsnorm")}
    assert found["double backward x"].outcome == found["double backward dy"].outcome == "finding"
    assert "; dweight came back without a graph" in found["double backward x"].message
    assert found["double backward weight"].outcome == "agrees"  # dweight does not depend on the weight


def rms(x, weight, eps):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


class Tangent(Recomputed):
    """A forward mode of its own, without the part of rstd."""

    @staticmethod
    def jvp(ctx, tx, tweight, _):
        x, weight, rstd = ctx.saved_for_forward
        return tx * rstd * weight + x * rstd * tweight

    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        ctx.save_for_forward(x, weight, rstd)
        return x * rstd * weight


def test_a_wrong_forward_mode_is_found():
    found = outcomes(Tangent, "rmsnorm")
    assert found == dict.fromkeys(DOUBLE, "agrees") | {"jvp": "finding"}


def test_a_type_that_is_not_taken_is_passed_over():
    def float32_only(x, weight, eps):
        if x.dtype == torch.float64:
            raise TypeError("float64 is not supported")
        return rms(x, weight, eps)

    found = second_order(float32_only, "rmsnorm")
    assert {d.outcome for d in found} == {"agrees"}
    assert all("in float32" in d.message for d in found)


def test_float64_that_is_computed_in_float32_is_held_to_that():
    found = second_order(lambda x, weight, eps: rms(x.float(), weight.float(), eps).double(), "rmsnorm")
    assert {d.outcome for d in found} == {"agrees"}
    assert all("in float64, computed in float32" in d.message for d in found)


@pytest.mark.parametrize(
    ("function", "quantity", "outcome", "message"),
    [
        (lambda x, weight: x * weight, "forward", "finding", "y is "),
        (lambda x, weight, eps: rms(x, weight, eps)[:2], "forward", "finding", "(2, 37), expected (4, 37)"),
        (lambda x: 3, "forward", "not offered", "it returned int, not a tensor"),
        (
            lambda x, weight, eps: rms(x, weight, eps).detach(),
            "double backward",
            "not offered",
            "does not require grad",
        ),
        (lambda x, weight, eps: rms(x, weight.detach(), eps), "double backward", "not offered", "not have been used"),
        (
            lambda x, weight, eps: rms(x, 0.5 * weight + 0.5 * weight.detach(), eps),
            "gradient",
            "finding",
            "dweight is ",
        ),
    ],
)
def test_what_is_wrong_before_the_second_derivative(function, quantity, outcome, message):
    found = second_order(function, "rmsnorm")
    assert (found[0].quantity, found[0].outcome) == (quantity, outcome)
    assert message in found[0].message


def test_an_operator_that_there_is_not():
    with pytest.raises(UsageError, match=r"^unknown operator 'softmax'"):
        second_order(rms, "softmax")
