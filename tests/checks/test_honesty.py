"""The check `honesty`: kernels that deceive a judge, and right ones that keep, defer and label what they may.

The cheats of kernels/zoo/cheats are in tests/kernels/zoo.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import ROWS
from counted import run_of
from norms import layernorm

from verify_norm.cases import make, placement
from verify_norm.checks import CHECKS, honesty
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, Note
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Called, Damage, Output, Run
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.running import argument_writes, calling, execute
from verify_norm.search.examine import examine
from verify_norm.search.search import search

pytestmark = pytest.mark.usefixtures("long_series")

right = layernorm()
SERIES = replace(ROWS, further=("honesty",))
ONCE = replace(ROWS, further=())


def judged(run, spec=SERIES, **fields):
    """What `honesty` finds and notes in one case."""
    return examine(Kernel("k", "layernorm_fwd", run=run, **fields), spec, ("honesty",), "cpu")


def said(run, spec=SERIES, **fields):
    found = judged(run, spec, **fields).findings
    assert {finding.check for finding in found} <= {"honesty"}
    return {finding.output: finding.message for finding in found}


def kept_by(key):
    """A norm that keeps its results by what `key` gives of x, and x itself."""
    kept = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        mine = key(x)
        if mine not in kept:
            kept[mine] = right(x, weight, bias, eps, normalized_shape), x
        return tuple(t.clone() for t in kept[mine][0])

    return layernorm_fwd


@pytest.mark.parametrize(
    "spec", [SERIES, replace(SERIES, x_layout="transposed", dtype="bfloat16", series=ways.SAME_TENSORS)]
)
@pytest.mark.parametrize(
    "key",
    [
        lambda x: (x.data_ptr(), x._version),
        lambda x: (x.untyped_storage()._cdata, x.shape),
        lambda x: x.flatten()[0].item() if x.untyped_storage().nbytes() > x.nbytes else x.data_ptr(),
    ],
)
def test_outputs_of_earlier_calls(key, spec):
    assert "of a series with new values in the same memory" in said(kept_by(key), spec)["y"]


def test_outputs_kept_by_the_tensor_and_its_version():
    run = kept_by(lambda x: (id(x), x._version))
    found = [bool(said(run, replace(SERIES, series=way))) for way in (ways.NEW_TENSORS, ways.SAME_TENSORS, "")]
    assert found == [False, True, True]


def test_a_kernel_that_sees_that_it_is_tested():
    def coarse(x, weight, bias, eps, normalized_shape, tested):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return (y if tested(x) else y.half().to(y.dtype)), mean, rstd

    for tested in (
        lambda x: x.untyped_storage().nbytes() > x.nbytes,
        lambda x: torch._C._len_torch_dispatch_stack() > 0,
    ):

        def layernorm_fwd(x, weight, bias, eps, normalized_shape, tested=tested):
            return coarse(x, weight, bias, eps, normalized_shape, tested)

        assert "in call 1 of a series with the same values" in said(layernorm_fwd)["y"]
        assert said(layernorm_fwd, ONCE) == {}


def test_a_kernel_that_fails_in_use_alone():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        assert x.untyped_storage().nbytes() > x.nbytes
        return right(x, weight, bias, eps, normalized_shape)

    assert "it fails: AssertionError" in said(layernorm_fwd)[None]
    assert (
        said(layernorm_fwd, unsupported=lambda spec: "not contiguous" if spec.x_layout == "contiguous" else None) == {}
    )


def test_what_is_wrong_in_the_case_itself_is_left_to_others():
    assert said(lambda x, weight, bias, eps: right(x + 1, weight, bias, eps * 2, x.shape[-1:])) == {}


def after(change):
    """A norm that changes what its first call took or returned in its third."""
    calls = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        outputs = right(x, weight, bias, eps, normalized_shape)
        calls.append((x, weight, *outputs))
        if len(calls) == 3:
            change(*calls[0])
        return outputs

    return layernorm_fwd


def test_what_changes_after_the_call():
    found = said(after(lambda x, w, y, m, r: r.neg_()))
    assert list(found) == ["rstd"]
    assert found["rstd"].startswith("16 bytes of rstd change after the call has returned")
    assert said(after(lambda x, w, y, m, r: r.neg_().neg_())) == {}


def test_a_thread_that_nobody_waits_for(monkeypatch):
    """It stores after the bytes of the outputs are copied, and before they are looked at again."""
    copy, copied, stored = calling.output_bytes, threading.Event(), threading.Event()

    def copied_first(outputs):
        found = copy(outputs)
        copied.set()
        stored.wait(10)
        return found

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        late = torch.zeros_like(y)

        def store():
            copied.wait(10)
            late.copy_(y)
            stored.set()

        threading.Thread(target=store).start()
        return late, mean, rstd

    monkeypatch.setattr(calling, "output_bytes", copied_first)
    assert "bytes of y change after the call has returned" in said(layernorm_fwd)["y"]


def test_arguments_that_change_after_the_call():
    assert said(after(lambda x, w, *y: w.add_(1))) == {None: said_of_arguments("weight")}
    assert said(after(lambda x, w, *y: x.set_(torch.zeros_like(x)))) == {None: said_of_arguments("x")}


@pytest.mark.parametrize("room", [(True, False), (False, True)])
def test_far_arguments_that_find_other_room_when_built_again(monkeypatch, room):
    untouched, rooms = placement._untouched, iter((*room, *[room[1]] * 9))
    monkeypatch.setattr(placement, "_untouched", lambda *of: untouched(*of) if next(rooms) else None)
    assert said(right, replace(SERIES, x_layout="far")) == {}


def said_of_arguments(name):
    return f"the memory of {name} changes after the call has returned"


class Lazy(torch.Tensor):
    """It computes when it is read."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs)


class Labelled(torch.Tensor):
    """A label."""

    label = "y"


class Outputs(tuple):
    """It computes when it is unpacked."""

    def __iter__(self):
        return iter([*(t * 1 for t in super().__iter__())])


class Filled(tuple):
    """It fills what it holds by NumPy when it is unpacked."""

    def __iter__(self):
        y, now = tuple.__iter__(self)
        y.numpy()[...] = now.numpy()
        return iter((y,))


class Keyed(Mapping):
    """It holds tensors, at some depth, and gives views of them by name."""

    def __init__(self, y, m, r):
        self.parts = [{"both": torch.stack((m, r))}, y]

    def __getitem__(self, name):
        (both, y) = self.parts
        return {"y": y, "mean": both["both"][0], "rstd": both["both"][1]}[name]

    def __iter__(self):
        return iter(("y", "mean", "rstd"))

    def __len__(self):
        return 3


class Computed(Keyed):
    """It multiplies when it is asked for y."""

    def __getitem__(self, name):
        return super().__getitem__(name) * 1


class Named(tuple):
    """It has names for its parts."""

    y = property(lambda self: self[0])


def with_method(y, name):
    setattr(y, name, lambda *args: torch.zeros(3))
    return y


FORMS = {  # how y, mean and rstd are returned, and what is found
    "a lazy class": (lambda y, m, r: (y.as_subclass(Lazy), m, r), {"y": "defines __torch_function__ of torch.Tensor"}),
    "lazy methods": (lambda y, m, r: (y, with_method(m, "to"), r), {"mean": "mean has to of its own"}),
    "lazily negated": (lambda y, m, r: {"y": torch._neg_view(-y)}, {"y": "y is negated lazily"}),
    "lazily unpacked": (
        lambda y, m, r: Outputs((y, m, r)),
        {None: "only when what it returned, a Outputs, is unpacked"},
    ),
    "filled by NumPy": (lambda y, m, r: Filled((torch.zeros_like(y), y)), {None: "it makes y only when what it"}),
    "computed by name": (lambda y, m, r: Computed(y, m, r), {None: "it makes y and mean and rstd only when"}),
    "by name": (lambda y, m, r: Keyed(y, m, r), {}),
    "a label": (lambda y, m, r: (y.as_subclass(Labelled), m, r), {}),
    "a new attribute": (lambda y, m, r: (y, m, with_method(r, "scale")), {}),
    "a named tuple": (lambda y, m, r: Named((y, m, r)), {}),
    "parameters": (lambda y, m, r: (torch.nn.Parameter(y), m, r), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_returned(form):
    returned, want = FORMS[form]
    found = said(lambda x, weight, bias, eps: returned(*right(x, weight, bias, eps, x.shape[-1:])), ONCE)
    assert found.keys() == want.keys()
    assert all(words in found[output] for output, words in want.items())


def test_a_function_that_a_further_run_replaces():
    """By then the case itself has been judged; at the end of the case the function is put back."""
    usual, calls = np.isnan, []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        calls.append(x)
        if len(calls) == 2:
            np.isnan = np.zeros_like
        return right(x, weight, bias, eps, normalized_shape)

    assert said(layernorm_fwd)[None].startswith("it replaces numpy.isnan, in a further run or an earlier case")
    assert np.isnan is usual


def test_calls_with_known_values_that_take_no_time_are_noted(monkeypatch):
    kept, spent = {}, [0.0]  # seconds of a clock of ours: those of a machine may tick every 10 ms
    monkeypatch.setattr(time, "process_time", lambda: spent[0])

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        key = x.contiguous().numpy().tobytes()
        if key not in kept:
            spent[0] += 0.01
            kept[key] = right(x, weight, bias, eps, normalized_shape)
        spent[0] += 0.0005
        return tuple(t.clone() for t in kept[key])

    examined = judged(layernorm_fwd)
    assert examined.findings == ()
    assert examined.notes == ("calls with values of earlier calls are 10 times faster and more",)
    assert judged(right).notes == ()


def test_a_fallback_is_reported_and_a_finding_where_that_is_asked_for(few_corners):
    few_corners(slice(5))
    kernel = registry.limited(ZOO["U51_falls_back"].kernel)
    settings = Settings(("float32",), examples=0, checks=("accuracy",), isolate=False)
    report = search(kernel, settings)
    assert report.ok
    assert report.seen.operators == {"aten::rms_norm": report.cases}
    (found,) = search(kernel, replace(settings, require_own=True)).findings
    assert (found.check, found.cases) == ("honesty", report.cases)
    assert found.message.startswith(f"it falls back to aten::rms_norm in {report.cases} of {report.cases} cases")
    own = registry.limited(ZOO["U43_plan_by_shape"].kernel)
    assert search(own, replace(settings, require_own=True)).ok


def test_it_looks_at_a_kernel_that_returns_nothing_readable():
    def layernorm_fwd(x, weight, bias, eps):
        torch.isclose = torch.eq
        return x.to_sparse().as_subclass(Lazy)

    usual = torch.isclose
    examined = examine(Kernel("k", "layernorm_fwd", run=layernorm_fwd), CaseSpec((3, 4)), ("honesty",), "cpu")
    assert {f.message.partition(";")[0] for f in examined.findings} >= {"it replaces torch.isclose"}
    assert torch.isclose is usual
    assert CHECKS["honesty"].summary.startswith("A call does its work itself")


def test_what_the_import_of_a_module_replaces_is_found_in_each_case(monkeypatch):
    monkeypatch.setattr(honesty.functions, "at_import", lambda target: (f"torch.isclose of {target}",))
    run = run_of(make.case(ONCE, OPS["layernorm_fwd"], Contract()))
    run = replace(run, kernel=replace(run.kernel, target="mine.py:f"))
    (found,) = (one for one in CHECKS["honesty"].function(run) if isinstance(one, Finding))
    assert (found.kernel, found.check, found.output, found.status, found.spec) == ("k", "honesty", None, "fail", ONCE)
    assert "torch.isclose of mine.py:f" in found.message


def test_what_is_replaced_when_a_case_is_over():
    found = list(honesty.replaced(Kernel("k", "layernorm_fwd"), ONCE, ["torch.isclose", "numpy.isnan"]))
    for one, name in zip(found, ("torch.isclose", "numpy.isnan"), strict=True):
        assert one == Finding("k", "honesty", None, "fail", one.message, ONCE)
        assert name in one.message


# Its parts alone.

TINY = replace(ONCE, shape=(2, 3))


def case_run(op="layernorm_fwd", contract=None, poison=None, **fields):
    """A run of a case whose arguments are as they have been built."""
    spec, contract = replace(TINY, **fields), contract or Contract()
    exact = make.exact_inputs(spec, OPS[op])
    return run_of(make.build(spec, OPS[op], contract, "cpu", exact, truth=True, poison=poison), contract)


def changed(run):
    """The arguments of which is said that they have changed."""
    found = list(honesty._arguments(run))
    assert all(one.output is None for one in found)
    return [name for one in found for name in run.case.arguments if f"memory of {name} " in one.words]


def test_an_argument_that_is_changed_and_one_that_may_be():
    run = case_run()
    assert changed(run) == []
    run.case.arguments["weight"][0] += 1
    assert changed(run) == ["weight"]
    assert changed(replace(run, damage=(Damage("weight", "in", 4, 0),))) == []
    assert changed(replace(run, damage=(Damage("x", "in", 4, 0),))) == ["weight"]
    far = case_run(weight_layout="far")
    far.case.arguments["weight"][0] += 1
    assert changed(far) == []
    state = case_run("batchnorm_fwd")
    for name in ("running_mean", "bias"):
        state.case.arguments[name][0] += 1
    assert changed(state) == ["bias"]
    inplace = case_run("layernorm_bwd", Contract(inplace=("dx:dy",)))
    inplace.case.arguments["dy"][0, 0] += 1
    assert changed(inplace) == []


def test_what_lies_between_the_elements_of_an_argument_may_not_change_either():
    run = case_run(poison=7.0, x_layout="row_strided")
    assert run.case.poison == 7.0
    assert changed(run) == []
    x = run.case.arguments["x"]
    x.as_strided((1,), (1,), x.storage_offset() + x.shape[1])[0] = 5.0
    assert changed(run) == ["x"]


def test_an_argument_of_many_bytes_is_not_looked_at_again(monkeypatch):
    run = case_run()
    run.case.arguments["weight"][0] += 1
    size = run.case.arguments["weight"].untyped_storage().nbytes()
    for limit, found in ((size, ["weight"]), (size - 1, [])):
        monkeypatch.setattr(argument_writes, "LIMIT", limit)
        assert changed(run) == found


class Series:
    """A right norm that keeps what it is given, and where it runs; as a test says, it is wrong."""

    def __init__(self, wrong=lambda x: False):
        self.calls, self.wrong = [], wrong

    def __call__(self, x, weight, bias, eps, normalized_shape, weight_offset=0.0):
        modes = torch._C._len_torch_dispatch_stack()
        self.calls.append((x.clone(), x.is_contiguous(), threading.current_thread(), modes))
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape, weight_offset)
        return (y + 1 if self.wrong(x) else y), mean, rstd


def series(norm, seconds=1.0, spec=TINY, **fields):
    """What a series of calls finds, after a run that took so long; the calls of the series alone are kept."""
    kernel = Kernel("k", "layernorm_fwd", run=norm, **fields)
    run = execute.execute(kernel, make.case(spec, OPS["layernorm_fwd"], kernel.contract))
    norm.calls.clear()
    return list(honesty._series(replace(run, seconds=seconds), same=True))


@pytest.mark.parametrize(("seconds", "calls", "new"), [(1.0, 5, 2), (0.02 / 7, 7, 2), (0.02 / 12, 12, 3), (0.0, 24, 4)])
def test_a_series_has_as_many_calls_as_take_little_time(monkeypatch, seconds, calls, new):
    """Each of the new values is there once; the first call has known ones."""
    monkeypatch.setattr(honesty, "SECONDS", 0.02)
    norm = Series()
    assert series(norm, 0.9999 * seconds) == []
    xs = [x for x, *_ in norm.calls]
    assert len(xs) == calls
    assert sum(not torch.equal(x, xs[0]) for x in xs) == new
    assert len({x.numpy().tobytes() for x in xs}) == new + 1


def test_a_series_has_its_new_values_at_places_that_the_seed_tells():
    places = set()
    for seed in range(6):
        norms = Series(), Series()
        for norm in norms:
            series(norm, spec=replace(TINY, seed=seed))
        one, two = ([not torch.equal(x, norm.calls[0][0]) for x, *_ in norm.calls] for norm in norms)
        assert one == two
        assert sum(one) == 2
        places |= {number for number, new in enumerate(one) if new}
    assert places == {1, 2, 3, 4}


def test_a_series_has_contiguous_tensors_where_the_kernel_takes_them():
    spec, norm, seen = replace(TINY, x_layout="transposed"), Series(), []
    assert series(norm, spec=spec) == []
    assert [contiguous for _, contiguous, *_ in norm.calls] == [True] * 5
    assert series(norm, spec=spec, unsupported=lambda spec: seen.append(spec.x_layout)) == []
    assert (len(norm.calls), {*seen}) == (5, {"contiguous"})
    assert series(norm, spec=spec, unsupported=lambda spec: "no" if spec.x_layout == "contiguous" else None) == []
    assert norm.calls == []


def test_a_series_runs_in_another_thread_or_in_the_process_of_the_kernel():
    norm = Series()

    def elsewhere(**given):
        return Called(dict(zip(("y", "mean", "rstd"), norm(**given), strict=True)))

    for run, later, here in ((norm, None, False), (elsewhere, lambda returned: returned, True)):
        kernel = Kernel("k", "layernorm_fwd", run=run, later=later)
        run = replace(case_run(), kernel=kernel, seconds=1.0)
        norm.calls.clear()
        assert list(honesty._series(run, same=True)) == []
        assert {thread is threading.current_thread() for _, _, thread, _ in norm.calls} == {here}
        assert {modes for *_, modes in norm.calls} == {0}  # no guard looks at what it allocates


@pytest.mark.parametrize("x_layout", ["contiguous", "transposed"])
def test_what_a_series_has_wrong_and_a_usual_call_too_is_left_to_others(x_layout):
    spec = replace(TINY, x_layout=x_layout)
    first = make.exact_inputs(spec, OPS["layernorm_fwd"])["x"].astype(np.float32)
    new = Series(lambda x: not np.array_equal(x.numpy(), first))
    assert series(new, spec=spec) == []
    if x_layout == "transposed":
        assert series(Series(lambda x: x.is_contiguous()), spec=spec) == []
    once = Series()
    once.wrong = lambda x: len(once.calls) == 2
    (found,) = series(once, spec=spec)
    assert found.output == "y"
    assert "call 2 of a series" in found.words


@pytest.mark.parametrize(
    ("new", "known", "noted"),
    [
        (honesty.FASTER * 2, (99, 1, 1), True),  # the first call is left out
        (honesty.FASTER, (0, 1, 1), False),  # not more than so many times
        (15, (0, 0, 2), True),  # the middle of 0 and 2 is 1
        (1, (0, 0, 0), False),  # no more than the least time
        (2, (0, 0, 0), True),
    ],
)
def test_when_the_times_of_a_series_are_noted(monkeypatch, new, known, noted):
    """In units of the least time that tells, with a clock of ours."""
    unit, now, left = 2.0**-10, [0.0], []
    monkeypatch.setattr(honesty, "LEAST", unit)
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    first = make.exact_inputs(TINY, OPS["layernorm_fwd"])["x"].astype(np.float32)
    norm = Series()

    def spend(x):
        if not left:
            left.extend([99, *known])  # before it, the usual call
        now[0] += unit * (left.pop(0) if np.array_equal(x.numpy(), first) else new)
        return False

    norm.wrong = spend
    found = series(norm)
    assert [isinstance(one, Note) for one in found] == [True] * noted


def test_a_series_has_other_data_but_the_weight_and_bias_of_the_case(monkeypatch):
    run, asked, made = case_run(seed=2**64 - 1), [], make.exact_inputs

    def exact_inputs(spec, op, device=None):
        asked.append((spec.seed, device))
        return made(spec, op)

    monkeypatch.setattr(make, "exact_inputs", exact_inputs)
    same, other = (honesty._built(run, run.case.spec, number) for number in (0, 3))
    assert asked == [(2, "cpu")]
    for name, values in run.case.exact.items():
        assert np.array_equal(same.exact[name], values)
        assert np.array_equal(other.exact[name], values) == (name != "x")
    assert np.array_equal(
        other.expected["y"].value, make.truths(run.case.spec, run.case.op, Contract(), other.exact)["y"].value
    )
    assert [*honesty._built(case_run("rmsnorm_fwd"), TINY, 1).exact] == ["x", "weight"]


@pytest.mark.parametrize("same", [True, False])
def test_each_call_of_a_series_has_its_values_in_the_same_memory(same):
    home, cases = {}, [case_run(seed=seed).case for seed in (0, 1)]
    one = honesty._at(home, cases[0], same=same).arguments
    version = one["x"]._version
    two = honesty._at(home, cases[1], same=same).arguments
    assert two["eps"] == cases[1].arguments["eps"]
    for name in ("x", "weight", "bias"):
        assert one[name].data_ptr() == two[name].data_ptr()
        assert torch.equal(two[name], cases[1].arguments[name])
        assert (one[name] is two[name]) == (same or name != "x")
    assert one["x"]._version == version  # torch does not count how it is written


def test_the_memory_of_a_series_is_on_the_device_of_its_tensors():
    case = case_run().case
    there = {name: one.to("meta") if isinstance(one, torch.Tensor) else one for name, one in case.arguments.items()}
    at = honesty._at({}, replace(case, arguments=there), same=True).arguments
    assert {at[name].device.type for name in ("x", "weight", "bias")} == {"meta"}


def output(*ratio, got=2.5):
    return Output("float32", (len(ratio),), np.full(len(ratio), got), np.array(ratio))


UNJUDGED = replace(output(9.0), ratio=None)


@pytest.mark.parametrize(
    ("outputs", "over"),
    [
        ({}, True),
        ({"y": None}, True),
        ({"y": UNJUDGED}, True),
        ({"y": output(0.5, 1.0)}, False),
        ({"y": output(0.5, 1.5)}, True),
        ({"y": output()}, False),
    ],
)
def test_which_output_is_beyond_its_bound(outputs, over):
    run = case_run()
    assert honesty._over(replace(run, outputs=outputs), "y") == over
    assert not honesty._over(replace(run, outputs=outputs), None)
    assert honesty._over(replace(run, outputs=outputs, problem="it broke"), None)


@pytest.mark.parametrize(
    ("limits", "refused", "told"), [((), False, True), (("rows",), False, False), ((), True, False)]
)
def test_a_call_of_a_series_that_fails(limits, refused, told):
    run = case_run()
    found = list(honesty._wrong(run, Run(run.kernel, run.case, {}, problem="it broke", limits=limits, refused=refused)))
    assert [(one.output, "it broke" in one.words) for one in found] == [(None, True)] * told


def test_a_call_of_a_series_that_is_wrong():
    """Outputs that cannot be judged are passed over, and those that were wrong before; the others are told."""
    run, two = case_run(), output(0.5, 2.0, 1.5)
    right, wrong = dict.fromkeys(("y", "mean", "rstd"), output(0.5)), {"y": two, "mean": two, "rstd": two}
    want = dict.fromkeys(wrong, replace(run.case.expected["mean"], value=np.arange(3.0)))

    def told(before=None, after=None, expected=None):
        first = replace(run, outputs=right | (before or {}))
        one = Run(run.kernel, replace(run.case, expected=want | (expected or {})), wrong | (after or {}))
        return list(honesty._wrong(first, one))

    found = told()
    assert [(one.output, one.index) for one in found] == [(name, (1,)) for name in wrong]
    for one in found:
        assert f"{one.output}[1] is 2.5, expected 1" in one.words
    for passed in (
        {"after": {"y": None}},
        {"after": {"y": UNJUDGED}},
        {"after": {"y": output(0.5, 1.0)}},
        {"expected": {"y": None}},
        {"before": {"y": output(2.0)}},
        {"before": {"y": None}},
    ):
        assert [one.output for one in told(**passed)] == ["mean", "rstd"], passed
