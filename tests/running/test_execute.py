"""One call of a kernel: what it raises, returns instead, or warns of."""

import sys
import warnings
from contextlib import contextmanager

import pytest
import torch
from checking import findings, layernorm_fwd, run_of
from directions import ROWS, VALUES

from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.loading.returned import RefusedError
from verify_norm.running.execute import Clock, execute
from verify_norm.search.examine import examine


def test_warnings_of_a_kernel_are_no_errors():
    def warning(x, weight, bias, eps, normalized_shape):
        warnings.warn("slow", stacklevel=1)
        return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    assert findings(warning) == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("assert x.is_cuda", "AssertionError: assert x.is_cuda"),
        (
            'raise RuntimeError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")',
            "RuntimeError: Pointer argument (at 0) cannot be accessed",
        ),
        ('raise ValueError("x must be on the GPU\\nhere it is not")', "ValueError: x must be on the GPU)"),
    ],
)
def test_a_kernel_for_gpus_alone_is_not_blamed_on_the_cpu(tmp_path, line, said):
    (tmp_path / "gpu.py").write_text(f"def rmsnorm_fwd(x, weight, eps):\n    {line}\n")
    (kernel,) = load_directions(f"{tmp_path / 'gpu.py'}:rmsnorm_fwd")
    examined = examine(kernel, kernel.fit(ROWS), VALUES, "cpu")
    assert examined.unsupported.startswith(f"it does not take CPU tensors ({said}")
    assert examined.findings == ()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x: sys.exit("no licence"), "SystemExit: no licence"),  # it would end the tool as a success
        (lambda x: 3, "y is a int, not a tensor"),
    ],
)
def test_what_a_kernel_raises_or_returns_instead_is_the_runs_problem(body, problem):
    run = run_of(body, op="rmsnorm_fwd")
    assert (run.problem, run.refused, run.outputs) == (problem, False, {})


def test_a_kernel_that_refuses_a_case_is_not_at_fault_and_an_error_of_the_tool_is_raised():
    def refusing(x):
        raise RefusedError("odd rows only")

    run = run_of(refusing, op="rmsnorm_fwd")
    assert (run.problem, run.refused) == ("odd rows only", True)

    @contextmanager
    def broken():
        raise OSError("disk full")
        yield

    with pytest.raises(OSError, match="disk full"):
        execute(run.kernel, run.case, broken())


def test_statistics_may_keep_axes_of_one_and_values_may_not():
    def kept(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y[:, None], mean[:, None], rstd.reshape(1, -1)

    outputs = run_of(kept).outputs
    assert outputs["y"].ratio is None
    for name in ("mean", "rstd"):
        assert outputs[name].ratio.shape == (16,)
        assert outputs[name].ratio.max() <= 1


def test_what_is_changed_in_place_is_an_output_whatever_is_returned():
    def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps):
        return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)

    run = run_of(batchnorm, CaseSpec((16, 3)), "batchnorm_fwd")
    assert {"y", "running_mean", "running_var"} <= set(run.outputs)
    assert run.outputs["running_mean"].ratio.max() <= 1
    assert run.damage == ()


def test_the_clock_counts_what_a_function_takes_even_if_it_raises(monkeypatch):
    now = iter([1.0, 3.0, 10.0, 15.0])
    monkeypatch.setattr("verify_norm.running.execute.time.perf_counter", lambda: next(now))
    clock = Clock()
    assert clock.around(None, "cpu") is None
    assert clock.around(lambda x: x, "cpu")(7) == 7
    with pytest.raises(ZeroDivisionError):
        clock.around(lambda: 1 / 0, "cpu")()
    assert clock.seconds == 7.0
