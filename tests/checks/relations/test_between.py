"""What is called between a call and the same one again, and what is said of the calls after it."""

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verify_norm.cases import make
from verify_norm.checks.relations import between
from verify_norm.checks.relations.held import Held
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls
from verify_norm.loading.registry import load_directions
from verify_norm.running import captures
from verify_norm.running.execute import execute

SPEC = CaseSpec((2, 4))


def run_of(kernel, spec=SPEC):
    """The run of an RMSNorm, which `kernel` is or the function of one."""
    kernel = kernel if isinstance(kernel, Kernel) else Kernel("k", "rmsnorm_fwd", run=kernel)
    return execute(kernel, make.case(spec, OPS["rmsnorm_fwd"], kernel.contract))


def rmsnorm(x, weight, eps):
    """An RMSNorm in float64."""
    rstd = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x * rstd * weight).to(x.dtype), rstd.float().flatten()


class Busy(torch.nn.RMSNorm):
    """It notes that a call is under way, and returns zeros where one has never ended."""

    busy = False

    def forward(self, x):
        stuck, self.busy = self.busy, True
        y = super().forward(x)
        self.busy = False
        return torch.zeros_like(y) if stuck else y


def test_a_call_that_fails_is_one_of_the_same_module():
    *_, kernel = load_directions(Busy, "rmsnorm_fwd")
    run = run_of(kernel)
    (found,) = between._failed(run, Held(run))
    assert found.output == "y"
    assert "after a call that fails, since " in found.words


@pytest.mark.parametrize("finally_", [True, False])
def test_a_call_that_fails_puts_back_what_it_has_changed(finally_):
    def without_gradients(x, weight, eps):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            result = rmsnorm(x, weight, eps)
        except RuntimeError:
            torch.set_grad_enabled(before and finally_)
            raise
        torch.set_grad_enabled(before)
        return result

    run = run_of(without_gradients)
    found = [difference.words for difference in between._failed(run, Held(run))]
    assert len(found) == (not finally_)
    assert all("raises an error there, torch.is_grad_enabled() changes from True to False" in words for words in found)


def test_what_a_first_import_changes_in_a_call_that_fails_is_no_effect(monkeypatch):
    monkeypatch.setenv("VERIFY_NORM_TEST", "")

    def importing(x, weight, eps):
        if type(x) is not torch.Tensor:
            os.environ["VERIFY_NORM_TEST"] = "1"
        return rmsnorm(x, weight, eps)

    run = run_of(importing)
    assert list(between._failed(run, Held(run))) == []
    assert not os.environ["VERIFY_NORM_TEST"]


@pytest.mark.parametrize("other", [True, False], ids=["in another process", "captured"])
def test_no_call_fails_where_its_tensor_would_not(other, monkeypatch):
    run = run_of(rmsnorm)
    if other:
        run = replace(run, kernel=replace(run.kernel, later=lambda returned: returned))
    else:
        monkeypatch.setattr(captures, "in_use", lambda: True)
    monkeypatch.setattr(between, "failing", None)
    assert list(between._failed(run, Held(run))) == []


def test_a_tensor_fails_at_once_or_after_one_operation(monkeypatch):
    turns = set()
    monkeypatch.setattr(between, "failing", lambda tensor, after: turns.add(after) or tensor)
    for variant in range(2):
        run = run_of(rmsnorm, replace(SPEC, variant=variant))
        assert list(between._failed(run, Held(run))) == []
    assert turns == {0, 1}


def test_a_failing_tensor_does_the_operations_before_that_as_they_are_named():
    tensor = between.failing(torch.ones(2, 3, requires_grad=True), 1)
    assert tensor.size(dim=1) == 3
    assert tensor.detach().requires_grad_(requires_grad=False).requires_grad is False
    assert tensor.sum(dim=0).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="this tensor fails"):
        tensor.sum()


def test_what_is_drawn_and_judged_is_of_the_device(monkeypatch):
    run = SimpleNamespace(case=SimpleNamespace(spec=SPEC, op="op", device="cuda:1"), kernel=SimpleNamespace(contract=3))
    noted = []
    stubs = SimpleNamespace(case=lambda *args: args, exact_inputs=lambda *args: noted.append(args))
    monkeypatch.setattr(between, "make", stubs)
    assert between._judged(run, "spec") == ("spec", "op", 3, "cuda:1")
    for name, value in {
        "Held": lambda run: bool,
        "built": lambda *args: args,
        "others_between": lambda run: ["ab"],
    }.items():
        monkeypatch.setattr(between, name, value)
    monkeypatch.setattr(between, "alone", lambda *args: SimpleNamespace(problem="it fails"))
    for name in ("_infer", "_replanned", "_failed", "differences"):
        monkeypatch.setattr(between, name, lambda *args: ())
    assert list(between.between(run, {})) == []
    assert noted == [("a", "op", "cuda:1")]


@pytest.mark.parametrize(
    ("others", "single", "expected"),
    [
        ("AB", "cd", ["A", "after a call with other options", "c", "d", "after calls with another c, with another d"]),
        ("-B", "-d", ["B", "after a call with other options", "d", "after calls with another -, with another d"]),
        ("-", "c", ["c", "after calls with another c"]),
        ("A", "", ["A", "after a call with other options"]),
    ],
)
def test_calls_with_other_options(others, single, expected, monkeypatch):
    """All options together once, where the kernel takes them, which "-" says it does not; then each alone."""
    stubs = {
        "other_options": lambda run: map(spec_of, others),
        "one_option": lambda run: ((spec_of(name), f"another {name}") for name in single),
        "built": lambda run, changed: spec_of("usual"),
        "_judged": lambda run, spec: spec,
        "_wrong": lambda run, one, why: [one.name],
        "differences": lambda run, one, words: [words[1]],
    }
    for name, value in stubs.items():
        monkeypatch.setattr(between, name, value)
    assert list(between._replanned(None, lambda spec: spec)) == expected


def spec_of(name):
    return SimpleNamespace(name=name, shape=(2,), problem="refused" if name == "-" else None)


RATIOS = {"y": [0.5, 1.0], "rstd": [0.5, 1.5], "a": None}


@pytest.mark.parametrize(
    ("found", "shaped", "expected"), [("y rstd a b", True, "y"), ("y rstd", False, "y rstd"), ("", True, "")]
)
def test_what_is_wrong_in_another_shape_too_is_left_out(found, shaped, expected, monkeypatch):
    asked, fresh = [], []

    def once_more(run):
        def again(kernel, case):
            fresh.append(kernel.run)
            assert case == "longer"
            ratios = {n: SimpleNamespace(ratio=None if r is None else np.array(r)) for n, r in RATIOS.items()}
            return SimpleNamespace(outputs=ratios | {"b": None})

        return again

    monkeypatch.setattr(between, "over_bound", lambda run, one, why: [Difference(n, why) for n in found.split()])
    monkeypatch.setattr(
        between, "other_shape", lambda run: asked.append(run.case.spec) or ("longer" if shaped else None)
    )
    monkeypatch.setattr(between, "once_more", once_more)
    monkeypatch.setattr(between, "_judged", lambda run, spec: spec)
    monkeypatch.setattr(module_calls, "anew", lambda function: f"{function} anew")
    run = run_of(rmsnorm)
    run = Run(replace(run.kernel, run="rmsnorm"), run.case, {})
    one = SimpleNamespace(case=SimpleNamespace(spec=replace(SPEC, eps=1.0)))
    assert [each.output for each in between._wrong(run, one, "why")] == expected.split()
    assert [spec.eps for spec in asked] == [1.0] * bool(found)
    assert fresh == ["rmsnorm anew"] * (bool(found) and shaped)
