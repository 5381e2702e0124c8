"""The option that would make a wrong output right is named in its finding; a mistake that none mends gets no hint."""

import torch
from checking import layernorm_fwd

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.running.execute import execute

SPEC = CaseSpec((5, 24), eps=1e-3)


def messages(function, op, spec=SPEC):
    """The messages of accuracy and statistics about one case."""
    kernel = Kernel("k", op, run=function)
    ran = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    said = [item for name in ("accuracy", "statistics") for item in CHECKS[name].function(ran)]
    return {item.output: item.message for item in said if isinstance(item, Finding)}


def rmsnorm(x, weight, eps):
    return (x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def test_outputs_in_another_order_are_named():
    def swapped(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, rstd, mean

    found = messages(swapped, "layernorm_fwd")
    assert set(found) == {"mean", "rstd"}
    assert found["mean"].endswith('it is a right rstd: name what the kernel returns, as --bind "-> y, rstd, mean"')

    def without_mean(x, weight, bias, eps, normalized_shape):
        y, _, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, rstd

    assert messages(without_mean, "layernorm_fwd")["mean"].endswith('--bind "-> y, rstd"')


def test_outputs_of_which_two_would_be_one_are_not_named():
    """An order that names an output twice loses another."""

    def twice(x, weight, bias, eps, normalized_shape):
        y, mean, _ = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, mean, mean

    assert "name what the kernel returns" not in messages(twice, "layernorm_fwd")["rstd"]


def test_zeros_are_not_taken_for_another_output():
    """The mean of rows of zeros is 0, as is what a wrong kernel returns."""

    def wrong(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, mean + 1, 0 * rstd

    found = messages(wrong, "layernorm_fwd", CaseSpec((5, 24), eps=1e-3, data="zero"))
    assert {"mean", "rstd"} <= {*found}
    assert not any("name what the kernel returns" in message for message in found.values())


def test_gemmas_offset_and_another_eps_are_named():
    gemma = messages(lambda x, weight, eps: rmsnorm(x, 1 + weight.double(), eps), "rmsnorm_fwd")["y"]
    assert gemma.endswith("right with weight_offset=1: if the kernel adds it to its weight, --bind weight_offset=1")
    own = messages(lambda x, weight: rmsnorm(x, weight, 1e-6), "rmsnorm_fwd")["y"]
    assert "right with eps=1e-06" in own
    assert own.endswith("if the kernel has no other, --bind eps=1e-06")


def test_what_no_option_makes_right_has_no_hint():
    for wrong in (lambda x, w, eps: rmsnorm(x, w, eps) * 1.01, lambda x, w, eps: rmsnorm(x, 1 + w, eps) * 1.01):
        found = messages(lambda x, weight, eps, wrong=wrong: wrong(x, weight, eps), "rmsnorm_fwd")["y"]
        assert found.endswith("beyond their bound")


def test_a_rounding_that_looks_like_another_eps_in_short_rows_has_no_hint():
    """x̂ of a row of one element is ±1 with any small eps, and rounded to 16 bits it is that with each."""

    def early(x, weight, eps):
        xhat = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return xhat.bfloat16().float() * weight

    def own(x, weight):
        return rmsnorm(x, weight, 1e-6)

    for spec in (CaseSpec((1,)), CaseSpec((3, 1))):
        assert "right with" not in messages(early, "rmsnorm_fwd", spec)["y"]
        assert "right with eps=1e-06: " in messages(own, "rmsnorm_fwd", spec)["y"]
