"""Times decide which large cases run, never which cases are drawn."""

import time
from dataclasses import replace

import pytest
import torch
from norms import layernorm

from verify_norm.cases import corners, strategies
from verify_norm.core.geometry import size
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.search.crew import Lane
from verify_norm.search.drawing import EXPLORED, LARGE, USUAL, Drawing, planned
from verify_norm.search.examine import examine
from verify_norm.search.pace import Pace
from verify_norm.search.search import search

SETTINGS = Settings(("float32", "bfloat16"), examples=200, seconds=60.0)
EXACT = layernorm("float64")


def parts(seconds, op, settings=SETTINGS, *, frozen=False):
    """The cases of each part, and how many were left out, for a kernel that takes so long for 300 rows."""
    found, left_out, pace = [], [], Pace("cpu", 60.0)

    def one(lane, spec):
        lane.enter(spec)
        return {"error/bound": spec.seed % 7}

    pace.learn((300, 100_000), seconds)
    drawing = Drawing(OPS[op], SETTINGS.dtypes, settings, pace, one, lambda lane, why: left_out.append(why), frozen)
    for part in drawing.parts(settings.examples):
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
    assert len(left_out) == len(fast) - len(slow) == planned(SETTINGS) - SETTINGS.examples
    elements, rows = USUAL["cpu"]
    sizes = [size(spec, OPS[op]) for spec in large]
    assert all(one[0] > rows or one[1] > elements for one in sizes)


def test_a_run_has_the_first_large_cases_and_usual_ones_of_its_types_and_frozen_inputs():
    op, settings = OPS["layernorm_bwd"], replace(SETTINGS, examples=48)

    def cases(**other):
        found, left_out = parts(0.001, op.name, replace(settings, **other), frozen=True)
        assert not left_out
        return [spec for cases in found for spec in cases]

    first = cases()
    large, usual = first[:6], first[6:]
    assert large == corners.wide(op, SETTINGS.dtypes, frozen=True)[:6]
    assert len(usual) == 48
    assert {spec.dtype for spec in usual} == set(SETTINGS.dtypes)
    assert any(spec.frozen for spec in usual)
    most = [max(sizes) for sizes in zip(*(size(spec, op) for spec in usual), strict=True)]
    assert most[0] <= USUAL["cpu"][1] < most[1] <= 4 * USUAL["cpu"][0]
    assert cases(seed=1)[6:] != usual


@pytest.mark.slow
def test_explorations_differ_and_each_is_the_same_alone():
    """So that processes can share them: none waits for what another one finds."""
    settings = replace(SETTINGS, examples=2 * EXPLORED + 9)
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
    seconds = Pace.of(SETTINGS).rerun_seconds * 10  # this machine may be loaded
    large = corners.wide(OPS[kernel.op], ("float32",))[:7]
    found = [examine(kernel, spec, (check,), "cpu", rerun_seconds=seconds).findings for spec in large]
    assert {one.check for some in found for one in some} == {check}
    right = replace(kernel, run=EXACT)
    assert not any(examine(right, spec, (check,), "cpu", rerun_seconds=seconds).findings for spec in large[:3])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_right_kernel_passes_in_large_cases_and_one_that_is_slow_for_a_row_meets_none(pause):
    rows = []

    def right(x, weight, bias, eps, normalized_shape):
        rows.append(x.numel() // max(torch.Size(normalized_shape).numel(), 1))
        pause(of_a_row * rows[-1])
        return EXACT(x, weight, bias, eps, normalized_shape)

    kernel = Kernel("k", "layernorm_fwd", run=right)
    options = Settings(("float32",), ("accuracy",), examples=40, seconds=60.0, isolate=False)
    of_a_row = 0.0
    assert search(kernel, options).ok
    assert max(rows) >= 16384
    rows.clear()
    of_a_row = 0.0005
    slow = search(kernel, options)
    assert slow.ok
    assert max(rows) < 4096
    assert any(skip.reason.startswith("large cases are slow") for skip in slow.skipped)


def drawing(settings, pace=None, one=None, op="rmsnorm_fwd", frozen=False):
    """A drawing, and what it left out: the lane and the reason."""
    left_out, pace = [], pace or Pace.of(settings)
    drawn = Drawing(OPS[op], settings.dtypes, settings, pace, one, lambda *given: left_out.append(given), frozen)
    return drawn, left_out


def test_one_large_case_is_planned_for_eight_usual_ones():
    assert [planned(Settings(examples=n)) for n in (0, 7, 8, 200)] == [0, 7, 9, 225]


@pytest.mark.parametrize(
    ("shape", "large"),
    [((300, 8), False), ((301, 8), True), ((2, 2**13), False), ((2, 2**13 + 1), True), ((400, 50), True)],
)
def test_a_large_case_has_more_rows_or_more_elements(shape, large):
    assert drawing(SETTINGS)[0].is_large(CaseSpec(shape)) == large
    assert not drawing(replace(SETTINGS, device="cuda:0"))[0].is_large(CaseSpec(shape))


def test_a_run_without_tables_draws_its_large_cases():
    settings = replace(SETTINGS, tables=False, examples=8)
    found, left_out = parts(0.001, "rmsnorm_fwd", settings)
    usual, large = found
    assert (len(usual), len(large), left_out) == (8, 1, [])
    elements, rows = USUAL["cpu"]
    sizes = [size(spec, OPS["rmsnorm_fwd"]) for spec in large]
    assert all(one[0] > rows or one[1] > elements for one in sizes)
    assert parts(0.001, "rmsnorm_fwd", settings) == (found, left_out)
    slow, left_out = parts(100.0, "rmsnorm_fwd", settings)
    assert (slow, len(left_out)) == ([usual, []], 1)


def test_each_exploration_has_its_share_and_its_seed(monkeypatch):
    explored = []
    monkeypatch.setattr(
        strategies, "explore", lambda strategy, one, *, examples, seed: explored.append((examples, seed))
    )
    drawn, _ = drawing(replace(SETTINGS, tables=False, examples=209, seed=7), one=print)
    for part in drawn.parts(209):
        part(None)
    usual = [(70, 7), (70, 7 + 2**32), (69, 7 + 2**33)]
    assert explored == [*usual, *((share, 7 + number * 2**32) for number, share in enumerate((7, 7, 6, 6)))]


@pytest.mark.parametrize(("device", "gpu"), [("cpu", False), ("cuda:0", True)])
def test_on_a_gpu_the_cases_take_its_ways_and_sizes(device, gpu, monkeypatch):
    asked, specs, settings = [], strategies.specs, Settings(examples=160, device=device)
    monkeypatch.setattr(strategies, "specs", lambda *given, **named: asked.append((given, named)) or specs(*given))
    op, found = OPS["rmsnorm_fwd"], list(drawing(settings, frozen=True)[0].parts(0))
    table = [part.keywords["spec"] for part in found]
    assert table == corners.wide(op, settings.dtypes, frozen=True, gpu=gpu)[:20]
    assert table != corners.wide(op, settings.dtypes, frozen=True, gpu=not gpu)[:20]
    sizes = [of["cuda" if gpu else "cpu"] for of in (USUAL, LARGE)]
    assert asked == [
        ((op, settings.dtypes, elements), {"frozen": True, "gpu": gpu, "rows": rows}) for elements, rows in sizes
    ]


def test_large_cases_run_while_it_is_early_and_the_kernel_is_fast(monkeypatch):
    """The first ones have a twentieth of the time together, from the first of them on."""
    now, ran, lane = [100.0], [], Lane(None, None)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = Pace("cpu", 60.0, [((300, 100_000), 0.001, 0.001)])
    drawn, left_out = drawing(SETTINGS, pace, lambda *given: ran.append(given))
    small, large = CaseSpec((400, 8)), CaseSpec((400, 2**21), batch=2**20)
    drawn.wide(lane, small)
    now[0] = 102.9
    drawn.wide(lane, small)
    assert ran == [(lane, small)] * 2
    now[0] = 103.0
    drawn.wide(lane, small)
    assert drawn.large(lane, small) == {}, "random ones are never late"
    drawn.large(lane, large)
    assert ran == [(lane, small)] * 3
    assert [given for given, _ in left_out] == [lane] * 2
    assert all("1.5 s" in reason and "3 s" in reason for _, reason in left_out)
