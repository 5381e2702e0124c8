"""A callable without a direction in its name: whether it has a backward."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search import PRELOAD, directions
from verify_norm.search.examined import Examined
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


class Asking:
    """Stands for the process of a kernel: what it was asked, and what each case shows in turn."""

    def __init__(self, monkeypatch, *shown):
        self.cases, self.made, self.closed, self.shown = [], [], 0, list(shown)
        monkeypatch.setattr(directions, "runner", lambda *given, **named: self.made.append((given, named)) or self)
        monkeypatch.setattr(directions, "examine_in", self.examine)

    def examine(self, where, case, checks, timeout):
        assert where is self
        self.cases.append((case, checks, timeout))
        return self.shown.pop(0)

    def close(self):
        self.closed += 1


def shows(message="", **fields):
    findings = (Finding("k", "signature", "y", "fail", message, CaseSpec((2,))),) if message else ()
    return Examined(CaseSpec((2,)), findings=findings, **fields)


NO_GRADIENT = shows("its y has no gradient: autograd does not know how it was made")
BACKWARD = Kernel("k", "rmsnorm_bwd", run=print, autograd=True)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ([NO_GRADIENT, NO_GRADIENT], "autograd does not know how its y is made"),
        ([shows(problem="RuntimeError: a leaf Variable that requires grad"), shows(unsupported="it returns no y, whose "
          "gradient is given")], "it returns no y"),
        ([NO_GRADIENT, shows("y: expected shape (2,)")], ""),
        ([shows()], ""),
    ],
)  # fmt: skip
def test_it_is_a_forward_alone_where_both_cases_say_so(shown, why, monkeypatch):
    asking = Asking(monkeypatch, *shown)
    assert directions.forward_only(BACKWARD, Settings()) == why
    assert asking.closed == 1
    assert asking.shown == []


def test_only_a_backward_by_autograd_of_some_type_is_asked(monkeypatch):
    asking = Asking(monkeypatch)
    for fields in ({"autograd": False}, {"dtypes": ()}):
        assert directions.forward_only(replace(BACKWARD, **fields), Settings()) == ""
    assert asking.made == []


@pytest.mark.parametrize(
    ("op", "shapes", "groups"),
    [
        ("rmsnorm_bwd", [(4, 8), (3, 16)], None),
        ("groupnorm_bwd", [(2, 4, 8), (3, 4, 6)], 2),
        ("batchnorm_bwd", [(2, 4, 8), (3, 4, 6)], None),
    ],
)
def test_it_is_asked_in_small_cases_of_its_last_type_as_the_settings_say(op, shapes, groups, monkeypatch):
    for timeout, seconds in ((None, 20.0), (3.0, 3.0)):
        asking = Asking(monkeypatch, NO_GRADIENT, NO_GRADIENT)
        kernel = replace(BACKWARD, op=op, fit=lambda spec: replace(spec, eps=0.5))
        settings = Settings(device="cuda:1", isolate=False, untrusted=True, timeout=timeout)
        directions.forward_only(kernel, settings)
        cases = [CaseSpec(shape, dtype="bfloat16", num_groups=groups, eps=0.5) for shape in shapes]
        assert asking.cases == [(case, ("signature",), seconds) for case in cases]
        assert asking.made == [((kernel, "cuda:1"), {"isolate": False, "untrusted": True, "preload": PRELOAD})]
