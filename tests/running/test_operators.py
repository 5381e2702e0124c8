"""Norm operators of torch inside a kernel: those that run are named, and what looks like one is not."""

import math

import pytest
import torch
from torch.nn import functional

from verify_norm.running.guards import PoisonEmpty
from verify_norm.running.operators import RMS_NORM, Operators

X, ONES = torch.randn(4, 8), torch.ones(8)
IMAGES = X.reshape(2, 2, 8)


def inside(function):
    with PoisonEmpty(math.nan) as made:
        function()
    return made.operators.names


def leaf():
    return X.clone().requires_grad_()


class Function(torch.autograd.Function):
    """A LayerNorm whose backward calls torch's operator itself."""

    @staticmethod
    def forward(ctx, x):
        y, mean, rstd = torch.native_layer_norm(x, [8], None, None, 1e-5)
        ctx.save_for_backward(x, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, *saved = ctx.saved_tensors
        return torch.ops.aten.native_layer_norm_backward(dy, x, [8], *saved, None, None, [True, False, False])[0]


def inferred():
    with torch.inference_mode():
        return functional.rms_norm(X, (8,)), functional.layer_norm(X, (8,))


LAYER, RMS, GROUP, BATCH = "native_layer_norm", "rms_norm", "native_group_norm", "native_batch_norm"
NAMED = {
    "layer norm": (lambda: functional.layer_norm(X, (8,)), [LAYER]),
    "its module": (lambda: torch.nn.LayerNorm(8)(X), [LAYER]),
    "of autograd": (lambda: functional.layer_norm(leaf(), (8,)).sum().backward(), [LAYER, f"{LAYER}_backward"]),
    "in a Function": (lambda: Function.apply(leaf()).sum().backward(), [LAYER, f"{LAYER}_backward"]),
    "traced": (lambda: torch.jit.trace(lambda x: functional.layer_norm(x, (8,)), X, check_trace=False)(X), [LAYER]),
    "under inference_mode": (inferred, ["layer_norm", RMS]),
    "rms norm": (lambda: functional.rms_norm(X, (8,), ONES), [RMS]),
    "in float16": (lambda: functional.rms_norm(X.half(), (8,)), [RMS]),
    "with gradients": (lambda: functional.rms_norm(leaf(), (8,)).sum().backward(), [RMS]),
    "by torch.rms_norm": (lambda: torch.rms_norm(X, (8,)), [RMS]),
    "by torch.ops": (lambda: torch.ops.aten.rms_norm(X, (8,)), [RMS]),
    "group norm": (lambda: functional.group_norm(X, 2), [GROUP]),
    "batch norm": (lambda: functional.batch_norm(X, None, None, training=True), [BATCH]),
    "in evaluation": (lambda: functional.batch_norm(X, 0 * ONES, ONES), [BATCH]),
    "instance norm": (lambda: functional.instance_norm(IMAGES), [BATCH]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", NAMED)
def test_what_runs_is_named(what):
    function, names = NAMED[what]
    assert inside(function) == tuple(f"aten::{name}" for name in names)


def by_hand():
    variance = X.pow(2).mean(-1, keepdim=True)
    variance.add_(1e-5)
    return X * torch.rsqrt(variance)


def refused():
    with pytest.raises(RuntimeError):
        functional.layer_norm(X, (9,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [
        by_hand,
        lambda: X * X.pow(2).mean(-1, keepdim=True).add_(1e-5).rsqrt(),
        lambda: [X * X.pow(2).mean(-1, keepdim=True).add_(1e-5).rsqrt() for _ in range(3)],
        lambda: (X - X.mean(-1, True)) * torch.var_mean(X, -1)[0][:, None].add(1e-5).rsqrt(),
        lambda: (X.norm(), functional.normalize(X), torch._weight_norm(X, torch.ones(4, 1)), torch.linalg.norm(X)),
        lambda: torch.compile(by_hand, backend="eager")(),
        refused,
    ],
)
def test_what_a_kernel_does_by_hand_is_not(function):
    assert inside(function) == ()


def test_what_runs_outside_of_the_call_is_not_counted():
    with PoisonEmpty(math.nan) as made:
        pass
    functional.layer_norm(X, (8,))
    assert made.operators.names == ()


def places(seen):
    """Functions that enter an operator, each in code of its own."""
    return [lambda step: seen.enter(step), lambda step: seen.enter(step)]


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        (RMS_NORM, True),
        ([RMS_NORM[1], *RMS_NORM], True),
        ([*RMS_NORM[:2], *RMS_NORM], True),
        (RMS_NORM[::-1], False),
        ([RMS_NORM[0]] * 4, False),
        (RMS_NORM[:3], False),
        ([*RMS_NORM[:2], RMS_NORM[1], *RMS_NORM[2:]], False),
        ([*RMS_NORM[:3], "aten.add.Tensor", RMS_NORM[3]], True),  # what comes between is no step
    ],
)
def test_four_steps_in_a_row_at_one_place_are_rms_norm(steps, counts):
    seen = Operators()
    for step in steps:
        seen.enter(step)
    assert seen.names == ("aten::rms_norm",) * counts


def test_steps_at_several_places_are_not():
    seen = Operators()
    seen.enter(RMS_NORM[0])
    seen.enter(RMS_NORM[1])
    seen.enter(RMS_NORM[2])
    seen.enter(RMS_NORM[3])
    assert seen.names == ()
    for enter, step in zip(places(seen) * 2, RMS_NORM, strict=True):
        enter(step)
    assert seen.names == (), "the functions are others, though one line calls them"
