"""Batches of 2^31 elements of x and more. Here fewer elements stand for so many."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import pytest
import torch
from norms import groupnorm, layernorm, layernorm_bwd

from verify_norm.cases import corners, make
from verify_norm.checks import CHECKS, determinism
from verify_norm.checks.relations import enormous
from verify_norm.core.finding import NoData
from verify_norm.core.geometry import refusal, repeated
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

ROWS, GROUPS = CaseSpec((4, 6), batch=36), CaseSpec((2, 6, 5), num_groups=2, batch=18)
LIMIT = 192  # elements of x
DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(enormous, "ELEMENTS", LIMIT)
    monkeypatch.setattr(enormous, "CHUNK", 60)


def ran(function, op="layernorm_fwd", spec=ROWS):
    kernel = Kernel("k", op, run=function)
    return execute(kernel, make.case(replace(spec, further=("batch_invariance",)), OPS[op], kernel.contract))


def said(function, op="layernorm_fwd", spec=ROWS):
    """What batch_invariance says of a case, by output; None if it has no data."""
    run = ran(function, op, spec)
    assert run.problem is None
    assert CHECKS["batch_invariance"].looks(run)
    items = CHECKS["batch_invariance"].function(run)
    return None if items == (NoData(),) else {item.output: item.message for item in items}


def when_enormous(change, usual):
    """The kernel, whose results are changed where x has LIMIT elements and more."""

    def run(**given):
        outputs = usual(**given)
        return change(*outputs) if given["x"].numel() >= LIMIT else outputs

    return run


def forward(x, weight, bias, eps, weight_offset, normalized_shape, **_):
    return layernorm()(x, weight, bias, eps, normalized_shape, weight_offset)


def backward(dy, x, weight, bias, mean, rstd, eps, weight_offset, normalized_shape, **_):
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape, weight_offset)


def grouped(x, weight, bias, num_groups, eps, **_):
    return groupnorm()(x, weight, bias, num_groups, eps)


def unwritten(output):
    """The output as a kernel leaves it whose index overflows at LIMIT: or, of statistics, their last element."""
    left = output.clone().contiguous()
    left.view(-1)[min(LIMIT, left.numel() - 1) :] = -7.0
    return left


KERNELS = {"layernorm_fwd": (forward, ROWS), "layernorm_bwd": (backward, ROWS), "groupnorm_fwd": (grouped, GROUPS)}
WRONG = {
    "y": ("layernorm_fwd", lambda y, mean, rstd: (unwritten(y), mean, rstd)),
    "mean": ("layernorm_fwd", lambda y, mean, rstd: (y, unwritten(mean), rstd)),
    "dx": ("layernorm_bwd", lambda dx, dweight, dbias: (unwritten(dx), dweight, dbias)),
    "dweight": ("layernorm_bwd", lambda dx, dweight, dbias: (dx, dweight * 1.01, dbias)),
    "dbias": ("layernorm_bwd", lambda dx, dweight, dbias: (dx, dweight, dbias + 1)),
    "rstd": ("groupnorm_fwd", lambda y, mean, rstd: (y, mean, unwritten(rstd))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", KERNELS)
def test_a_right_kernel_is_right_in_an_enormous_batch(few, op, dtype):
    function, spec = KERNELS[op]
    assert said(function, op, replace(spec, dtype=dtype)) == {}


def test_a_batch_of_no_whole_number_of_repetitions(few):
    assert said(backward, "layernorm_bwd", replace(ROWS, batch=38)) == {}


@pytest.mark.parametrize("output", WRONG)
def test_what_is_wrong_there_alone_is_found(few, output):
    op, change = WRONG[output]
    function, spec = KERNELS[op]
    found = said(when_enormous(change, function), op, spec)
    assert set(found) == {output}
    assert "repeated" in found[output]


def test_a_smaller_batch_is_compared_as_ever(few):
    assert not enormous.enormous(ran(forward, spec=replace(ROWS, batch=31)))
    assert not enormous.enormous(ran(forward, spec=replace(ROWS, batch=0)))


def test_an_offset_along_a_row_is_large_where_x_is_transposed(few):
    def wrong(x, weight, bias, eps, weight_offset, normalized_shape):
        y, mean, rstd = forward(x, weight, bias, eps, weight_offset, normalized_shape)
        return (unwritten(y) if x.stride(-1) * (x.shape[-1] - 1) >= LIMIT - 36 else y), mean, rstd

    assert "repeated 9 times and transposed, in element" in said(wrong)["y"]
    refusing = ran(wrong)
    refusing = replace(
        refusing,
        kernel=replace(refusing.kernel, unsupported=lambda spec: "no" * (spec.x_layout == "transposed") or None),
    )
    assert CHECKS["batch_invariance"].function(refusing) == ()


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB"), None),
        (NotImplementedError("x is too large"), None),
        (RuntimeError("an illegal memory access was encountered"), "fails where its rows are repeated 9 times: "),
    ],
)
def test_a_kernel_that_fails_there(few, error, finding):
    def failing(*outputs):
        failed.append(error)
        raise error

    failed = []
    found = said(when_enormous(failing, forward))
    assert found is None if finding is None else finding in found[None]
    assert len(failed) == (2 if finding is None else 1), (
        "after an error that may break the device nothing more is called"
    )


def test_a_kernel_in_another_process_is_left_out(few):
    run = ran(forward)
    remote = replace(run, kernel=SimpleNamespace(remote=True))
    assert [enormous.in_a_batch(remote, transposed=transposed) for transposed in (False, True)] == [None, None]


def test_determinism_repeats_no_enormous_batch(few):
    assert list(determinism._batch(ran(forward))) == []


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_one_case_of_each_operator_has_so_many_elements(op):
    specs = corners.enormous(op, DTYPES)
    assert len(specs) == (op.view != "channels")
    for spec in specs:
        assert refusal(spec, op) is None
        assert 2**31 < prod(repeated(spec).shape) < 2**31 + 2**22
        assert spec.dtype == "bfloat16"
        assert prod(spec.shape) < 2**22
    assert corners.enormous(op, ()) == []
