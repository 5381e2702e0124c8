"""Torch's operations on what the judge copies and compares, in one thread.

An operation on more than 32,768 elements runs in all threads of torch. Where other programs use the cores, each such
operation then waits for a thread that waits for a core: milliseconds, for microseconds of work.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread in this block, or in the function that this decorates."""
    number = torch.get_num_threads()
    if number == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def begin(number: int) -> None:
    """Give a new thread of Python this number of torch's threads.

    Its first question for that number takes the one that any thread has set last, which may be the judge's.
    """
    torch.get_num_threads()
    torch.set_num_threads(number)
