"""The determinism check: kernels that keep something from call to call, and those that may differ by a rounding."""

import re
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from counted import run_of
from norms import layernorm

from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.checks import CHECKS, determinism, sums
from verify_norm.checks.relations.equations import Equation
from verify_norm.checks.relations.rerun import CROWDED, other_shape, rerun
from verify_norm.core import packages
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load
from verify_norm.running import delayed_inputs
from verify_norm.running.execute import execute

SPEC = CaseSpec(shape=(5, 6))
ATOMIC = Contract(deterministic=False, summation="atomic")
OP = OPS["layernorm_bwd"]


def backward(dy, x, weight, bias, eps, order=None):
    """Right, in float64; dweight and dbias as float32 sums over the rows, in any order if one is given."""
    g, rows = dy.double(), x.double()
    r = (rows.var(1, correction=0, keepdim=True) + eps).rsqrt()
    xhat = (rows - rows.mean(1, keepdim=True)) * r
    terms = (g * xhat).float(), g.float()
    sums = [t.double().sum(0) if order is None else running(t, order) for t in terms]
    g = g * weight.double()
    dx = r * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
    return dx.to(x.dtype), sums[0].to(weight.dtype), sums[1].to(bias.dtype)


def running(terms, order):
    """A float32 sum in runs of four, whose order and whose sums' order are drawn."""
    total = torch.zeros(terms.shape[1])
    for run in terms[order].split(4):
        total += run.sum(0)
    return total


def ran(run, spec=SPEC, contract=None):
    kernel = Kernel("k", OP.name, run=run, contract=contract or Contract())
    return execute(kernel, make.case(spec, OP, kernel.contract))


def found(run, spec=SPEC, **fields):
    """What the checks of one call's values, and of memory, say of one case, by (check, output)."""
    result = ran(run, spec, **fields)
    names = ("signature", "accuracy", "gradient", "memory", "determinism")
    checks = [CHECKS[name] for name in names if CHECKS[name].looks(result)]
    said = [f for c in checks for f in c.function(result) if isinstance(f, Finding)]
    return {(f.check, f.output): f.message for f in said}


def test_a_cache_that_another_shape_spoils():
    kept = {}

    def cached(dy, x, weight, bias, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        rows = kept.setdefault(x.shape[1], torch.zeros(1, x.shape[1], dtype=torch.float64))
        if len(rows) < len(x):  # it grows, and what a larger case leaves in it is never cleared
            rows = kept[x.shape[1]] = torch.zeros(len(x), x.shape[1], dtype=torch.float64)
        rows[: len(x)] = dy.double()
        return dx, dweight, rows.sum(0).to(dbias.dtype)

    messages = found(cached)
    assert set(messages) == {("determinism", "dbias")}
    assert "after a run of shape (11, 6)" in messages["determinism", "dbias"]
    kept.clear()
    assert found(cached, replace(SPEC, further=())) == {}  # the case makes no further run


def test_a_cache_that_longer_rows_spoil():
    kept = {}

    def cached(dy, x, weight, bias, eps, normalized_shape):
        n = kept.setdefault(len(x), x.shape[1])
        kept[len(x)] = max(n, x.shape[1])  # keyed by the rows alone, and read after a longer case
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        return dx * (n / x.shape[1]), dweight, dbias

    assert found(cached) == {}  # the first variant tries more rows
    kept.clear()
    assert {check for check, _ in found(cached, replace(SPEC, variant=1))} == {"determinism"}


def test_one_ulp_now_and_then():
    generator = torch.Generator().manual_seed(0)

    def noisy(dy, x, weight, bias, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        bits = dx.view(torch.int32)
        bits += torch.randint(0, 2, dx.shape, generator=generator, dtype=torch.int32) * (torch.arange(6) == 2)
        return dx, dweight, dbias

    messages = found(noisy)
    assert set(messages) == {("determinism", "dx")}
    assert " of 30 elements differ" in messages["determinism", "dx"]


def test_a_first_call_like_no_other():
    calls = []

    def tuning(dy, x, weight, bias, eps, normalized_shape):
        calls.append(x)
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        return dx, dweight, torch.nextafter(dbias, dbias + 1) if len(calls) == 1 else dbias

    messages = found(tuning)
    assert set(messages) == {("determinism", "dbias")}
    assert "in one run, " in messages["determinism", "dbias"]


def test_a_second_call_that_fails():
    calls = []

    def once(dy, x, weight, bias, eps, normalized_shape):
        calls.append(x)
        if len(calls) > 1:
            raise RuntimeError("the workspace is in use")
        return backward(dy, x, weight, bias, eps)

    result = ran(once)
    (one,) = CHECKS["determinism"].function(result)
    assert one.message == "in the next it fails: RuntimeError: the workspace is in use"


def test_an_output_that_comes_and_goes():
    calls = []

    def fickle(dy, x, weight, bias, eps, normalized_shape):
        calls.append(x)
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        return dx, dweight, dbias if len(calls) == 1 else None

    (one,) = CHECKS["determinism"].function(ran(fickle))
    assert one.message == "dbias is float32 (6,) in one run, missing in the next"


@pytest.mark.parametrize("data", ["normal", "heavy", "alternating", "constant"])
@pytest.mark.parametrize("rows", [2, 5, 300])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_another_order_of_a_sum_is_allowed_where_the_contract_says_so(data, rows, dtype):
    rng = np.random.default_rng(0)

    def atomic(dy, x, weight, bias, eps, normalized_shape):
        return backward(dy, x, weight, bias, eps, order=torch.from_numpy(rng.permutation(len(x))))

    spec = CaseSpec(shape=(rows, 6), dtype=dtype, data=data, weight_dtype="float32", dy_log2_scale=5)
    result = ran(atomic, spec, ATOMIC)
    assert list(CHECKS["determinism"].function(result)) == []
    if rows == 300 and data != "constant":  # whose x̂ is 0
        strict = {f.output for f in CHECKS["determinism"].function(ran(atomic, spec))}
        assert "dweight" in strict <= {"dweight", "dbias"}


def test_only_sums_over_rows_may_differ_and_not_by_more():
    calls = []

    def off(which, by):
        def kernel(dy, x, weight, bias, eps, normalized_shape):
            calls.append(x)
            outputs = list(backward(dy, x, weight, bias, eps))
            outputs[which] = outputs[which] * (1 + by * (len(calls) % 2))
            return outputs

        return kernel

    for which, name in enumerate(("dx", "dweight", "dbias")):
        for by, caught in ((2.0**-23, name == "dx"), (1e-3, True)):
            said = CHECKS["determinism"].function(ran(off(which, by), replace(SPEC, shape=(64, 6)), ATOMIC))
            assert {f.output for f in said} == ({name} if caught else set()), (name, by)


def test_zeros_have_a_sign():
    calls = []

    def kernel(dy, x, weight, bias, eps, normalized_shape):
        calls.append(x)
        dx, dweight, dbias = backward(dy, x, weight, bias, eps)
        return (0.0 if len(calls) % 2 else -0.0) * dx.abs(), dweight, dbias

    (one,) = CHECKS["determinism"].function(ran(kernel))
    assert "is 0 in one run, -0 in the next, 0 apart; 30 of 30 elements differ" in one.message
    assert one.message.endswith("a replay may take several tries to show it")


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_the_case_in_between_is_one_of_the_operator(op):
    changed = set()
    for spec in corners(OPS[op], ("float32", "float16")):
        run = Run(Kernel("k", op), Case(spec, OPS[op], {}, {}, {}), {})
        other = other_shape(run)
        if other is None:
            continue
        assert other.shape != spec.shape
        assert torch.Size(other.shape).numel() <= 9 * max(torch.Size(spec.shape).numel(), 50)
        changed.add((other.shape[0] != spec.shape[0], other.shape[-1] != spec.shape[-1]))
        if torch.Size(other.shape).numel() < 1000:
            make.exact_inputs(other, OPS[op])
    assert changed == {(True, False), (False, True), (True, True)}


def test_our_kernel_with_locks_is_within_what_it_declares():
    kernel = load("layernorm_bwd_locked")
    spec = CaseSpec(shape=(300, 6), dtype="float16")
    result = execute(kernel, make.case(spec, OP, kernel.contract))
    assert list(CHECKS["determinism"].function(result)) == []


def test_a_large_batch_runs_twice():
    calls = []

    def racing(dy, x, weight, bias, eps):
        calls.append(len(x))
        dx, dw, db = backward(dy, x, weight, bias, eps)
        return dx, dw, torch.nextafter(db, 2 * db) if len(calls) % 2 and len(x) > 256 else db

    batch = replace(SPEC, batch=300)
    messages = found(racing, batch)
    assert set(messages) == {("determinism", "dbias")}
    assert "in one run of 300 rows" in messages["determinism", "dbias"]
    assert calls.count(300) == 2
    assert found(racing, SPEC) == {}  # no batch, no large run
    assert found(backward, batch) == {}


@pytest.mark.slow
def test_a_race_that_loses_less_than_the_worst_case_of_another_order(monkeypatch):
    monkeypatch.setitem(CROWDED, "cpu", 2**17)
    calls = []

    def losing(dy, x, weight, bias, eps, always=False):
        calls.append(x.shape)
        dx, dw, db = backward(dy, x, weight, bias, eps)
        return dx, dw, db - (dy[0].to(db.dtype) / 4 if len(calls) == 3 or always else 0)

    large, atomic = CaseSpec((16384, 5)), {"contract": ATOMIC}
    assert "from the truth in the next run" in found(losing, large, **atomic)["determinism", "dbias"]
    assert len(calls) == 3
    assert ("determinism", "dbias") not in found(partial(losing, always=True), large, **atomic), "`sums` reports it"
    monkeypatch.setattr(determinism, "RUNS", 3)

    def reordering(dy, x, weight, bias, eps):
        return backward(dy, x, weight, bias, eps, torch.randperm(len(x)))

    assert not found(reordering, large, **atomic)


def test_a_race_that_few_runs_of_a_large_case_show(monkeypatch):
    monkeypatch.setitem(CROWDED, "cpu", 2**14)
    calls = []

    def racing(dy, x, weight, bias, eps):
        calls.append(x.shape)
        dx, dw, db = backward(dy, x, weight, bias, eps)
        return dx, dw, db - (dy[0].to(db.dtype) if len(calls) == 4 else 0)

    large = replace(SPEC, shape=(64, 65), further=())
    assert ("determinism", "dbias") in found(racing, large)
    assert calls == [large.shape] * 4  # once it is known, no more
    calls.clear()
    assert ("determinism", "dbias") in found(racing, large, contract=ATOMIC)
    calls.clear()
    assert not found(racing, replace(SPEC, shape=(252, 66), further=()))  # whose truth takes longer than runs of it
    assert len(calls) == 1


def test_long_sums_of_a_wrong_type_are_left_to_signature():
    """They are compared with no truth, in any of the runs."""

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
        return y, mean.half(), rstd

    spec, kernel = CaseSpec(shape=(2, 600)), Kernel("k", "layernorm_fwd", run=layernorm_fwd, contract=ATOMIC)
    result = execute(kernel, make.case(spec, OPS[kernel.op], ATOMIC))
    assert [f.output for f in CHECKS["signature"].function(result)] == ["mean"]
    assert not [f for f in CHECKS["determinism"].function(result) if isinstance(f, Finding)]


@pytest.mark.parametrize(
    ("fields", "further", "looks"),
    [
        ({}, 2.0, True),
        ({"further": ()}, 2.0, False),
        ({}, 1.0, False),  # it takes too long
        ({"batch": 1}, 1.0, True),
        ({"batch": 1, "further": ()}, 1.0, False),
    ],
)
def test_which_large_cases_run_again(fields, further, looks):
    run = ran(backward, replace(SPEC, shape=(64, 65), **fields))
    assert CHECKS["determinism"].looks(replace(run, seconds=1.0, rerun_seconds=further)) == looks


@pytest.mark.parametrize(("variant", "other"), [(0, (11, 6)), (1, (5, 13)), (2, (11, 13))])
def test_a_case_runs_again_and_before_and_after_one_of_another_shape(variant, other, monkeypatch):
    seen, drawn, exact_inputs = [], [], make.exact_inputs

    def noting(dy, x, weight, bias, eps, normalized_shape):
        seen.append((tuple(x.shape), tuple(weight.shape), tuple(normalized_shape)))
        return backward(dy, x, weight, bias, eps)

    run = execute(Kernel("k", OP.name, run=noting), make.case(replace(SPEC, variant=variant), OP, Contract(), "cpu:0"))
    monkeypatch.setattr(make, "exact_inputs", lambda *of: drawn.append(of[2:]) or exact_inputs(*of))
    assert list(CHECKS["determinism"].function(run)) == []
    usual, between = (((m, n), (n,), (n,)) for m, n in (SPEC.shape, other))
    assert seen == [usual, usual, between, usual]
    assert drawn == [(run.case.device,)]  # a GPU draws large inputs for itself


LONG = CaseSpec((512, 3))


@pytest.mark.parametrize(
    ("first", "again", "index", "count"),
    [
        ([0.0, 0.0, 0.0], [0.0, 1.0, 0.0], None, 0),
        ([0.0, 0.0, 0.0], [0.0, 1.5, 0.0], (1,), 1),
        ([0.0, 0.0, 0.0], [1.5, 1.0, -3.0], (2,), 2),
        ([0.0, 1.0, 0.0], [0.0, 5.0, 0.0], (1,), 1),
        ([1.5, 0.0, 0.0], [0.0, 3.0, 0.0], None, 0),  # `sums` reports it
    ],
)
def test_a_long_sum_that_only_another_run_has_off_by_more_than_its_tolerance(monkeypatch, first, again, index, count):
    """The sum is 10 in truth, and 1 is allowed."""

    def equations(run):
        got, one = run.outputs["dbias"].got, np.ones(3)
        yield sums.LongSum("dbias", "dbias", got, 10 * one, one, one)
        yield Equation("another", "dx", got, 0 * one, one)

    case = make.case(LONG, OP, ATOMIC)
    truth = case.expected["dbias"].value
    runs = [run_of(case, ATOMIC, dbias=np.array(off) + 10 - truth) for off in (first, again)]
    monkeypatch.setattr(sums, "equations", equations)
    found = list(determinism._lost(*runs))
    assert [(d.output, d.index, d.count) for d in found] == [("dbias", index, count)] * bool(count)
    if found:
        assert f"dbias[{index[0]}] is" in found[0].words
        off = f"{max(map(abs, again)):g}"
        assert re.findall(r"(?<!\[)\b[\d.]+\b", found[0].words) == [off, "1", str(count), "3"]
    strict = [replace(run, kernel=replace(run.kernel, contract=Contract())) for run in runs]
    assert list(determinism._lost(*strict)) == []
    ramp = [replace(run, case=replace(run.case, spec=replace(LONG, data="ramp"))) for run in runs]
    assert not sums.told(ramp[0])  # the data are not random
    assert list(determinism._lost(*ramp)) == []


@pytest.mark.parametrize("fields", [{"batch": 0}, {"batch": 300, "shape": (6,)}])
def test_without_a_batch_or_rows_to_repeat_no_batch_runs(fields):
    calls = []

    def noting(x, weight, bias, eps, normalized_shape):
        calls.append(x.shape)
        return layernorm()(x, weight, bias, eps, normalized_shape)

    kernel = Kernel("k", "layernorm_fwd", run=noting)
    run = execute(kernel, make.case(replace(SPEC, **fields), OPS[kernel.op], kernel.contract))
    assert list(determinism._batch(run)) == []
    assert len(calls) == 1


def test_a_batch_that_the_kernel_does_not_take_or_fails_on_is_no_difference():
    def failing(x, weight, bias, eps, normalized_shape):
        if len(x) == 300:
            raise RuntimeError("too large")
        return layernorm()(x, weight, bias, eps, normalized_shape)

    kernel = Kernel("k", "layernorm_fwd", run=failing)
    run = execute(kernel, make.case(replace(SPEC, batch=300), OPS[kernel.op], kernel.contract))
    assert list(determinism._batch(run)) == []
    refusing = replace(kernel, unsupported=lambda spec: "no" if spec.shape[0] == 300 else None)
    assert list(determinism._batch(replace(run, kernel=refusing))) == []


def _late_run_of(function, monkeypatch, device="cuda:0"):
    """Return a run of a kernel as on a GPU, whose further runs are made here."""
    kernel = Kernel("k", "layernorm_fwd", run=function)
    here = execute(kernel, make.case(SPEC, OPS[kernel.op], kernel.contract))
    run = replace(here, case=replace(here.case, arguments={"x": SimpleNamespace(device=device)}))

    def again(given, exact=None, *, within=None):
        assert given.case is run.case
        return rerun(replace(here, kernel=given.kernel), exact, within=within)

    next_call = determinism._next_call
    monkeypatch.setattr(determinism, "rerun", again)
    monkeypatch.setattr(determinism, "_next_call", lambda given: next_call(replace(here, kernel=given.kernel)))
    return run


@pytest.mark.parametrize("staged", [True, False])
def test_the_next_call_changes_nothing_that_a_call_still_reads(monkeypatch, staged):
    """Here a list holds what the GPU has still to do; a copy of eps on the host is as a pinned buffer."""
    left, eps_of = [], {}

    @contextmanager
    def arriving(case):
        yield
        while left:
            left.pop(0)()

    def kernel(x, weight, bias, eps, normalized_shape):
        where = "staged" if staged else len(eps_of)
        eps_of[where] = eps
        y = torch.empty_like(x)
        left.append(lambda: y.copy_(layernorm()(x, weight, bias, eps_of[where], normalized_shape)[0]))
        if not memory.get("late"):
            left.pop()()
        return y, None, None

    def queued(function, following):
        return wraps(function)(lambda **given: (function(**given), following())[0])

    memory = {}
    run = _late_run_of(kernel, monkeypatch)
    monkeypatch.setattr(delayed_inputs, "possible", lambda case: True)
    monkeypatch.setattr(delayed_inputs, "arriving", lambda case: memory.update(late=True) or arriving(case))
    monkeypatch.setattr(delayed_inputs, "read_at_once", queued)
    assert [d.output for d in determinism._late(run)] == ["y"] * staged


@pytest.mark.parametrize("waits", [True, False])
def test_results_are_read_before_all_of_the_gpu_is_waited_for(monkeypatch, waits):
    """Here a list holds what another stream still has to do, which the end of the late run waits for."""
    left, memory = [], {}

    @contextmanager
    def arriving(case):
        yield
        while left:
            left.pop()()

    def kernel(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
        memory["y"] = returned = memory.get("y", y).clone()  # the results of the call before it lie there
        left.append(lambda: returned.copy_(y))
        if waits or len(memory) < 2:  # outside of late runs all is over when a result is read
            left.pop()()
        memory["y"] = y
        return returned, mean, rstd

    run = _late_run_of(kernel, monkeypatch)
    monkeypatch.setattr(delayed_inputs, "possible", lambda case: memory.update(late=True) is None)
    monkeypatch.setattr(delayed_inputs, "arriving", arriving)
    assert [d.output for d in determinism._late(run)] == ([] if waits else ["y"])


@pytest.mark.parametrize(
    ("device", "possible", "triton", "tries"),
    [
        ("cuda:0", True, True, True),
        ("cuda:0", False, True, False),
        ("cuda:0", True, False, False),
        ("cpu", True, True, False),
    ],
)
def test_a_kernel_that_reads_what_is_late_differs_from_itself(monkeypatch, device, possible, triton, tries):
    """On an NVIDIA GPU; here a flag stands for the busy stream."""
    late = []

    @contextmanager
    def arriving(case):
        late.append(case)
        yield
        late.pop()

    def early(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
        return y * (1.0 + len(late)), mean, rstd

    run = _late_run_of(early, monkeypatch, device)
    monkeypatch.setattr(delayed_inputs, "possible", lambda case: possible and case is run.case)
    monkeypatch.setattr(delayed_inputs, "arriving", arriving)
    monkeypatch.setattr(packages, "without_triton", lambda: not triton)
    found = list(determinism._late(run))
    assert [d.output for d in found] == ["y"] * tries
    assert all(d.count == 30 and "apart" in d.words and d.words.endswith(determinism.WHY) for d in found)
