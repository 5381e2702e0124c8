"""The corner table under NVIDIA's compute-sanitizer, which sees what no output shows: accesses, races, barriers.

The kernel runs in a process of its own under the tool, one case after another, in memory that is taken afresh for every
tensor and no larger than it, without guards or poison, which would hide from the tool what it is to see. Before each
case that process prints the case; the tool prints what it sees when it sees it, and both write to the same stream.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from verify_norm import cases, corners, registry
from verify_norm.environment import environment as environment_of
from verify_norm.execute import bound
from verify_norm.ops import OPS
from verify_norm.registry import UsageError
from verify_norm.report.model import CheckResult, Report, Settings, Skip
from verify_norm.spec import CaseSpec, Finding, Kernel

TOOLS = {
    "memcheck": "No access outside of what is allocated, none misaligned.",
    "racecheck": "No two threads of a block meet in shared memory without a barrier between them.",
    "initcheck": "Nothing is read from global memory before it is written.",
    "synccheck": "Every barrier is met by the threads it waits for.",
}
MARK = "verify-norm case "
_SPEC = TypeAdapter(CaseSpec)
_PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_SAID = re.compile(r"^=+ +((?:Invalid|Uninitialized|Error|Warning|Barrier|Race|Potential|Program hit|Target).*)")


def find(device: str) -> str:
    """Where compute-sanitizer is; raises UsageError where it can tell nothing: on the CPU, or not installed."""
    if device == "cpu":
        raise UsageError("--sanitize watches CUDA kernels, and this run is on the CPU; name a GPU: --device cuda")
    path = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(_PLACES))
    if path is None:
        raise UsageError("compute-sanitizer is not installed here (it comes with the CUDA toolkit); PATH has none")
    return path


def sanitize(kernel: Kernel, settings: Settings, tool: str, path: str) -> Report:
    """Run the corner table under `tool`, at `path`, and report what it says; raises UsageError where it cannot run."""
    started = time.perf_counter()
    asked = json.dumps([kernel.name, kernel.op, settings.device, settings.dtypes])
    line = [path, "--tool", tool, "--print-limit", "20", sys.executable, "-m", __name__, asked]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    try:
        output = subprocess.run(line, env=environment, timeout=settings.seconds, check=False, text=True,
                                errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(f"{tool} was not done after {settings.seconds:g} s; --seconds gives it more") from None
    cases = output.count(MARK)
    if "SUMMARY" not in output or not cases:
        last = next((text for text in reversed(output.splitlines()) if text.strip()), "nothing")
        raise UsageError(f"compute-sanitizer cannot run this: it said {last.strip()}")
    found = list(read(kernel.name, tool, output))
    first = (replace(found[0], cases=len({finding.spec for finding in found})),) if found else ()
    return Report(
        kernel=kernel.name,
        op=kernel.op,
        target=kernel.target,
        backend=kernel.backend,
        contract=kernel.contract,
        settings=settings,
        environment=environment_of(settings.device) | {"sanitizer": tool},
        cases=cases,
        seconds=time.perf_counter() - started,
        seconds_in_kernel=0.0,
        findings=first,
        tallies=(),
        checks=(CheckResult(tool, TOOLS[tool], cases, len({finding.spec for finding in found})),),
        skipped=(Skip("values", "under compute-sanitizer only its own findings count"),),
        layouts={},
    )


def read(kernel: str, tool: str, output: str) -> Iterator[Finding]:
    """What the tool said, each with the case before it; where it stands in the source, if the tool knows."""
    spec: CaseSpec | None = None
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if MARK in line:
            spec = _SPEC.validate_json(line.partition(MARK)[2])
        said = _SAID.match(line)
        if said and spec is not None:
            where = lines[number + 1].strip("= \t") if number + 1 < len(lines) else ""
            place = f", {where}" if where.startswith("at ") else ""
            yield Finding(kernel, tool, None, "error", said.group(1).strip() + _short(place), spec)


def _short(place: str) -> str:
    """The place without the folders of its file."""
    return re.sub(r"(/[^\s:]+)", lambda match: Path(match.group(1)).name, place)


def main(asked: str) -> None:
    """What runs under the tool: every corner once, announced, with nothing around the kernel."""
    name, op, device, dtypes = json.loads(asked)
    kernel = registry.load(name, op)
    assert kernel.run is not None
    for spec in corners.corners(OPS[op], tuple(dtypes)):
        if kernel.unsupported and kernel.unsupported(spec):
            continue
        case = cases.build(spec, OPS[op], kernel.contract, device, cases.draw(spec, OPS[op]))
        arguments = {name: _bare(value) for name, value in bound(kernel, case).items()}
        torch.cuda.synchronize(device)
        print(MARK + _SPEC.dump_json(spec).decode(), flush=True)
        try:
            kernel.run(**arguments)
            torch.cuda.synchronize(device)
        except Exception as error:
            print(f"the kernel raised {type(error).__name__}: {error}", flush=True)


def _bare(value: Any) -> Any:
    """The same tensor, strides and all, in memory that ends where it ends."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    extent = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
    if extent > 2**28:  # a layout that is far
        return value
    bare = torch.zeros(extent, dtype=value.dtype, device=value.device).as_strided(value.shape, value.stride())
    shared = [slice(0, 1) if stride == 0 else slice(None) for stride in value.stride()]
    bare[tuple(shared)] = value[tuple(shared)]
    return bare


if __name__ == "__main__":
    main(sys.argv[1])
