"""Turns at the memory of a GPU, which several runs may share: the jobs of `zoo`, the shards of a CI job.

A case of 2^27 elements has some twenty arrays of float64 of that size, and a tensor with the layout "far" may take a
good part of what is free. A dozen of them at once fill 140 GB; then CUDA fails anywhere, and a right kernel looks
wrong.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import IO

from verify_norm.cases import placement
from verify_norm.core.spec import CaseSpec

LARGE = 2**26  # elements
PLACES = 4  # large cases at a time, on one GPU
PATIENCE, POLL = 60.0, 0.01  # seconds


def large(spec: CaseSpec) -> bool:
    """Return whether a case may take gigabytes."""
    far = any(getattr(spec, field.name) == "far" for field in fields(spec))
    return prod(spec.shape) >= LARGE or (far and not placement.in_block(spec.shape))


@contextmanager
def turn(device: str, places: int) -> Iterator[None]:
    """Wait for a number of the `PLACES` of a GPU, which all processes of this user share; without a wait on a CPU.

    A process that ends gives its places back. Where the files that stand for them cannot be written, nobody waits; nor
    longer than `PATIENCE` seconds, for example for a process that has been stopped.
    """
    with ExitStack() as held:
        if device.startswith("cuda") and places:
            with suppress(OSError):
                files = [held.enter_context(_file(device, place)) for place in range(PLACES)]
                end, taken = time.monotonic() + PATIENCE, 0
                while taken < places and time.monotonic() < end:
                    # who takes all goes in order: two of them with some each would wait for each other
                    free = next(filter(_free, files if places < PLACES else files[:1]), None)
                    if free is None:
                        time.sleep(POLL)
                    else:
                        files.remove(free)
                        taken += 1
        yield


def _file(device: str, place: int) -> IO[bytes]:
    index = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    name = visible[index] if index < len(visible) else str(index)
    path = Path(tempfile.gettempdir()) / f"verify-norm-{os.getuid()}-gpu{name}-{place}.lock"
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "rb")


def _free(file: IO[bytes]) -> bool:
    """Take a place if it is free; return whether it was."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
