"""A judge's calls by proxy, with a scripted worker: what goes along, and what is believed of the answer."""

import inspect
from dataclasses import replace

import pytest
import torch
from proxied import SAID, call, proxied

from verify_norm.core.kernel import Kernel
from verify_norm.core.run import Damage
from verify_norm.loading import module_calls
from verify_norm.running.calling import POISON
from verify_norm.running.patience import Time
from verify_norm.running.untrusted import runner as module
from verify_norm.running.untrusted import wire
from verify_norm.running.untrusted.runner import RemoteFunction, Untrusted


@pytest.fixture
def judge(monkeypatch):
    """A runner whose worker is scripted, and the worker."""
    return proxied(monkeypatch)


def test_a_call_comes_back_with_what_is_believed_of_it(judge):
    """The arguments as the kernel has left them; of what it says, only what a call can have."""
    made, worker = judge
    x = torch.ones(2, 4)
    token = POISON.set(4096.0)
    try:
        called = made.call(lambda kernel: call(kernel, x=x), Time(10.0))
    finally:
        POISON.reset(token)
    assert (x == 2).all()
    assert called.outputs.keys() == {"y"}
    assert (called.outputs["y"] == 2).all()
    assert (called.effects, called.differs_on_gpu, called.operators) == (
        SAID.effects,
        SAID.differs_on_gpu,
        SAID.operators,
    )
    assert (called.limits, called.overlaps) == (("size",), (("y", "x"),))
    assert called.damage == (Damage("x", "in", 4, 0), Damage("y", "after", 2, 0, "y"), Damage("z", "between", 1, 1))
    (asked,) = worker.asked
    assert (asked["kernel"], asked["values"], asked["poison"], asked["new_case"]) == (0, {"eps": 1e-5}, 4096.0, True)
    assert asked["names"] == ["y", "rstd"]
    assert asked["most"] == wire.allowed(32)


def test_the_state_of_torch_goes_along(judge):
    made, worker = judge
    states = {
        "grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "evaluating": module_calls.evaluating(),
    }
    usual = {"grad": True, "inference": False, "autocast": {}, "evaluating": False}
    there = {"grad": False, "inference": True, "autocast": {"cpu": "bfloat16"}, "evaluating": True}
    for name, state in states.items():
        worker.now, worker.asked = 0.0, []
        with state:
            made.call(call, Time(10.0))
        (asked,) = worker.asked
        also = {"grad": False} if name == "inference" else {}
        assert {key: asked[key] for key in usual} == usual | {name: there[name]} | also


def test_a_refusal_is_a_problem_where_the_kernel_makes_no_gradients_by_autograd(judge):
    for autograd in (True, False):
        made, worker = judge
        made.kernel, worker.notes = replace(made.kernel, autograd=autograd), replace(SAID, problem="no", refused=True)
        called = made.call(call, Time(10.0))
        assert (called.problem, called.refused) == ("no", autograd)


def test_outputs_are_read_again_from_the_call_that_made_them(judge):
    made, worker = judge

    def later(kernel):
        returned = call(kernel).outputs
        return returned, kernel.later(returned), kernel.later({"y": torch.ones(2, 4)})

    returned, now, others = made.call(later, Time(10.0))
    assert (returned["y"] == 2).all()
    assert (now["y"] == 0).all()
    assert (others["y"] == 1).all(), "no call has returned it"
    assert [asked["what"] for asked in worker.asked] == ["call", "again"]
    assert (worker.asked[1]["call"], worker.asked[1]["outputs"], worker.asked[1]["most"]) == (7, ["y"], 32)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (wire.Raw("float16", (2, 0), bytearray()), torch.empty(2, 0, dtype=torch.float16)),
        (wire.Raw("int64", (), bytearray(b"\x07" + bytes(7))), torch.tensor(7)),
        (wire.Raw("uint8", (2, 1), bytearray(b"\x01\x02")), torch.tensor([[1], [2]], dtype=torch.uint8)),
        (None, None),
    ],
)
def test_an_output_has_the_type_and_the_shape_that_came(raw, expected):
    got = module._tensor(raw, "cpu")
    assert (got is None) == (expected is None)
    assert got is None or (got.dtype == expected.dtype and torch.equal(got, expected))
    assert raw is None or module._tensor(raw, "meta").is_meta


def test_outputs_lie_on_the_judges_device(judge, monkeypatch):
    made, _ = judge
    monkeypatch.setattr(module, "_state", lambda device: {})
    made.device = "meta"
    returned, now = made.call(lambda kernel: (out := call(kernel).outputs, kernel.later(out)), Time(10.0))
    assert returned["y"].is_meta
    assert now["y"].is_meta
    assert now["y"] is not returned["y"]


def test_an_output_that_has_another_form_now_is_taken_as_it_was(judge):
    """The worker's word about later changes counts only where it could be the same tensor."""
    made, worker = judge
    for raw in (wire.Raw("float32", (4, 2), bytearray(32)), wire.Raw("int32", (2, 4), bytearray(32)), None):
        worker.now, worker.ask = 0.0, type(worker).ask.__get__(worker)
        returned = made.call(call, Time(10.0)).outputs
        worker.ask = lambda *_, answer=raw, **__: wire.Answer({0: answer})
        assert made.kernel.later(returned)["y"] is returned["y"]


def test_which_earlier_outputs_are_still_held_goes_along(judge):
    made, worker = judge
    held = [made.call(call, Time(10.0)) for _ in range(2)]
    del held[0]
    made.call(call, Time(10.0))
    assert [asked["live"] for asked in worker.asked] == [[], [7], [8]]


def test_a_module_that_serves_several_calls_has_a_number(judge):
    made, worker = judge

    def calls(kernel):
        one, two = module_calls.Instance(turn=2), module_calls.Instance()
        for instance in (one, two, one):
            instance.serving(call)(kernel)
        call(kernel)

    worker.seconds = 0.0
    for _ in range(2):
        made.call(calls, Time(10.0))
    assert [(asked["instance"], asked["turn"]) for asked in worker.asked] == 2 * [(0, 2), (1, 0), (0, 2), (None, 0)]


@pytest.mark.parametrize("ran", [True, False])
def test_modules_that_ran_in_evaluation_are_counted(ran, judge):
    made, worker = judge
    worker.notes = replace(SAID, evaluated=ran)
    with module_calls.evaluating() as evaluated:
        made.call(call, Time(10.0))
    made.call(call, Time(10.0))
    assert len(evaluated) == ran


def test_functions_are_called_by_the_names_that_they_take(judge):
    _, worker = judge
    stand, forward = (
        RemoteFunction(2, "rmsnorm_bwd", ("dy", "x"), {}),
        RemoteFunction(3, "rmsnorm_fwd", ("x", "eps"), {}),
    )
    made = Untrusted(Kernel("k", "rmsnorm_bwd", run=stand, forward_run=forward), "cpu")
    made._worker = worker
    signatures = [inspect.signature(function) for function in (made.kernel.run, made.kernel.forward_run)]
    assert [str(signature) for signature in signatures] == ["(*, dy, x)", "(*, x, eps)"]
    x = torch.ones(2, 4)
    made.call(lambda kernel: (kernel.run(dy=x, x=x), kernel.forward_run(x=x, eps=1e-5)), Time(10.0))
    assert [(asked["kernel"], list(asked["names"])) for asked in worker.asked] == [
        (2, ["dx", "dweight"]),
        (3, ["y", "rstd"]),
    ]
    for call_it in (stand, lambda: stand.later({})):
        with pytest.raises(RuntimeError, match="runs in another process alone"):
            call_it()
