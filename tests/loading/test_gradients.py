"""The backward of a forward pass: where it is differentiated, and which cotangents it gets."""

import pytest
import torch

from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import gradients
from verify_norm.loading.registry import load_directions
from verify_norm.search.examine import examine

OP = OPS["add_rmsnorm_bwd"]


def fused_add(x, residual, weight, eps):
    summed = x + residual
    y = summed.double() * torch.rsqrt(summed.double().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype), summed


def graph(frozen=(), **more):
    given = {"dy": torch.ones(2, 3), "dresidual_out": torch.ones(2, 3), "residual_out": torch.arange(6.0).reshape(2, 3)}
    given |= {"weight": torch.ones(3), "eps": 1e-5, **more}
    names = ("x", "residual", "weight", "eps")
    call = lambda offer: fused_add(**{name: offer[name] for name in names})  # noqa: E731
    return gradients.recorded(call, OP, given, frozen), given


def test_a_fused_addition_is_recorded_at_its_sum_unless_both_are_given():
    at_sum, _ = graph()
    assert at_sum.inputs["residual"].eq(0).all()
    split, _ = graph(x=torch.zeros(2, 3), residual=torch.arange(6.0).reshape(2, 3))
    assert split.inputs["x"].eq(0).all()
    assert at_sum.outputs["y"].equal(split.outputs["y"])
    assert list(at_sum.leaves) == list(split.leaves) == ["x", "residual", "weight"]


def test_the_sum_of_frozen_tensors_gets_no_cotangent():
    frozen, given = graph(("x",))
    assert list(frozen.leaves) == ["weight"]
    assert list(frozen.cotangents(given)) == ["y"]
    assert list(graph()[0].cotangents(given)) == ["y", "residual_out"]
    _, kernel = load_directions(fused_add, "add_rmsnorm")
    examined = examine(kernel, CaseSpec((3, 8), frozen=("x",)), ("crash", "signature", "accuracy"), "cpu")
    assert not examined.findings
    assert examined.unsupported is None


def test_two_gradients_of_one_sum_are_refused():
    recorded, given = graph()
    found = recorded.gradients(recorded.cotangents(given), retain_graph=True)
    assert list(found) == ["dx", "dweight"]
    one = torch.tensor([1.0, 0.0, torch.nan])
    assert recorded.named({"x": one, "residual": one.clone()})["dx"] is one
    for other in (torch.nextafter(one, 2 * one), one + 2.0**-149, one.nan_to_num(), -one, None):
        for pair in ({"x": one, "residual": other}, {"x": other, "residual": one}):
            with pytest.raises(ValueError, match="the gradients of x and residual differ"):
                recorded.named(pair)


def test_a_forward_in_a_backward_leaves_the_running_statistics_alone():
    def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps):
        return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)

    names = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    given = {"dy": torch.ones(4, 3), "x": torch.arange(12.0).reshape(4, 3), "weight": torch.ones(3)}
    given |= {"bias": torch.zeros(3), "running_mean": torch.zeros(3), "running_var": torch.ones(3)}
    call = lambda offer: batchnorm(**{name: offer[name] for name in names})  # noqa: E731
    graph = gradients.recorded(call, OPS["batchnorm_bwd"], {**given, "training": True, "eps": 1e-5}, ())
    assert given["running_mean"].tolist() == [0.0] * 3
    assert given["running_var"].tolist() == [1.0] * 3
    assert not graph.inputs["running_mean"].equal(given["running_mean"])  # its own copy has moved
