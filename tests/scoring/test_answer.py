"""What a report is worth, and how fast a kernel is by scripted clocks: fast, and without another process."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from norms import layernorm_bwd, rmsnorm

from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Detectable, Skip
from verify_norm.running.patience import LostError
from verify_norm.scoring import reward as scored
from verify_norm.scoring import timing
from verify_norm.search import search
from verify_norm.search.reporting import make_report

SPEC = CaseSpec((2, 8))
KERNEL = Kernel("k.py:k", "rmsnorm_fwd", run=lambda x: x, target="k.py:k")
WRONG = Finding("k", "accuracy", "y", "fail", "y[0, 1] is wrong", SPEC)
DONE = Coverage(50, 40, 40, 0, 50, {"y": 50})
POWER = tuple(Detectable(check, "y", "float32", 9, e) for check, e in (("accuracy", 0.25), ("sums", 0.5)))


def report(**found):
    checks = (CheckResult("accuracy", "", 50, 0),)
    usual = {"findings": (), "tallies": (), "checks": checks, "skipped": (), "layouts": {}, "coverage": DONE}
    usual |= {"cases": 50, "seconds": 1.0, "seconds_in_kernel": 0.5, "detectable": POWER}
    return make_report(KERNEL, Settings(untrusted=True), {}, **(usual | found))


ANSWERS = {  # what a report has: whether that is correct, and a part of why it is not
    "nothing": ({}, True, ""),
    "a finding": ({"findings": (WRONG, replace(WRONG, check="sums"))}, False, "accuracy: y[0, 1] is wrong"),
    "a table that was not finished": ({"coverage": replace(DONE, corners_done=39, ended="over")}, False, "39 of 40"),
    "nothing compared": ({"coverage": replace(DONE, compared=0, outputs={})}, False, "nothing was checked"),
    "an interruption": ({"interrupted": True}, False, "incomplete"),
    "a stated limit": ({"skipped": (Skip("cases", "rows of 8", 3, limit=True),)}, False, "it refuses cases: rows of 8"),
    "another reason": ({"skipped": (Skip("cases", "many rows are slow", 3),)}, True, ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_report_is_worth(name):
    found, correct, why = ANSWERS[name]
    answer = scored._answer(report(**found), 7)
    assert (answer.correct, answer.seed, answer.cases, answer.speedup) == (correct, 7, 50, None)
    assert why in answer.why
    assert bool(answer.why) is not correct
    assert answer.power == {"y float32": 0.25}
    assert bool(answer.replay) == ("findings" in found)
    assert "--untrusted" in answer.replay or not answer.replay


@pytest.fixture
def rewarded(monkeypatch):
    """The reward where the search reports this, and the timing says that; `timed` has the baselines of timed runs."""
    timed = []

    def run(found, faster, **options):
        def speedup(kernel, against, settings, shape, seconds):
            timed.append(against)
            return faster()

        asked = SimpleNamespace(only=lambda: KERNEL, settings=Settings())
        monkeypatch.setattr(scored, "subject", lambda *_: None)
        loaded = SimpleNamespace(target="k.py:k", op="rmsnorm_fwd", bind="", only="")
        monkeypatch.setattr(scored, "narrowed", lambda *_: loaded)
        monkeypatch.setattr(scored, "request", lambda *_, **__: asked)
        monkeypatch.setattr(search, "search", lambda *_: found)
        monkeypatch.setattr(timing, "speedup", speedup)
        return scored.reward("k.py:k", "rmsnorm_fwd", device="cpu", seed=7, **options), timed

    return run


def wrong_when_timed():
    raise timing.TimedWrongError("y is beyond its error bound")


def test_a_right_kernel_has_its_speedup(rewarded):
    found, timed = rewarded(report(), lambda: 2.0)
    assert (found.correct, found.speedup, found.baseline) == (True, 2.0, "rmsnorm_fwd_torch")
    assert timed == ["rmsnorm_fwd_torch"]
    assert rewarded(report(), lambda: None, baseline="b")[0].speedup is None
    assert timed.pop() == "b"
    found, timed = rewarded(report(), lambda: 3.0, baseline="")
    assert (found.correct, found.speedup, timed) == (True, None, ["rmsnorm_fwd_torch"])


def test_a_wrong_kernel_is_not_timed_and_one_that_is_wrong_when_timed_is_wrong(rewarded):
    found, timed = rewarded(report(findings=(WRONG,)), lambda: 2.0)
    assert (found.correct, found.speedup, timed) == (False, None, [])
    found, _ = rewarded(report(), wrong_when_timed)
    assert (found.correct, found.speedup) == (False, None)
    assert found.why == "in a timed call y is beyond its error bound"


class Place:
    """A process that takes scripted times, and notes the cases that it gets."""

    def __init__(self, seconds, wrong="", lost=()):
        self.device, self.seconds, self.wrong, self.lost, self.specs, self.closed = "cpu", seconds, wrong, lost, [], 0

    def call(self, function, time, spec, device):
        self.specs.append(spec)
        if len(self.specs) in self.lost:
            raise LostError("it ended its process")
        return (0.0 if len(self.specs) == 1 else self.seconds + len(self.specs) / 1000), self.wrong

    def close(self):
        self.closed += 1


def timed(monkeypatch, *places, seconds=60.0, **settings):
    left = iter(places)
    monkeypatch.setattr(timing, "runner", lambda *_, **__: next(left))
    monkeypatch.setattr(timing, "request", lambda *_, **__: SimpleNamespace(only=lambda: KERNEL))
    options = Settings(dtypes=("float32", "bfloat16"), **{"seed": 2**64 - 1} | settings)
    try:
        return timing.speedup(KERNEL, "b", options, (8, 64), seconds)
    finally:
        assert [place.closed for place in places] == [1] * len(places)


def test_the_speedup_is_of_calls_with_inputs_of_their_own(monkeypatch):
    """Of all but the first, which builds; a baseline and a kernel get the same."""
    places = Place(3.0), Place(5.0), Place(1.0)
    assert timed(monkeypatch, *places) == pytest.approx(2.0, rel=0.01)
    for place in places:
        assert [spec.seed for spec in place.specs] == list(range(timing.CALLS + 1))
        assert {(spec.dtype, spec.shape, spec.x_layout, spec.further) for spec in place.specs} == {
            ("bfloat16", (8, 64), "own", ())
        }


def test_the_time_that_is_over_ends_it_after_a_few_calls(monkeypatch):
    places = Place(3.0), Place(5.0), Place(1.0)
    assert timed(monkeypatch, *places, seconds=-1.0) is not None
    assert len(places[0].specs) == timing.FEWEST + 1


def test_what_is_wrong_in_a_timed_call_has_no_time(monkeypatch):
    with pytest.raises(timing.TimedWrongError, match="y is off"):
        timed(monkeypatch, Place(3.0, "y is off"), Place(5.0), Place(1.0))
    with pytest.raises(timing.TimedWrongError, match="it ended its process"):
        timed(monkeypatch, Place(3.0, lost=(3,)), Place(5.0), Place(1.0))
    with pytest.raises(UsageError, match="baseline: b is wrong: y is off"):
        timed(monkeypatch, Place(3.0), Place(5.0, "y is off"), Place(1.0))


def of(gradients):
    right = layernorm_bwd()

    def backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        return gradients(*right(dy, x, weight, bias, mean, rstd, eps, normalized_shape))

    return backward


CALLS = {  # what a backward makes of its gradients: what is wrong with it
    "right": (lambda dx, dw, db: (dx, dw, db), ""),
    "one alone": (lambda dx, dw, db: {"dweight": dw}, ""),
    "dx": (lambda dx, dw, db: (2 * dx, dw, db), "dx is beyond its error bound, or of another shape"),
    "dbias": (lambda dx, dw, db: (dx, dw, 2 * db), "dbias is beyond"),
    "a shape": (lambda dx, dw, db: (dx[:1], dw, db), "dx is beyond"),
    "NaN": (lambda dx, dw, db: (dx, torch.full_like(dw, torch.nan), db), "dweight is beyond"),
    "a failure": (lambda dx, dw, db: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_output_of_a_timed_call_is_judged(name):
    gradients, said = CALLS[name]
    kernel = Kernel("k", "layernorm_bwd", run=of(gradients), contract=Contract())
    seconds, wrong = timing.timed_call(kernel, CaseSpec((8, 64), x_layout="own", further=()), "cpu")
    assert said in wrong
    assert bool(wrong) == bool(said)
    assert seconds > 0


def test_a_shape_that_is_no_case_is_one_line():
    settings = Settings(device="cpu")
    with pytest.raises(UsageError, match=r"shape: .* is no case of the kernel: rows of 8"):
        timing._timed_case(replace(KERNEL, unsupported=lambda spec: "rows of 8"), settings, None)
    assert timing._timed_case(replace(KERNEL, run=rmsnorm()), settings, None).shape == timing.SHAPES["cpu"]["rows"]
