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
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import Exit
from verify_norm.pytest_plugin.items import NormKernel, chosen

GRACE = 3.0  # seconds that an interrupted search has to end


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
        from verify_norm.core.errors import UsageError
        from verify_norm.pytest_plugin.verdicts import answer, regressions
        from verify_norm.search.options import flags

        target = self._located(kernel.target)
        checks = [name for name in CHECK_NAMES if name in wanted]
        facts = {"target": kernel.target, "expected": {name: why for name, why in wanted.items() if why is not None}}
        try:
            table, note, baseline, limits = self._configured()
        except UsageError as error:
            return facts | {"error": str(error)}
        own = {"contract": kernel.contract, "only": kernel.only}
        options = table | chosen(self.config) | {name: value for name, value in own.items() if value}
        options |= {"device": self._device(table), "checks": ",".join(checks)}
        names = {name: flag.name for name, flag in flags().items()} | {"corpus": "--corpus"}
        named: dict[str, Any] = {"--kernel": target, "--op": kernel.op, "--bind": kernel.bind}
        named |= {"--certificate": self._certificate(target)}
        named |= {names[name]: value for name, value in options.items()}
        given = [
            option if value is True else f"{option}={value}"
            for option, value in named.items()
            if value is not None and value is not False and value != ""
        ]
        with tempfile.TemporaryDirectory(prefix="verify-norm-") as folder:
            path = Path(folder) / "reports.json"
            status, printed = _run(["--no-config", *given, f"--worker={self._worker}", f"--json={path}"])
            if not path.exists() or status == Exit.INTERNAL:
                return facts | {"error": _reason(target, status, printed)}
            found = facts | answer(path.read_text(encoding="utf-8"), every=bool(kernel.op))
        found["notes"] += [note] * bool(note)
        try:
            return found | (regressions(found, baseline, checks, limits) if baseline else {})
        except UsageError as error:
            return facts | {"error": f"baseline {baseline}: {error}"}

    def _configured(self) -> tuple[dict[str, Any], str, str, Any]:
        """Return what [tool.verify-norm] at or above pytest's rootdir sets.

        That is the options, a line that says so, the baseline's file, and the limits of a comparison with it.
        """
        from verify_norm.search.config import Config, defaults, nearest

        table, note = defaults("pytest", self.config.rootpath)
        found = nearest(self.config.rootpath) or Config()
        given = getattr(self.config.option, "norm_baseline", None)
        return table, note, given or str(found.defaults.get("baseline", "")), found.limits

    def _certificate(self, target: str) -> str:
        """Return the file of certificates if it has one of the kernel."""
        path = str(getattr(self.config.option, "norm_certificate", None) or "")
        if not path:
            return ""
        from verify_norm.proof.saved import mentioned

        return path if mentioned(path, target) else ""

    def _device(self, table: dict[str, Any]) -> str:
        asked = str(self.config.option.norm_device or "auto")
        return str(table.get("device", asked)) if asked == "auto" else asked

    def _located(self, target: str) -> str:
        """Return the target with its file relative to the working folder, where the user replays a case.

        A module that only the tests' import path has is named by its file.
        """
        where, colon, attribute = target.rpartition(":")
        if not where.endswith(".py"):
            file = _file_of(where) if where else None
            return target if file is None else os.path.relpath(file) + colon + attribute
        return os.path.relpath(self.config.rootpath / where) + colon + attribute


def _file_of(module: str) -> Path | None:
    """Return the file of a module that stands neither in the working folder nor among installed packages."""
    top, *rest = module.split(".")
    found = PathFinder.find_spec(top)
    if found is None or not found.origin or Path(found.origin).is_relative_to(sys.prefix):
        return None
    folder = Path(found.origin).parent
    root = folder.parent if Path(found.origin).name == "__init__.py" else folder
    file = root.joinpath(top, *rest).with_suffix(".py")
    return file if root != Path.cwd() and file.is_file() else None


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
