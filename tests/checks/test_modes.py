"""The check `modes`: kernels with another path for a mode, and right ones whose mode changes what it may."""

from dataclasses import replace

import pytest
import torch
from checking import ROWS
from norms import layernorm, layernorm_bwd

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.checks.modes import MODES, OF_FORWARDS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import Contract, Finding, Kernel, NoData, Tried
from verify_norm.loading.registry import load_directions
from verify_norm.running.execute import execute

WAYS = {mode.words: number for number, mode in enumerate(MODES + OF_FORWARDS)}
right = layernorm()


def items(run, way, spec=ROWS, op="layernorm_fwd", **contract):
    """What `modes` yields of a case whose variant chooses the mode."""
    kernel = run if isinstance(run, Kernel) else Kernel("k", op, run=run, contract=Contract(**contract))
    result = execute(kernel, make.case(replace(spec, variant=WAYS[way]), OPS[kernel.op], kernel.contract))
    assert CHECKS["modes"].looks(result)
    return CHECKS["modes"].function(result)


def said(*arguments, **options):
    """What `modes` says of the same, by output."""
    return {f.output: f.message for f in items(*arguments, **options) if isinstance(f, Finding)}


def wrong_where(condition):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return (y + 2.0**-6 if condition(x, weight) else y), mean, rstd

    return layernorm_fwd


CONDITIONS = {
    "under torch.no_grad()": lambda x, w: not torch.is_grad_enabled(),
    "under torch.inference_mode()": lambda x, w: torch.is_inference_mode_enabled(),
    "under autocast": lambda x, w: torch.is_autocast_enabled("cpu"),
    "where all inputs require a gradient": lambda x, w: x.requires_grad and w.requires_grad,
    "where only weight and bias require a gradient": lambda x, w: w.requires_grad and not x.requires_grad,
    "where only x requires a gradient": lambda x, w: x.requires_grad and not w.requires_grad,
}


@pytest.mark.parametrize("way", CONDITIONS)
def test_another_path_in_one_mode(way):
    found = said(wrong_where(CONDITIONS[way]), way)
    assert set(found) == {"y"}
    assert way in found["y"]


@pytest.mark.parametrize("way", CONDITIONS)
def test_a_failure_in_one_mode(way):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if CONDITIONS[way](x, weight):
            raise ValueError("not now")
        return right(x, weight, bias, eps, normalized_shape)

    assert "it fails: ValueError: not now" in said(layernorm_fwd, way)[None]


class Switched(torch.nn.Module):
    """A norm that leaves the bias out in evaluation, or with `right` takes another way to the same bits."""

    def __init__(self, normalized_shape, eps=1e-5, same=False):
        super().__init__()
        self.eps, self.same = eps, same
        self.weight = torch.nn.Parameter(torch.ones(normalized_shape))
        self.bias = torch.nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x):
        bias = self.bias if self.training or self.same else None
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, bias, self.eps)


def test_a_module_with_another_path_in_evaluation():
    way = "in evaluation, after eval()"
    (wrong,) = load_directions(Switched(64), "layernorm_fwd")
    (same,) = load_directions(Switched(64, same=True), "layernorm_fwd")
    assert "in evaluation" in said(wrong, way, replace(ROWS, eps=1e-5))["y"]
    assert said(same, way) == {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_kernels(way, dtype):
    spec = replace(ROWS, dtype=dtype)

    def native(x, weight, bias, eps, normalized_shape):
        return torch.native_layer_norm(x, normalized_shape, weight, bias, eps)

    def of_numpy(x, weight, bias, eps, normalized_shape):
        y = torch.from_numpy(x.float().numpy().copy())
        return right(y.to(x.dtype), weight, bias, eps, normalized_shape)

    for run in (right, native, of_numpy):
        assert said(run, way, spec) == {}
    assert said(right, way, replace(spec, dtype="float16", log2_scale=-20, dy_log2_scale=-20)) == {}
    assert said(right, way, replace(spec, special="inf", weight=False, x_layout="expanded")) == {}


def test_a_type_that_autocast_changes():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y.bfloat16() if torch.is_autocast_enabled("cpu") else y, mean, rstd

    def narrow(x, weight, bias, eps, normalized_shape):
        if torch.is_autocast_enabled("cpu"):
            x = x.bfloat16().float()  # before its mean goes, which is far from 0
        return right(x, weight, bias, eps, normalized_shape)

    assert said(layernorm_fwd, "under autocast") == {}
    assert "within the bound of bfloat16" in said(narrow, "under autocast", replace(ROWS, offset=100.0))["y"]


@pytest.mark.parametrize("way", [mode.words for mode in MODES])
def test_backwards(way):
    def layernorm_bwd_(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        d = dy * 2 if CONDITIONS[way](x, weight) else dy
        return layernorm_bwd()(d, x, weight, bias, mean, rstd, eps, normalized_shape)

    assert said(layernorm_bwd(), way, op="layernorm_bwd") == {}
    assert said(layernorm_bwd(), way, replace(ROWS, dtype="float16", dy_log2_scale=-20), op="layernorm_bwd") == {}
    assert set(said(layernorm_bwd_, way, op="layernorm_bwd")) >= {"dx", "dweight"}


@pytest.mark.parametrize("way", [mode.words for mode in MODES])
def test_a_backward_that_uses_autograd_itself(way):
    def layernorm_bwd(dy, x, weight, bias, eps, normalized_shape):
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        y = torch.nn.functional.layer_norm(leaves[0], normalized_shape, *leaves[1:], eps)
        return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]

    assert said(layernorm_bwd, way, op="layernorm_bwd") == {}


def test_a_refusal_to_record_gradients_passes():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if any(t.requires_grad for t in (x, weight, bias)):
            raise ValueError("no gradient here: call it under torch.no_grad()")
        return right(x, weight, bias, eps, normalized_shape)

    for way in WAYS:
        assert said(layernorm_fwd, way) == {}


def test_what_is_overwritten_cannot_require_a_gradient():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return x.copy_(y), mean, rstd

    for way in WAYS:
        assert said(layernorm_fwd, way, inplace=("y:x",)) == {}


def test_a_mode_is_named_where_the_kernel_ran_in_it():
    names = {mode.words: mode.name for mode in MODES + OF_FORWARDS}
    evaluation = OF_FORWARDS[-1].words
    *_, module = load_directions(Switched((64,)), "layernorm_fwd")
    for way, name in names.items():
        run, spec = (module, replace(ROWS, shape=(3, 64))) if way == evaluation else (right, ROWS)
        assert Tried(name) in [replace(item, operators=()) for item in items(run, way, spec) if isinstance(item, Tried)]
    assert items(right, evaluation) == (NoData(),), "no module ran"
    bare = replace(ROWS, weight=False, bias=False)
    assert items(right, "where only weight and bias require a gradient", bare) == (NoData(),)
    assert Tried(names["where all inputs require a gradient"]) in items(
        right, "where all inputs require a gradient", bare
    )
