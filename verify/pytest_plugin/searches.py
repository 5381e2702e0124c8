"""The plugin's searches: each kernel once, though many tests and several workers of xdist ask for it.

A search is the command line, `verify-norm --kernel K --json FILE`, in a process of its own. The process of the tests
needs neither torch nor Triton, its warnings filters and Hypothesis profiles touch no search, and Triton's interpreter
stays off under tests that want compiled kernels.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import Exit
from verify_norm.pytest_plugin.items import NormKernel

GRACE = 3.0  # seconds that an interrupted search has to end
# The command has --examples, …
OPTIONS = (
    *("norm_examples", "norm_seconds", "norm_dtype", "norm_seed", "norm_device", "norm_allow_incomplete"),
    "norm_contract",
)


class Searches:
    """Runs the searches and keeps their answers, by kernel.

    An answer is plain data: `target`; `expected`, the reasons of expected failures by check; and `reports`, the JSON of
    the reports, or `error`, one line. All workers of xdist collect the same tests, so they ask for the same checks:
    `folder` is common to them, and one waits for the answer that another is about to write.
    """

    def __init__(self, config: pytest.Config, folder: str | None) -> None:
        self.config = config
        self.answers: dict[NormKernel, dict[str, Any]] = {}
        self._folder = None if folder is None else Path(folder)
        digits = getattr(config, "workerinput", {}).get("workerid", "").removeprefix("gw")
        self._worker = digits if digits.isdigit() else "0"  # 3 for gw3; 0 without xdist

    def of(self, kernel: NormKernel, wanted: dict[str, str | None]) -> dict[str, Any]:
        """Return the answer for a kernel and the wanted checks; search if nobody has."""
        if kernel not in self.answers:
            self.answers[kernel] = self._once(kernel, wanted)
        return self.answers[kernel]

    def _once(self, kernel: NormKernel, wanted: dict[str, str | None]) -> dict[str, Any]:
        if self._folder is None:
            return self._search(kernel, wanted)
        name = hashlib.sha256(repr(kernel).encode()).hexdigest()[:16]
        path = self._folder / f"{name}.json"
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when a worker dies
            if not path.exists():
                path.write_text(json.dumps(self._search(kernel, wanted)), encoding="utf-8")
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return answer

    def _search(self, kernel: NormKernel, wanted: dict[str, str | None]) -> dict[str, Any]:
        from verify_norm.pytest_plugin.verdicts import answer

        target = self._located(kernel.target)
        checks = [name for name in CHECK_NAMES if name in wanted]
        options: dict[str, Any] = {"kernel": target, "op": kernel.op, "bind": kernel.bind, "checks": ",".join(checks)}
        options |= {name.removeprefix("norm_"): getattr(self.config.option, name) for name in OPTIONS}
        options |= {"contract": kernel.contract} if kernel.contract else {}
        named = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value not in (None, "")}
        given = [option if value is True else f"{option}={value}" for option, value in named.items()]
        facts = {"target": kernel.target, "expected": {name: why for name, why in wanted.items() if why is not None}}
        with tempfile.TemporaryDirectory(prefix="verify-norm-") as folder:
            path = Path(folder) / "reports.json"
            status, printed = _run(["--no-config", *given, f"--worker={self._worker}", f"--json={path}"])
            if path.exists() and status != Exit.INTERNAL:
                return facts | answer(path.read_text(encoding="utf-8"), every=bool(kernel.op))
        return facts | {"error": _reason(target, status, printed)}

    def _located(self, target: str) -> str:
        """Return the target with its file relative to the working folder, where the user replays a case."""
        where, colon, attribute = target.rpartition(":")
        if not where.endswith(".py"):
            return target
        return os.path.relpath(self.config.rootpath / where) + colon + attribute


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run verify-norm with the import path of the tests; return its exit status and what it printed."""
    command = [sys.executable, "-P", "-m", "verify_norm", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (
        tempfile.TemporaryFile() as output,  # no pipe: a process that the kernel leaves behind may hold it open
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            status = process.wait()
        finally:  # the tests are interrupted
            for stop in (signal.SIGINT, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(stop)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(GRACE)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    sys.stderr.write(printed)  # pytest shows it with a failed test
    return status, printed


def _reason(target: str, status: int, printed: str) -> str:
    """Return why there is no report: the command's own message, or how its process ended."""
    lines = [line for line in printed.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith("verify-norm: ")]
    if status in (Exit.NOTHING, Exit.INTERNAL) and messages:
        last = messages[-1:] if status == Exit.NOTHING else messages[-2:]  # an error of ours has two lines
        return "; ".join(line.removeprefix("verify-norm: ") for line in last)
    if status == 1 and "Traceback (most recent call last):" in printed:
        return f"verify-norm itself failed: {lines[-1]}"
    return f"{target} ended the process that searched it, with exit status {status}"
