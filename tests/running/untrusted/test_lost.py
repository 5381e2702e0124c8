"""A judge's worker, a scripted one: when it starts, how long its calls may take, and what ends it."""

import pytest
from proxied import Worker, call, proxied

from verify_norm.core.kernel import Kernel
from verify_norm.running.patience import LostError, Time
from verify_norm.running.untrusted import runner as module
from verify_norm.running.untrusted.runner import Untrusted


@pytest.fixture
def judge(monkeypatch):
    """A runner whose worker is scripted, and the worker."""
    return proxied(monkeypatch)


def test_calls_of_one_case_share_its_time(judge):
    made, worker = judge
    limit = made._patience.limit(Time(10.0))

    def thrice(kernel):
        return [call(kernel) for _ in range(3)]

    made.call(thrice, Time(10.0))
    assert [asked["left"] for asked in worker.asked] == [limit, limit - 1, limit - 2]
    assert [asked["new_case"] for asked in worker.asked] == [True, False, False]
    with pytest.raises(LostError, match="it did not return after") as lost:
        made.call(call, Time(10.0))
    assert lost.value.hung
    assert worker.ended == 1


def test_the_worker_starts_with_the_first_call(judge, monkeypatch):
    made, worker = judge
    made._worker, started = None, []
    monkeypatch.setattr(module, "Worker", lambda *args: started.append(args) or worker)
    monkeypatch.setattr(module, "load", lambda *args: started.append(args))
    isolation = "untrusted: a process that has no truth and no verdict, in a sandbox"
    assert made.note == isolation
    for _ in range(2):
        made.call(call, Time(10.0))
    assert started == [("k", "x=a", "cpu"), (worker, {"target": "k"})]
    assert made.note == f"{isolation} (no Landlock\\n)"
    made._lacking = ("one", "two")
    assert made.note == f"{isolation} (one; two)"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug")])
def test_what_is_raised_here_ends_the_worker_too(error, judge):
    """It may come in the middle of an answer."""
    made, worker = judge

    def fails(kernel):
        call(kernel)
        raise error

    with pytest.raises(type(error)):
        made.call(fails, Time(10.0))
    assert (worker.ended, made._worker, made._patience.known.hung) == (1, None, False)


@pytest.mark.parametrize(("left", "hung", "known"), [(10.0, True, True), (0.1, True, False), (10.0, False, False)])
def test_a_kernel_is_known_to_hang_where_it_had_the_time_it_may_take(left, hung, known, judge):
    made, worker = judge

    def lost(*_, **__):
        raise LostError("it ended", hung=hung)

    worker.ask = lost
    made._patience.met.add("")
    with pytest.raises(LostError) as error:
        made.call(call, Time(5.0, left=left))
    assert (error.value.hung, error.value.late) == (hung, hung and not known)
    assert ("it ended" in str(error.value)) != hung
    assert (worker.ended, made._patience.known.hung) == (1, known)


def test_what_calls_took_is_known_of_those_in_which_the_kernel_ran(judge):
    made, worker = judge
    made.call(lambda kernel: (call(kernel), call(kernel)), Time(10.0, "float32"))
    assert made._patience.known.built == {"float32": 2.0}
    worker.now = 0.0
    made.call(call, Time(10.0, "float16", ran=lambda called: not called.outputs))
    assert made._patience.known.built == {"float32": 2.0}


def test_a_call_has_no_time_less_than_none(judge):
    made, worker = judge
    worker.seconds, made._left = 3.0, 1.0
    made.call(lambda kernel: (call(kernel), worker.asked.clear()), Time(1.0, left=2.0))
    assert made._left == 0.0


def test_the_check_under_way_is_that_of_this_call(judge):
    made, _ = judge
    assert made.stage() == ""
    assert made.call(lambda kernel, name: made.announce(name) or name, Time(10.0), "accuracy") == "accuracy"
    assert made.stage() == "accuracy"
    made.call(lambda kernel: None, Time(10.0))
    assert made.stage() == ""


def test_a_closed_runner_leaves_no_worker_and_may_be_read_again(monkeypatch):
    steps, worker = [], Worker()
    monkeypatch.setattr(module.sandbox, "undumpable", lambda: lambda: steps.append(worker.ended))
    made = Untrusted(Kernel("k", "rmsnorm_fwd"), "cpu")
    assert (made.kernel.run, made.kernel.forward_run, made.isolated, steps) == (None, None, True, [])
    assert made.fresh(), "there is no worker yet"
    made._worker = worker
    made.close()
    assert (worker.ended, made._worker, steps) == (1, None, [1])
    assert made.fresh(), "there is a new process, once it is needed"
