"""The corner table under NVIDIA's compute-sanitizer, which finds wrong accesses, races and barriers.

The kernel runs in a process of its own under the tool, one case after another. Every tensor has its own allocation,
exactly as large as the tensor, without guards or poison, which would hide errors from the tool. The process prints each
case before it runs, and the tool prints an error as soon as it finds it, to the same stream.
"""

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
from subprocess import PIPE, STDOUT
from typing import Any

import torch
from pydantic import TypeAdapter

from verify_norm.cases import corners, make
from verify_norm.core.coverage import Coverage, out_of_time
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import memory_span
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Skip
from verify_norm.loading import registry
from verify_norm.running.calling import bound
from verify_norm.search.reporting import make_report

TOOLS = {
    "memcheck": "No access is out of bounds or misaligned.",
    "racecheck": "No two threads of a block race in shared memory.",
    "initcheck": "No global memory is read before it is written.",
    "synccheck": "Every barrier is reached by all threads it waits for.",
}
MARK, RAISED = "verify-norm case ", "the kernel raised "
_SPEC = TypeAdapter(CaseSpec)
_PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_FAR = 2**28  # elements: a tensor of the layout "far" has more from its first to its last
_ERROR = re.compile(r"^=+ +((?:Invalid|Uninitialized|Error|Warning|Barrier|Race|Potential|Program hit|Target).*)")


def find(device: str) -> str:
    """Return the path of compute-sanitizer; raises UsageError on the CPU, or if it is not installed."""
    if device == "cpu":
        raise UsageError("--sanitize checks CUDA kernels, but this run is on the CPU; use --device cuda")
    path = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(_PLACES))
    if path is None:
        raise UsageError("compute-sanitizer is not installed: PATH has none; it comes with the CUDA toolkit")
    return path


def sanitize(kernel: Kernel, settings: Settings, tool: str, path: str) -> Report:
    """Return the report of `tool` on the corner table; raises UsageError if the tool, at `path`, cannot run.

    A case counts as compared in which the kernel did not raise.
    """
    started = time.perf_counter()
    dtypes = tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)
    table = corners.corners(OPS[kernel.op], dtypes) if dtypes else []
    refused = sum(kernel.refuses(spec) is not None for spec in table)
    asked = json.dumps([kernel.name, kernel.op, settings.device, dtypes])
    line = [path, "--tool", tool, "--print-limit", "20", sys.executable, "-m", __name__, asked]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    try:
        run = subprocess.run(line, env=environment, timeout=settings.seconds, stdout=PIPE, stderr=STDOUT, check=False)
        output, late = run.stdout.decode(errors="replace"), False
    except subprocess.TimeoutExpired as error:
        output, late = (error.stdout or b"").decode(errors="replace"), True
    cases = output.count(MARK)
    if len(table) > refused and not late and ("SUMMARY" not in output or not cases):
        last = next((text for text in reversed(output.splitlines()) if text.strip()), "nothing")
        raise UsageError(f"compute-sanitizer cannot run the kernel; its last line is: {last.strip()}")
    found = list(read(kernel.name, tool, output))
    failed = {finding.spec for finding in found}
    return make_report(
        kernel,
        settings,
        {"sanitizer": tool},
        cases=cases,
        seconds=time.perf_counter() - started,
        seconds_in_kernel=0.0,
        findings=tuple(replace(finding, cases=len(failed)) for finding in found[:1]),
        tallies=(),
        checks=(CheckResult(tool, TOOLS[tool], cases, len(failed)),),
        skipped=(Skip("values", "under compute-sanitizer only its own findings count"),),
        layouts={},
        coverage=Coverage(
            planned=len(table),
            corners=len(table),
            corners_done=cases + refused - (1 if late and cases else 0),  # the time ends amid a case
            refused=refused,
            compared=cases - output.count(RAISED),
            outputs={},
            ended=out_of_time(settings.seconds) if late else "the process ended early",
        ),
    )


def read(kernel: str, tool: str, output: str) -> Iterator[Finding]:
    """Yield a finding for each error of the tool, with the case before it and, if known, the place in the source."""
    spec: CaseSpec | None = None
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if MARK in line:
            spec = _SPEC.validate_json(line.split(MARK)[1])
        error = _ERROR.match(line)
        if error and spec is not None:
            below = lines[number + 1].strip("= \t") if number + 1 < len(lines) else ""
            place = f", {below}" if below.startswith("at ") else ""
            place = re.sub(r"/[^\s:]+", lambda match: Path(match.group()).name, place)  # without folders
            yield Finding(kernel, tool, None, "error", error.group(1).strip() + place, spec)


def main(asked: str) -> None:
    """Run every corner once, under the tool, without guards; print each case before it."""
    name, op, device, dtypes = json.loads(asked)
    kernel = registry.load(name, op)
    assert kernel.run is not None
    torch.cuda.set_device(device)
    for spec in corners.corners(OPS[op], tuple(dtypes)):
        if kernel.refuses(spec):
            continue
        case = make.build(spec, OPS[op], kernel.contract, device, make.exact_inputs(spec, OPS[op]))
        arguments = {name: _bare(value) for name, value in bound(kernel, case).items()}
        torch.cuda.synchronize(device)
        print(MARK + _SPEC.dump_json(spec).decode(), flush=True)
        try:
            kernel.run(**arguments)
            torch.cuda.synchronize(device)
        except Exception as error:
            print(f"{RAISED}{type(error).__name__}: {error}", flush=True)


def _bare(value: Any) -> Any:
    """Return a copy with the same strides, in memory that ends where the tensor ends."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    extent = memory_span(value.shape, value.stride())
    if extent > _FAR:
        return value
    bare = torch.zeros(extent, dtype=value.dtype, device=value.device).as_strided(value.shape, value.stride())
    shared = [slice(1) if stride == 0 else slice(None) for stride in value.stride()]
    bare[tuple(shared)] = value[tuple(shared)]
    return bare


if __name__ == "__main__":
    main(sys.argv[1])
