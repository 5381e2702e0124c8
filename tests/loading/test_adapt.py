"""Any callable as a kernel: what it is called with, what comes back, and which cases it meets."""

import ctypes
from dataclasses import replace

import pytest
import torch
from checking import findings
from directions import GROUPS, LOOSE, ROWS, VALUES, both
from torch import nn
from torch.nn import functional

from verify_norm.cases import corners, make
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.loading.registry import load, load_directions
from verify_norm.running.execute import execute
from verify_norm.search.examine import examine


@pytest.mark.parametrize(
    ("target", "spec"),
    [
        (functional.layer_norm, ROWS),
        (functional.group_norm, GROUPS),
        (functional.batch_norm, CaseSpec((4, 3, 5))),
        (functional.batch_norm, CaseSpec((4, 3, 5), training=False)),
    ],
)
def test_torchs_own_functions_pass_in_both_directions(target, spec):
    found = both(target, spec)
    assert len(found) == 2
    assert set().union(*found.values()) == set(), found


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return (x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)


def twice_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return (x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * weight.double() * 2).to(
        x.dtype
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_function_in_torchscript_has_the_arguments_of_its_schema():
    assert set().union(*both(torch.jit.script(rmsnorm), ROWS, "rmsnorm").values()) == set()
    assert ("accuracy", "y") in both(torch.jit.script(twice_rmsnorm), ROWS, "rmsnorm")["rmsnorm_fwd"]


def test_an_operator_of_torch_library_has_the_arguments_of_its_schema():
    @torch.library.custom_op("verify_norm_test::of_schema", mutates_args=())
    def of_schema(x: torch.Tensor, weight: torch.Tensor | None, eps: float, *, times: float = 1.0) -> torch.Tensor:
        y = rmsnorm(x, weight, eps) * times
        return y.clone() if y is x else y

    packet = torch.ops.verify_norm_test.of_schema
    for one in (of_schema, packet, packet.default):
        assert findings(load(one, "rmsnorm_fwd").run, ROWS, "rmsnorm_fwd") == set()
        twice = load(one, "rmsnorm_fwd", bind="times=2.0").run
        assert ("accuracy", "y") in findings(twice, ROWS, "rmsnorm_fwd")


def test_what_a_signature_of_stars_hides_is_named():
    kernel = load(lambda *args, **kwargs: rmsnorm(*args, **kwargs), "rmsnorm_fwd")
    with pytest.raises(TypeError, match=r"its signature is \(\*args, \*\*kwargs\): name its arguments, as --bind x=x,"):
        kernel.run(**make.case(ROWS, OPS["rmsnorm_fwd"], kernel.contract).arguments)


def test_a_gradient_that_autograd_hands_through_is_no_fault():
    """Of what is added to a row of rank 1, torch gives dy itself as the gradient."""

    def layernorm(x, weight, bias, eps):
        xc = x - x.mean(-1, keepdim=True)
        return xc * (xc.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    x, bias, dy = (torch.ones(4, requires_grad=value) for value in (True, True, False))
    (given,) = torch.autograd.grad(layernorm(x, torch.ones(4), bias, 1e-5), bias, dy)
    assert given.data_ptr() == dy.data_ptr()
    backward = load_directions(layernorm, "layernorm", contract=LOOSE)[1]
    examined = examine(backward, backward.fit(CaseSpec((4,))), ("accuracy", "memory"), "cpu")
    assert examined.looked == ("accuracy", "memory")
    assert not examined.findings


class Scaled(torch.autograd.Function):
    """RMSNorm, whose dx is right by its own lights alone."""

    @staticmethod
    def forward(ctx, X, W, eps):
        rstd = torch.rsqrt(X.double().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(X, W, rstd)
        return (X.double() * rstd * W.double()).to(X.dtype)

    @staticmethod
    def backward(ctx, dY):
        X, W, rstd = ctx.saved_tensors
        xhat, g = X.double() * rstd, dY.double() * W.double()
        dX = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        return dX.to(X.dtype), (dY.double() * xhat).reshape(-1, len(W)).sum(0).to(W.dtype), None


class Frozen(Scaled):
    """Its dx is wrong where the weight needs no gradient: no other case shows it."""

    @staticmethod
    def backward(ctx, dY):
        dX, dW, _ = Scaled.backward(ctx, dY)
        return dX if ctx.needs_input_grad[1] else dX / ctx.saved_tensors[1], dW, None


class Placed(Scaled):
    """Its gradients change places where x is frozen: torch adds up what is too large for the weight."""

    @staticmethod
    def backward(ctx, dY):
        dX, dW, _ = Scaled.backward(ctx, dY)
        return (dX, dW, None) if ctx.needs_input_grad[0] else (None, dX, None)


class Detached(Scaled):
    """It is cut from the graph where x is frozen."""

    @staticmethod
    def forward(ctx, X, W, eps):
        y = Scaled.forward(ctx, X, W, eps)
        if not ctx.needs_input_grad[0]:
            ctx.mark_non_differentiable(y)
        return y


def frozen_corners():
    table = corners.corners(OPS["rmsnorm_bwd"], ("float32",), frozen=True)
    assert {spec.frozen for spec in table} == {(), ("x",), ("weight",)}
    return table


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "frozen", "seen"),
    [
        (Scaled, {}, None),
        (Frozen, {("weight",)}, ("accuracy", "dx")),
        (Placed, {("x",)}, ("accuracy", "dweight")),
        (Detached, {("x",)}, ("signature", None)),
    ],
)
def test_only_frozen_inputs_show_some_bugs(function, frozen, seen):
    _, kernel = load_directions(function, "rmsnorm", "weight_offset=0.0")
    assert kernel.autograd
    for spec in frozen_corners():
        if spec.weight and spec.shape[0] > 0 and spec.normalized_ndim == 1 and spec.special is None and spec.eps:
            findings = examine(kernel, kernel.fit(spec), VALUES, "cpu").findings
            assert {(f.check, f.output) for f in findings} == ({seen} if spec.frozen in frozen else set()), spec


def test_only_what_torch_differentiates_meets_frozen_inputs():
    kernel = registry.load("layernorm_bwd")
    assert not kernel.autograd
    assert "frozen" in kernel.unsupported(CaseSpec((2, 3), frozen=("x",)))
    assert kernel.fit(CaseSpec((2, 3), frozen=("x",))).frozen == ()


def test_frozen_inputs_have_no_truth_and_get_no_gradient():
    spec = CaseSpec((3, 8), frozen=("weight", "bias"))
    case = make.case(spec, OPS["layernorm_bwd"], LOOSE)
    assert {name for name, expected in case.expected.items() if expected is None} == {"dweight", "dbias"}
    run = execute(load_directions(nn.LayerNorm)[1], case)
    assert {name for name, output in run.outputs.items() if output is None} == {"dweight", "dbias"}
    assert (run.outputs["dx"].ratio <= 1).all()


def fused_add(x, residual, weight, eps):
    summed = x + residual
    y = summed.double() * torch.rsqrt(summed.double().pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype), summed


def test_a_fused_addition_is_differentiated_at_its_sum():
    for spec in (CaseSpec((3, 8)), CaseSpec((3, 8), dresidual_out=False, residual_out_layout="transposed")):
        assert set().union(*both(fused_add, spec, "add_rmsnorm").values()) == set()


def test_a_sum_whose_gradient_is_lost_shows():
    def lost(x, residual, weight, eps):
        y, summed = fused_add(x, residual.detach(), weight, eps)
        return y, summed

    (forward, backward) = both(lost, CaseSpec((3, 8)), "add_rmsnorm").values()
    assert (forward, backward) == (set(), {("signature", None)})


def test_what_returns_no_sum_meets_no_gradient_of_it():
    _, kernel = load_directions(lambda x, residual, weight, eps: fused_add(x, residual, weight, eps)[0], "add_rmsnorm")
    examined = examine(kernel, kernel.fit(CaseSpec((3, 8))), VALUES, "cpu")
    assert examined.unsupported == "it returns no residual_out, whose gradient is given"
    assert not examine(kernel, kernel.fit(CaseSpec((3, 8), dresidual_out=False)), VALUES, "cpu").findings


def writes(out, x, weight, bias, eps, mean, rstd):
    m = x.double().mean(-1, keepdim=True)
    r = torch.rsqrt(x.double().var(-1, correction=0, keepdim=True) + eps)
    y = (x.double() - m) * r
    y = y if weight is None else y * weight.double()
    out.copy_(y if bias is None else y + bias.double())
    mean.copy_(m.flatten())
    rstd.copy_(r.flatten())


def test_outputs_that_are_written_into():
    (kernel,) = load_directions(writes, "layernorm_fwd")
    run = execute(kernel, make.case(ROWS, OPS["layernorm_fwd"], Contract()))
    assert all((run.outputs[name].ratio <= 1).all() for name in ("y", "mean", "rstd"))


def test_outputs_of_the_operators_own_names_are_written_into():
    def rms_into_y(y, x, weight, eps, weight_offset):
        z = x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        y.copy_(z if weight is None else z * (weight.double() + weight_offset))

    (kernel,) = load_directions(rms_into_y, "rmsnorm_fwd")
    run = execute(kernel, make.case(ROWS, OPS["rmsnorm_fwd"], Contract()))
    assert run.problem is None
    assert (run.outputs["y"].ratio <= 1).all()
    with pytest.raises(UsageError, match="writes into y, which has no gradient"):
        load_directions(rms_into_y, "rmsnorm_bwd")


def test_what_is_written_beside_an_output_shows():
    def past(out, x, weight, eps):
        ctypes.memset(out.data_ptr() + 4 * out.numel(), 0, 4)
        out.copy_(x)

    (kernel,) = load_directions(past, "rmsnorm_fwd")
    findings = examine(kernel, kernel.fit(ROWS), ("memory",), "cpu").findings
    assert any("behind the last element of y, made by torch.empty" in f.message for f in findings)


def test_what_is_not_written_is_poison():
    (kernel,) = load_directions(lambda out, x, weight, eps: None, "rmsnorm_fwd")
    run = execute(kernel, make.case(CaseSpec((2, 3)), OPS["rmsnorm_fwd"], Contract()))
    assert (run.outputs["y"].got != run.outputs["y"].got).all()


def test_a_backward_whose_dy_has_an_unknown_name_is_told_what_it_was_taken_for():
    def layernorm_bwd(upstream, x, weight, mean, rstd): ...

    with pytest.raises(UsageError, match=r"upstream.*; it has no argument for dy, so .*: --bind dy=<its argument> for"):
        load_directions(layernorm_bwd, "layernorm_bwd")
    with pytest.raises(UsageError) as caught:
        load_directions(layernorm_bwd, "layernorm_fwd")
    assert "argument for dy" not in str(caught.value)


def test_a_function_without_a_signature_needs_one_around_it():
    with pytest.raises(UsageError, match=r"no signature to bind arguments by; name a function of Python around it"):
        load_directions(max, "layernorm_fwd")


def test_in_place_by_contract():
    def inplace(x, weight, eps):
        x.copy_(x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps))

    (kernel,) = load_directions(inplace, "rmsnorm_fwd", "weight=None", contract=Contract(inplace=("y:x",)))
    spec = kernel.fit(CaseSpec((2, 3), x_layout="expanded"))
    assert (spec.x_layout, spec.weight) == ("contiguous", False)  # elements that share memory cannot be written
    assert not examine(kernel, spec, (*VALUES, "memory"), "cpu").findings


def test_the_order_of_what_is_returned():
    def reordered(x, weight, bias, eps):
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        return y, rstd.flatten(), mean.flatten(), 3

    assert both(reordered, ROWS, "layernorm_fwd")["layernorm_fwd"] == {("statistics", "mean"), ("statistics", "rstd")}
    bind = "-> y, rstd, mean, _"
    assert both(reordered, ROWS, "layernorm_fwd", bind)["layernorm_fwd"] == set()
    with pytest.raises(UsageError, match="layernorm_fwd has no inv_std; it has y, mean, rstd"):
        load_directions(reordered, "layernorm_fwd", "-> y, inv_std, mean, _")


def test_a_forward_that_is_not_differentiable_is_not_blamed_for_it():
    _, kernel = load_directions(lambda x, weight, eps: x.detach().clone(), "rmsnorm")
    examined = examine(kernel, kernel.fit(ROWS), VALUES, "cpu")
    assert examined.unsupported == (
        "its y has no gradient: autograd does not know how it was made; --op rmsnorm_fwd checks the forward alone"
    )


@pytest.mark.parametrize(
    ("target", "op", "said"),
    [
        (lambda out, x, weight, eps: x, "rmsnorm", "writes into y, which has no gradient: use --op rmsnorm_fwd"),
        (lambda out, x, weight, eps: x, "rmsnorm_bwd", "writes into y, which has no gradient"),
        (dict, "rmsnorm_fwd", "is a class, but neither an nn.Module nor a torch.autograd.Function"),
        (print, "rmsnorm_fwd", "print"),
    ],
)
def test_what_cannot_be_bound_is_told_in_one_line(target, op, said):
    with pytest.raises(UsageError) as caught:
        load_directions(target, op)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_triton_kernel_itself_is_not_what_to_name():
    from verify_norm.kernels.rows import forward

    raw = forward.forward
    with pytest.raises(UsageError, match="is a Triton kernel, which takes a grid and pointers: name a function"):
        load_directions(raw, "rmsnorm_fwd")


def _gradients(dy, x, weight, mean, rstd):
    """LayerNorm's dx, dweight and dbias, without an argument for bias."""
    xhat = (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    g = dy.double() if weight is None else dy.double() * weight.double()
    dx = (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True)) * rstd.double()[:, None]
    return dx.to(x.dtype), (dy.double() * xhat).sum(0).to(x.dtype), dy.double().sum(0).to(x.dtype)


def test_a_backward_without_bias_is_not_asked_for_dbias_where_there_is_no_weight():
    def without(dy, x, weight, mean, rstd):
        dx, dweight, dbias = _gradients(dy, x, weight, mean, rstd)
        return (dx, None, None) if weight is None else (dx, dweight, dbias)

    def always(dy, x, weight, mean, rstd):
        dx, dweight, dbias = _gradients(dy, x, weight, mean, rstd)
        return dx, None if weight is None else dweight, dbias

    def never(dy, x, weight, mean, rstd):
        return (*_gradients(dy, x, weight, mean, rstd)[:2], None)

    def takes_it(dy, x, weight, bias, mean, rstd):
        return without(dy, x, weight, mean, rstd)

    bare = replace(ROWS, weight=False)
    for right in (without, always):
        assert both(right, bare, "layernorm_bwd") == {"layernorm_bwd": set()}
    assert both(never, ROWS, "layernorm_bwd") == {"layernorm_bwd": {("signature", "dbias")}}
    assert both(takes_it, bare, "layernorm_bwd") == {"layernorm_bwd": {("signature", "dbias")}}
