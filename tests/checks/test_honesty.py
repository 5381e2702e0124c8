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
from norms import layernorm

from verify_norm.cases import placement
from verify_norm.checks import CHECKS
from verify_norm.core import ways
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.running import execute
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
    return {finding.output: finding.message for finding in judged(run, spec, **fields).findings}


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
    copy, copied, stored = execute.content, threading.Event(), threading.Event()

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

    monkeypatch.setattr(execute, "content", copied_first)
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
