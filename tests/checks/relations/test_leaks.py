"""What calls leave in memory: which calls count, how many are made, and what grows with all of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from checking import ROWS, run_of
from norms import layernorm
from torch.multiprocessing.reductions import StorageWeakRef

from verify_norm.cases import make
from verify_norm.checks.relations import leaks
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running import growth

RUN = run_of(layernorm(), replace(ROWS, shape=(2, 3)))


def storages(keep):
    """Stand for a call: it makes a tensor, which is kept by this function."""

    def call(run):
        tensor = torch.ones(1)
        keep(tensor)
        return [StorageWeakRef(tensor.untyped_storage())]

    return call


@pytest.mark.parametrize(("slow", "found"), [(False, ["each of 300 calls"]), (True, [])])
def test_a_tensor_of_each_of_many_calls_is_a_leak(monkeypatch, slow, found):
    kept = []
    monkeypatch.setattr(leaks, "_slow", lambda run: slow)
    monkeypatch.setattr(leaks, "_storages", storages(kept.append))
    assert [words[:17] for words in leaks.kept(RUN)] == found
    assert len(kept) == 300 * len(found)


@pytest.mark.parametrize(("kept_by", "calls"), [(1, 2), (19, 20), (299, 300)])
def test_calls_of_which_one_leaves_nothing_leak_not(monkeypatch, kept_by, calls):
    """They are 2, then 20, then 300: the first question is answered soon."""
    made, kept = [], []
    keep = lambda tensor: (made.append(1), len(made) <= kept_by and kept.append(tensor))  # noqa: E731
    monkeypatch.setattr(leaks, "_slow", lambda run: False)
    monkeypatch.setattr(leaks, "_storages", storages(keep))
    assert list(leaks.kept(RUN)) == []
    assert len(made) == calls


def test_what_refers_to_itself_is_no_leak(monkeypatch):
    def keep(tensor):
        cycle = [tensor]
        cycle.append(cycle)

    monkeypatch.setattr(leaks, "_slow", lambda run: False)
    monkeypatch.setattr(leaks, "_storages", storages(keep))
    assert list(leaks.kept(RUN)) == []


@pytest.mark.parametrize(
    ("calls", "held"),
    [
        ((), 0),
        (("a", "b"), 2),
        (("a", "a"), 1),  # one buffer that all calls use
        (("a", "ab"), 2),
        (("a", "b", "a"), 2),
        (("", "a"), 1),
        (("A", "a", "B"), 1),
    ],
)
def test_a_call_that_leaves_what_no_call_before_used_counts(calls, held):
    """A capital letter is a storage that is gone."""
    one = {s: SimpleNamespace(cdata=ord(s), expired=lambda: False) for s in "ab"}
    one |= {s: SimpleNamespace(cdata=ord(s), expired=lambda: True) for s in "AB"}
    references = [[one[s] for s in storages] for storages in calls]
    assert leaks._held(references) == held


class Clock:
    """Time that passes in calls alone."""

    def __init__(self, seconds=0.0):
        self.now, self.seconds = 5.0, seconds
        self.perf_counter = self.process_time = lambda: self.now

    def __call__(self, *_):
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize(
    ("seconds", "count", "made"),
    [(0.0, 5, 5), (0.0, 50, 50), (1.0, 5, 5), (1.0, 50, leaks.CALLS), (1 / 32, 50, 32), (1 / 64, 50, 50)],
)
def test_calls_that_take_long_are_fewer(monkeypatch, seconds, count, made):
    clock = Clock(seconds)
    monkeypatch.setattr(leaks, "time", clock)
    assert leaks._repeated(clock, count) == [5.0 + seconds * (number + 1) for number in range(made)]


@pytest.mark.parametrize(("seconds", "slow"), [(0.25, False), (0.5, True)])
def test_a_call_is_slow_above_a_limit(monkeypatch, seconds, slow):
    clock = Clock(seconds)
    monkeypatch.setattr(leaks, "SLOW", 0.25)
    monkeypatch.setattr(leaks, "time", clock)
    monkeypatch.setattr(leaks, "rerun", clock)
    assert leaks._slow(RUN) is slow


def test_sizes_are_those_of_the_kernel_of_its_instance_and_of_the_process():
    plans = [1, 2]
    reached = growth.containers(lambda: plans, SimpleNamespace(rows={3: 4}))
    sizes = leaks._sizes(reached)
    assert {("plans", 2), ("rows", 1)} <= set(sizes.values())
    plans.append(3)
    assert ("plans", 3) in leaks._sizes(reached).values()
    assert "the number of threads" in {name for name, _ in sizes.values()}


@pytest.fixture
def grown(monkeypatch):
    """What grows in two rounds of three calls, after one, of a kernel that does this with its number and containers."""

    def grown(adds, slow=False):
        number, plans, new = iter(range(10)), [], {}

        def kernel():
            adds(next(number), plans, new)
            return plans, new

        monkeypatch.setattr(leaks, "rerun", lambda run: (run.kernel.run(), SimpleNamespace(problem=None))[1])
        return list(leaks.grown(replace(RUN, kernel=replace(RUN.kernel, run=kernel))))

    monkeypatch.setattr(leaks, "ROUNDS", (3, 3))
    monkeypatch.setattr(leaks, "_slow", lambda run: False)
    monkeypatch.setattr(leaks.growth, "native", lambda: 0)
    return grown


@pytest.mark.parametrize(
    ("adds", "found"),
    [
        (lambda number, plans, new: plans.append(number), ["each of 6 calls adds to plans"]),
        (lambda number, plans, new: number > 3 and plans.append(number), []),  # in the second round alone
        (lambda number, plans, new: number < 4 and plans.append(number), []),
        (lambda number, plans, new: plans.append(number) if number < 4 else new.update({number: 1}), []),  # in turn
        (lambda number, plans, new: number != 5 and plans.append(number), []),  # all calls but one
        (lambda number, plans, new: new.update(last=[number]), []),  # another container in each call
    ],
)
def test_what_grows_by_one_in_each_call_of_each_round(grown, adds, found):
    assert grown(adds) == found


def test_tensors_that_a_call_takes_and_makes_are_recorded():
    case = make.case(CaseSpec((2, 3), poison="finite"), OPS["layernorm_fwd"], Contract())
    with leaks._Recording(case) as seen:
        empty = torch.empty(2)
        both = torch.var_mean(torch.ones(2, 3), 1)
        sums = torch.add(empty, empty, alpha=2)
        assert sums.sum().item() == 6 * case.poison
    assert empty.tolist() == [case.poison] * 2
    recorded = {reference.cdata for reference in seen.storages}
    given = [value for value in case.arguments.values() if isinstance(value, torch.Tensor)]
    assert len(given) == 3
    for tensor in (*given, empty, *both, sums):
        assert tensor.untyped_storage()._cdata in recorded
