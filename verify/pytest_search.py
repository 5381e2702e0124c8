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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verify_norm.registry import UsageError

if TYPE_CHECKING:
    from verify_norm.report.model import Report


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
    request : `target`, `op`, `bind` and `checks` as `api.audit` takes them; `settings`, its other arguments where they
        are not to be as it has them; `device`; `worker`, the number that spreads workers over GPUs; `path`, the
        sys.path of the tests.

    Returns
    -------
    dict
        `error`, one line, where nothing could be run; else what `told` returns.
    """
    try:
        sys.path[:] = request["path"]
        from verify_norm.api import Reports, audit

        said = audit(
            request["target"],
            request["op"],
            bind=request["bind"],
            checks=request["checks"],
            device=place(request["device"], request["worker"]),
            **request["settings"],
        )
        return told(said if isinstance(said, Reports) else (said,))
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


def told(reports: Sequence[Report]) -> dict[str, Any]:
    """What the plugin shows of a kernel's reports, one for each direction, as plain data.

    `verdicts` says of each check whether it passed, failed or was skipped, why, and what replays it. `others` are the
    findings of checks that nobody asked for, as a crash where only accuracy was to be looked at.
    """
    from verify_norm.report import json as json_form
    from verify_norm.report.text import failure

    names = reports[0].settings.checks
    others = [failure(r, finding) for r in reports for finding in r.findings if finding.check not in names]
    return {
        "verdicts": {name: _verdict(reports, name) for name in names},
        "others": "\n".join(others),
        "max_ulp": {f"{t.output}.{t.dtype}": t.ulp.maximum for r in reports for t in r.tallies},
        "basis": "; ".join(map(_basis, reports)),
        "notes": list(dict.fromkeys(note for report in reports for note in _notes(report))),
        "reports": [json_form.dump(report) for report in reports],
    }


def _basis(report: Report) -> str:
    """What the verdict on a kernel rests on, with the largest error of each output against its bound."""
    from verify_norm.report.text import cases

    worst: dict[str, float] = {}
    for tally in report.tallies:
        worst[tally.output] = max(worst.get(tally.output, 0.0), tally.ratio)
    said = f"{cases(report)} in {report.seconds:.1f} s on {report.settings.device}"
    ratios = ", ".join(f"{output} {ratio:.2g}" for output, ratio in worst.items())
    return f"{said}, error/bound {ratios}" if ratios else said


def _notes(report: Report) -> Iterator[str]:
    """What was not checked; checks that do not apply are tests that skip."""
    for skip in report.skipped:
        if not skip.what.startswith("check "):
            yield f"not checked: {skip.what}{f' ({skip.cases} cases)' * (skip.cases > 1)}: {skip.reason}"


def _verdict(reports: Sequence[Report], name: str) -> dict[str, Any]:
    from verify_norm.report.text import failure, replay_line

    found = [(report, finding) for report in reports for finding in report.findings if finding.check == name]
    if found:
        return {
            "outcome": "failed",
            "said": "\n".join(failure(*pair) for pair in found),
            "replays": [replay_line(report, finding.spec) for report, finding in found],
        }
    cases = sum(result.cases for report in reports for result in report.checks if result.name == name)
    if cases:
        return {"outcome": "passed", "said": f"nothing found in {cases} cases", "replays": []}
    why = list(dict.fromkeys(_skipped(report, name) for report in reports))
    return {"outcome": "skipped", "said": f"{name} {'; '.join(why)}", "replays": []}


def _skipped(report: Report, name: str) -> str:
    return next((s.reason for s in report.skipped if s.what == f"check {name}"), None) or _idle(report, name)


def _idle(report: Report, name: str) -> str:
    """Why a check had nothing to look at, as far as the report tells."""
    if not report.cases:
        return f"had no case to look at; {'; '.join(_notes(report)) or 'there was none'}"
    missing = ", ".join(skip.what.removeprefix("output ") for skip in report.skipped if skip.what.startswith("output "))
    why = f"; the kernel does not return {missing}" if missing else ""
    hint = "" if "signature" in report.settings.checks else "; the check signature tells whether the kernel runs at all"
    return f"had nothing to look at in {report.cases} cases{why}{hint}"


if __name__ == "__main__":
    main()
