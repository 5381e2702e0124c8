"""Callables as torch captures them: by torch.compile, and in a CUDA graph."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import _dynamo
from torch._dynamo import trace_rules
from triton.runtime import interpreter

from verify_norm.cases import placement
from verify_norm.loading.registry import load_directions
from verify_norm.loading.returned import RefusedError
from verify_norm.running import captures
from verify_norm.running.clock import Clock


def test_what_is_traced_knows_it_and_leaves_nothing():
    seen = []

    def kernel(x):
        return x + 1 if torch.compiler.is_compiling() else x

    for size in range(2, 12):  # more shapes than torch.compile compiles anew for
        x = torch.ones(size)
        seen.append(bool((captures.traced(kernel)(x) == 2).all()))
    assert all(seen)
    assert not _dynamo.utils.counters["frames"]
    assert (kernel(torch.ones(2)) == 1).all()


def test_what_is_behind_our_own_functions_is_traced(capfd):
    """A clock and what binds arguments are not traced, but what they call."""
    kept = {}

    def rmsnorm(x, weight, eps):
        kept[len(kept)] = 1  # a global container that grows: Dynamo makes no guard of it
        return x * 2 if torch.compiler.is_compiling() else x

    (kernel,) = load_directions(rmsnorm, "rmsnorm_fwd")
    run = captures.traced(Clock().around(kernel.run, "cpu"))
    assert run(x=torch.ones(2), weight=None, eps=0.0).tolist() == [2, 2]
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == 0


def test_what_cannot_be_traced_runs_as_it_is():
    def kernel(x):
        return x * float(__import__("numpy").asarray(x.tolist()).sum())

    assert captures.traced(kernel)(torch.ones(3)).tolist() == [3, 3, 3]


def test_errors_are_those_of_the_function():
    def kernel(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        captures.traced(kernel)(torch.ones(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_a_graph_is_replayed_with_the_values_given():
    def kernel(x, weight):
        x.mul_(2)
        return x * weight

    x, weight = torch.arange(3.0, device="cuda"), torch.full((3,), 5.0, device="cuda")
    assert captures.replayed(kernel)(x=x, weight=weight).tolist() == [0, 10, 20]
    assert x.tolist() == [0, 2, 4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_memory_is_freed_after_a_capture_that_fails():
    usual = torch.cuda.current_stream()
    with pytest.raises(RefusedError, match="CUDA cannot capture it"):
        captures.replayed(lambda x: x * x.sum().item())(x=torch.ones(3, device="cuda"))
    assert torch.cuda.current_stream() == usual
    held = torch.empty(2**28, device="cuda")
    taken = torch.cuda.memory_reserved()
    del held
    torch.cuda.empty_cache()
    assert taken - torch.cuda.memory_reserved() >= 2**30


def test_a_stream_that_is_lost_is_no_fault_of_the_function():
    @torch.compiler.disable
    def launch(stream):
        if stream == "lost":
            raise AttributeError("'torch.Stream' object has no attribute 'cuda_stream'")

    def launches_by_handle(x):
        launch("lost" if torch.compiler.is_compiling() else "kept")
        return x

    def has_a_typo(x):
        raise AttributeError("'Tensor' object has no attribute 'shpae'")

    with pytest.raises(RefusedError, match="does not pass on CUDA streams"):
        captures.traced(launches_by_handle)(torch.ones(2))
    with pytest.raises(AttributeError, match="shpae"):
        captures.traced(has_a_typo)(torch.ones(2))


def test_code_that_torch_compile_has_made_is_not_thrown_away(monkeypatch):
    assert not captures.in_use()
    compiled = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert captures.in_use() is True
    with pytest.raises(RefusedError, match="in use"):
        captures.traced(torch.neg)(torch.ones(2))
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert captures.in_use() is False, "what is not imported has compiled nothing"


def test_our_own_packages_are_passed_over_once(monkeypatch):
    added, skipped = [], {placement.__file__: SimpleNamespace(skipped=False)}
    monkeypatch.setattr(trace_rules, "check_file", skipped.__getitem__)
    monkeypatch.setattr(trace_rules, "add", added.append)
    captures._leave_out()
    assert added == [*captures.OURS]
    skipped[placement.__file__].skipped = True
    captures._leave_out()
    assert added == [*captures.OURS]


def test_tritons_interpreter_is_not_traced(monkeypatch):
    def launch(function, *args):
        return (function, *args)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", launch)
    captures._leave_out()
    once = interpreter.InterpretedFunction.run
    assert once is not launch
    assert once._torchdynamo_disable
    assert once("a kernel", 3) == ("a kernel", 3)
    captures._leave_out()
    assert interpreter.InterpretedFunction.run is once
    monkeypatch.setattr(interpreter.InterpretedFunction, "run", launch)
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter")
    captures._leave_out()
    assert interpreter.InterpretedFunction.run is launch
