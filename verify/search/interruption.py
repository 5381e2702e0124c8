"""Ctrl-C in a search."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Interruptible(Protocol):
    """What remembers Ctrl-C."""

    interrupted: bool


@contextmanager
def interruptible(state: Interruptible) -> Iterator[None]:
    """Remember Ctrl-C, since it may come while code runs that swallows every exception."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(number: int, frame: Any) -> None:
        state.interrupted = True
        if frame is None or frame.f_code.co_name != "gc_callback":  # Hypothesis's: Python prints what it raises
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
