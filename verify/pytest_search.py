"""Searches for the pytest plugin, in a process of its own: `python -m verify_norm.pytest_search`.

The process that runs the tests then needs neither torch nor Triton, its warnings filters and Hypothesis profiles touch
no search, and Triton's interpreter is never turned on under tests that want compiled kernels. A request is a line of
JSON on standard input, its answer a line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verify_norm.registry import UsageError

if TYPE_CHECKING:
    from verify_norm.report.model import Report
    from verify_norm.spec import Finding


def main() -> None:
    """Answer until standard input ends. What a kernel prints when it is imported goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        return  # the tests are over


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Search one kernel, and tell what each check says of it.

    Parameters
    ----------
    request : `target` and `op` as `registry.load` takes them; `checks`, by name; `settings`, those of `Settings` that
        are not to be as the command has them; `device`; `worker`, the number that spreads workers over GPUs; `path`,
        the sys.path of the tests.

    Returns
    -------
    dict
        `error`, one line, where nothing could be run; else what `told` returns.
    """
    try:
        sys.path[:] = request["path"]
        from verify_norm import session
        from verify_norm.report.model import Settings
        from verify_norm.search import search

        chosen = dict(request["settings"])
        if "dtypes" in chosen:
            chosen["dtypes"] = tuple(session.dtype(name) for name in chosen["dtypes"])
        device = place(request["device"], request["worker"])
        kernel = session.load(request["target"], request["op"], device)
        return told(search(kernel, Settings(checks=tuple(request["checks"]), device=device, **chosen)))
    except UsageError as error:
        return {"error": str(error)}
    except Exception as error:  # a defect of ours: one line for each test, the traceback once
        traceback.print_exc()
        return {"error": f"verify-norm itself failed: {type(error).__name__}: {error}"}


def place(name: str, worker: int) -> str:
    """The device of that name; where it names no GPU in particular, the worker's own. Raises UsageError."""
    from verify_norm import session

    device = session.device(name)
    if device == "cpu" or name not in ("auto", "cuda"):
        return device
    import torch

    return f"cuda:{worker % torch.cuda.device_count()}"


def told(report: Report) -> dict[str, Any]:
    """What the plugin shows of a report, as plain data.

    `verdicts` says of each check whether it passed, failed or was skipped, why, and what replays it. `others` are the
    findings of checks that nobody asked for, as a crash where only accuracy was to be looked at.
    """
    from verify_norm.report import json as json_form

    names = report.settings.checks
    others = [failure(report, finding) for finding in report.findings if finding.check not in names]
    dtypes: dict[str, tuple[float, str]] = {}
    for tally in report.tallies:
        dtypes[tally.output] = max(dtypes.get(tally.output, (0.0, "")), (tally.ulp.maximum, tally.dtype))
    ulps = ", ".join(f"{output} {most:.2f} ({dtype})" for output, (most, dtype) in dtypes.items())
    where = f"{report.cases} cases in {report.seconds:.1f} s on {report.settings.device}"
    return {
        "op": report.op,
        "verdicts": {name: _verdict(report, name) for name in names},
        "others": "\n".join(others),
        "max_ulp": {f"{t.output}.{t.dtype}": t.ulp.maximum for t in report.tallies},
        "basis": f"{where}; max ULP {ulps}" if ulps else where,
        "notes": [
            f"not checked: {skip.what}{f' ({skip.cases} cases)' * (skip.cases > 1)}: {skip.reason}"
            for skip in report.skipped
            if not skip.what.startswith("check ")
        ],
        "report": json_form.dump(report),
    }


def _verdict(report: Report, name: str) -> dict[str, Any]:
    found = [finding for finding in report.findings if finding.check == name]
    if found:
        said = "\n".join(failure(report, finding) for finding in found)
        return {"outcome": "failed", "said": said, "replays": [replay(report, finding) for finding in found]}
    cases = next((result.cases for result in report.checks if result.name == name), None)
    if cases:
        return {"outcome": "passed", "said": f"nothing found in {cases} cases", "replays": []}
    reason = next((skip.reason for skip in report.skipped if skip.what == f"check {name}"), None)
    return {"outcome": "skipped", "said": f"{name} {reason or _idle(report, name)}", "replays": []}


def _idle(report: Report, name: str) -> str:
    """Why a check had nothing to look at, as far as the report tells."""
    if not report.cases:
        why = "; ".join(f"{s.what}: {s.reason}" for s in report.skipped if not s.what.startswith("check "))
        return f"had no case to look at: {why or 'there was none'}"
    missing = ", ".join(skip.what.removeprefix("output ") for skip in report.skipped if skip.what.startswith("output "))
    why = f"; the kernel does not return {missing}" if missing else ""
    hint = "" if "signature" in report.settings.checks else "; the check signature tells whether the kernel runs at all"
    return f"had nothing to look at in {report.cases} cases{why}{hint}"


def failure(report: Report, finding: Finding) -> str:
    """A finding in words: what is wrong, got and wanted, in how many cases, and what replays the smallest."""
    lines = [finding.message]
    if finding.got is not None and finding.want is not None:
        lines.append(f"  got {finding.got!r}   want {finding.want!r}")
    lines.append(f"  seen in {finding.cases} case{'s' * (finding.cases != 1)}; this is the smallest found")
    lines.append(f"  replay: {replay(report, finding)}")
    return "\n".join(lines)


def replay(report: Report, finding: Finding) -> str:
    """The command that runs the finding's case again."""
    from verify_norm.report.json import spec_text

    op = report.op if ":" in report.kernel else None
    return f"verify-norm replay '{spec_text(report.kernel, finding.spec, op)}'"


if __name__ == "__main__":
    main()
