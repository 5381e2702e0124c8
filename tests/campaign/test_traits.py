"""The traits of a kernel are the same in each process, and other ones for other arithmetic."""

import pytest

from verify_norm.campaign.comparison import BITS, NONE
from verify_norm.campaign.traits import traits
from verify_norm.loading.registry import load

OPS = """
import os

import torch


def norm(x, weight, eps, sum):
    y = x.float() / (sum(x.float().square()) / x.shape[-1] + eps).sqrt()
    return (y if weight is None else y * weight.float()).to(x.dtype)


def one(x, weight, eps):
    return norm(x, weight, eps, lambda v: v.sum(-1, keepdim=True))


def same(x, weight, eps):
    return norm(x, weight, eps, lambda v: torch.sum(v, dim=-1, keepdim=True))


def other(x, weight, eps):
    return norm(x, weight, eps, lambda v: v.double().sum(-1, keepdim=True).float())


def refuses(x, weight, eps):
    raise NotImplementedError("only 7-D")


def ends(x, weight, eps):
    os._exit(3)
"""


@pytest.mark.slow
def test_traits_are_those_of_the_arithmetic(tmp_path):
    (tmp_path / "ops.py").write_text(OPS)

    def of(name):
        return traits(load(f"{tmp_path / 'ops.py'}:{name}", "rmsnorm_fwd"), "float32", "cpu")

    one = of("one")
    digests = one[f"{BITS}y"].split(",")
    assert len(digests) == 16
    assert len(set(digests) - {NONE}) > 12
    assert of("same") == one
    differ = {name for name, said in of("other").items() if said != one.get(name)}
    assert f"{BITS}y" in differ
    assert [name for name in differ if "accumulator" in name]
    assert f"{BITS}y" not in of("refuses")
    assert of("ends") == {"not compared": "it ended its process with exit status 3"}
