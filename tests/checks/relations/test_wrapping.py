"""What a thread of a kernel's raises in a mode refuses the call, also where the call waits for that thread."""

import queue
import signal
import threading
import time

import pytest
import torch

from verify_norm.checks.relations import wrapping
from verify_norm.loading.returned import RefusedError


def fails() -> None:
    raise ValueError("a thread does not see the batch")


def waits_for_its_thread() -> None:
    """Its result never comes."""
    results = queue.Queue[int]()

    def work() -> None:
        fails()
        results.put(1)

    threading.Thread(target=work).start()
    results.get()


def joins_its_thread() -> None:
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kernel", [waits_for_its_thread, joins_its_thread])
def test_what_a_thread_raises_is_a_refusal(kernel) -> None:
    hook, handler, started = threading.excepthook, signal.getsignal(wrapping.WAKE), time.perf_counter()
    with pytest.raises(RefusedError, match="a thread does not see the batch"):
        wrapping.refusing(kernel)()
    assert time.perf_counter() - started < 5.0
    assert (threading.excepthook, signal.getsignal(wrapping.WAKE)) == (hook, handler)


def test_a_thread_that_had_raised_has_ended() -> None:
    alive = threading.active_count()
    with pytest.raises(RefusedError):
        wrapping.refusing(waits_for_its_thread)()
    assert threading.active_count() <= alive


def test_outside_the_main_thread_a_call_is_refused_when_it_returns() -> None:
    refused = list[bool]()

    def call() -> None:
        try:
            wrapping.refusing(joins_its_thread)()
        except RefusedError:
            refused.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(5.0)
    assert refused == [True]


def test_a_right_kernel_returns_what_it_returned() -> None:
    x = torch.arange(3.0)
    assert wrapping.refusing(lambda x: 2 * x)(x=x).equal(2 * x)
