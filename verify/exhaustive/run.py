"""Takes a kernel through a whole space: in parts, each in the kernel's own process, with a file to go on from."""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from verify_norm.core.coverage import out_of_time
from verify_norm.core.dtypes import dtype_name
from verify_norm.core.errors import UsageError
from verify_norm.core.files import write
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.ranges import out_of_range
from verify_norm.core.serial import by_lines, first_error, jsonable
from verify_norm.core.settings import Settings
from verify_norm.exhaustive import spaces
from verify_norm.exhaustive.examine import examine
from verify_norm.exhaustive.model import Asked, Choice, Exhausted
from verify_norm.running import patience
from verify_norm.running.environment import environment
from verify_norm.running.patience import LostError, Time
from verify_norm.running.runners import Runner, runner
from verify_norm.search import PRELOAD
from verify_norm.search.interruption import interruptible
from verify_norm.search.journal import source

LEAST = 2**10  # items of the first part: a kernel in Triton's interpreter takes seconds for it
MOST = {"cpu": 2**17, "cuda": 2**23}  # elements of a part: on a GPU 64 MiB in float64, of which some tens are alive
QUICK = 0.5  # seconds: a part that takes less is followed by a larger one
SAVED = 10.0  # seconds between two writings of the file
LAST = 20  # parts whose speed is shown
TRIED = 3.0  # seconds after which a CPU's speed is known
LONG = 600.0  # seconds that a CPU takes without being told to
FACTS = ("complete", "all", "verdict")  # of `dump`, which a reader computes anew
Progress = Callable[[Exhausted, float], None]  # takes what is found so far, and items a second
_STORED = TypeAdapter(Exhausted)


@dataclass(slots=True)
class _Walk:
    """A run: what it found so far, and how fast it is."""

    found: Exhausted
    path: str
    started: float = field(default_factory=lambda: time.perf_counter())
    saved: float = field(default_factory=lambda: time.perf_counter())
    interrupted: bool = False
    timed: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=LAST))  # items of a part, its seconds

    @property
    def elapsed(self) -> float:
        """The seconds of this run."""
        return time.perf_counter() - self.started

    @property
    def rate(self) -> float:
        """The items a second in the last parts; the first part does not count: it imports and builds."""
        counted = list(self.timed)[1:] or self.timed
        return sum(items for items, _ in counted) / max(sum(seconds for _, seconds in counted), 1e-9)

    @property
    def left(self) -> float:
        """The seconds that the rest takes at this rate."""
        return (self.found.asked.last - self.found.done) / max(self.rate, 1e-9)

    def save(self, *, now: bool = False) -> None:
        """Write the file, if its time has come."""
        if self.path and (now or time.perf_counter() > self.saved + SAVED):
            write(dump(self.found), self.path)
            self.saved = time.perf_counter()


def exhaust(
    kernel: Kernel,
    settings: Settings,
    choice: Choice,
    *,
    seconds: float | None = None,
    resume: str = "",
    progress: Progress = lambda found, rate: None,
) -> Exhausted:
    """Return what a kernel does on all items of a space, or on those of the choice.

    The run ends after `seconds`, but does one part at least; by default it ends when all is done. The file `resume`
    keeps what is found, and a run that asks the same goes on from there. Interrupted (Ctrl-C), it returns what it has.

    Raises UsageError: the kernel or its operator has no such space, the file is one of another run or cannot be
    written, or a CPU would take long and no `seconds` say that it may.
    """
    asked = question(kernel, settings, choice)
    here = environment(settings.device)
    before = stored(resume, asked, here) or Exhausted(asked, here, asked.first)
    walk = _Walk(replace(before, problem="", ended=""), resume)
    walk.save(now=True)
    where = runner(kernel, settings.device, isolate=settings.isolate, preload=PRELOAD)
    try:
        with interruptible(walk):
            _go(walk, where, settings, seconds, progress)
    except KeyboardInterrupt:
        walk.found = replace(walk.found, ended="the run was interrupted")
    finally:
        where.close()
        walk.save(now=True)
    return walk.found


def _go(walk: _Walk, where: Runner, settings: Settings, seconds: float | None, progress: Progress) -> None:
    """Run part after part until all is done, a part has a problem, or the time is over."""
    device, asked = settings.device, walk.found.asked
    elements = prod(spaces.spec_of(asked, 1, asked.eps).shape)
    limit = MOST[patience.kind(device)] // elements
    size = min(LEAST, limit)
    while not walk.found.complete and not walk.found.problem:
        if walk.interrupted:  # and the exception got lost on its way
            raise KeyboardInterrupt
        if walk.timed and seconds is not None and walk.elapsed > seconds:
            walk.found = replace(walk.found, ended=out_of_time(seconds))
            return
        if seconds is None and device == "cpu" and walk.elapsed > TRIED and len(walk.timed) > 1 and walk.left > LONG:
            raise UsageError(_long(walk))
        begun, stop = time.perf_counter(), min(walk.found.done + size, asked.last)
        timeout = patience.of_case(settings.timeout, device, elements * size)
        try:
            part = where.call(examine, Time(timeout, asked.dtype), asked, walk.found.done, stop, device)
        except LostError as lost:
            words = f"the kernel was lost in the items {walk.found.done:,} to {stop - 1:,}: {lost}{lost.measured}"
            walk.found = replace(walk.found, problem=words)
            return
        if part.refused:
            raise UsageError(f"{asked.kernel} does not take {asked.what}: {part.problem}")
        took = time.perf_counter() - begun
        walk.timed.append((stop - walk.found.done, took))
        walk.found = walk.found.add(part, stop, took)
        walk.save()
        progress(walk.found, walk.rate)
        if took < QUICK:
            size = min(2 * size, limit)


def _long(walk: _Walk) -> str:
    """Return that the run would take long, and how to run a part of it."""
    rest, words = walk.found.asked.last - walk.found.done, duration(walk.left)
    return (
        f"{rest:,} {walk.found.asked.what} would take {words} on this CPU: --seconds N runs as many as it can "
        "in this time, and --resume FILE keeps them for the next run"
    )


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(90.0), duration(7000.0), duration(4e5)
    ('90 s', '117 min', '111 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def question(kernel: Kernel, settings: Settings, choice: Choice) -> Asked:
    """Return what is asked; raises UsageError where the kernel or the operator has no such items."""
    op, eps = OPS[kernel.op], choice.eps
    space = choice.space or spaces.usual(op)
    dtype = "bfloat16" if "bfloat16" in kernel.dtypes else kernel.dtypes[0]
    if choice.dtype:
        dtype = dtype_name(choice.dtype)
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} does not take {dtype}; it takes {', '.join(kernel.dtypes)}")
    refused = out_of_range("eps", eps)
    if refused:
        raise UsageError(refused)
    chosen = spaces.checked(space, op, dtype)
    count = spaces.count(chosen, dtype)
    first, last = _range(choice.items, count)
    digest = hashlib.sha256(source(kernel)).hexdigest()[:16]
    options = (settings.contract, settings.only)
    who = (kernel.name, kernel.op, kernel.target, kernel.bind, kernel.contract, options, digest)
    asked = Asked(*who, space, chosen.what.format(dtype=dtype), dtype, eps, first, last, count)
    refused = kernel.refuses(spaces.spec_of(asked, LEAST, eps))
    if refused:
        raise UsageError(f"{kernel.name} does not take {asked.what}: {refused}")
    return asked


def _range(items: str, count: int) -> tuple[int, int]:
    """Return the first item, and the one after the last; raises UsageError."""
    if not items:
        return 0, count
    first, colon, last = items.partition(":")
    try:
        start, stop = int(first or "0", 0), int(last or str(count), 0)
    except ValueError:
        start = stop = 0
    if not colon or not 0 <= start < stop <= count:
        raise UsageError(f"--items: expected FIRST:LAST with 0 <= FIRST < LAST <= {count}, got {items}")
    return start, stop


def dump(found: Exhausted) -> str:
    """Return the result as JSON text, with its verdict in front: a line for each field, tally and violation."""
    facts = {"complete": found.complete, "all": found.complete and found.asked.whole, "verdict": found.verdict.name}
    return by_lines(facts | jsonable(found)) + "\n"


def stored(path: str, asked: Asked, here: dict[str, str]) -> Exhausted | None:
    """Return what the file of an earlier run holds; None without a file, or with an empty one.

    Raises UsageError where the file is none of ours, or of a run that asked something else or elsewhere.
    """
    if path == "-":
        raise UsageError("--resume: expected a file, got -")
    if not path or not os.path.exists(path):
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not text.strip():
            return None
        data = json.loads(text)
        if not isinstance(data, dict):
            raise UsageError(f"{path}: not the result of an exhaustive run")
        found = _STORED.validate_python({key: value for key, value in data.items() if key not in FACTS})
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        said = first_error(error) if isinstance(error, ValidationError) else str(error)
        raise UsageError(f"{path}: not the result of an exhaustive run: {said}") from error
    before, now = asdict(found.asked) | _lasting(found.environment), asdict(asked) | _lasting(here)
    for name, value in now.items():
        if before.get(name) != value:
            differs = f"it has {name} = {before.get(name)}, here it is {value}"
            raise UsageError(f"{path} is of another run: {differs}; name another file")
    return found


def _lasting(facts: dict[str, str]) -> dict[str, str]:
    """Return what of the environment two parts of one run share."""
    return {name: value for name, value in facts.items() if name != "date"}
