"""What a call must leave: state of the process is put back, and what an argument is, is told."""

import sys

import pytest
import torch
from fake_gpu import OnGpu

from verify_norm.running import surroundings
from verify_norm.running.surroundings import Surroundings


class Other(torch.Tensor):
    """Another class of tensors."""


def gradient(x):
    x.grad = torch.zeros(2, 3)


def hook(x):
    x._backward_hooks = {0: print}


def method(x):
    x.sum = print


def kind(x):
    x.__class__ = Other


CHANGES = {
    "x is written to: torch's count of its versions changes from 0 to 1": lambda x: x.add_(1),
    "x.requires_grad changes from False to True": lambda x: x.add_(1).requires_grad_(),  # a write is part of it
    "x.grad changes from None to a tensor": gradient,
    "x.dtype changes from torch.float32 to torch.float64": lambda x: setattr(x, "data", torch.zeros(2, 3).double()),
    "x.shape changes from (2, 3) to (6,)": lambda x: setattr(x, "data", x.data.view(6)),
    "x.stride() changes from (3, 1) to (1, 2)": lambda x: setattr(x, "data", torch.zeros(3, 2).t()),
    "x._backward_hooks changes from 0 to 1": hook,
    "x gets sum of its own": method,
    "x.__class__ changes from Tensor to Other": kind,
}


def test_threads_switch_as_before_at_the_end():
    before = sys.getswitchinterval()
    with surroundings.switching(0.25):
        assert sys.getswitchinterval() == 0.25
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("words", CHANGES)
def test_what_a_call_changes_of_an_argument_is_told_of_each_one(words):
    other, x = torch.zeros(2, 3), torch.zeros(2, 3)
    before = Surroundings({"other": other, "eps": 1e-5, "weight": None, "x": x})
    CHANGES[words](other)
    CHANGES[words](x)
    told = before.changes()
    assert any(one.startswith(words) for one in told)
    assert any(one.startswith("other" + words[1:]) for one in told)
    assert not any("_version" in one for one in told)
    moved = [one.startswith(("x.data_ptr() changes", "other.data_ptr() changes")) for one in told]
    assert sum(moved) == 2 * ("dtype" in words or "stride" in words)
    assert len(told) - sum(moved) == 2 * (1 + ("(6,)" in words))  # with the stride
    assert type(x) is torch.Tensor
    assert "sum" not in vars(x)


def test_nothing_is_told_where_nothing_changes():
    x = torch.zeros(2, requires_grad=True)
    given = {"x": x, "y": x * 2, "eps": 1e-5}  # y is no leaf, of which torch does not like to tell a gradient
    given["x"].grad = torch.ones(2)
    assert Surroundings(given).changes() == ()


def test_an_argument_that_is_writable_may_be_written():
    x, y = torch.zeros(2), torch.zeros(2)
    before = Surroundings({"x": x, "y": y}, writable=("x",))
    x.add_(1)
    y.add_(1)
    (words,) = before.changes()
    assert words.startswith("y is written to")
    before = Surroundings({"x": x}, writable=("x",))
    x.requires_grad_()
    assert before.changes() == ("x.requires_grad changes from False to True",)


@pytest.fixture
def states(monkeypatch):
    """States of a process, of the judge and of a GPU, and what is put back."""
    now, restored = {"mode": 1, "flag": "on", "gpu": 0}, []

    def of(name):
        return lambda: now[name], lambda value: restored.append((name, value)) or now.update({name: value})

    monkeypatch.setattr(surroundings.state, "STATE", {name: of(name) for name in ("mode", "flag")})
    monkeypatch.setattr(surroundings.state, "OF_JUDGE", {"mode": of("mode")})
    monkeypatch.setattr(surroundings.state, "CUDA", {"gpu": of("gpu")})
    return now, restored


def changes_and_raises(now, **changes):
    now.update(changes)
    raise ValueError("no")


@pytest.mark.parametrize("gpu", [True, False])
def test_state_that_a_call_changes_is_put_back_and_told(states, gpu):
    now, restored = states
    x = torch.zeros(2).as_subclass(OnGpu) if gpu else torch.zeros(2)
    before = Surroundings({"y": torch.zeros(2), "x": x})
    now.update(flag="off", gpu=1)
    assert before.changes() == ("flag changes from on to off", *["gpu changes from 0 to 1"] * gpu)
    assert restored == [("flag", "on"), *[("gpu", 0)] * gpu]


def test_what_a_call_changes_is_told_where_it_raises(states):
    now, restored = states
    words, x = ["what was told before"], torch.zeros(2)
    with pytest.raises(ValueError, match="no"), surroundings.left(words, {"x": x}):
        changes_and_raises(now, mode=2)
    assert words == ["what was told before", "mode changes from 1 to 2"]
    assert restored == [("mode", 1)]
    with surroundings.left(words, {"x": x}, writable=("x",)):
        x.add_(1)
    assert len(words) == 2


@pytest.mark.parametrize("gpu", [True, False])
def test_the_judge_has_its_own_state_back(states, gpu):
    now, restored = states
    with pytest.raises(ValueError, match="no"), surroundings.restoring_judge(gpu=gpu):
        changes_and_raises(now, mode=2, flag="off", gpu=1)
    assert restored == [("mode", 1), *[("gpu", 0)] * gpu], "a flag that no call of its own depends on stays"
    with surroundings.restoring_judge(gpu=gpu):
        pass
    assert len(restored) == 1 + gpu, "what has not changed is not set"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (1, 2, "changes from 1 to 2"),
        ([1, 2, 3], [3, 4, 5, 6], "has 4 entries, of which 3 are new"),
        (
            {"a": 1, "b": 2, "c": 3, "z": 0},
            {"a": 1, "c": 4, "d": 5, "z": 0},
            "changes from {'b': 2, 'c': 3, 'd': None} to {'b': None, 'c': 4, 'd': 5}",
        ),
    ],
)
def test_of_many_entries_those_that_differ_are_told(before, now, words):
    assert surroundings._difference(before, now) == words
