"""Counts what Triton and torch.compile compile in this process, and how long that takes."""

import sys
import time
from collections.abc import Callable
from typing import Any

from verify_norm.core.work import Compiled


class Meter:
    """Counts what is compiled since the first call of `watch`."""

    def __init__(self) -> None:
        self.total = Compiled()
        self.tell: Callable[[float], object] = lambda seconds: None  # called with the seconds of `total` at each change
        self._listens = False
        self._began: float | None = None  # when a graph of torch.compile began, which calls Triton; None outside one

    def watch(self) -> None:
        """Count from now on what the compilers that are imported so far compile; other listeners are still called.

        `torch._dynamo.reset` ends it for torch.compile: then call this again.
        """
        dynamo = sys.modules.get("torch._dynamo.callback")
        if dynamo is not None and self._graph_begins not in dynamo.callback_handler.start_callbacks:
            dynamo.callback_handler.register_start_callback(self._graph_begins)
            dynamo.callback_handler.register_end_callback(self._graph_ends)
        knobs = sys.modules.get("triton.knobs")
        if knobs is not None and not self._listens:
            self._listens = True
            before = knobs.compilation.listener

            def listener(*, times: Any, cache_hit: bool, **facts: Any) -> None:
                self._kernel(times.total / 1e6, cached=cache_hit)
                if before is not None:
                    before(times=times, cache_hit=cache_hit, **facts)

            knobs.compilation.listener = listener

    def _kernel(self, seconds: float, *, cached: bool) -> None:
        inside = cached or self._began is not None
        self._add(Compiled(int(not cached), int(cached), seconds=0.0 if inside else seconds))

    def _add(self, more: Compiled) -> None:
        self.total += more
        self.tell(self.total.seconds)

    def _graph_begins(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _graph_ends(self, *_: Any) -> None:
        if self._began is not None:
            self._add(Compiled(graphs=1, seconds=time.perf_counter() - self._began))
        self._began = None


METER = Meter()
