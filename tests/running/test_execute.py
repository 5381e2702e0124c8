"""One call of a kernel: what it raises, returns instead, or warns of."""

import ctypes
import signal
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch._dynamo  # which torch itself imports in the first call under a mode, and changes the environment
from checking import findings, layernorm_fwd, run_of
from directions import ROWS
from torch.nn import functional

from verify_norm.core.errors import Exit
from verify_norm.core.run import Called
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.work import Compiled
from verify_norm.loading.registry import load_directions
from verify_norm.loading.returned import RefusedError
from verify_norm.running.calling import POISON, REPLACES
from verify_norm.running.compilation import Meter
from verify_norm.running.execute import execute, results
from verify_norm.search.search import replay


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
    report = replay(kernel, kernel.fit(ROWS), Settings(isolate=False))
    assert report.verdict is Exit.NOTHING
    (limit,) = (skip for skip in report.skipped if skip.what == "cases")
    assert limit.reason.startswith(f"it does not take CPU tensors ({said}")


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


class Wrapper(torch.Tensor):
    """A subclass without memory that computes when it is read."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(torch.empty(3)) if func is torch.ops.aten.alias.default else func(*args, **kwargs)


class Own(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


def leaked(y):
    inside = []
    torch.func.vmap(lambda row: inside.append(row) or row)(y)
    return inside[0]


def raised(error):
    raise error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda y: y.to_sparse(), "y is a sparse_coo tensor, not a dense one"),
        (lambda y: torch.nested.nested_tensor([y]), "y is a nested tensor, not a dense one"),
        (lambda y: y.to("meta"), "y is on meta, expected cpu"),
        (Wrapper, "y is a Wrapper, which has no values of its own"),
        (leaked, "y is a tensor without memory"),
        (lambda y: y.to(torch.complex64), "y is a tensor of complex64, whose values cannot be compared"),
        (lambda y: y.numpy(), "y is a ndarray, not a tensor"),
        (lambda y: (row for row in y), "y is a generator, not a tensor"),
        (lambda y: torch.Tensor, "y is a _TensorMeta, not a tensor"),
        (lambda y: raised(KeyboardInterrupt("mine")), "KeyboardInterrupt: mine"),
        (lambda y: raised(GeneratorExit("mine")), "GeneratorExit: mine"),
        (lambda y: raised(Own()), "Own: raise error"),
        (lambda y: raised(type("SeveralErrors", (Exception,), {})("several\nof them")), "SeveralErrors: several"),
    ],
)
def test_nothing_that_a_kernel_returns_or_raises_ends_the_run(body, said):
    run = run_of(lambda x: body(x.clone()), op="rmsnorm_fwd")
    assert run.problem.startswith(said)
    assert not run.outputs


def test_a_kernels_keyboard_interrupt_is_not_the_users():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_of(lambda x: signal.raise_signal(signal.SIGINT), op="rmsnorm_fwd")
    assert signal.getsignal(signal.SIGINT) is before


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


def forward(x, weight, bias, eps, normalized_shape):
    return layernorm_fwd(x, weight, bias, eps, normalized_shape)


def with_a_write(x, weight, bias, eps, normalized_shape):
    mean = torch.zeros(len(x))
    ctypes.memset(mean.data_ptr() + mean.nbytes, 1, 4)
    weight[0] = 7.0
    return x, mean, mean


def with_traces(x, weight, bias, eps, normalized_shape):
    torch.set_default_dtype(torch.float64)
    functional.layer_norm(x, normalized_shape)
    return forward(x, weight, bias, eps, normalized_shape)


def test_a_run_says_what_its_call_did():
    """What one kernel did is in one run: the outputs with their errors, and all that went beside them."""
    right, wrote, traces = map(run_of, (forward, with_a_write, with_traces))
    assert {name: output.ratio.max() <= 1 for name, output in right.outputs.items()} == {"y": 1, "mean": 1, "rstd": 1}
    assert (right.damage, right.overlaps, right.effects, right.operators, right.evasions) == ((), (), (), (), ())
    assert right.returned.keys() == right.outputs.keys()
    assert right.seconds > 0
    damaged = {one.buffer.partition(",")[0]: one.where for one in wrote.damage}
    assert damaged == {"weight": "in", "mean and rstd": "after"}
    assert wrote.overlaps == (("y", "x"), ("rstd", "mean"))
    assert [effect.partition(" ")[0] for effect in traces.effects] == ["torch.get_default_dtype()"]
    assert torch.get_default_dtype() == torch.float32
    assert traces.operators == ("aten::native_layer_norm",)


def without_grad(x, weight, bias, eps, normalized_shape):
    torch.set_grad_enabled(False)
    np.seterr(all="raise")
    return with_traces(x, weight, bias, eps, normalized_shape)


def with_poison(x, weight, bias, eps, normalized_shape):
    y, mean, rstd = forward(x, weight, bias, eps, normalized_shape)
    return torch.empty_like(y), mean, rstd


@pytest.mark.parametrize("kernel", [forward, without_grad, with_poison, lambda x: 1 / 0, lambda x: 3])
def test_results_are_those_of_a_whole_run(kernel):
    """A further run has the same outputs, errors and problems, and leaves what the judge's next calls depend on."""
    whole = run_of(kernel)
    other = results(whole.kernel, whole.case)
    assert other.problem == whole.problem
    assert other.outputs.keys() == whole.outputs.keys() == other.returned.keys()
    for name, output in other.outputs.items():
        assert output.got.tobytes() == whole.outputs[name].got.tobytes()
        assert output.ratio.tobytes() == whole.outputs[name].ratio.tobytes()
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert np.geterr()["invalid"] != "raise"


def test_what_a_contract_lets_it_overwrite_holds_the_outputs_of_a_kernel_that_returns_nothing():
    """Of several that an output may overwrite, the first has it; what is written elsewhere is damage."""

    def in_place(x, residual, weight, eps):
        y, out, _ = rmsnorm_sum(x, residual, weight, eps)
        x.copy_(y)
        residual.copy_(out)

    spec = CaseSpec((4, 8))
    for promised, outputs, damage in (
        (("y:x", "residual_out:residual"), {"y": 1, "residual_out": 1}, set()),
        (("y:x", "y:residual"), {"y": 1}, set()),
        (("y:x",), {"y": 1}, {"residual"}),
    ):
        run = run_of(in_place, spec, "add_rmsnorm_fwd", inplace=promised)
        assert {name: output.ratio.max() <= 1 for name, output in run.outputs.items()} == outputs
        assert {one.buffer for one in run.damage} == damage


def rmsnorm_sum(x, residual, weight, eps):
    out = x.double() + residual.double()
    rstd = (out.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (out * rstd * weight.double()).to(x.dtype), out.to(x.dtype), rstd[..., 0].float()


def test_statistics_may_keep_axes_of_one_and_values_may_not():
    def kept(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y[:, None], mean[:, None], rstd.reshape(1, -1)

    outputs = run_of(kept).outputs
    assert outputs["y"].ratio is None
    for name in ("mean", "rstd"):
        assert outputs[name].ratio.shape == (16,)
        assert outputs[name].ratio.max() <= 1


def test_scales_of_blocks_may_have_another_shape_of_as_many_numbers():
    def quantizing(x, weight, eps):
        z = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        scale = z.abs().amax(-1) / 448
        return (z / scale[:, None]).to(torch.float8_e4m3fn), scale

    scale = run_of(quantizing, CaseSpec((4, 8)), "rmsnorm_quant_fwd").outputs["y_scale"]
    assert scale.shape == (4,)
    assert scale.ratio.shape == (4, 1)
    assert scale.ratio.max() <= 1


def test_what_is_changed_in_place_is_an_output_whatever_is_returned():
    def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps):
        return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)

    run = run_of(batchnorm, CaseSpec((16, 3)), "batchnorm_fwd")
    assert {"y", "running_mean", "running_var"} <= set(run.outputs)
    assert run.outputs["running_mean"].ratio.max() <= 1
    assert run.damage == ()


def refuses(x):
    raise RefusedError("odd rows only")


def states_a_limit(x):
    raise ValueError("only 2-D x")


def has_no_function(x):
    raise NotImplementedError("Triton's interpreter has no such function")


@pytest.mark.parametrize(
    ("kernel", "problem", "refused", "limits"),
    [
        (refuses, "odd rows only", True, ()),
        (states_a_limit, "ValueError: only 2-D x", False, ("rank",)),
        (has_no_function, "it does not take CPU tensors (NotImplementedError: Triton's inter", True, ()),
    ],
)
def test_a_further_run_is_refused_as_the_first_one_is(kernel, problem, refused, limits):
    whole = run_of(kernel, op="rmsnorm_fwd")
    for run in (whole, results(whole.kernel, whole.case)):
        assert run.problem.startswith(problem)
        assert (run.refused, run.limits) == (refused, limits)
        assert (run.kernel, run.case, run.outputs) == (whole.kernel, whole.case, {})


def test_what_is_frozen_is_told_to_a_kernel_whose_gradients_torch_makes():
    told = []

    def backward(dy, x, weight, rstd, **given):
        told.append(given.get("frozen"))
        return x, weight

    run = run_of(backward, replace(ROWS, frozen=("x",)), op="rmsnorm_bwd")
    execute(replace(run.kernel, autograd=True), run.case)
    assert told == [None, ("x",)]


def test_a_proxy_of_a_kernel_answers_for_it():
    """A further run is a whole run, and what the process of the kernel allocates holds the case's poison."""
    case = run_of(layernorm_fwd).case
    poisons, refusing = [], [False]

    def proxy(x, weight, bias, eps, normalized_shape):
        poisons.append(POISON.get())
        names = ("y", "mean", "rstd")
        if refusing[0]:
            refuses(x)
        return Called(
            dict(zip(names, layernorm_fwd(x, weight, bias, eps, normalized_shape), strict=True)), limits=("a",)
        )

    kernel = replace(run_of(layernorm_fwd).kernel, run=proxy, later=lambda returned: returned)
    for ask in (execute, results):
        run = ask(kernel, case)
        assert (run.problem, run.limits, *run.returned) == (None, ("a",), "y", "mean", "rstd")
        assert run.outputs["y"].ratio.max() <= 1
        assert run.seconds > 0
    for ask in (execute, results):
        ask(kernel, case, contextmanager(lambda: iter([None]))())
    assert [poison is None for poison in poisons] == [False, False, True, True]
    assert POISON.get() is None
    refusing[0] = True
    run = execute(kernel, case)
    assert (run.problem, run.refused) == ("odd rows only", True)
    assert POISON.get() is None


def test_the_judges_functions_are_put_back_and_the_evasion_is_told():
    run = run_of(layernorm_fwd)
    watched = execute(run.kernel, run.case, watch=[lambda: ["torch.equal"], lambda: ["numpy.sum"]])
    assert [words for _, words in watched.evasions] == [f"{REPLACES} torch.equal", f"{REPLACES} numpy.sum"]
    assert {*watched.at_return} == {"y", "mean", "rstd"}
    assert run.at_return == {}


def test_the_time_of_a_case_is_that_of_the_processor():
    def sleeping(x, weight, bias, eps, normalized_shape):
        time.sleep(0.2)
        return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    assert 0 < run_of(sleeping).seconds < 0.1


def test_the_time_of_a_case_is_that_of_any_other_run(monkeypatch):
    """A large case whose kernel had just been compiled made no further runs."""
    meter = Meter()
    monkeypatch.setattr("verify_norm.running.execute.METER", meter)

    def compiling(x, weight, bias, eps, normalized_shape):
        started = time.process_time()
        while time.process_time() - started < 0.2:
            pass
        meter.total += Compiled(kernels=1, seconds=0.2)
        return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    assert 0 < run_of(compiling).seconds < 0.1
