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

from verify_norm.registry import BUILTIN, UsageError

if TYPE_CHECKING:
    from verify_norm.report.model import Report, Tally
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
    request : `target`, `op` and `bind` as `registry.load_all` takes them; `checks`, by name; `settings`, those of
        `Settings` that are not to be as the command has them; `device`; `worker`, the number that spreads workers over
        GPUs; `path`, the sys.path of the tests.

    Returns
    -------
    dict
        `error`, one line, where nothing could be run; else what `told` returns.
    """
    try:
        sys.path[:] = request["path"]
        from verify_norm import session

        chosen = dict(request["settings"])
        if "dtypes" in chosen:
            chosen["dtypes"] = tuple(session.dtype(name) for name in chosen["dtypes"])
        device = place(request["device"], request["worker"])
        if device == "cpu":
            session.interpret(always=True)  # before anything imports Triton
        from verify_norm.registry import load_all
        from verify_norm.report.model import Settings
        from verify_norm.search import search

        settings = Settings(checks=tuple(request["checks"]), device=device, **chosen)
        return told([search(k, settings) for k in load_all(request["target"], request["op"], request["bind"])])
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
    """What the verdict on a kernel rests on, in half a line, with the largest error of each output in any type."""
    worst: dict[str, Tally] = {}
    for tally in report.tallies:
        known = worst.get(tally.output)
        if known is None or known.ulp.maximum < tally.ulp.maximum:
            worst[tally.output] = tally
    ulps = ", ".join(f"{t.output} {t.ulp.maximum:.3g} ({t.dtype})" for t in worst.values())
    said = f"{report.cases} cases in {report.seconds:.1f} s on {report.settings.device}"
    return f"{said}, max ULP {ulps}" if ulps else said


def _notes(report: Report) -> Iterator[str]:
    """What was not checked; checks that do not apply are tests that skip."""
    for skip in report.skipped:
        if not skip.what.startswith("check "):
            yield f"not checked: {skip.what}{f' ({skip.cases} cases)' * (skip.cases > 1)}: {skip.reason}"


def _verdict(reports: Sequence[Report], name: str) -> dict[str, Any]:
    found = [(report, finding) for report in reports for finding in report.findings if finding.check == name]
    if found:
        return {
            "outcome": "failed",
            "said": "\n".join(failure(*pair) for pair in found),
            "replays": [replay(*pair) for pair in found],
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

    op = None if report.kernel in BUILTIN else report.op
    return f"verify-norm replay '{spec_text(report.kernel, finding.spec, op)}'"


if __name__ == "__main__":
    main()
