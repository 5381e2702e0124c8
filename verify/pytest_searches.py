"""The plugin's searches: each kernel once, though many tests and several workers of xdist ask for it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from verify_norm.pytest_plugin import CHECK_NAMES, NormKernel, _given

GRACE = 3.0  # seconds that the process has to end, by itself and after a SIGINT


class Searches:
    """Asks `verify_norm.pytest_search`, in one process that lives as long as the tests, and keeps the answers.

    With xdist every worker has one, and `folder` is common to them: a worker that needs an answer which another is
    about to write waits for it. All workers collect the same tests, so they ask for the same checks.
    """

    def __init__(self, config: pytest.Config, folder: str | None) -> None:
        self.config = config
        self.answers: dict[NormKernel, dict[str, Any]] = {}
        self._folder = None if folder is None else Path(folder)
        digits = getattr(config, "workerinput", {}).get("workerid", "").removeprefix("gw")
        self._worker = int(digits) if digits.isdigit() else 0  # 3 for gw3; 0 without xdist
        self._process: subprocess.Popen[str] | None = None

    def of(self, kernel: NormKernel, items: Iterable[pytest.Item]) -> dict[str, Any]:
        """What the search of a kernel tells, with the checks that the selected tests want; it runs if it has not."""
        if kernel not in self.answers:
            given = [pair for item in items if (pair := _given(item)) is not None and pair[0] == kernel]
            wanted = {check.name for _, check in given}
            expected = {check.name: check.expected for _, check in given if check.expected is not None}
            checks = [name for name in CHECK_NAMES if name in wanted]
            self.answers[kernel] = self._once(kernel, checks, expected)
        return self.answers[kernel]

    def _once(self, kernel: NormKernel, checks: list[str], expected: dict[str, str]) -> dict[str, Any]:
        if self._folder is None:
            return self._ask(kernel, checks, expected)
        name = hashlib.sha256(repr(kernel).encode()).hexdigest()[:16]
        path = self._folder / f"{name}.json"
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a worker that dies lets it go
            if not path.exists():
                path.write_text(json.dumps(self._ask(kernel, checks, expected)), encoding="utf-8")
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return answer

    def _ask(self, kernel: NormKernel, checks: list[str], expected: dict[str, str]) -> dict[str, Any]:
        option = self.config.option
        dtypes = None if option.norm_dtype is None else [d.strip() for d in option.norm_dtype.split(",") if d.strip()]
        settings = {
            "examples": option.norm_examples,
            "seconds": option.norm_seconds,
            "seed": option.norm_seed,
            "dtypes": dtypes,
        }
        request = {
            "target": self._located(kernel.target),
            "op": kernel.op,
            "bind": kernel.bind,
            "checks": checks,
            "settings": {name: value for name, value in settings.items() if value is not None},
            "device": option.norm_device,
            "worker": self._worker,
            "path": sys.path,
        }
        return {"target": kernel.target, "expected": expected} | self._exchange(request)

    def _located(self, target: str) -> str:
        """The target with its file as seen from here, which is where the user will replay a case."""
        where, colon, attribute = target.rpartition(":")
        if not where.endswith(".py"):
            return target
        return os.path.relpath(self.config.rootpath / where) + colon + attribute

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a line, read a line. A process that has ended is replaced for the next kernel."""
        if self._process is None:
            command = [sys.executable, "-P", "-m", "verify_norm.pytest_search"]
            pipe = subprocess.PIPE
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", env=environment
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self._process.wait()
        self.close()
        return {"error": f"{request['target']} ended the process that searched it, with exit status {status}"}

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        for stop in (None, signal.SIGINT, signal.SIGKILL):  # it may be searching still, where the tests were stopped
            if stop is not None:
                process.send_signal(stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
                break
        process.stdout.close()
