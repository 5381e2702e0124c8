"""The check `signature`: every form of the right outputs passes, and another presence, shape or type does not."""

from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from checking import SPEC, findings, layernorm_fwd
from counted import PLAIN, case_of, run_of
from norms import layernorm_bwd

from verify_norm.checks import CHECKS

Result = namedtuple("Result", "y mean rstd")


class Labelled(torch.Tensor):
    """A subclass with memory of its own."""


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        lambda y, mean, rstd: {"rstd": rstd, "y": y, "mean": mean},
        lambda y, mean, rstd: Result(y, mean, rstd),
        lambda y, mean, rstd: [y, mean, rstd],
        lambda y, mean, rstd: (y, mean[:, None], rstd[:, None]),
        lambda y, mean, rstd: (y, mean),
        lambda y, mean, rstd: y,
        lambda y, mean, rstd: (y, None, rstd),
        lambda y, mean, rstd: (y, mean, rstd, 1024, "sum", None),  # numbers and names are no outputs
        lambda y, mean, rstd: (y, [mean, rstd]),
        lambda y, mean, rstd: (y.as_subclass(Labelled), mean, rstd),
        lambda y, mean, rstd: (y.T.contiguous().T, mean, rstd),  # another memory format is no error
    ],
)
def test_every_way_of_returning_is_understood(form):
    assert findings(lambda x, weight, bias, eps: form(*layernorm_fwd(x, weight, bias, eps, (6,)))) == set()


@pytest.mark.parametrize(
    ("form", "output"),
    [
        (lambda y, mean, rstd: (y.float(), mean, rstd), "y"),
        (lambda y, mean, rstd: (y, mean.half(), rstd), "mean"),
        (lambda y, mean, rstd: (y[:-1], mean, rstd), "y"),
        (lambda y, mean, rstd: (y.reshape(-1), mean, rstd), "y"),
        (lambda y, mean, rstd: (None, mean, rstd), "y"),
        (lambda y, mean, rstd: (y.to("meta"), mean, rstd), None),
        (lambda y, mean, rstd: (y, mean, rstd, y), None),
        (lambda y, mean, rstd: {"value_of": y}, None),
        (lambda y, mean, rstd: (y, 0.5, rstd), None),
        (lambda y, mean, rstd: 1 / 0, None),
    ],
)
def test_signature_catches(form, output):
    found = findings(lambda x, weight, bias, eps: form(*layernorm_fwd(x, weight, bias, eps, (6,))))
    assert ("signature", output) in found
    assert {check for check, _ in found} <= {"signature", "statistics"}  # a mean in half precision is also inaccurate


@pytest.mark.parametrize("name", ["dx", "dweight", "dbias"])
def test_a_backward_may_return_one_gradient_alone(name):
    right = layernorm_bwd()

    def backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        found = right(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return {name: found[("dx", "dweight", "dbias").index(name)]}

    assert findings(backward, replace(SPEC, further=()), "layernorm_bwd") == set()
    assert findings(lambda dy: {}, replace(SPEC, further=()), "layernorm_bwd") == {("signature", "dx")}


def test_signature_catches_a_gradient_of_nothing():
    def backward(dy, x, weight, bias):
        return torch.zeros_like(x), torch.zeros(6), torch.zeros(6)

    found = findings(backward, replace(SPEC, weight=False, bias=False), "layernorm_bwd")
    assert {("signature", "dweight"), ("signature", "dbias")} <= found


@pytest.mark.parametrize(
    ("op", "returned", "absent", "got"),
    [
        ("layernorm_fwd", ("mean", "rstd"), "y", "mean, rstd alone"),
        ("layernorm_fwd", (), "y", "nothing"),
        ("layernorm_fwd", ("y",), None, ""),
        ("layernorm_bwd", (), "dx", "nothing"),
        ("layernorm_bwd", ("dx",), None, ""),
    ],
)
def test_what_must_come_back_and_does_not_is_named_beside_what_does(op, returned, absent, got):
    run = run_of(case_of(PLAIN, op))
    run = replace(run, outputs={name: run.outputs[name] for name in returned}, returned=dict.fromkeys(returned))
    found = CHECKS["signature"].function(run)
    assert [one.output for one in found] == [absent] * (absent is not None)
    assert all(one.message.endswith(f" {got}") and one.status == "fail" for one in found)


def test_what_a_kernel_raises_is_an_error_and_no_missing_output():
    run = replace(run_of(case_of(PLAIN, "layernorm_fwd")), outputs={}, problem="ValueError: no such row")
    (found,) = CHECKS["signature"].function(run)
    assert (found.output, found.status, found.message) == (None, "error", "ValueError: no such row")
