"""The check `autograd`: functions whose gradients depend on how they are asked for, and unusual right ones."""

import threading
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from checking import ROWS
from norms import Checkpointed
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.geometry import differentiable, thawed
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo.functions import OverY
from verify_norm.loading.registry import load, load_directions
from verify_norm.running.execute import execute

WAYS = {
    "again": ways.AGAIN,
    "data": ways.OVERWRITTEN,
    "parameters": ways.PARAMETERS_OVERWRITTEN,
    "second": ways.SECOND,
    "others": ways.SOME_OUTPUTS,
    "between": ways.INTERLEAVED,
    "forward mode": ways.FORWARD_MODE,
    "moved": ways.MOVED,
    "elsewhere": ways.ELSEWHERE,
    "split": ways.SPLIT,
}
LOOSE = Contract(expanded=True, summation="sequential")  # torch's own
SPEC = replace(ROWS, shape=(6, 24))


def said(target, way, spec=SPEC, op="rmsnorm"):
    """What `autograd` says of a case that names the way, by output; None where it had nothing to look at."""
    *_, kernel = load_directions(target, op, contract=LOOSE)
    spec = kernel.fit(replace(spec, autograd=WAYS[way]))
    result = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    assert result.problem is None
    assert CHECKS["autograd"].looks(result)
    items = list(CHECKS["autograd"].function(result))
    found = [f for f in items if isinstance(f, Finding)]
    assert all(f.check == "autograd" for f in found)
    return {f.output: f.message for f in found} if found or NoData() not in items else None


def of_op(op="rmsnorm"):
    return [way for way in WAYS if way != "split" or op.startswith("add_")]


def gradients(dy, x, weight, rstd):
    """The gradients of RMSNorm, of float64 intermediates."""
    xhat, g = x.double() * rstd, dy.double() if weight is None else dy.double() * weight.double()
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dw = None if weight is None else (dy.double() * xhat).reshape(-1, len(weight)).sum(0).to(weight.dtype)
    return dx.to(x.dtype), dw


class Once(torch.autograd.Function):
    """RMSNorm, differentiable once; its variants change one thing each."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        y = x.double() * rstd if weight is None else x.double() * rstd * weight.double()
        ctx.save_for_backward(x, weight, rstd)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *gradients(dy, *ctx.saved_tensors), None


class InPlace(Once):
    """Its backward scales what it has saved: a second backward finds it changed, and torch does not notice."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        found = gradients(dy, x, weight, rstd)
        rstd.data.mul_(2)
        return *found, None


class Released(Once):
    """It keeps what it saves on ctx, and clears it: a second backward raises the error of None."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        y = Once.forward(ctx, x, weight, eps)
        ctx.x = x.clone()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, ctx.x = ctx.x, None
        return *gradients(dy, x, *ctx.saved_tensors[1:]), None


class Accumulating(Once):
    """Its backward also adds to the weight's .grad itself, as fused training loops do."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.weight = weight
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        dx, dw = gradients(dy, *ctx.saved_tensors)
        if dw is not None:
            ctx.weight.grad = dw.clone()
        return dx, dw, None


class AccumulatingOntoGrad(Accumulating):
    """It adds to a .grad that is there, and returns the gradient too, so that it counts twice."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        dx, dw = gradients(dy, *ctx.saved_tensors)
        if dw is not None and ctx.weight.grad is not None:
            ctx.weight.grad += dw
        return dx, dw, None


class Shared(Once):
    """It saves what it needs on the class, where the next forward overwrites it."""

    saved = None

    @staticmethod
    def forward(ctx, x, weight, eps):
        y = Once.forward(ctx, x, weight, eps)
        Shared.saved = ctx.to_save
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *gradients(dy, *Shared.saved), None


class Stacked(Once):
    """It saves on a stack of its own: the last forward is the first to be differentiated."""

    stack = ()

    @staticmethod
    def forward(ctx, x, weight, eps):
        y = Once.forward(ctx, x, weight, eps)
        Stacked.stack = (*Stacked.stack, ctx.to_save)[-9:]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        *Stacked.stack, saved = Stacked.stack
        return *gradients(dy, *saved), None


class Scratch(Once):
    """It saves rstd in one buffer for each size, which a later forward of the same size writes anew."""

    buffers = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, weight, eps):
        y = Once.forward(ctx, x, weight, eps)
        rstd = ctx.to_save[2]
        ctx.rstd = Scratch.buffers.setdefault(rstd.shape, rstd)
        ctx.rstd.data.copy_(rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *gradients(dy, *ctx.saved_tensors[:2], ctx.rstd), None


@pytest.mark.parametrize("function", [Shared, Stacked, Scratch])
def test_what_another_forward_overwrites(function):
    found = said(function, "between")
    assert "of other values comes before the backward" in found["dx"]


def two_passes(x, weight, bias, eps):
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias


def test_the_derivative_along_the_weight_where_an_element_is_near_the_mean():
    """x̂ is near 0 there, and errs by what cancels: 5e-8 of 2e-4 is no mistake."""
    spec = replace(SPEC, shape=(23, 20), seed=123, variant=61)
    assert said(two_passes, "forward mode", spec, "layernorm") == {}


class KeepsEps(Once):
    """Keeps for its backward what the last forward of any layer was called with."""

    last = 0.0

    @staticmethod
    def forward(ctx, x, weight, eps):
        KeepsEps.last = eps
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, _ = ctx.saved_tensors
        rstd = (x.double().square().mean(-1, keepdim=True) + KeepsEps.last).rsqrt()
        return *gradients(dy, x, weight, rstd), None


class KeepsLength(Once):
    last = 0

    @staticmethod
    def forward(ctx, x, weight, eps):
        KeepsLength.last = x.numel()
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        return *gradients(dy * (KeepsLength.last / x.numel()), x, weight, rstd), None


class KeepsMode(torch.autograd.Function):
    """BatchNorm whose backward is that of the mode in which the last layer ran."""

    last = True

    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, training, eps):
        KeepsMode.last = training
        shape = (1, -1, *(1,) * (x.dim() - 2))
        rstd = (var + eps).rsqrt().reshape(shape)
        xhat = (x - mean.reshape(shape)) * rstd
        ctx.save_for_backward(xhat, weight, rstd)
        return (xhat * weight.reshape(shape) + bias.reshape(shape)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        xhat, weight, rstd = ctx.saved_tensors
        dims = [axis for axis in range(dy.dim()) if axis != 1]
        g = dy * weight.reshape(rstd.shape)
        if KeepsMode.last:
            g = g - g.mean(dims, keepdim=True) - xhat * (g * xhat).mean(dims, keepdim=True)
        return g * rstd, (dy * xhat).sum(dims), dy.sum(dims), None, None, None, None


def batchnorm_of_the_last_mode(x, weight, bias, running_mean, running_var, training, momentum, eps):
    dims = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = torch.var_mean(x.detach(), dims, correction=0) if training else (running_var, running_mean)
    return KeepsMode.apply(x, weight, bias, mean, var, training, eps)


@pytest.mark.parametrize(("function", "words"), [(KeepsEps, "with other options"), (KeepsLength, "of (")])
def test_what_a_forward_of_another_layer_overwrites(function, words):
    assert f"where a forward {words}" in said(function, "between")["dx"]


def test_the_mode_of_another_batchnorm():
    spec = replace(ROWS, shape=(6, 4, 5))
    assert (
        "with other options comes before the backward"
        in said(batchnorm_of_the_last_mode, "between", spec, "batchnorm")["dx"]
    )


def test_a_backward_that_overwrites_what_the_forward_returned():
    assert "changes y, which the forward has given the caller" in said(OverY, "again")[None]


class LearnsAgain(torch.autograd.Function):
    """BatchNorm in training, whose backward runs the forward again; `learning` is the momentum there."""

    learning = 0.1

    @staticmethod
    def forward(ctx, x, *others):
        ctx.save_for_backward(x, *others[:2])
        ctx.others = others[2:]
        return functional.batch_norm(x, *others[2:4], *others[:2], *others[4:])

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        *running, training, _, eps = ctx.others
        with torch.enable_grad():
            y = functional.batch_norm(leaves[0], *running, *leaves[1:], training, LearnsAgain.learning, eps)
        return *torch.autograd.grad(y, leaves, dy), *[None] * 5


def batchnorm_again(x, weight, bias, running_mean, running_var, training, momentum, eps):
    return LearnsAgain.apply(x, weight, bias, running_mean, running_var, training, momentum, eps)


def test_a_backward_that_moves_the_running_statistics_again(monkeypatch):
    spec = CaseSpec((4, 3, 5))
    found = said(batchnorm_again, "again", spec, "batchnorm")
    assert "changes running_mean and running_var, which the forward has given the caller" in found[None]
    assert said(batchnorm_again, "again", replace(spec, training=False), "batchnorm") == {}
    assert said(nn.BatchNorm1d, "again", spec, "batchnorm") == {}

    class Module(nn.BatchNorm1d):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    assert said(Module, "again", spec, "batchnorm").keys() == {None}
    monkeypatch.setattr(LearnsAgain, "learning", 0.0)  # as a forward that knows it runs again
    assert said(batchnorm_again, "again", spec, "batchnorm") == {}


@pytest.mark.parametrize("target", [Checkpointed, Checkpointed(24)])
def test_a_module_that_reads_its_weight_again_in_the_backward(target):
    """Only where the module has another one by then the gradient is wrong, without an error of torch's."""
    found = {way: said(target, way) for way in of_op()}
    assert "where weight is overwritten between forward and backward" in found.pop("parameters")["dx"]
    assert "where a forward of other values comes before the backward" in found.pop("between")["dx"]
    assert not any(found.values()), found


class KeepsX(nn.RMSNorm):
    """A module that keeps x for its backward."""

    def forward(self, x):
        self.x = x
        outer = self

        class Late(Once):
            @staticmethod
            @once_differentiable
            def backward(ctx, dy):
                return *gradients(dy, outer.x.detach(), *ctx.saved_tensors[1:]), None

        return Late.apply(x, self.weight, self.eps)


class KeepsWeight(nn.RMSNorm):
    """A module that keeps its weight for its backward, past what torch saves."""

    def forward(self, x):
        self.kept = self.weight.detach().clone()
        outer = self

        class Late(Once):
            @staticmethod
            @once_differentiable
            def backward(ctx, dy):
                x, _, rstd = ctx.saved_tensors
                return *gradients(dy, x, outer.kept, rstd), None

        return Late.apply(x, self.weight, self.eps)


def test_what_a_module_keeps_for_its_backward():
    assert set(said(KeepsX, "between")) == {"dx", "dweight"}
    assert set(said(KeepsX, "between", replace(SPEC, frozen=("weight",)))) == {"dx"}
    assert set(said(KeepsWeight, "between", replace(SPEC, frozen=("weight",)))) == {"dx"}


class Plain(nn.LayerNorm):
    """A module of plain operators, which saves its weight in several ways."""

    def forward(self, x):
        centred = x.double() - x.double().mean(-1, keepdim=True)
        xhat = centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        y = xhat if self.weight is None else xhat * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)


@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias"), ("x", "bias"), ("x", "weight")])
@pytest.mark.parametrize(
    ("module", "op", "spec"),
    [
        (Plain, "layernorm", SPEC),
        (nn.LayerNorm, "layernorm", SPEC),
        (nn.RMSNorm, "rmsnorm", SPEC),
        (nn.GroupNorm, "groupnorm", CaseSpec((2, 6, 4), num_groups=3)),
        (nn.BatchNorm1d, "batchnorm", CaseSpec((4, 3, 5))),
        (nn.BatchNorm1d, "batchnorm", CaseSpec((4, 3, 5), training=False)),
    ],
)
def test_frozen_parameters_of_right_modules(module, op, spec, frozen):
    frozen = thawed(replace(spec, frozen=frozen), differentiable(OPS[f"{op}_bwd"])).frozen
    for way in of_op():
        assert said(module, way, replace(spec, frozen=frozen), op) in ({}, None), way


class Polite(Once):
    """It refuses a second backward in words."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.done = False
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        if ctx.done:
            raise RuntimeError("this function is differentiated once a graph")
        ctx.done = True
        return *gradients(dy, *ctx.saved_tensors), None


class Growing(Once):
    """Its backward depends on how often it ran."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        ctx.runs = getattr(ctx, "runs", 0) + 1
        dx, dw = gradients(dy, *ctx.saved_tensors)
        return dx * ctx.runs, dw, None


class Kept(Once):
    """Its context keeps the gradients of the first backward for all others."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        ctx.kept = getattr(ctx, "kept", None) or gradients(dy, *ctx.saved_tensors)
        return *ctx.kept, None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (InPlace, "second backward"),
        (Kept, "second backward"),
        (Growing, "second backward"),
        (Released, "it fails"),
        (Accumulating, "writes weight.grad"),
        (AccumulatingOntoGrad, "writes weight.grad"),
    ],
)
def test_a_second_backward(function, words):
    found = said(function, "again")
    assert any(words in message for message in found.values())
    if function is not Released:
        assert all(said(function, way) in ({}, None) for way in of_op() if way != "again")


def test_a_backward_that_refuses_a_second_one_passes():
    assert said(Polite, "again") == {}


def test_a_backward_that_has_lost_what_it_saved_is_no_refusal():
    class Released(Once):
        @staticmethod
        def forward(ctx, x, weight, eps):
            y = Once.forward(ctx, x, weight, eps)
            ctx.x, *ctx.others = ctx.to_save
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx, dy):
            x, ctx.x = ctx.x, ctx.x.new_empty(0)
            if x.shape != dy.shape:
                raise RuntimeError(f"shape mismatch: x {tuple(x.shape)}, dy {tuple(dy.shape)}")
            return *gradients(dy, x, *ctx.others), None

    assert "shape mismatch" in said(Released, "again")[None]


def kept(what):
    """RMSNorm that keeps one tensor past torch's count of versions."""

    class Kept(Once):
        @staticmethod
        def forward(ctx, x, weight, eps):
            y = Once.forward(ctx, x.data if what == "data" else x, weight, eps)
            ctx.kept = {"x": x.detach(), "weight": weight, "y": y}.get(what)
            ctx.save_for_backward(*(None if t is ctx.kept or (what == "x" and t is x) else t for t in ctx.to_save))
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx, dy):
            x, weight, rstd = ctx.saved_tensors
            if what == "y":
                xhat = ctx.kept.double() / (1.0 if weight is None else weight)
                dx, dw = gradients(dy, xhat / rstd, weight, rstd)
                return dx.to(dy.dtype), dw, None
            x, weight = ctx.kept if what == "x" else x, ctx.kept if what == "weight" else weight
            return *gradients(dy, x, weight, rstd), None

    return Kept


@pytest.mark.parametrize("what", ["x", "data", "weight", "y"])
def test_what_is_kept_past_the_version_counter(what):
    way = "parameters" if what == "weight" else "data"
    found = said(kept(what), way)
    assert "dx" in found
    name = "x" if what == "data" else what
    assert f"where {name} is overwritten between forward and backward and no error is raised" in found["dx"]
    assert all(said(kept(what), other) in ({}, None) for other in of_op() if other != way)


def keeping(what):
    """RMSNorm that returns rstd too, and keeps it past torch's count of versions; right where it keeps nothing."""

    class Keeping(Once):
        @staticmethod
        def forward(ctx, x, weight, eps):
            y = Once.forward(ctx, x, weight, eps)
            ctx.rstd = ctx.to_save[2].float()
            rstd = ctx.rstd if what == "rstd" else ctx.rstd.clone()
            ctx.mark_non_differentiable(rstd)
            return y, rstd

        @staticmethod
        @once_differentiable
        def backward(ctx, dy, _):
            x, weight, _ = ctx.saved_tensors
            return *gradients(dy, x, weight, ctx.rstd.double()), None

    return Keeping


def adding(what):
    """A fused addition that keeps residual, or the sum, past torch's count of versions."""

    class Adding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, residual, weight, eps):
            y = Once.forward(ctx, x + residual, weight, eps)
            summed, ctx.weight, ctx.rstd = ctx.to_save
            ctx.x, ctx.residual = x.clone(), residual if what == "residual" else residual.clone()
            ctx.summed = summed if what == "residual_out" else None
            return y, summed if what == "residual_out" else summed.clone()

        @staticmethod
        @once_differentiable
        def backward(ctx, dy, dsum):
            summed = ctx.x + ctx.residual if ctx.summed is None else ctx.summed
            dx, dw = gradients(dy, summed, ctx.weight, ctx.rstd)
            dx = (dx.double() + dsum.double()).to(dx.dtype)
            return dx, dx, dw, None

    return Adding


@pytest.mark.parametrize(
    ("make_of", "what", "op"),
    [(keeping, "rstd", "rmsnorm"), (adding, "residual", "add_rmsnorm"), (adding, "residual_out", "add_rmsnorm")],
)
def test_what_else_is_kept_past_the_version_counter(make_of, what, op):
    found = said(make_of(what), "data", op=op)
    assert f"where {what} is overwritten between forward and backward and no error is raised" in found["dx"]
    assert said(make_of(""), "data", op=op) == {}


class Stale(nn.BatchNorm1d):
    """In evaluation its backward reads a running statistic as it is then."""

    reads = ""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, mean, var, eps):
            ctx.save_for_backward(x, weight)
            ctx.statistics = mean, var, eps
            xhat = (x.mT.double() - mean) * (var.double() + eps).rsqrt()
            return (xhat * weight + bias).mT.to(x.dtype)

        @staticmethod
        @once_differentiable
        def backward(ctx, dy):
            (x, weight), (mean, var, eps) = ctx.saved_tensors, ctx.statistics
            rstd, d = (var.double() + eps).rsqrt(), dy.mT.double()
            sums = ((d * (x.mT.double() - mean) * rstd).sum((0, 1)), d.sum((0, 1)))
            return (d * weight * rstd).mT.to(x.dtype), *(one.to(weight.dtype) for one in sums), None, None, None

    def forward(self, x):
        if self.training:
            return super().forward(x)
        names = ("running_mean", "running_var")
        mean, var = (getattr(self, n) if n == self.reads else getattr(self, n).clone() for n in names)
        return self.Function.apply(x, self.weight, self.bias, mean, var, self.eps)


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_running_statistics_that_change_between_forward_and_backward(name, monkeypatch):
    """As where another batch is seen in training, or a state loaded, before the backward."""
    spec = CaseSpec((4, 3, 5), training=False)
    for module in (Stale, nn.BatchNorm1d):
        for training in (False, True):
            assert said(module, "data", replace(spec, training=training), "batchnorm") == {}
    monkeypatch.setattr(Stale, "reads", name)
    assert (
        f"where {name} is overwritten between forward and backward" in said(Stale, "data", spec, "batchnorm")["dweight"]
    )


class Copied(Once):
    """It saves copies: later writes are no concern of its."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        return Once.forward(ctx, x.clone(), None if weight is None else weight.clone(), eps)


class Checking(Once):
    """It looks at the version of x itself."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.x, ctx.version = x.detach(), x._version
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        if ctx.x._version != ctx.version:
            raise ValueError("x has been changed")
        return *gradients(dy, ctx.x, *ctx.saved_tensors[1:]), None


class Constant(Once):
    """It is differentiable twice, but for rstd, which it saves as a number: the second derivatives are wrong."""

    @staticmethod
    def backward(ctx, dy):
        return *gradients(dy, *ctx.saved_tensors), None


class Twice(Once):
    """It is differentiable twice: its backward takes rstd anew."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.eps = eps
        return Once.forward(ctx, x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight, _ = ctx.saved_tensors
        rstd = (x.double().square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        return *gradients(dy, x, weight, rstd), None


class Unmarked(Once):
    """Its gradients come without a graph: torch refuses to differentiate them."""

    @staticmethod
    def backward(ctx, dy):
        dx, dw = gradients(*(None if t is None else t.detach() for t in (dy, *ctx.saved_tensors)))
        return dx, dw, None


class Halved(Once):
    """Of its gradients dx alone is differentiated right."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        return Twice.forward(ctx, x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        dx, dw, _ = Twice.backward(ctx, dy)
        return dx, None if dw is None else dw * 0.5 + dw.detach() * 0.5, None


def test_second_derivatives():
    assert "silently wrong" in said(Constant, "second")["dx"]
    assert set(said(Halved, "second")) == {"dweight"}
    for function in (Constant, Halved):
        assert all(said(function, way) in ({}, None) for way in of_op() if way != "second")
    assert said(Twice, "second") == {}
    assert said(Unmarked, "second") is said(Once, "second") is None
    for spec in (replace(SPEC, dtype="bfloat16"), replace(SPEC, shape=(40, 100))):  # tried in float32, in short rows
        assert "silently wrong" in said(Constant, "second", spec)["dx"]
        assert said(Twice, "second", spec) == {}


def test_x_that_is_dy_too_is_not_overwritten():
    assert said(nn.RMSNorm(24), "data", replace(SPEC, alias="x:dy", dtype="float16")) in ({}, None)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_second_derivatives_that_are_wrong_in_one_type_alone(narrow):
    class Path(Twice):
        @staticmethod
        def backward(ctx, dy):
            return (Constant if dy.dtype == narrow else Twice).backward(ctx, dy)

    name = str(narrow).removeprefix("torch.")
    assert "silently wrong" in said(Path, "second", replace(SPEC, dtype=name))["dx"]
    assert said(Path, "second") == {}, "in float32"
    for shape in ((1, 1), (5, 2), (1, 1000), (300, 8)):
        spec = replace(SPEC, dtype=name, shape=shape)
        assert said(Twice, "second", spec) in ({}, None)
        assert said(functional.layer_norm, "second", spec, "layernorm") in ({}, None), "every step is in 16 bits"
        assert said(functional.layer_norm, "forward mode", spec, "layernorm") in ({}, None)


@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (1, 1000), (300, 8)])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 4.0])
def test_right_second_derivatives_in_unusual_shapes(shape, eps):
    spec = replace(SPEC, shape=shape, eps=eps)
    assert said(Twice, "second", spec) in ({}, None)
    assert said(functional.layer_norm, "second", spec, "layernorm") in ({}, None)


def with_statistics(marked, right):
    """RMSNorm that also returns rstd, whose gradient it leaves out, marks as missing, or returns."""

    class Statistics(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, eps):
            y = Once.forward(ctx, x, weight, eps)
            rstd = ctx.to_save[2].float()
            if marked:
                ctx.mark_non_differentiable(rstd)
            return y, rstd

        @staticmethod
        @once_differentiable
        def backward(ctx, dy, drstd):
            x, weight, rstd = ctx.saved_tensors
            dx, dw = gradients(dy, x, weight, rstd)
            if right:
                dx = dx - (drstd.double() * rstd**3 * x.double() / x.shape[-1]).to(x.dtype)
            return dx, dw, None

    return Statistics


def test_statistics_are_differentiated_right_or_marked():
    found = said(with_statistics(marked=False, right=False), "others")
    assert (
        "the gradients of rstd alone; rstd not differentiated: ctx.mark_non_differentiable(rstd) says so" in found["dx"]
    )
    assert said(with_statistics(marked=True, right=False), "others") is None
    assert said(with_statistics(marked=False, right=True), "others") == {}
    assert said(with_statistics(marked=False, right=True), "others", replace(SPEC, dtype="float16")) == {}


def test_statistics_whose_cotangent_is_missing():
    """Without materialized gradients dy or drstd is None where nothing depends on it."""

    def of(handles):
        class Statistics(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight, eps):
                y = Once.forward(ctx, x, weight, eps)
                ctx.set_materialize_grads(False)
                return y, ctx.to_save[2].float()

            @staticmethod
            @once_differentiable
            def backward(ctx, dy, drstd):
                x, weight, rstd = ctx.saved_tensors
                if dy is None:
                    if not handles:
                        return None, None, None
                    dx, dw = torch.zeros_like(x), None
                else:
                    dx, dw = gradients(dy, x, weight, rstd)
                if drstd is not None and (handles or dy is not None):
                    dx = dx - (drstd.double() * rstd**3 * x.double() / x.shape[-1]).to(x.dtype)
                return dx, dw, None

        return Statistics

    for dtype in ("float32", "bfloat16"):
        assert said(of(handles=True), "others", replace(SPEC, dtype=dtype)) == {}
        assert "of rstd alone" in said(of(handles=False), "others", replace(SPEC, dtype=dtype))["dx"]


def test_statistics_whose_gradient_is_lost_beside_that_of_y():
    class Either(with_statistics(marked=False, right=True)):
        @staticmethod
        def backward(ctx, dy, drstd):
            return super(Either, Either).backward(ctx, dy, drstd if not dy.any() else torch.zeros_like(drstd))

    for dtype in ("float32", "float64"):
        assert "of y and rstd alone" in said(Either, "others", replace(SPEC, dtype=dtype))["dx"]
    assert said(Either, "others", replace(SPEC, dtype="bfloat16")) == {}, "there torch may round each path to x"


def test_what_is_no_statistic_of_the_operator_is_left_to_others():
    def rmsnorm(x, weight, eps):
        return functional.rms_norm(x, x.shape[-1:], weight, eps), x * 2

    assert said(rmsnorm, "others") is None


def composed(x, weight, bias, eps):
    """LayerNorm in torch's operators, whose statistics are differentiable."""
    mean = x.float().mean(-1, keepdim=True)
    rstd = ((x.float() - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (x.float() - mean) * rstd
    y = y if weight is None else y * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype), mean, rstd


@pytest.mark.parametrize("name", ["mean", "rstd"])
def test_each_statistic_has_a_cotangent_of_its_own(name):
    """One whose gradient counts twice, though its value is right."""

    def twice(x, weight, bias, eps):
        y, *both = composed(x, weight, bias, eps)
        saved = dict(zip(("mean", "rstd"), both, strict=True))
        saved[name] = saved[name] + (saved[name] - saved[name].detach())
        return y, *saved.values()

    assert f"the gradients of {name} alone" in said(twice, "others", op="layernorm")["dx"]


@pytest.mark.parametrize("way", of_op())
@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, dtype="bfloat16", offset=30.0), replace(SPEC, weight=False)])
def test_what_torch_composes(way, spec):
    assert said(composed, way, spec, "layernorm") in ({}, None)
    if way == "others":
        assert said(composed, way, spec, "layernorm") == {}


def fused(saved="sum", materialize=True):
    """A fused addition that saves x or the sum; without `materialize`, what nothing depends on has no cotangent."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, residual, weight, eps):
            summed = x + residual
            y = Once.forward(ctx, summed, weight, eps)
            ctx.save_for_backward(x if saved == "x" else summed, *ctx.to_save[1:])
            ctx.set_materialize_grads(materialize)
            return y, summed

        @staticmethod
        @once_differentiable
        def backward(ctx, dy, dsum):
            if dy is None and saved == "checked":
                return dsum, dsum, None, None
            dx, dw = gradients(dy, *ctx.saved_tensors)
            dx = dx if dsum is None else (dx.double() + dsum.double()).to(dx.dtype)
            return dx, dx, dw, None

    return Fused


def test_a_fused_addition_that_saves_x():
    found = said(fused("x"), "split", op="add_rmsnorm")
    assert "where x and residual share the same sum" in found["dx"]
    for way in of_op():
        assert said(fused("x"), way, op="add_rmsnorm") in ({}, None)


@pytest.mark.parametrize("summand", ["x", "residual"])
def test_a_fused_addition_asked_for_the_gradient_of_one_summand(summand):
    """It forgets the other one, which has the same gradient."""
    place = ("x", "residual").index(summand)

    class Gated(fused()):
        @staticmethod
        @once_differentiable
        def backward(ctx, dy, dsum):
            given = fused().backward(ctx, dy, dsum)
            return given if ctx.needs_input_grad[1 - place] else (None, None, *given[2:])

    found = said(Gated, "split", op="add_rmsnorm")
    assert f"of x and residual {summand} alone needs a gradient" in found["dx"]
    assert said(fused(), "split", op="add_rmsnorm") == {}


@pytest.mark.parametrize("change", [{"alias": "residual_out:dresidual_out"}, {"alias": "residual_out:dy"}])
def test_a_cotangent_that_is_the_sum_is_no_saved_tensor(change):
    """Where the sum is overwritten, what is asked for would be too."""
    spec = replace(SPEC, **change)
    assert said(fused(), "data", spec, op="add_rmsnorm") == {}
    assert said(fused("x"), "data", replace(spec, alias="", special=None), op="add_rmsnorm") == {}


def test_a_fused_addition_whose_y_has_no_cotangent():
    found = said(fused(materialize=False), "others", op="add_rmsnorm")
    assert "asked for the gradients of residual_out alone it fails" in found[None]
    assert said(fused(), "others", op="add_rmsnorm") == {}
    assert said(fused("checked", materialize=False), "others", op="add_rmsnorm") == {}


def test_a_gradient_of_the_sum_that_is_lost_where_y_has_none():
    right = fused("checked", materialize=False)

    class Lost(right):
        @staticmethod
        def backward(ctx, dy, dsum):
            return (None, None, None, None) if dy is None else right.backward(ctx, dy, dsum)

    assert set(said(Lost, "others", op="add_rmsnorm")) == {"dx"}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_additions_in_torchs_operators(way, dtype):
    def add_rmsnorm(x, residual, weight, eps):
        summed = x + residual
        y = summed.float() * (summed.float().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (y if weight is None else y * weight.float()).to(x.dtype), summed

    for spec in (SPEC, replace(SPEC, dresidual_out=False), replace(SPEC, frozen=("x",))):
        assert said(add_rmsnorm, way, replace(spec, dtype=dtype), "add_rmsnorm") in ({}, None)
        assert said(fused(), way, replace(spec, dtype=dtype), "add_rmsnorm") in ({}, None)


UNUSUAL = (Once, Copied, Checking, Twice, Unmarked, Polite)


@pytest.mark.slow
@pytest.mark.parametrize("way", of_op())
@pytest.mark.parametrize("function", UNUSUAL)
def test_right_functions(function, way):
    layouts = {"x_layout": "expanded", "dy_layout": "every_other", "weight_layout": "offset"}
    for change in ({}, layouts, {"dtype": "bfloat16"}, {"weight": False}, {"frozen": ("weight",)}, {"frozen": ("x",)}):
        assert said(function, way, replace(SPEC, **change)) in ({}, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "spec"),
    [
        (nn.LayerNorm, SPEC),
        (nn.RMSNorm, SPEC),
        (nn.GroupNorm, CaseSpec((2, 6, 4), num_groups=3)),
        (nn.BatchNorm1d, CaseSpec((4, 3, 5))),
        (nn.BatchNorm1d, CaseSpec((4, 3, 5), training=False)),
        (nn.InstanceNorm1d, CaseSpec((4, 3, 5))),
    ],
)
def test_torchs_modules(module, spec):
    for way in of_op():
        for dtype in ("float32", "float16"):
            assert said(module, way, replace(spec, dtype=dtype), None) in ({}, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm:LayerNormFunction", "add_rmsnorm:AddRMSNormFunction"])
def test_functions_of_the_kernels(name):
    op = name.partition(":")[0]
    *_, kernel = load_directions(f"verify_norm.kernels.{name}", op)
    for way in ways.offered(OPS[kernel.op], autograd=True)["autograd"]:
        spec = kernel.fit(replace(SPEC, shape=(3, 16), autograd=way))
        result = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
        assert [f for f in CHECKS["autograd"].function(result) if isinstance(f, Finding)] == []


def test_a_custom_operator():
    @torch.library.custom_op("verify_norm_test::rms", mutates_args=())
    def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        rstd = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x.double() * rstd * weight.double()).to(x.dtype), rstd

    @torch.library.custom_op("verify_norm_test::rms_backward", mutates_args=())
    def rms_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> list[torch.Tensor]:
        return list(gradients(dy, x, weight, rstd))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2], output[1])
        ctx.mark_non_differentiable(output[1])

    def backward(ctx, dy, _):
        return *rms_backward(dy, *ctx.saved_tensors), None

    rms.register_autograd(backward, setup_context=setup)

    def rmsnorm(x, weight, eps):
        return rms(x, torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight, eps)[0]

    for way in of_op():
        assert said(rmsnorm, way) in ({}, None)

    def outside(x, weight, eps):
        """Its tangent is that of weight alone, for torch drops the operator's."""
        return rmsnorm(x, None, eps) * weight

    assert said(outside, "forward mode") is None


def test_what_is_a_backward_of_its_own_has_no_graph():
    kernel, check = load("layernorm_bwd"), CHECKS["autograd"]
    assert "a backward of its own" in check.lacks(kernel, ())
    *_, differentiable = load_directions(Once, "rmsnorm")
    assert check.lacks(differentiable, ()) == ""
    assert "in the kernel's process" in check.lacks(replace(differentiable, later=lambda returned: returned), ())
    assert not check.applies(OPS["layernorm_fwd"])


def test_gradients_that_differ_in_every_run_are_left_to_determinism():
    count = [0]

    class Drifting(Once):
        @staticmethod
        @once_differentiable
        def backward(ctx, dy):
            count[0] += 1
            dx, dw = gradients(dy, *ctx.saved_tensors)
            return dx + count[0] * 1e-2, dw, None

    for way in of_op():
        assert said(Drifting, way) in ({}, None)


class Forward(torch.autograd.Function):
    """RMSNorm with both modes of differentiation; `lost` leaves out the path through rstd in forward mode."""

    lost = False

    @staticmethod
    def forward(x, weight, eps):
        rstd = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x.double() * rstd * (1.0 if weight is None else weight.double())).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rstd = (x.double().square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        return *gradients(dy, x, weight, rstd), None

    @classmethod
    def jvp(cls, ctx, tx, tweight, _):
        dtype = ctx.saved_tensors[0].dtype
        x, weight = (None if t is None else t.double() for t in ctx.saved_tensors)
        rstd = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        xhat, tx = x * rstd, torch.zeros_like(x) if tx is None else tx.double()
        along = 0.0 if cls.lost in (True, dtype) else xhat * (xhat * tx).mean(-1, keepdim=True)
        change = rstd * (tx - along) * (1.0 if weight is None else weight)
        return (change if tweight is None else change + xhat * tweight.double()).to(dtype)


class Lost(Forward):
    lost = True


class LostInBfloat16(Forward):
    lost = torch.bfloat16


class Untouched(Forward):
    @staticmethod
    def jvp(ctx, tx, tweight, _):
        return None


def test_forward_mode():
    assert said(Forward, "forward mode") == {}
    assert "in forward mode is" in said(Lost, "forward mode")[None]
    narrow = replace(SPEC, dtype="bfloat16")
    assert said(Forward, "forward mode", narrow) == said(LostInBfloat16, "forward mode") == {}
    assert "in forward mode is" in said(LostInBfloat16, "forward mode", narrow)[None]
    assert said(Once, "forward mode") is said(Untouched, "forward mode") is None, "without a jvp torch raises"
    for module in (nn.RMSNorm(24), nn.LayerNorm(24)):
        op = "rmsnorm" if isinstance(module, nn.RMSNorm) else "layernorm"
        assert said(module, "forward mode", replace(SPEC, eps=1e-5), op) == {}
    assert said(nn.GroupNorm(3, 6), "forward mode", CaseSpec((4, 6, 5), num_groups=3), "groupnorm") == {}
    assert said(nn.BatchNorm1d(6), "forward mode", CaseSpec((4, 6, 5)), "batchnorm") == {}


def gated_in(activation, wrong=False):
    """RMSNorm and its gate, with forward mode by torch; or without what the gate's own change does."""

    def gated(x, gate, weight, eps):
        z = Forward.apply(x, weight, eps)
        slope = gate.detach() if wrong else gate
        return z * activation(slope) + (0 * gate if wrong else 0)

    return gated


def modulated(x, scale, shift, weight, eps, wrong=False):
    scale, shift = (t if t.dim() == x.dim() else t[:, None] for t in (scale, shift))
    z = Forward.apply(x, weight, eps)
    return z + z * (scale.detach() + 0 * scale if wrong else scale) + shift


OF_STAGES = {
    "gated_rmsnorm": (gated_in(functional.silu), gated_in(functional.silu, wrong=True)),
    "rmsnorm | gate(gelu)": (gated_in(functional.gelu), gated_in(functional.gelu, wrong=True)),
    "modulate_rmsnorm": (modulated, partial(modulated, wrong=True)),
}


@pytest.mark.parametrize("modulation", ["sample", "token"])
@pytest.mark.parametrize("op", OF_STAGES)
def test_forward_mode_behind_a_norm(op, modulation):
    right, wrong = OF_STAGES[op]
    spec = replace(SPEC, shape=(2, 3, 24), modulation=modulation)
    assert said(right, "forward mode", spec, op) == {}
    assert "in forward mode is" in said(wrong, "forward mode", spec, op)[None]


class TwiceAdding(torch.autograd.Function):
    """A fused addition whose backward is differentiable but for what it passes on of the sum, where that is cut off."""

    cut = True

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        summed = x + residual
        ctx.save_for_backward(summed, weight)
        ctx.eps = eps
        rstd = (summed.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        y = summed.double() * rstd if weight is None else summed.double() * rstd * weight.double()
        return y.to(x.dtype), summed

    @classmethod
    def backward(cls, ctx, dy, dsummed):
        summed, weight = ctx.saved_tensors
        rstd = (summed.double().square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        dx, dw = gradients(dy, summed, weight, rstd)
        dx = (dx.double() + (dsummed.detach() if cls.cut else dsummed)).to(dy.dtype)
        return dx, dx, dw, None


def test_second_derivatives_of_what_is_passed_on_of_a_sum(monkeypatch):
    def add_rmsnorm(x, residual, weight, eps):
        return TwiceAdding.apply(x, residual, weight, eps)

    found = said(add_rmsnorm, "second", op="add_rmsnorm")
    assert "the derivative of dx with respect to dresidual_out is silently wrong" in found["dx"]
    assert said(add_rmsnorm, "second", replace(SPEC, dresidual_out=False), op="add_rmsnorm") == {}
    monkeypatch.setattr(TwiceAdding, "cut", False)
    for spec in (SPEC, replace(SPEC, dresidual_out=False), replace(SPEC, frozen=("x",))):
        assert said(add_rmsnorm, "second", spec, op="add_rmsnorm") == {}


class ByAddress(Once):
    """It finds rstd by the address of the saved x, which is another one where saved tensors are moved."""

    kept: ClassVar = {}

    @classmethod
    def forward(cls, ctx, x, weight, eps):
        cls.kept[x.data_ptr()] = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return super().forward(ctx, x, weight, eps)

    @classmethod
    @once_differentiable
    def backward(cls, ctx, dy):
        x, weight, *_ = ctx.saved_tensors
        return *gradients(dy, x, weight, cls.kept.get(x.data_ptr(), 1.0)), None


class OfItsThread(Once):
    """What its backward needs lies with the thread of the forward, as its plan or workspace may."""

    kept: ClassVar = threading.local()

    @classmethod
    def forward(cls, ctx, x, weight, eps):
        cls.kept.scale = 1.0
        return super().forward(ctx, x, weight, eps)

    @classmethod
    @once_differentiable
    def backward(cls, ctx, dy):
        return *gradients(dy * getattr(cls.kept, "scale", 0.5), *ctx.saved_tensors), None


class FailsElsewhere(OfItsThread):
    @classmethod
    @once_differentiable
    def backward(cls, ctx, dy):
        return *gradients(dy * cls.kept.scale, *ctx.saved_tensors), None


def test_a_backward_in_another_thread():
    assert "where the backward runs in another thread" in said(OfItsThread, "elsewhere")["dx"]
    assert "has no attribute 'scale'" in said(FailsElsewhere, "elsewhere")[None]
    assert said(OfItsThread, "again") == {}
    assert said(Once, "elsewhere") == {}


def test_saved_tensors_that_come_back_in_other_memory():
    assert "come back in other memory" in said(ByAddress, "moved")["dx"]
    assert said(ByAddress, "again") == {}


@pytest.mark.parametrize(
    ("changes", "looks"), [({}, True), ({"further": ()}, False), ({"shape": (2048, 2048), "autograd": ""}, False)]
)
def test_only_a_small_case_that_names_the_check_is_looked_at(changes, looks):
    *_, kernel = load_directions(Once, "rmsnorm", contract=LOOSE)
    result = execute(kernel, make.case(replace(SPEC, **changes), OPS[kernel.op], kernel.contract))
    assert CHECKS["autograd"].looks(result) == looks
    assert not CHECKS["autograd"].looks(replace(result, kernel=replace(kernel, autograd=False)))
    assert not CHECKS["autograd"].looks(replace(result, kernel=replace(kernel, later=lambda returned: returned)))
