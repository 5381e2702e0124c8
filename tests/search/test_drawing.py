"""Times decide which large cases run, never which cases are drawn."""

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

import pytest
import torch
from norms import layernorm

from verify_norm.cases import corners, strategies
from verify_norm.core.contract import Contract
from verify_norm.core.geometry import size
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search import drawing as drawing_module
from verify_norm.search.crew import Lane
from verify_norm.search.drawing import EXPLORED, LARGE, LARGE_SHARE, MIDDLE, OTHERS, SMALL, Drawing, larger
from verify_norm.search.examine import examine
from verify_norm.search.pace import Pace, cost
from verify_norm.search.search import search

SETTINGS = Settings(("float32", "bfloat16"), examples=200, seconds=60.0)
EXACT = layernorm("float64")


def parts(seconds, op, settings=SETTINGS, *, frozen=False):
    """The cases of each part, and how many were left out, for a kernel that takes so long for 300 rows."""
    found, left_out, pace = [], [], Pace("cpu", 60.0)

    def one(lane, spec, others):
        lane.enter(spec)
        return {"error/bound": spec.seed % 7}

    pace.learn((300, 100_000), seconds)
    drawing = Drawing(
        OPS[op], SETTINGS.dtypes, settings, pace, one, lambda lane, why, spec: left_out.append(why), frozen
    )
    for part in (*drawing.first(), *drawing.parts(settings.examples)):
        part(Lane(None, (cases := []).append))
        found.append(cases)
    return found, left_out


def drawn(seconds, op="layernorm_bwd"):
    found, left_out = parts(seconds, op)
    return [spec for cases in found for spec in cases], left_out


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("op", ["layernorm_bwd", "groupnorm_fwd", "batchnorm_bwd"])
def test_a_slow_kernel_meets_the_same_cases_without_the_large_ones(op):
    (fast, none), (slow, left_out) = drawn(0.001, op), drawn(100.0, op)
    large = [spec for spec in fast if spec not in slow]
    assert [spec for spec in fast if spec not in large] == slow
    assert not none
    assert len(left_out) == len(fast) - len(slow) == SETTINGS.examples // LARGE_SHARE
    elements, rows = SMALL["cpu"]
    sizes = [size(spec, OPS[op]) for spec in large]
    assert all(one[0] > rows or one[1] >= elements for one in sizes)


def test_a_run_has_the_first_large_cases_and_usual_ones_of_its_types_and_frozen_inputs():
    op, settings = OPS["layernorm_bwd"], replace(SETTINGS, examples=48)

    def cases(**other):
        found, left_out = parts(0.001, op.name, replace(settings, **other), frozen=True)
        assert not left_out
        return [spec for cases in found for spec in cases]

    every, count = cases(), 48 // LARGE_SHARE
    large, usual = every[:count], every[count:]
    first = corners.wide(op, SETTINGS.dtypes, frozen=True)[:count]
    assert large == sorted(first, key=lambda spec: cost(size(spec, op)))
    assert len(usual) == 48
    assert {spec.dtype for spec in usual} == set(SETTINGS.dtypes)
    assert any(spec.frozen for spec in usual)
    most = [max(sizes) for sizes in zip(*(size(spec, op) for spec in usual), strict=True)]
    assert most[0] <= SMALL["cpu"][1] < most[1] <= 4 * SMALL["cpu"][0]
    assert cases(seed=1)[count:] != usual


@pytest.mark.slow
def test_explorations_differ_and_each_is_the_same_alone():
    """So that processes can share them: none waits for what another one finds."""
    settings = replace(SETTINGS, examples=2 * EXPLORED["cpu"] + 9)
    usual = [cases for cases in parts(100.0, "rmsnorm_fwd", settings)[0] if len(cases) > 1]
    assert [len(cases) for cases in usual] == [70, 70, 69]
    one, two, three = map(set, usual)
    assert len(one & two) < 10 > len(two & three), "the smallest case, and few others"
    other = parts(100.0, "rmsnorm_fwd", replace(settings, seed=1))[0]
    assert not {tuple(cases) for cases in usual} & {tuple(cases) for cases in other}


def many_rows(y, mean, rstd):
    if len(rstd) > 8192:
        y.reshape(len(rstd), -1)[8192:] *= 2
    return y, mean, rstd


def long_rows(y, mean, rstd):
    y[..., 65536:] *= 2
    return y, mean, rstd


def now_and_then(y, mean, rstd):
    above = y.numel() > 2**15 and time.perf_counter_ns() // 100 % 2
    return y, mean, torch.nextafter(rstd, 2 * rstd) if above else rstd


def in_large_batches(y, mean, rstd):
    return y, mean, torch.nextafter(rstd, 2 * rstd) if y.numel() > 2**16 else rstd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "check"),
    [
        (many_rows, "accuracy"),
        (long_rows, "accuracy"),
        (now_and_then, "determinism"),
        (in_large_batches, "batch_invariance"),
    ],
)
def test_what_begins_in_large_cases_is_detected_there(changed, check):
    def wrong(x, weight, bias, eps, normalized_shape):
        return changed(*EXACT(x, weight, bias, eps, normalized_shape))

    kernel = Kernel("k", "layernorm_fwd", run=wrong, contract=Contract(batch_invariant=True))
    seconds = Pace.of(SETTINGS, OPS["rmsnorm_fwd"]).rerun_seconds * 10  # this machine may be loaded
    large = corners.wide(OPS[kernel.op], ("float32",))[:7]
    found = [examine(kernel, spec, (check,), "cpu", rerun_seconds=seconds).findings for spec in large]
    assert {one.check for some in found for one in some} == {check}
    right = replace(kernel, run=EXACT)
    assert not any(examine(right, spec, (check,), "cpu", rerun_seconds=seconds).findings for spec in large[:3])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_right_kernel_passes_in_large_cases_and_one_that_is_slow_for_a_row_meets_none(pause):
    rows = []

    def right(x, weight, bias, eps, weight_offset, normalized_shape):
        rows.append(x.numel() // max(torch.Size(normalized_shape).numel(), 1))
        pause(of_a_row * rows[-1])
        return EXACT(x, weight, bias, eps, normalized_shape, weight_offset)

    kernel = Kernel("k", "layernorm_fwd", run=right)
    options = Settings(("float32",), ("accuracy",), examples=80, seconds=60.0, isolate=False)
    of_a_row = 0.0
    assert search(kernel, options).ok
    assert max(rows) >= 16384
    rows.clear()
    of_a_row = 0.0005
    slow = search(kernel, options)
    assert slow.ok
    assert max(rows) < 4096
    assert any(skip.reason.startswith("a large case would take") for skip in slow.skipped)


def drawing(settings, pace=None, one=None, op="rmsnorm_fwd", frozen=False):
    """A drawing, and what it left out: the lane and the reason."""
    left_out, pace = [], pace or Pace.of(settings, OPS["rmsnorm_fwd"])
    drawn = Drawing(OPS[op], settings.dtypes, settings, pace, one, lambda *given: left_out.append(given), frozen)
    return drawn, left_out


def test_one_large_case_is_planned_for_five_usual_ones():
    assert [drawing(Settings(examples=n))[0].planned(n) for n in (0, 4, 5, 200)] == [0, 4, 6, 240]


@pytest.mark.parametrize(("others", "shapes", "planned"), [(0, 50, 60), (3, 13, 57), (7, 7, 61)])
def test_a_random_case_counts_with_its_others_and_large_ones_have_none(others, shapes, planned):
    asked, lane = [], Lane(None, None)
    settings = replace(SETTINGS, examples=50, tables=False)
    drawn, _ = drawing(
        settings, Pace("cpu", 60.0, [((300, 10**5), 0.0, 0.0)]), lambda *given: asked.append(given) or {}
    )
    drawn.others = others
    assert drawn.planned(50) == planned
    for part in drawn.parts(50):
        part(lane)
    is_large = larger(*SMALL["cpu"], drawn.op)
    large = [count for _, spec, count in asked if is_large(spec)]
    usual = [count for _, spec, count in asked if not is_large(spec)]
    assert usual == [others] * shapes
    assert large == [0] * (50 // (10 if others else 5))


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "groupnorm_bwd", "batchnorm_fwd"])
def test_the_table_of_large_cases_is_planned_whole_and_random_ones_follow(op):
    drawn, _ = drawing(Settings())
    drawn.others = min(OTHERS.values())
    count = drawn.large_ones
    assert len(corners.wide(OPS[op], Settings().dtypes)) + 20 < count


@pytest.mark.parametrize(
    ("shape", "large"),
    [((300, 8), False), ((301, 8), True), ((2, 2**13), False), ((2, 2**13 + 1), True), ((400, 50), True)],
)
def test_a_larger_case_has_more_rows_or_more_elements(shape, large):
    is_larger = larger(*SMALL["cpu"], OPS["layernorm_bwd"])
    assert is_larger(CaseSpec(shape)) == large
    assert not larger(*MIDDLE["cuda"], OPS["layernorm_bwd"])(CaseSpec(shape))
    assert len(repr(is_larger)) < 100, "Hypothesis makes the repr of a filter for each case that it rejects"


@pytest.mark.parametrize(("examples", "small", "middle"), [(0, 0, 0), (15, 2, 0), (800, 94, 50), (-3, 0, 0)])
def test_on_a_gpu_one_random_case_in_sixteen_is_of_middle_size_and_comes_alone(examples, small, middle):
    asked, lane = [], Lane(None, None)
    settings = replace(SETTINGS, examples=0, tables=False, device="cuda:0")
    drawn, _ = drawing(settings, one=lambda *given: asked.append(given) or {})
    drawn.others = OTHERS["cuda"]
    parts = list(drawn.parts(examples))
    for part in parts:
        part(lane)
    is_larger = {name: larger(*sizes["cuda"], drawn.op) for name, sizes in (("small", SMALL), ("middle", MIDDLE))}
    alone = [count for _, spec, count in asked if is_larger["small"](spec)]
    assert [count for _, spec, count in asked if not is_larger["small"](spec)] == [7] * small
    assert alone == [0] * middle
    assert all(where is lane for where, *_ in asked)
    assert not any(is_larger["middle"](spec) for _, spec, _ in asked)
    assert drawn.planned(examples) == 8 * small + middle
    assert len(parts) == -(-small // EXPLORED["cuda"]) + -(-middle // EXPLORED["cuda"])


def test_a_run_without_tables_draws_its_large_cases():
    settings = replace(SETTINGS, tables=False, examples=6)
    found, left_out = parts(0.001, "rmsnorm_fwd", settings)
    usual, large = found
    assert (len(usual), len(large), left_out) == (6, 1, [])
    elements, rows = SMALL["cpu"]
    sizes = [size(spec, OPS["rmsnorm_fwd"]) for spec in large]
    assert all(one[0] > rows or one[1] > elements for one in sizes)
    assert parts(0.001, "rmsnorm_fwd", settings) == (found, left_out)
    slow, left_out = parts(100.0, "rmsnorm_fwd", settings)
    assert (slow, len(left_out)) == ([usual, []], 1)


def test_each_exploration_has_its_share_and_its_seed(monkeypatch):
    explored = []
    monkeypatch.setattr(
        drawing_module, "explore", lambda strategy, one, *, examples, seed: explored.append((examples, seed))
    )
    drawn, _ = drawing(replace(SETTINGS, tables=False, examples=209, seed=7), one=print)
    lanes = [Lane(None, None) for _ in range(9)]
    for part, lane in zip(drawn.parts(209), lanes, strict=True):
        part(lane)
    assert [lane.exploration for lane in lanes] == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    usual = [(70, 7), (70, 7 + 2**32), (69, 7 + 2**33)]
    assert explored == [*usual, *((share, 7 + number * 2**32) for number, share in enumerate((7, 7, 7, 7, 7, 6)))]


@pytest.mark.parametrize(("device", "gpu"), [("cpu", False), ("cuda:0", True)])
def test_on_a_gpu_the_cases_take_its_ways_and_sizes(device, gpu, monkeypatch):
    asked, specs, settings = [], strategies.specs, Settings(device=device)
    monkeypatch.setattr(strategies, "specs", lambda *given, **named: asked.append((given, named)) or specs(*given))
    op, drawn = OPS["rmsnorm_fwd"], drawing(settings, frozen=True)[0]
    found = [*drawn.first(), *drawn.parts(0)]
    table = [part.keywords["spec"] for part in found if isinstance(part, partial)]
    every = corners.wide(op, settings.dtypes, frozen=True, gpu=gpu)
    assert len(table) == 3 * len(every), "each once, and again if it waits"
    assert set(table) == {*every}
    assert set(table) != {*corners.wide(op, settings.dtypes, frozen=True, gpu=not gpu)}
    sizes = [of["cuda" if gpu else "cpu"] for of in (SMALL, MIDDLE, LARGE)]
    assert asked == [
        ((op, settings.dtypes, elements), {"frozen": True, "gpu": gpu, "rows": rows}) for elements, rows in sizes
    ]


CHEAP, COSTLY, HUGE = CaseSpec((400, 8)), CaseSpec((400, 2**12)), CaseSpec((400, 2**21), batch=2**20)


@pytest.fixture
def waiting(monkeypatch):
    """A drawing of a kernel that takes 0.1 s for 2^20 elements, its clock, what ran, what was left out, and a lane."""
    now, ran, lane = [100.0], [], Lane(None, None)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = Pace("cpu", 60.0, [((400, 2**20), 0.1, 0.1)])
    drawn, left_out = drawing(SETTINGS, pace, lambda *given: ran.append(given))
    drawn.left = lambda: 160.0 - now[0]
    return drawn, now, ran, left_out, lane


def test_large_cases_run_while_it_is_early_and_the_others_wait(waiting):
    """The first ones have an eighth of the time together, from the first of them on."""
    drawn, now, ran, left_out, lane = waiting
    drawn.wide(lane, CHEAP)
    now[0] = 107.3
    drawn.wide(lane, CHEAP)
    drawn.wide(lane, CaseSpec((400, 2**13)))  # of 0.3 s: it would end too late
    drawn.wide(lane, COSTLY)  # of 0.16 s
    assert ran == [(lane, spec, 0) for spec in (CHEAP, CHEAP, COSTLY)]
    now[0] = 107.45
    drawn.wide(lane, CHEAP)
    assert len(ran) == 3
    assert drawn.large(lane, CHEAP) == {}, "random ones are never late"
    assert len(ran) == 4
    assert left_out == []
    assert drawn.waiting == {CaseSpec((400, 2**13)), CHEAP}


def test_what_waits_runs_where_time_is_left_and_what_did_not_is_said(waiting):
    drawn, now, ran, left_out, lane = waiting
    drawn.wide(lane, CHEAP)
    now[0] = 120.0
    for spec in (COSTLY, HUGE):
        drawn.wide(lane, spec)
    for spec in (CHEAP, COSTLY, HUGE):
        drawn.late(lane, spec)
    assert ran == [(lane, CHEAP, 0), (lane, COSTLY, 0)], "each once"
    late = "no time was left for large cases in 60 s (--seconds)"
    assert left_out == [(lane, late, HUGE)], "it would take longer"
    drawn.left = lambda: inf
    drawn.late(lane, HUGE)
    assert left_out[1:] == [
        (lane, "a large case would take over 1.5 s, its share of the 60 s of the run (--seconds)", HUGE)
    ]
    drawn.left = lambda: 2.17  # 2 s are spare
    drawn.late(lane, COSTLY)
    assert len(ran) == 3
    drawn.left = lambda: 2.15
    drawn.late(lane, COSTLY)
    assert left_out[2:] == [(lane, late, COSTLY)]
    assert len(ran) == 3


def test_what_waits_has_its_time_in_the_midst_of_random_cases(monkeypatch):
    """A kernel that takes 0.3 s for a case runs 24 at first, 24 in their midst, and the rest behind them."""
    now, ran = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def one(lane, spec, others):
        now[0] += 0.3 * (spec in few)
        ran.append(spec)
        return {"error/bound": 0.0}

    settings = Settings(("float32",), examples=300, seconds=60.0)
    op = OPS["groupnorm_fwd"]
    table = corners.wide(op, settings.dtypes)
    few = table[: 300 // LARGE_SHARE]
    drawn, _ = drawing(settings, Pace("cpu", 60.0, [((10**6, 10**7), 0.3, 0.3)]), one, op.name)
    drawn.left = lambda: 60.0 - now[0]
    for part in (*drawn.first(), *drawn.parts(300)):
        part(Lane(None, None))
    wide = [number for number, spec in enumerate(ran) if spec in few]
    after = [number for number, (a, b) in enumerate(pairwise(wide), 1) if b > a + 1]
    assert after == [25, 49]
    assert {ran[number] for number in wide} == {*few}
    assert len(wide) == len(few)


def test_what_costs_little_comes_first():
    op, settings = OPS["rmsnorm_fwd"], Settings(("float32",))
    drawn, _ = drawing(settings)
    first = [part.keywords["spec"] for part in drawn.first()]
    costs = [cost(size(spec, op)) for spec in first]
    assert costs == sorted(costs)
    assert [part.keywords["spec"] for part in drawn.parts(0) if isinstance(part, partial)] == first * 2
    assert cost((1000, 8000)) > cost((10, 8000))
