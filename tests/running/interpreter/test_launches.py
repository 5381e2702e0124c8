"""Launches of interpreted kernels: fake tensors, tuners, grids, closures, and errors that name a line."""

import pytest
import torch
import triton
import triton.language as tl
from torch.library import opcheck, triton_op, wrap_triton
from triton.runtime.errors import InterpreterError

from verify_norm.running.interpreter import launches

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")
BLOCKS = [triton.Config({"BLOCK": n}) for n in (8, 4)]


@triton.jit
def twice(X, Y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Y + i, tl.load(X + i) * 2)


def add(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.load(out_ptr) + BLOCK)


@triton_op("launches::wrapped", mutates_args={})
def wrapped(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(twice)[(1,)](x, y, 4)
    return y


@triton_op("launches::direct", mutates_args={})
def direct(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    twice[(1,)](x, y, 4)
    return y


def test_an_operator_of_a_wrapped_kernel_has_a_fake_implementation():
    assert torch.ops.launches.wrapped(torch.ones(4)).tolist() == [2.0] * 4
    assert opcheck(wrapped, (torch.ones(4),), test_utils="test_faketensor") == {"test_faketensor": "SUCCESS"}


def test_a_kernel_that_is_not_wrapped_cannot_run_on_fake_tensors():
    found = opcheck(direct, (torch.ones(4),), test_utils="test_faketensor", raise_exception=False)
    assert "launch it by torch.library.wrap_triton" in str(found["test_faketensor"])


def test_a_wrapped_kernel_that_is_traced_is_refused_and_not_left_out():
    with pytest.raises(Exception, match="traced, needs a GPU: Triton's interpreter has no such function"):
        torch.compile(torch.ops.launches.wrapped, backend="aot_eager")(torch.ones(4))


def test_a_wrapped_tuner_keeps_its_attributes():
    tuner = wrap_triton(triton.autotune(BLOCKS, key=[])(triton.jit(add)))
    assert tuner.configs == BLOCKS
    with pytest.raises(RuntimeError, match="wrap_triton"):
        wrap_triton(add)


@pytest.mark.parametrize(
    ("options", "first"), [({}, 16.0), ({"restore_value": ["out_ptr"]}, 8.0), ({"reset_to_zero": ["out_ptr"]}, 8.0)]
)
def test_a_tuner_runs_a_kernel_once_more_before_its_first_launch(options, first):
    out = torch.zeros(1)
    tuner = triton.autotune(BLOCKS, key=[], **options)(triton.jit(add))
    tuner[(1,)](out)
    assert out.item() == first
    tuner[(1,)](out)
    assert out.item() == first + 8


def test_a_tuner_of_one_configuration_has_nothing_to_try():
    out = torch.zeros(1)
    triton.autotune(BLOCKS[:1], key=[])(triton.jit(add))[(1,)](out)
    assert out.item() == 8.0


def test_trials_take_a_small_part_of_the_time(monkeypatch):
    monkeypatch.setattr(launches, "FREE", -1.0)
    out = torch.zeros(1)
    triton.autotune(BLOCKS, key=[])(triton.jit(add))[(1,)](out)
    assert out.item() == 8.0


def test_what_a_trial_raises_reaches_the_hook_and_the_caller():
    met = []

    def failing(out_ptr, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK > 8)

    tuner = triton.autotune(BLOCKS, key=[], post_hook=lambda kwargs, exception: met.append(exception))
    with pytest.raises(Exception, match="AssertionError"):
        tuner(triton.jit(failing))[(1,)](torch.zeros(1))
    assert "AssertionError" in str(met)


@pytest.mark.parametrize("grid", [(1,), [1], lambda meta: [meta["N"] // 4]])
def test_a_grid_may_be_a_list(grid):
    y = torch.zeros(4)
    twice[grid](torch.ones(4), y, 4)
    assert y.tolist() == [2.0] * 4


@triton.jit
def square(x):
    return x * x


def made(function, count):
    size = tl.constexpr(count)

    @triton.jit
    def kernel(X, Y):
        i = tl.arange(0, size)
        tl.store(Y + i, function(tl.load(X + i)))

    return kernel


def test_a_kernel_uses_variables_of_the_function_around_it():
    y = torch.zeros(4)
    made(square, 4)[(1,)](torch.full((4,), 3.0), y)
    assert y.tolist() == [9.0] * 4


@triton.jit
def helper(X):
    return tl.load(X) + UNKNOWN  # noqa: F821


@triton.jit
def calling(X):
    tl.store(X, helper(X))


def test_an_error_says_why_and_in_which_line():
    with pytest.raises(InterpreterError) as caught:
        calling[(1,)](torch.zeros(1))
    why, code = "NameError: name 'UNKNOWN' is not defined", "return tl.load(X) + UNKNOWN  # noqa: F821"
    assert str(caught.value) == f"{why} in `{code}`"
