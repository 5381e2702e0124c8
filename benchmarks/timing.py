"""Times on a GPU: medians between events, each after a flush of the L2 cache, in a CUDA graph and as an eager call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]
FLUSHED = 2**28  # bytes written before each timed run: several times the L2 of any GPU
FEWEST, MOST = 5, 100  # runs of a median
HOST_CALLS = 50  # far fewer launches than a GPU's queue holds, so that no launch waits
HOST_LIMIT = 1000.0  # µs: longer calls are not limited by the host


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of one call.

    kernel : on the GPU, replayed from a CUDA graph; None if the call cannot be captured (`note` explains it).
    eager : between events around an eager call; it includes Python's time where the GPU waits for Python.
    host : until an eager call returns to Python; None if the GPU takes longer than `HOST_LIMIT`.
    """

    kernel: float | None
    eager: float
    host: float | None
    runs: int
    note: str = ""

    @property
    def best(self) -> float:
        """The time of the kernel, or of the eager call if there is no graph."""
        return self.eager if self.kernel is None else self.kernel


class Clock:
    """A clock for calls on one device: on a separate stream, for about `seconds` each."""

    def __init__(self, device: str, seconds: float = 0.1) -> None:
        self.device, self.seconds = torch.device(device), seconds
        self._copies: dict[int, Times] = {}
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.device)
            self._flush = torch.empty(FLUSHED, dtype=torch.int8, device=self.device)

    def __enter__(self) -> Clock:
        """Make the stream current. Autograd runs a backward on the stream of its forward, so a graph captures it."""
        if self.device.type == "cuda":
            self._on = torch.cuda.stream(self.stream)
            self._on.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.device.type == "cuda":
            self._on.__exit__(*error)

    def measure(self, call: Call, check: Callable[[Any], None] = lambda result: None) -> Times:
        """Return the times of a call that has run before.

        `check` gets the results of a replay into memory that held NaN: so the timed code is the checked code.
        """
        if self.device.type != "cuda":
            began = time.perf_counter()
            result = call()
            spent = 1e6 * (time.perf_counter() - began)
            check(result)
            return Times(None, spent, None, 1, "no GPU")
        eager, runs = self._timed(call)
        host = self.host(call) if eager < HOST_LIMIT else None
        graph, result = torch.cuda.CUDAGraph(), None
        try:
            graph.capture_begin()  # torch.cuda.graph would also empty the allocator's cache
            try:
                result = call()
            finally:
                graph.capture_end()
        except Exception as error:  # a library may do what a graph cannot capture
            torch.cuda.synchronize(self.device)
            lines = str(error).strip().splitlines() or ["(no message)"]
            return Times(None, eager, host, runs, f"no graph: {lines[0][:100]}")
        kernel, runs = self._timed(graph.replay)
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, torch.Tensor):
                output.detach().fill_(torch.nan)
        graph.replay()
        check(result)
        return Times(kernel, eager, host, runs)

    def copy(self, size: int) -> Times:
        """Return the times of a copy that moves `size` bytes, half of them read and half written: the limit.

        The kernel time is that of a graph or of an eager call, whichever is faster. From 512 MiB on, copies in a graph
        are often far from the limit.
        """
        if size not in self._copies:
            source = torch.randint(0, 255, (max(size // 2, 1),), dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)

            def call() -> None:
                target.copy_(source)

            call()
            taken = self.measure(call)
            fastest = None if taken.kernel is None else min(taken.kernel, taken.eager)
            self._copies[size] = replace(taken, kernel=fastest)
        return self._copies[size]

    def _timed(self, call: Call) -> tuple[float, int]:
        """Return the median in µs, and the number of runs."""
        first = median(self._runs(call, 3))
        count = int(1e6 * self.seconds / (first + 100.0))  # the flush takes 100 µs itself
        count = min(max(count, FEWEST), MOST)
        return median(self._runs(call, count)), count

    def _runs(self, call: Call, count: int) -> list[float]:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(self.device)
        return [1e3 * start.elapsed_time(end) for start, end in pairs]

    def host(self, call: Call) -> float:
        """Return the median time in µs until a call returns to Python; the GPU is idle before the first call."""
        self._wait()
        spent = []
        for _ in range(HOST_CALLS):
            began = time.perf_counter()
            call()
            spent.append(1e6 * (time.perf_counter() - began))
        self._wait()
        return median(spent)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
