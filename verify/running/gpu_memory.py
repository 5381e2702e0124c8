"""Turns at the memory of a GPU, which several runs may share: the jobs of `zoo`, the shards of a CI job.

A case of 2^27 elements has about twenty arrays of float64 of that size, and a tensor with the layout "far" may take a
large part of the free memory. A dozen of them at once fill 140 GB. Then any call of CUDA may fail, and a right kernel
looks wrong.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import IO

from verify_norm.cases import placement
from verify_norm.core.geometry import repeated
from verify_norm.core.layouts import LAYOUT_FIELDS
from verify_norm.core.spec import CaseSpec

LARGE = 2**26  # elements
PLACES = 4  # large cases at a time, on one GPU
PATIENCE, POLL = 60.0, 0.01  # seconds


def large(spec: CaseSpec) -> bool:
    """Return whether a case may take gigabytes."""
    far = any(getattr(spec, field) == "far" for field in LAYOUT_FIELDS)
    return prod(repeated(spec).shape) >= LARGE or (far and not placement.in_block(spec.shape))


@contextmanager
def turn(device: str, places: int) -> Iterator[None]:
    """Hold so many of the `PLACES` of a GPU in this block, after a wait for them; on a CPU there is no wait.

    All processes of this user share the places: each is a lock file, which the system unlocks when its process ends.
    The block also begins where the files cannot be written, and after a wait of `PATIENCE` seconds, for example for a
    process that has been stopped.
    """
    with ExitStack() as stack:
        if device.startswith("cuda") and places:
            with suppress(OSError):
                unlocked = [stack.enter_context(_lock_file(device, place)) for place in range(PLACES)]
                deadline = time.monotonic() + PATIENCE
                while len(unlocked) > PLACES - places and time.monotonic() < deadline:
                    # All places are locked in order: two processes that hold a part each would wait for each other.
                    candidates = unlocked if places < PLACES else unlocked[:1]
                    locked = next((file for file in candidates if _try_lock(file)), None)
                    if locked is None:
                        time.sleep(POLL)
                    else:
                        unlocked.remove(locked)
        yield


def _lock_file(device: str, place: int) -> IO[bytes]:
    """Return the file of a place, opened: its name has the GPU's number among those of the machine."""
    index = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    name = visible[index] if index < len(visible) else str(index)
    path = Path(tempfile.gettempdir()) / f"verify-norm-{os.getuid()}-gpu{name}-{place}.lock"
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "rb")


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file unless another process has locked it; return whether it is locked now by this one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
