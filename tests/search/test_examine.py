"""One case: what each check looks at, and what does not fit into GPU memory."""

from dataclasses import replace
from types import SimpleNamespace

import partial
import pytest
import torch
from norms import layernorm_bwd
from small_runs import run

from verify_norm.cases import agreement, make
from verify_norm.cases.gpu_memory import CrowdedError
from verify_norm.checks import CHECKS
from verify_norm.checks.honesty import EXPECTED
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData, Note, Observed, OverProbable, SmallestError, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.patience import LostError
from verify_norm.search import answers
from verify_norm.search import examine as examining
from verify_norm.search.examine import examine, examine_in
from verify_norm.search.examined import NO_ROOM, Examined
from verify_norm.search.search import replay

FULL = [
    torch.OutOfMemoryError("CUDA out of memory."),  # torch's allocator
    RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),  # CUDA's own
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("error", FULL)
def test_a_case_that_the_gpu_has_no_room_for_is_told_and_ends_nothing(monkeypatch, error, few_corners):
    few_corners(slice(45))
    case = make.case

    def full(spec, *args):
        if spec.dtype == "float32":
            raise error
        return case(spec, *args)

    monkeypatch.setattr(make, "case", full)
    report = run(examples=0, isolate=False)
    assert report.ok
    assert report.cases > 20
    assert any(skip.reason == NO_ROOM and skip.cases > 10 for skip in report.skipped)
    assert {tally.dtype for tally in report.tallies} == {"float16", "bfloat16"}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("error", FULL)
def test_a_check_that_the_gpu_has_no_room_for_takes_no_other_finding_with_it(monkeypatch, error):
    def full(ran):
        raise error

    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps, weight_offset, normalized_shape: x * 2)
    monkeypatch.setitem(CHECKS, "identities", replace(CHECKS["identities"], function=full, looks=lambda ran: True))
    report = replay(kernel, CaseSpec(shape=(3, 5)), Settings(isolate=False))
    assert "accuracy" in {finding.check for finding in report.findings}
    assert ("check identities", NO_ROOM) in {(skip.what, skip.reason) for skip in report.skipped}
    assert {result.name: result.cases for result in report.checks}["identities"] == 0


NAN = CaseSpec((4, 30), special="nan")
SMALL = CaseSpec((5, 64))
AGAIN = {"memory", "determinism", "calls", "effects", "modes", "honesty"}  # which look at any output


def test_what_the_kernel_does_not_take_is_not_run():
    kernel = Kernel(
        "k", "rmsnorm_fwd", run=partial.raises, unsupported=lambda spec: "rows of 8" if spec == NAN else None
    )
    assert examine(kernel, NAN, CHECK_NAMES, "cpu") == Examined(NAN, unsupported="rows of 8")
    assert examine(kernel, SMALL, CHECK_NAMES, "cpu").problem is not None


def test_a_device_that_computes_truths_must_agree_with_numpy(monkeypatch):
    asked = []
    monkeypatch.setattr(make, "judge_of", lambda spec, op, device: device if spec == SMALL else None)
    monkeypatch.setattr(agreement, "require", lambda op, device: asked.append((op, device)))
    for spec in (replace(SMALL, seed=1), SMALL):
        kernel = Kernel("k", "rmsnorm_fwd", run=partial.right)
        assert examine(kernel, spec, ("accuracy",), "cpu").looked == ("accuracy",)
    assert asked == [("rmsnorm_fwd", "cpu")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "spec", "looked"),
    [
        ("raises", NAN, {"signature"}),
        ("returns_nothing", NAN, {"signature"}),
        ("returns_none", SMALL, {"signature"}),
        ("returns_another_shape", NAN, {"signature", "batch_invariance", *AGAIN}),
        ("right", NAN, {"signature", "accuracy", "nonfinite", "batch_invariance", *AGAIN}),
        ("right", CaseSpec((0, 8)), {"signature", *AGAIN}),
        ("right", SMALL, set(CHECK_NAMES) - {"crash", "statistics", "sums", "nonfinite", "gradient", "autograd"}),
        ("right", replace(SMALL, further=()), {"signature", "accuracy", "memory", "effects", "honesty"}),
    ],
)
def test_a_check_looks_only_at_what_there_is(function, spec, looked):
    kernel = Kernel("k", "rmsnorm_fwd", run=getattr(partial, function))
    found = examine(kernel, spec, CHECK_NAMES, "cpu").looked
    assert set(found) == looked


@pytest.mark.slow
def test_a_check_whose_further_runs_the_kernel_refuses_has_no_data():
    def only(spec):
        return None if (spec.shape, spec.eps) == (SMALL.shape, SMALL.eps) else "another case"

    kernel = Kernel("k", "rmsnorm_fwd", run=partial.right, unsupported=only)
    assert "batch_invariance" not in examine(kernel, SMALL, CHECK_NAMES, "cpu").looked
    assert "degenerate" not in examine(kernel, SMALL, CHECK_NAMES, "cpu").looked
    assert "identities" in examine(replace(kernel, unsupported=None), SMALL, CHECK_NAMES, "cpu").looked


def test_a_long_sum_has_its_error_over_the_probable_error():
    kernel = Kernel("k", "layernorm_bwd", run=layernorm_bwd())
    tall = examine(kernel, CaseSpec((1025, 4)), ("sums",), "cpu")
    probable = {tally.output: tally.probable for tally in tall.tallies}
    assert probable["dx"] is None
    assert 0 < probable["dweight"] < 1
    assert 0 < probable["dbias"] < 1
    assert {tally.probable for tally in examine(kernel, SMALL, CHECK_NAMES, "cpu").tallies} == {None}
    assert {tally.probable for tally in examine(kernel, CaseSpec((1025, 4)), (), "cpu").tallies} == {None}


class Lonely:
    """A process of its own that runs nothing: a call returns what it is given, or makes of the checks, or raises it."""

    kernel, device, isolated = Kernel("k", "rmsnorm_fwd"), "cpu", True

    def __init__(self, *results):
        self.results, self.renewed, self.during = list(results), 0, ""

    def call(self, function, timeout, spec, checks, *_, **__):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result(checks) if callable(result) else result

    def announce(self, name):
        self.during = name

    def fresh(self):
        self.renewed += 1
        return self.isolated

    def stage(self):
        return self.during


@pytest.mark.parametrize("deadly", ["calls", "modes"])
def test_a_crash_in_a_further_run_names_its_check_and_the_others_run(deadly):
    runner = Lonely(LostError("it ended its process by SIGSEGV"), lambda checks: Examined(SMALL, looked=checks))
    runner.during = deadly
    examined = examine_in(runner, SMALL, ("calls", "memory", "modes"), 1.0)
    (found,) = examined.findings
    assert (found.check, found.during, found.spec) == ("crash", deadly, SMALL)
    assert set(examined.looked) == {"calls", "memory", "modes", "crash"} - {deadly}


def test_a_process_that_is_dead_is_replaced_and_one_that_is_not_is_kept():
    """`dead` is what a broken CUDA context leaves: the next call in that process would fail, whatever the case."""
    for dead in (True, False):
        runner = Lonely(Examined(SMALL, dead=dead))
        examine_in(runner, SMALL, CHECK_NAMES, 1.0)
        assert runner.renewed == dead


def test_a_call_of_ours_that_fails_in_cuda_is_made_again_in_a_new_process(monkeypatch):
    """Other processes can cause it, as by a GPU whose memory is full; each time it is an error of this tool."""
    monkeypatch.setattr(examining, "PAUSES", (0.0, 0.01))
    unknown, right = RuntimeError("CUDA error: unknown error"), Examined(SMALL, looked=("accuracy",))
    for often in (1, 2):
        runner = Lonely(*[unknown] * often, right)
        assert examine_in(runner, SMALL, CHECK_NAMES, 1.0) == replace(right, looked=("accuracy", "crash"))
        assert runner.renewed == often
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")  # the kernel's, seen late
    for errors, isolated in (
        ((unknown,) * 3, True),
        ((unknown,), False),
        ((RuntimeError("no"),), True),
        ((fault,), True),
    ):
        runner = Lonely(*errors, right)
        runner.isolated = isolated
        with pytest.raises(RuntimeError, match=str(errors[-1])):
            examine_in(runner, SMALL, CHECK_NAMES, 1.0)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_case_in_which_cuda_fails_on_a_crowded_gpu_is_left_out_after_some_tries(monkeypatch, isolated):
    monkeypatch.setattr(examining, "PAUSES", (0.0, 0.01))
    crowded, right = CrowdedError("CUDA error: unknown error"), Examined(SMALL, looked=("accuracy",))
    runner = Lonely(crowded, crowded, crowded)
    runner.isolated = isolated
    examined = examine_in(runner, SMALL, CHECK_NAMES, 1.0)
    assert examined == Examined(SMALL, unsupported=f"{examining.CROWDED}: CUDA error: unknown error")
    assert runner.renewed == (2 if isolated else 1)
    assert examine_in(Lonely(crowded, right), SMALL, CHECK_NAMES, 1.0).unsupported is None


def test_what_comes_back_from_a_process_of_its_own_has_not_crashed():
    """The check `crash` has looked wherever the kernel had a process of its own, whether it came back or not."""
    for checks, isolated, looked in (
        (CHECK_NAMES, True, ("accuracy", "crash")),
        (("accuracy",), True, ("accuracy",)),
        (CHECK_NAMES, False, ("accuracy",)),
    ):
        runner = Lonely(Examined(SMALL, looked=("accuracy",)))
        runner.isolated = isolated
        assert examine_in(runner, SMALL, checks, 1.0).looked == looked
    lost = examine_in(Lonely(LostError("it ended")), SMALL, CHECK_NAMES, 1.0)
    assert (lost.looked, [finding.check for finding in lost.findings]) == (("crash",), ["crash"])
    runner = Lonely(LostError("it ended"), Examined(SMALL, looked=("accuracy",)))
    runner.during = "calls"
    again = examine_in(runner, SMALL, ("accuracy", "calls"), 1.0)
    assert (again.looked, [finding.check for finding in again.findings]) == (("accuracy", "crash"), ["crash"])


def fake(*items, looks=True, called=None):
    """A check that yields these items, or raises one."""

    def function(run):
        if called is not None:
            called.append(run)
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item

    return SimpleNamespace(looks=lambda run: looks, function=function)


def examined_by(monkeypatch, checks, kernel=None, spec=SMALL, **options):
    """What these checks make of a case, and which of them were announced."""
    monkeypatch.setattr(answers, "CHECKS", checks)
    announced: list[str] = []
    kernel = kernel or Kernel("k", "rmsnorm_fwd", run=partial.right)
    return examine(kernel, spec, tuple(checks), "cpu", announced.append, **options), announced


def test_what_checks_yield_is_in_the_result(monkeypatch):
    found = Finding("k", "one", "y", "error", "wrong", SMALL)
    error, runs = SmallestError("y", 1, 0.25), []
    first = (found, Tried("a way", ("aten::norm",)), error, Observed(True), OverProbable("y", 0.5), Note("odd"))
    checks = {
        "one": fake(*first, called=runs),
        "two": fake(found, looks=False),
        "three": fake(NoData(), Tried("another")),
        "four": fake(torch.OutOfMemoryError("CUDA out of memory.")),
        "five": fake(Observed(False)),
    }
    got, announced = examined_by(monkeypatch, checks, rerun_seconds=7.0)
    assert announced == ["one", "three", "four", "five"]
    assert (got.looked, got.left_out, got.findings) == (("one", "five"), ("four",), (found,))
    assert got.detectable == (("one", error),)
    assert got.observed == (("one", True), ("five", False))
    assert got.ways == (("one", "a way"), ("three", "another"))
    assert (got.operators, got.notes) == (("aten::norm",), ("odd",))
    assert (got.spec, got.problem, got.unsupported, got.dead, got.hung) == (SMALL, None, None, False, False)
    (tally,) = got.tallies
    assert (tally.output, tally.probable) == ("y", 0.5)
    assert got.layouts == ("x contiguous", "weight contiguous")
    assert got.missing == ("rstd",)
    assert got.seconds > 0
    assert runs[0].rerun_seconds == 7.0


def test_no_check_runs_after_one_that_ended_a_thread_of_the_kernel(monkeypatch):
    got, announced = examined_by(monkeypatch, {"one": fake(Tried("vmap", ended=True)), "two": fake(Observed(True))})
    assert (announced, got.dead, got.observed) == (["one"], True, ())


def test_a_case_is_judged_under_another_contract_where_one_is_given(monkeypatch):
    runs: list = []
    kernel = Kernel("k", "rmsnorm_fwd", run=partial.right, contract=Contract(lanes=8))
    for contract, want in ((None, Contract(lanes=8)), (Contract(lanes=4), Contract(lanes=4))):
        examined_by(monkeypatch, {"one": fake(called=runs)}, kernel, contract=contract)
        assert runs[-1].kernel.contract == want


@pytest.mark.parametrize(
    ("layout", "tensor", "told", "near"),
    [
        ("far", torch.zeros(4, 6), "contiguous", True),  # there was no memory
        ("far", torch.zeros(8, 6)[::2], "far", False),
        ("far", torch.zeros(1, 6)[:, :1], "contiguous", False),  # one element is nowhere far from another
        ("far", None, "contiguous", False),
        ("every_other", torch.zeros(4, 12)[:, ::2], "every_other", False),
        ("contiguous", torch.zeros(4, 6), "contiguous", False),
    ],
)
def test_a_layout_beyond_memory_is_told_as_what_it_is(layout, tensor, told, near):
    case = SimpleNamespace(spec=CaseSpec((4, 6), x_layout=layout), arguments={"x": tensor})
    run = SimpleNamespace(case=case)
    assert (examining._layout(run, "x"), examining._near(run, "x")) == (told, near)


def test_an_error_of_a_check_is_one_of_this_tool(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        examined_by(monkeypatch, {"one": fake(ZeroDivisionError("ours"))})
    with pytest.raises(RuntimeError, match="device-side assert"):
        examined_by(monkeypatch, {"one": fake(RuntimeError("CUDA error: device-side assert triggered"))})
    monkeypatch.setattr(examining, "_dead", lambda device: True)
    got, _ = examined_by(monkeypatch, {"one": fake(RuntimeError("CUDA error: device-side assert triggered"))})
    (found,) = got.findings
    assert (found.check, found.kernel, found.output, found.status, found.spec) == ("crash", "k", None, "error", SMALL)
    assert found.message.startswith("it breaks the CUDA context of its process: RuntimeError: CUDA error: device-side")
    assert (got.spec, got.looked, got.dead) == (SMALL, ("crash",), True)


def test_a_full_gpu_leaves_the_case_out(monkeypatch):
    monkeypatch.setattr(
        examining, "execute", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out"))
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    got, announced = examined_by(monkeypatch, {"one": fake()})
    assert (got, announced) == (Examined(SMALL, unsupported=NO_ROOM), [])


def test_a_process_that_is_lost_is_told_in_its_words():
    """What a compiler takes is no fault; a call that the end of the run cut off is none; the rest is a crash."""
    late, long = LostError("no more time", late=True), LostError("it compiles for a minute", compiling=True)
    for error, expected in ((late, Examined(SMALL)), (long, Examined(SMALL, unsupported="it compiles for a minute"))):
        assert examine_in(Lonely(error), SMALL, CHECK_NAMES, 1.0) == expected
    runner = Lonely(LostError("it hangs", hung=True, measured="; other calls took 3 s"), Examined(SMALL))
    runner.during = "modes"
    got = examine_in(runner, SMALL, ("modes", "calls"), 1.0)
    (found,) = got.findings
    assert (found.message, found.during, got.looked, got.hung) == (
        "it hangs, in a further run near this case that the check modes makes; other calls took 3 s",
        "modes",
        ("crash",),
        True,
    )
    runner = Lonely(long, Examined(SMALL, looked=("calls",)))
    runner.during = "modes"
    got = examine_in(runner, SMALL, ("modes", "calls"), 1.0)
    assert (got.findings, got.slow, got.looked) == ((), ("modes",), ("calls",))


@pytest.mark.parametrize(
    ("further", "expected"), [((), [("judge", False)]), (("calls",), [("judge", False)]), (("honesty",), ["all", True])]
)
def test_functions_are_put_back_after_a_call_all_of_them_in_cases_of_honesty(further, expected, monkeypatch):
    monkeypatch.setattr(examining, "Functions", lambda of_torch: SimpleNamespace(replaced=lambda: of_torch))
    judge = SimpleNamespace(replaced=lambda ours=None: "all" if ours is None else ("judge", ours))
    assert [watch() for watch in examining._watch(judge, replace(SMALL, further=further))] == expected


def test_a_case_with_outputs_has_been_compared():
    assert examining._compared(Examined(SMALL, tallies=("of y",))) is True
    assert examining._compared(Examined(SMALL)) is False


def test_a_runner_gets_the_case_and_how_long_it_may_take():
    given: list = []
    runner = Lonely()
    runner.call = lambda *args: given.append(args) or Examined(SMALL)
    examine_in(runner, SMALL, ("calls",), 1.5, Contract(lanes=4), left=9.0, rerun_seconds=0.5)
    time = examining.Time(1.5, examining.types(SMALL), examining._compared, 9.0)
    assert given == [(examine, time, SMALL, ("calls",), "cpu", runner.announce, Contract(lanes=4), 0.5)]


def test_a_crash_is_an_error_of_the_kernel_with_the_words_of_its_process():
    got = examine_in(Lonely(LostError("it ended")), SMALL, CHECK_NAMES, 1.0)
    assert got == Examined(
        SMALL, findings=(Finding("k", "crash", None, "error", "it ended", SMALL),), looked=("crash",)
    )


class Judge:
    """The functions that a verdict rests on, of which these are found replaced."""

    def __init__(self, *names):
        self.names = names

    def replaced(self, *, ours=True):
        return self.names if ours else ()


@pytest.fixture
def judged(monkeypatch):
    """A judge of which one function is found replaced, and what says so."""
    monkeypatch.setattr(examining, "remembered", lambda: Judge("torch.allclose"))
    monkeypatch.setattr(examining, "Functions", lambda of_torch: Judge())
    words = f"it replaces torch.allclose, in a further run or an earlier case; {EXPECTED}"
    return Finding("k", "honesty", None, "fail", words, SMALL)


def test_what_was_replaced_is_found_where_this_tool_itself_goes_wrong(monkeypatch, judged):
    checks = {"honesty": fake(), "one": fake(ValueError("ours"))}
    assert examined_by(monkeypatch, checks)[0] == Examined(SMALL, findings=(judged,), looked=("honesty",))
    with pytest.raises(ValueError, match="ours"):
        examined_by(monkeypatch, {"one": fake(ValueError("ours"))})  # nobody asked for honesty


def test_cases_of_honesty_end_with_a_look_at_all_functions(monkeypatch, judged):
    wrong = Finding("k", "one", "y", "error", "wrong", SMALL)
    for further, found in ((("honesty",), True), (("calls",), False)):
        spec = replace(SMALL, further=further)
        got, _ = examined_by(monkeypatch, {"honesty": fake(), "one": fake(wrong)}, spec=spec)
        during = Finding("k", "honesty", None, "fail", judged.message, spec)
        assert got.findings == (wrong, *[during] * found)
        assert examined_by(monkeypatch, {"one": fake(wrong)}, spec=spec)[0].findings == (wrong,)


def test_the_call_is_watched_where_honesty_is_asked_for(monkeypatch, judged):
    watched: list = []
    execute = examining.execute

    def executed(kernel, case, watch=None):
        watched.append((watch is not None, kernel.forward_run.untimed))
        return execute(kernel, case, watch=watch)

    monkeypatch.setattr(examining, "execute", executed)
    kernel = Kernel("k", "rmsnorm_fwd", run=partial.right, forward_run=partial.right)
    for name in ("honesty", "one"):
        examined_by(monkeypatch, {name: fake()}, kernel)
    assert watched == [(True, partial.right), (False, partial.right)]


def test_what_a_kernel_refuses_in_a_call_is_not_supported(monkeypatch):
    monkeypatch.setattr(examining, "execute", lambda *_, **__: SimpleNamespace(refused=True, problem="not on Mondays"))
    assert examined_by(monkeypatch, {"one": fake()})[0] == Examined(SMALL, unsupported="not on Mondays")


def test_limits_slow_checks_and_tensors_without_memory_are_told(monkeypatch):
    execute = examining.execute
    monkeypatch.setattr(examining, "execute", lambda *a, **k: replace(execute(*a, **k), limits=("size",)))
    monkeypatch.setattr(examining, "slow", lambda run: ("one", "other"))
    monkeypatch.setattr(examining, "_near", lambda run, name: name == "x")
    got, _ = examined_by(monkeypatch, {"one": fake()})
    assert (got.limits, got.slow, got.near) == (("size",), ("one",), ("x",))


def test_layouts_are_those_of_what_no_forward_saves():
    kernel = Kernel("k", "layernorm_bwd", run=layernorm_bwd)
    told = examine(kernel, SMALL, (), "cpu").layouts
    assert told == ("dy contiguous", "x contiguous", "weight contiguous", "bias contiguous")


def test_only_a_device_that_computes_truths_is_asked_whether_it_agrees(monkeypatch):
    asked: list = []
    monkeypatch.setattr(make, "judge_of", lambda *args: asked.append(args))
    monkeypatch.setattr(agreement, "require", lambda *args: pytest.fail("NumPy computes this one"))
    monkeypatch.setattr(examining, "execute", lambda *_, **__: SimpleNamespace(refused=True, problem=None))
    examined_by(monkeypatch, {"one": fake()})
    assert asked[0] == (SMALL, OPS["rmsnorm_fwd"], "cpu")


def test_what_a_case_compiled_and_what_it_held_on_the_gpu(monkeypatch):
    totals, released = iter((3, 10)), []

    class Meter:
        total = property(lambda self: next(totals))

        def watch(self):
            """Take note of nothing."""

    monkeypatch.setattr(examining, "METER", Meter())
    monkeypatch.setattr(examining.gpu_memory, "release", released.append)
    got, _ = examined_by(monkeypatch, {"one": fake()})
    assert (got.compiled, released) == (7, ["cpu"])
    totals = iter((3, 10))
    examined_by(monkeypatch, {"one": fake(Tried("vmap", ended=True))})
    assert released == ["cpu"], "a process that can run nothing more has nothing to release"


def test_a_full_gpu_is_no_broken_one(monkeypatch):
    monkeypatch.setattr(examining, "execute", lambda *_, **__: (_ for _ in ()).throw(FULL[1]))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(examining, "_dead", lambda device: True)
    assert examined_by(monkeypatch, {"one": fake()})[0] == Examined(SMALL, unsupported=NO_ROOM)


def test_what_others_take_of_a_gpu_is_told_as_that(monkeypatch):
    asked: list = []
    monkeypatch.setattr(examining.gpu_memory, "taken_by_others", lambda *args: asked.append(args) or True)
    ours = RuntimeError("CUDA error: unknown error\nSearch for it")
    with pytest.raises(CrowdedError, match=r"^RuntimeError: CUDA error: unknown error$"):
        examined_by(monkeypatch, {"one": fake(ours)})
    assert asked[-1] == (ours, torch.device("cpu"))


def test_a_device_is_dead_if_nothing_runs_there_any_more(monkeypatch):
    asked: list = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    assert [examining._dead(device) for device in ("cuda:1", "cpu")] == [False, False]
    assert asked == ["cuda:1"]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: (_ for _ in ()).throw(RuntimeError("CUDA error")))
    assert examining._dead("cuda:1") is True


def test_what_is_not_returned_not_expected_or_of_another_shape_has_no_tally():
    right = examining.execute(
        Kernel("k", "rmsnorm_fwd", run=partial.right), make.case(SMALL, OPS["rmsnorm_fwd"], Contract())
    )
    y, want = right.outputs["y"], right.case.expected["y"]
    for output, expected, there in (
        (y, want, True),
        (None, want, False),
        (y, None, False),
        (None, None, False),
        (replace(y, ratio=None), want, False),
    ):
        case = SimpleNamespace(expected={"y": expected}, spec=SMALL)
        run = SimpleNamespace(outputs={"y": output}, case=case)
        assert (examining._tally(run, "y") is not None) == there
