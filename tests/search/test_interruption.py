"""Ctrl-C is remembered, whatever code it meets."""

import signal
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from verify_norm.search.interruption import interruptible


@pytest.fixture
def state():
    """What remembers Ctrl-C; the signal's handler is the test's own before and after."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    own = signal.getsignal(signal.SIGINT)
    yield SimpleNamespace(interrupted=False)
    assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, before)


def press():
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_raised_and_remembered_even_where_it_is_swallowed(state):
    with pytest.raises(KeyboardInterrupt), interruptible(state):
        press()
    assert state.interrupted is True
    state.interrupted = False
    with interruptible(state), suppress(KeyboardInterrupt):
        press()
    assert state.interrupted is True


def test_where_it_would_be_printed_it_is_remembered_alone(state):
    """Python prints what Hypothesis's callback of the garbage collection raises."""

    def gc_callback():
        signal.raise_signal(signal.SIGINT)

    with interruptible(state):
        gc_callback()
    assert state.interrupted is True


def test_it_may_come_where_no_code_runs(state):
    with interruptible(state), pytest.raises(KeyboardInterrupt):
        signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
    assert state.interrupted is True


def test_a_run_without_ctrl_c_or_in_another_thread_changes_nothing(state):
    own, met = signal.getsignal(signal.SIGINT), []
    with interruptible(state):
        assert signal.getsignal(signal.SIGINT) is not own

    def run():
        with interruptible(state):
            met.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert met == [own]
    assert state.interrupted is False


def test_an_error_passes_and_the_handler_is_set_back(state):
    with pytest.raises(ValueError, match="no"), interruptible(state):
        raise ValueError("no")
