"""The cases of a run one after the other, with scripted results: which run, what counts, and what ends them."""

from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace

import pytest

from verify_norm.cases import values
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.core.work import Compiled
from verify_norm.running.isolate import InProcess
from verify_norm.search import sweep
from verify_norm.search.collector import Collector
from verify_norm.search.crew import Crew, Lane, Over, at_once
from verify_norm.search.drawing import OTHERS
from verify_norm.search.examined import NO_MEMORY, Examined
from verify_norm.search.pace import Pace
from verify_norm.search.sweep import HANGS, Sweep

SPECS = [CaseSpec((2, n)) for n in range(1, 10)]
WRONG = Finding("k", "accuracy", "y", "fail", "y is wrong", SPECS[0])


@pytest.fixture
def swept(monkeypatch):
    """Make a sweep whose cases show what a function says of them; `ran` has the cases that ran."""

    def make(shows=lambda spec: {}, table=(), large=(), until=None, deadline=inf, **settings):
        kernel = Kernel("k", "rmsnorm_fwd", run=lambda x: x)
        state = Collector(kernel, Settings(isolate=False, **{"examples": 0} | settings), InProcess(kernel, "cpu"))
        ran, told = [], []

        def examined(state, runner, spec, checks, **options):
            ran.append(spec)
            return Examined(spec, **{"tallies": (Tally("y", "float32", cases=1, ratio=0.5),)} | shows(spec))

        monkeypatch.setattr(sweep, "examine_for", examined)
        monkeypatch.setattr(sweep, "corner_table", lambda *_: (list(table), list(large)))
        made = Sweep(state, Crew(state.runner), lambda *counts: told.append(counts), until, deadline, 0.5)
        return made, state, ran, told

    return make


def left_out(state):
    """The cases that did not run, by reason."""
    return {reason: count for (what, reason), count in state.skipped.items() if what == "cases"}


def test_a_case_that_does_not_fit_into_memory_is_left_out(swept):
    def shows(spec):
        if spec == SPECS[4]:
            raise MemoryError("Unable to allocate 7 TiB")
        return {}

    made, state, ran, _ = swept(shows, table=SPECS)
    made.run([])
    assert ran == SPECS
    assert (state.cases, state.refused, left_out(state)) == (8, 1, {NO_MEMORY: 1})


def test_each_case_of_the_table_runs_once_and_counts(swept):
    """One that comes twice, as a model's shape that is a corner too, runs once."""
    made, state, ran, told = swept(table=[*SPECS, SPECS[3]])
    made.run([SPECS[4]])
    assert ran == [SPECS[4], *SPECS[:4], *SPECS[5:]]
    assert (state.cases, state.corners, state.corners_done, state.planned, made.met) == (9, 11, 11, 11, 11)
    assert told[-1] == (9, 11, 0)
    assert (state.ended, left_out(state)) == ("", {})


def test_a_random_case_that_ran_before_shows_nothing_new(swept):
    made, state, ran, _ = swept()
    lane = Lane(state.runner, at_once)
    made.chosen.add(SPECS[0])
    shown = [made.drawn(lane, spec) for spec in (SPECS[0], SPECS[1], SPECS[1], SPECS[2])]
    assert shown == [{"error/bound": ratio} for ratio in (0.0, 0.5, 0.0, 0.5)]
    assert ran == SPECS[1:3]
    assert made.met == 4


def test_others_of_a_shape_follow_a_random_case_and_new_ones_where_it_comes_again(swept):
    made, state, ran, _ = swept(lambda spec: {"tallies": (Tally("y", "float32", ratio=spec.shape[1] / 2),)})
    lane = Lane(state.runner, at_once)
    shown = [made.drawn(lane, spec, 2) for spec in (SPECS[0], SPECS[1], SPECS[0])]
    op = OPS["rmsnorm_fwd"]
    few = [list(values.others(spec, op, range(4))) for spec in SPECS[:2]]
    assert ran == [SPECS[0], *few[0][:2], SPECS[1], *few[1][:2], *few[0][2:]]
    assert shown == [{"error/bound": ratio} for ratio in (0.5, 1.0, 0.0)]
    assert made.met == 9


def test_explorations_that_draw_one_shape_give_it_other_values(swept):
    made, state, ran, _ = swept()
    for number in (0, 1):
        made.drawn(Lane(state.runner, at_once, exploration=number), SPECS[0], 3)
    assert len(ran) == 8
    assert len(set(ran)) == 7, "the case itself comes twice"


def test_what_the_kernel_refuses_has_no_others(swept):
    made, state, ran, _ = swept(lambda spec: {"unsupported": "no", "tallies": ()})
    made.drawn(Lane(state.runner, at_once), SPECS[0], 5)
    assert ran == SPECS[:1]
    assert made.met == 6


def test_a_case_that_two_processes_drew_counts_once(swept):
    made, state, _, _ = swept()
    for _ in range(2):
        made.drawn(Lane(state.runner, at_once), SPECS[0])
    assert (state.cases, made.met) == (1, 2)


def test_random_cases_come_last_and_are_told_from_the_others(swept, monkeypatch):
    monkeypatch.setattr(sweep, "covering_cases", lambda *_: SPECS[2:5])
    made, state, ran, _ = swept(lambda spec: drawn.append(state.drawn) or {}, table=SPECS[:2], examples=7)
    drawn = []
    made.run([])
    assert ran[:5] == SPECS[:5]
    assert drawn == [False] * 5 + [True] * len(drawn[5:])
    assert len(drawn[5:]) in range(1, 1 + OTHERS["cpu"] + 1), "one shape, with others unless they are alike"
    assert state.planned == made.met == 2 + 3 + 1 + OTHERS["cpu"]


@pytest.mark.parametrize("hung", [HANGS - 1, HANGS, HANGS + 1])
def test_a_kernel_that_hangs_often_ends_the_run(swept, hung):
    made, state, ran, _ = swept(lambda spec: {"hung": spec in SPECS[:hung]}, table=SPECS)
    made.run([])
    assert HANGS == 4
    assert state.hangs == min(hung, HANGS)
    assert (len(ran), bool(state.ended)) == ((9, False) if hung < HANGS else (HANGS + 1, True))
    assert sum(left_out(state).values()) == (9 - HANGS if hung >= HANGS else 0)


@pytest.mark.parametrize(
    ("shows", "runs"),
    [({}, 6), ({"findings": (WRONG,)}, 3), ({"findings": (WRONG,), "limits": ("size",), "problem": "no"}, 6)],
)
def test_a_share_of_the_time_is_kept_once_there_is_a_finding(swept, monkeypatch, shows, runs):
    """Of 6 s with one for each case, 3; what the kernel refuses in words may be none."""
    seconds = iter(range(1000))
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: next(seconds) / 3)  # read three times in a case
    made, state, ran, _ = swept(lambda spec: shows, table=SPECS, deadline=6.0, seconds=6.0)
    made.run([])
    assert len(ran) == pytest.approx(runs, abs=1)
    kept = ", less 3 s to study the findings" if runs == 3 else ""
    assert state.ended == f"the time limit of 6 s was reached{kept}"
    assert left_out(state) == {state.ended: len(SPECS) - len(ran)}


def test_the_search_ends_at_the_finding_that_it_is_for(swept):
    found = {SPECS[2]: "sums", SPECS[5]: "accuracy"}

    def shows(spec):
        return {"findings": (replace(WRONG, check=found[spec], spec=spec),)} if spec in found else {}

    made, state, ran, _ = swept(shows, table=SPECS, until=lambda finding: finding.check == "accuracy")
    made.run([])
    assert ran == SPECS[:6]
    assert state.ended == "the search was for this finding"


@dataclass
class Allowing:
    """A pace that allows what it is told."""

    allowed: list[bool]
    most: float = 1.5
    rerun_seconds: float = 1.0
    seconds: float = 60.0
    over = Pace.over
    asked: list = field(default_factory=list)

    def allows(self, wanted):
        self.asked.append(wanted)
        return self.allowed.pop(0)

    def learn(self, taken, seconds, inside):
        assert seconds >= inside


def test_large_corner_cases_run_as_far_as_the_kernels_time_allows(swept):
    large = [CaseSpec((2, 2**20)), CaseSpec((2, 2**20), seed=1)]
    made, state, ran, _ = swept(table=SPECS, large=large, seconds=60.0)
    state.pace = Allowing([True, False, False])
    made.run([])
    assert ran == [*SPECS, large[0]]
    assert (state.corners, state.corners_done, state.planned) == (10, 10, 10)
    assert left_out(state) == {
        "many rows are slow: one case would take over 1.5 s, its share of the 60 s of the run (--seconds)": 1
    }


def test_what_a_journal_has_does_not_run_again(swept):
    made, state, ran, _ = swept(table=SPECS)
    state.journal.done[SPECS[1]] = Examined(SPECS[1], findings=(WRONG,))
    try:
        made.run([])
    finally:
        state.journal.done.clear()
    assert SPECS[1] not in ran
    assert (state.cases, len(state.findings)) == (9, 1)


def test_a_case_that_is_none_of_the_operators_counts_as_refused(swept, monkeypatch):
    monkeypatch.setattr(sweep.geometry, "refusal", lambda spec, op: "no" if spec == SPECS[0] else None)
    made, state, ran, _ = swept(table=SPECS[:2])
    made.run([])
    assert (ran, state.refused, state.cases) == ([SPECS[1]], 1, 1)


def test_ctrl_c_that_got_lost_ends_the_run(swept):
    made, state, ran, _ = swept(table=SPECS)
    state.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        made.run([])
    assert (ran, made.found) == ([], False)
    assert issubclass(Over, BaseException)


@pytest.mark.parametrize("slower", [None, 3.0])
def test_a_case_may_take_as_long_as_its_size_and_the_settings_say(slower, monkeypatch):
    asked, sized = [], []
    monkeypatch.setattr(sweep, "examine_in", lambda *given, **options: asked.append((given, options)))
    monkeypatch.setattr(sweep.patience, "of_case", lambda *given: sized.append(given) or 5.0)
    spec, contract = CaseSpec((3, 8), batch=12), Contract(lanes=4)
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x: x)
    state = Collector(kernel, Settings(isolate=False, timeout=7.0), InProcess(kernel, "cpu"))
    options = {} if slower is None else {"slower": slower}
    sweep.examine_for(
        state, state.runner, spec, ("accuracy",), contract=contract, left=2.0, rerun_seconds=0.5, **options
    )
    assert sized == [(7.0, "cpu", 96)]  # of the batch
    given = (state.runner, spec, ("accuracy",), 5.0 * (slower or 1.0), contract)
    assert asked == [(given, {"left": 2.0, "rerun_seconds": 0.5})]


def test_the_table_is_asked_for_the_types_of_the_kernel_and_pairs_where_random_cases_run(swept, monkeypatch):
    asked, of_pairs = [], []
    monkeypatch.setattr(sweep.covering, "Pairs", lambda *given, **options: of_pairs.append((given, options)))
    for more in (
        {},
        {"examples": 5},
        {"examples": 5, "shapes": "models"},
        {"examples": 5, "tables": False},
        {"examples": 5, "dtypes": ("float16",)},
    ):
        made, state, *_ = swept(**more)
        monkeypatch.setattr(sweep, "corner_table", lambda *given: asked.append(given) or ([], []))
        next(made.parts(()))  # the part between the cases of the table and random ones
        assert asked == ([(state, state.settings.dtypes)] if state.settings.tables else [])
        asked.clear()
    op = OPS["rmsnorm_fwd"]
    assert of_pairs == [
        ((op, ("float32", "float16", "bfloat16")), {"frozen": False, "gpu": False}),
        ((op, ("float16",)), {"frozen": False, "gpu": False}),
    ]


@pytest.mark.parametrize(
    ("planned", "met", "ended", "left"), [(5, 3, "", 2), (3, 3, "", 0), (4, 3, "", 1), (5, 3, "x", 0)]
)
def test_what_did_not_run_is_counted_with_the_first_reason(swept, planned, met, ended, left):
    made, state, *_ = swept()
    state.planned, made.met, state.ended = planned, met, ended
    state.skipped["cases", "late"] = 10
    made.end("late")
    assert left_out(state) == {"late": 10 + left}
    assert state.ended == (ended or "late")


def test_a_case_that_takes_too_long_is_a_corner_only_where_it_is_one(swept):
    made, state, *_ = swept()
    state.planned = state.corners = 10
    made.leave_out(Lane(state.runner, at_once), "slow", SPECS[0])
    made.leave_corner_out(SPECS[0])
    assert (sum(left_out(state).values()), state.planned, state.corners) == (2, 8, 9)


def test_a_corner_case_that_looks_slow_at_first_has_another_chance_at_the_end_of_the_table(swept):
    """It comes early, when only cases of few rows have told what a row takes; equal ones count each."""
    large = [CaseSpec((2, 2**20)), CaseSpec((2, 2**20), seed=1), CaseSpec((2, 2**20))]
    made, state, ran, _ = swept(table=SPECS, large=large, seconds=60.0)
    state.pace = Allowing([False, False, False, True, False, True])
    made.run([])
    assert ran == [*SPECS, large[0]]
    assert (state.corners, state.corners_done, state.planned, made.met) == (11, 11, 11, 11)
    assert (sum(left_out(state).values()), state.ended) == (1, "")


def test_a_corner_case_that_waits_when_all_others_are_over_is_left_out(swept):
    made, state, *_ = swept(table=SPECS[:1])
    made.waiting[SPECS[1]].append(lambda lane: None)
    made.run([])
    assert (sum(left_out(state).values()), state.corners) == (1, 0)


def test_the_cases_in_which_pairs_meet_are_those_beside_the_table_and_random_ones_follow(swept, monkeypatch):
    asked, drawings = [], []
    monkeypatch.setattr(sweep, "covering_cases", lambda *given: asked.append(given) or SPECS[3:5])

    class Drawn:
        def __init__(self, *given, **options):
            drawings.append([given, options])

        def planned(self, usual_ones):
            return 3 * usual_ones

        def first(self):
            drawings[-1].append("before the pairs" if SPECS[3] not in ran else "late")
            return []

        def parts(self, usual_ones):
            drawings[-1].append(usual_ones)
            return []

    monkeypatch.setattr(sweep, "Drawing", Drawn)
    made, state, ran, _ = swept(table=SPECS[:2], large=SPECS[2:3], examples=9)
    state.kernel = replace(state.kernel, autograd=True)
    made.run([])
    types = state.settings.dtypes
    assert asked == [(state, types, tuple(SPECS[:3]))]
    given = OPS["rmsnorm_fwd"], types, state.settings, state.pace
    options = {
        "one": made.drawn,
        "leave_out": made.leave_out,
        "left": made.left,
        "frozen": True,
        "others": OTHERS["cpu"],
    }
    assert drawings == [[given, options, "before the pairs", 9 - 2]]
    assert ran == SPECS[:5]
    assert state.planned == 3 + 2 + 3 * 7


def test_a_large_case_is_judged_by_the_size_of_its_batch(swept):
    made, state, *_ = swept(table=SPECS[:1], large=[CaseSpec((2, 8), batch=50)])
    state.pace = Allowing([True])
    made.run([])
    assert state.pace.asked == [(50, 400)]


@pytest.mark.parametrize(("found", "last"), [(False, 10.0), (True, 7.0)])
def test_a_case_runs_up_to_the_end_of_the_time(swept, monkeypatch, found, last):
    """Of 6 s half is kept once something was found."""
    now = [last]
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: now[0])
    made, state, ran, _ = swept(deadline=10.0, seconds=6.0)
    made.found = found
    lane = Lane(state.runner, at_once)
    made.one(lane, SPECS[0])
    now[0] += 0.001
    with pytest.raises(Over, match="the time limit of 6 s was reached"):
        made.one(lane, SPECS[1])
    assert ran == SPECS[:1]


def test_what_was_found_stays_found(swept):
    made, *_ = swept(lambda spec: {"findings": (WRONG,)} if spec == SPECS[1] else {}, table=SPECS[:3])
    seen = []
    made.progress = lambda *counts: seen.append(made.found)
    made.run([])
    assert seen == [False, True, True]


@pytest.mark.parametrize(("looked", "size"), [("determinism", (60, 480)), ("accuracy", (2, 16))])
def test_the_pace_learns_what_a_case_took_with_its_batch_if_that_ran(swept, monkeypatch, looked, size):
    now = [100.0]
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: now[0])
    inside = {3: 0.5, 4: 9.0}  # of a case in the journal, what it took then

    def shows(spec):
        now[0] += 2.0
        return {"looked": (looked,), "seconds": inside[spec.seed]}

    made, state, *_ = swept(shows)
    for seed in inside:
        made.one(Lane(state.runner, at_once), CaseSpec((2, 8), batch=60, seed=seed))
    assert state.pace.seen == [(size, 2.0, 0.5), (size, 9.0, 9.0)]


def test_the_pace_does_not_learn_what_was_compiled(swept, monkeypatch):
    """Another case of the same types compiles nothing: cases of many rows were left out where a cache was empty."""
    now = [100.0]
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: now[0])

    def shows(spec):
        now[0] += 2.0
        return {"seconds": 0.25, "compiled": Compiled(kernels=3, seconds=1.5)}

    made, state, *_ = swept(shows)
    made.one(Lane(state.runner, at_once), CaseSpec((2, 8)))
    assert state.pace.seen == [((2, 16), 0.5, 0.25)]


def test_a_case_without_outputs_tells_no_pace(swept):
    made, state, *_ = swept(lambda spec: {"tallies": ()})
    made.one(Lane(state.runner, at_once), SPECS[0])
    assert state.pace.seen == []


def test_cases_that_are_none_of_the_operators_are_told_apart(swept, monkeypatch):
    monkeypatch.setattr(sweep.geometry, "refusal", lambda spec, op: "no")
    made, state, ran, _ = swept(table=SPECS[:3])
    made.run([])
    assert (ran, state.refused) == ([], 3)


def test_a_case_is_examined_by_all_checks_in_the_process_of_its_lane_and_kept(swept, monkeypatch):
    made, state, *_ = swept(checks=("accuracy", "memory"))
    asked, kept, runner = [], [], InProcess(state.kernel, "cpu")
    found = Examined(SPECS[0])
    monkeypatch.setattr(sweep, "examine_for", lambda *given, **options: asked.append((given, options)) or found)
    state.journal = SimpleNamespace(done={}, enter=kept.append)
    given = SPECS[0], runner.fresh
    made.crew = SimpleNamespace(slower=3.0, examine=lambda call, *to: call() if to == given else None)
    assert made.examined(Lane(runner, at_once), SPECS[0]) is found
    options = {"slower": 3.0, "rerun_seconds": state.pace.rerun_seconds}
    assert asked == [((state, runner, SPECS[0], ("accuracy", "memory")), options)]
    assert kept == [found]


def test_why_a_hanging_kernel_ends_the_run_has_the_number(swept):
    made, state, *_ = swept(lambda spec: {"hung": True}, table=SPECS)
    made.run([])
    assert str(HANGS) in state.ended


def test_where_every_case_ran_none_is_left_out(swept):
    made, state, *_ = swept()
    state.planned = made.met = 3
    made.end("late")
    assert (left_out(state), state.ended) == ({}, "late")
