"""The time inside a kernel."""

import pytest

from verify_norm.running.clock import Clock, untimed


def test_the_clock_counts_what_a_function_takes_even_if_it_raises(monkeypatch):
    now = iter([1.0, 3.0, 10.0, 15.0])
    monkeypatch.setattr("verify_norm.running.clock.time.perf_counter", lambda: next(now))
    clock = Clock()
    assert clock.around(None, "cpu") is None
    assert clock.around(lambda x: x, "cpu")(7) == 7
    with pytest.raises(ZeroDivisionError):
        clock.around(lambda: 1 / 0, "cpu")()
    assert clock.seconds == 7.0


def test_a_function_in_two_clocks_is_still_known():
    def function():
        return 3

    once = Clock().around(function, "cpu")
    assert untimed(Clock().around(once, "cpu")) is untimed(once) is untimed(function) is function
