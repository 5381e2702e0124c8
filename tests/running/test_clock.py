"""The time inside a kernel."""

import pytest

from verify_norm.core.work import Compiled
from verify_norm.running.clock import Clock, untimed
from verify_norm.running.compilation import Meter


def test_the_clock_counts_what_a_function_takes_even_if_it_raises(monkeypatch):
    now = iter([1.0, 3.0, 10.0, 15.0])
    monkeypatch.setattr("verify_norm.running.clock.time.perf_counter", lambda: next(now))
    clock = Clock()
    assert clock.around(None, "cpu") is None
    assert clock.around(lambda x: x, "cpu")(7) == 7
    with pytest.raises(ZeroDivisionError):
        clock.around(lambda: 1 / 0, "cpu")()
    assert clock.seconds == 7.0


def test_the_clock_tells_compilation_apart(monkeypatch):
    now, meter = iter([1.0, 6.0, 10.0, 11.0]), Meter()
    monkeypatch.setattr("verify_norm.running.clock.METER", meter)
    clock = Clock(now=lambda: next(now))

    def compiles():
        meter.total += Compiled(kernels=1, seconds=4.5)

    clock.around(compiles, "cpu")()
    clock.around(lambda: None, "cpu")()
    assert (clock.seconds, clock.compiling, clock.running) == (6.0, 4.5, 1.5)
    assert Clock(1.0, compiling=1.25).running == 0.0, "two threads may compile at the same time"


def test_a_function_in_two_clocks_is_still_known():
    def function():
        return 3

    once = Clock().around(function, "cpu")
    assert untimed(Clock().around(once, "cpu")) is untimed(once) is untimed(function) is function
