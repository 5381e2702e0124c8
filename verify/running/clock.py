"""The time inside a kernel, to the end of its work on the GPU, and how much of it went into compilation."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from verify_norm.running.compilation import METER


@dataclass(slots=True)
class Clock:
    """Adds up the seconds inside the functions that it wraps, and those of them in which something was compiled."""

    seconds: float = 0.0
    compiling: float = 0.0
    now: Callable[[], float] = lambda: time.perf_counter()

    def around(self, function: Callable[..., Any] | None, device: str) -> Callable[..., Any] | None:
        """Return the same function, timed to the end of its work on the GPU."""
        if function is None:
            return None

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started, compiled = self.now(), METER.total.seconds
            try:
                result = function(*args, **kwargs)
                synchronize(device)
                return result
            finally:
                self.seconds += self.now() - started
                self.compiling += METER.total.seconds - compiled

        timed.__dict__["untimed"] = untimed(function)
        return timed

    @property
    def running(self) -> float:
        """The seconds without compilation, which happens once for many calls."""
        return max(self.seconds - self.compiling, 0.0)


def untimed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a clock wraps; a function without a clock as it is."""
    wrapped: Callable[..., Any] = getattr(function, "untimed", function)
    return wrapped


def synchronize(device: torch.device | str) -> None:
    """Wait for the work of a GPU: otherwise its time counts in the next call that waits."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
