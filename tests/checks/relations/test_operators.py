"""Operators that are not torch's own: which are seen, what is copied of their calls, and what is told of them."""

from dataclasses import replace

import pytest
import torch
from checking import ROWS, run_of
from norms import layernorm
from torch._library.custom_ops import get_library_allowing_overwrite

from verify_norm.cases import make
from verify_norm.checks.relations import operators
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

right = layernorm()


@torch.library.custom_op("verify_norm_relations::one", mutates_args=())
def one(x: torch.Tensor) -> torch.Tensor:
    return x * 2


# Only by its schema an operator has a tensor that is given by name.
library = get_library_allowing_overwrite("verify_norm_relations", "other")
library.define("other(Tensor x, *, Tensor scale) -> Tensor")
library.impl("other", lambda x, scale: x * scale, "CompositeExplicitAutograd")
other = torch.ops.verify_norm_relations.other

ONE, OTHER = torch.ops.verify_norm_relations.one.default, other.default
CASE = make.case(CaseSpec((2, 3), poison="finite"), OPS["layernorm_fwd"], Contract())


@pytest.mark.parametrize(
    ("names", "registered"),
    [((), False), (("aten::add.Tensor", "prims::mul"), False), (("aten::add.Tensor", "mine::add", "prims::mul"), True)],
)
def test_operators_are_looked_at_where_some_are_not_torchs(monkeypatch, names, registered):
    monkeypatch.setattr(torch._C, "_dispatch_get_all_op_names", lambda: [*names])
    assert operators.registered() is registered


def promised(monkeypatch, answers, calls):
    """What is told of a kernel with these calls, where torch.library.opcheck answers so; and what it was asked."""
    asked = []

    def opcheck(operator, args, kwargs, **options):
        asked.append((operator, args, kwargs, options))
        return answers.get(operator, {})

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        for call in calls:
            call(x)
        return right(x, weight, bias, eps, normalized_shape)

    monkeypatch.setattr(torch.library, "opcheck", opcheck)
    return list(operators.broken_promises(run_of(layernorm_fwd, replace(ROWS, shape=(2, 3))))), asked


def test_each_call_is_examined_with_copies_of_its_arguments(monkeypatch):
    scale = torch.full((3,), 3.0)
    said, asked = promised(monkeypatch, {}, [lambda x: other(x, scale=scale), one])
    assert said == []
    (first, (x,), named, options), (second, *_) = asked
    assert (first, second) == (OTHER, ONE)
    assert x.shape == (2, 3)
    assert named["scale"].tolist() == scale.tolist()
    assert named["scale"].data_ptr() != scale.data_ptr()
    assert options == {"test_utils": operators.TESTS, "raise_exception": False}


def test_each_broken_promise_of_an_operator_is_told_once(monkeypatch):
    schema, fake = ValueError("it writes\nto x"), TypeError("of another shape")
    answers = {ONE: {"test_schema": schema, "test_faketensor": fake}, OTHER: {"test_schema": schema}}
    calls = [one, one, lambda x: other(x, scale=x)]
    said, _ = promised(monkeypatch, answers, calls)
    told = [(str(ONE), "test_schema", "it writes"), (str(ONE), "test_faketensor", "another shape")]
    told.append((str(OTHER), "test_schema", "it writes"))
    assert len(said) == len(told)
    for words, parts in zip(said, told, strict=True):
        assert all(part in words for part in parts)
        assert "\n" not in words


@pytest.mark.parametrize(
    "answer",
    [
        "SUCCESS",
        RuntimeError("there was no fake impl registered for verify_norm_relations::one"),
        NotImplementedError(str(ONE)),
    ],
)
def test_an_operator_that_passes_or_has_no_fake_implementation_breaks_none(monkeypatch, answer):
    said, asked = promised(monkeypatch, {ONE: {"test_faketensor": answer}}, [one])
    assert (said, len(asked)) == ([], 1)


def test_whether_operators_run_that_are_not_torchs():
    x = torch.arange(3.0)
    with operators.Foreign() as seen:
        assert torch.add(x, x, alpha=2).tolist() == [0, 3, 6]
        assert seen.ran is False
        assert one(x).tolist() == [0, 2, 4]
        assert seen.ran is True
        assert (x + 1).tolist() == [1, 2, 3]
    assert seen.ran is True


def test_the_first_calls_of_each_operator_are_recorded():
    with operators._Recording(CASE) as seen:
        assert torch.empty(2).tolist() == [CASE.poison] * 2
        for _ in range(operators.MOST + 1):
            x = one(torch.ones(2))
        assert other(x, scale=x).tolist() == [4, 4]
        assert torch.add(x, x, alpha=2).tolist() == [6, 6]
        torch.ones(2).mul_(2)
    assert [operator for operator, *_ in seen.calls] == [ONE] * operators.MOST + [OTHER]
    assert seen.calls[0][1][0].tolist() == [1, 1]
    assert (seen.calls[0][2], seen.calls[-1][2]["scale"].tolist()) == ({}, [2, 2])


@pytest.mark.parametrize(("x", "scale", "recorded"), [(12, 12, True), (13, 12, False), (12, 13, False)])
def test_calls_with_tensors_up_to_the_largest_extent_are_recorded(monkeypatch, x, scale, recorded):
    monkeypatch.setattr(operators, "LARGEST", 12)
    spread = {size: torch.ones(16).as_strided((2,), (size - 1,)) for size in (12, 13)}  # so many to its last
    with operators._Recording(CASE) as seen:
        other(spread[x], scale=spread[scale])
    assert len(seen.calls) == recorded


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_copy_has_the_same_strides_or_no_elements(device):
    tensor = torch.arange(12.0, dtype=torch.float64, device=device).reshape(3, 4).t()
    copy = operators._copied(tensor)
    assert (copy.shape, copy.stride(), copy.dtype) == ((4, 3), (1, 4), torch.float64)
    assert copy.device.type == device
    assert device == "meta" or (torch.equal(copy, tensor) and copy.data_ptr() != tensor.data_ptr())
    empty = operators._copied(tensor[:0])
    assert (empty.shape, empty.stride(), empty.dtype) == ((0, 3), (3, 1), torch.float64)
    assert empty.device.type == device
