"""The outputs that a callable returns, by name: too many, unknown ones, and what is no tensor."""

import functools
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from directions import ROWS

from verify_norm.core.ops import OPS
from verify_norm.loading.registry import load_directions
from verify_norm.loading.returned import named
from verify_norm.search.examine import examine


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            lambda y: (y, y, y, y),
            "it returned 4 values; rmsnorm_fwd has 2: y, rstd; name what it returns in order, with _ for",
        ),
        (
            lambda y: (y, ("a note", y, y)),
            "it returned 4 values; rmsnorm_fwd has 2: y, rstd; name what it returns in order, with _ for the rest, "
            'such as --bind "-> y, _, rstd, _"',
        ),
        (
            lambda y: {"y": y, "mean": y},
            "it returned mean; rmsnorm_fwd has y, rstd; name what it returns in order, with _ for the rest, "
            'such as --bind "-> y, _"',
        ),
        (
            lambda y: {"normed": y},
            "it returned normed; rmsnorm_fwd has y, rstd; name what it returns in order, with _ "
            'for the rest, such as --bind "-> y"',
        ),
        (lambda y: {"out": y, "output": y}, "it returned out, output; rmsnorm_fwd has y, rstd"),
        (lambda y: {"y": 1.0}, "y is a float, not a tensor"),
        (lambda y: [y.numpy()], "y is a ndarray, not a tensor"),
        (
            lambda y: (y, 0.1),
            "rstd is a float, not a tensor; name what it returns in order, with _ for the rest, "
            'such as --bind "-> y, _"',
        ),
        (lambda y: None, "y: expected a float32 tensor, got None"),
    ],
)
def test_a_wrong_number_or_kind_of_outputs_is_a_finding(returned, said):
    (kernel,) = load_directions(lambda x, weight, eps: returned(x), "rmsnorm_fwd")
    (finding,) = examine(kernel, kernel.fit(ROWS), ("signature",), "cpu").findings
    assert finding.check == "signature"
    assert finding.message.startswith(said)


NORMED = namedtuple("NORMED", ("inv_rms", "output"))


@pytest.mark.parametrize(
    "form",
    [
        lambda y, r: {"output": y, "rrms": r, "rows": 4},
        lambda y, r: {"inv_rms": r, "out": y},
        lambda y, r: NORMED(r, y),
    ],
)
def test_outputs_by_other_peoples_names(form):
    y, r = torch.ones(2, 4), torch.ones(2)
    found = named(form(y, r), OPS["rmsnorm_fwd"])
    assert found["y"] is y
    assert found["rstd"] is r


def test_a_sum_by_the_name_of_a_result_is_not_told_from_it():
    y = torch.ones(2, 4)
    assert "it returned hidden_states; add_rmsnorm_fwd has y, residual_out" in named(
        {"hidden_states": y, "residual_out": y}, OPS["add_rmsnorm_fwd"]
    )


@pytest.mark.parametrize("form", [lambda y: {"normed": y, "extra": y}, lambda y: Normed(y, y)])
def test_a_user_may_name_what_comes_by_name(form):
    def rms(x, weight, eps):
        y = x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return form((y if weight is None else y * weight.double()).to(x.dtype))

    (kernel,) = load_directions(rms, "rmsnorm_fwd", bind="-> y, _")
    assert examine(kernel, kernel.fit(ROWS), ("signature", "accuracy"), "cpu").findings == ()


@dataclass
class Normed:
    normed: torch.Tensor
    extra: torch.Tensor


def test_the_first_argument_of_a_singledispatch_function_is_given_by_position():
    @functools.singledispatch
    def rms(x, weight, eps):
        raise TypeError

    @rms.register
    def _(x: torch.Tensor, weight, eps):
        y = x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (y if weight is None else y * weight.double()).to(x.dtype)

    (kernel,) = load_directions(rms, "rmsnorm_fwd")
    assert examine(kernel, kernel.fit(ROWS), ("signature", "accuracy"), "cpu").findings == ()


def test_a_bind_of_results_names_each_of_nested_tuples():
    def nested(x, weight, eps):
        rstd = torch.rsqrt(x.square().mean(-1) + eps)
        return x * rstd[..., None] * (1 if weight is None else weight), ("a note", rstd.flatten(), x)

    (kernel,) = load_directions(nested, "rmsnorm_fwd", bind="-> y, _, rstd, _")
    assert examine(kernel, kernel.fit(ROWS), ("signature",), "cpu").findings == ()
    (kernel,) = load_directions(nested, "rmsnorm_fwd", bind="-> y, _, rstd")
    (finding,) = examine(kernel, kernel.fit(ROWS), ("signature",), "cpu").findings
    assert "it returned 4 values; --bind names 3: y, _, rstd" in finding.message


@dataclass
class Swapped:
    mean: torch.Tensor
    y: torch.Tensor


@dataclass
class Ordered:
    output: torch.Tensor
    average: torch.Tensor


def test_the_fields_of_a_dataclass_are_outputs_by_name_or_in_order():
    y, mean = torch.ones(2, 3), torch.ones(2)
    op = OPS["layernorm_fwd"]
    assert named(Swapped(mean, y), op) == {"mean": mean, "y": y}
    assert named(Ordered(y, mean), op) == {"y": y, "mean": mean}
    assert named(Ordered, op) == "y is a type, not a tensor"


def test_so_are_those_of_a_named_tuple():
    y, mean = torch.ones(2, 3), torch.ones(2)
    op = OPS["layernorm_fwd"]
    assert named(namedtuple("Swapped", "mean y")(mean, y), op) == {"mean": mean, "y": y}
    assert named(namedtuple("Ordered", "output average")(y, mean), op) == {"y": y, "mean": mean}
    assert named(torch.var_mean(y, 1), op)["y"].shape == (2,)  # torch's own have no order but theirs


def test_outputs_are_named_in_order_and_a_mapping_by_its_keys():
    y, mean = torch.ones(2, 3), torch.ones(2)
    op = OPS["layernorm_fwd"]
    assert list(named(y, op)) == ["y"]
    assert list(named([y, mean], op)) == ["y", "mean"]
    assert named({"mean": mean, "y": None}, op) == {"mean": mean, "y": None}
    assert named((), op) == {}
    assert named({}, op) == {}
    assert named({1: y}, op).startswith("it returned 1; layernorm_fwd has y, mean, rstd; name what it returns in order")
