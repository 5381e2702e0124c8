"""A callable without a direction in its name: whether it has a backward."""

import pytest
import torch
from torch import nn

from verify_norm.search.request import request


def _norm(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)


def differentiable_rms_norm(x, weight, eps):
    return _norm(x, weight, eps)


def detached_rms_norm(x, weight, eps):
    with torch.no_grad():
        return _norm(x, weight, eps)


def overwriting_rms_norm(x, weight, eps):
    x.copy_(_norm(x, weight, eps))
    return x


def raising_rms_norm(x, weight, eps):
    raise ValueError("not today")


class BatchNorm(nn.BatchNorm2d):
    pass


GIVEN = {"device": "cpu", "dtypes": "fp32", "examples": 0}


@pytest.mark.parametrize(
    ("kernel", "ops", "said"),
    [
        (differentiable_rms_norm, ["rmsnorm_fwd", "rmsnorm_bwd"], None),
        (raising_rms_norm, ["rmsnorm_fwd", "rmsnorm_bwd"], None),  # a finding, not a forward alone
        (BatchNorm, ["batchnorm_fwd", "batchnorm_bwd"], None),
        (detached_rms_norm, ["rmsnorm_fwd"], "autograd does not know how its y is made; --op rmsnorm"),
        (overwriting_rms_norm, ["rmsnorm_fwd"], "it overwrites an input that needs a gradient"),
    ],
)
def test_a_forward_alone_is_checked_forward_with_a_note(kernel, ops, said):
    told = []
    asked = request(kernel, GIVEN, isolate=False, tell=told.append)
    assert [one.op for one in asked.kernels] == ops
    assert (said is None) == (not told)
    assert said is None or said in told[0]
    assert [one.op for one in request(kernel, GIVEN, op=ops[0].removesuffix("_fwd"), isolate=False).kernels][1:]
