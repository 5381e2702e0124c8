"""Time this project's norm kernels, your kernels, and other libraries', if their results are right.

    python benchmarks/run.py                                        a few sizes, every installed library
    python benchmarks/run.py --kernel layernorm_bwd --peers torch,quack --shapes 4096x8192 --json F --plot F.svg
    python benchmarks/run.py --preset perf,fp8,channels,chains,heads,seed001,seed003,seed004,choices --out FOLDER

Every element of every result is compared with the float64 reference and the bound of its contract, before the timing
and on the timed result. A kernel with a wrong result is reported as wrong and has no time. Times are medians with a
flushed L2 cache: of the kernel, replayed from a CUDA graph; of the eager call; of Python alone (host). The limit is a
copy of as many bytes, in the same run. layernorm_fwd_cuda3@256 is a step of the CUDA ladder at a block size;
layernorm_bwd@row_plan.PAIRED=1024 is our kernel with another constant in its plan (variants.py).
Without a GPU this is a smoke test; its times mean nothing. Exit status: 0, 1 if a kernel (not a peer) is wrong or
refused, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from plan import options, plan, smoke

from verify_norm.core import files
from verify_norm.core.errors import UsageError

if TYPE_CHECKING:
    from race import Row
    from work import Job

WARM = 100.0  # seconds allowed for filling caches
LIBRARIES = ("liger-kernel", "fla-core", "quack-kernels", "apex", "cuda-core")


def facts(device: str) -> dict[str, Any]:
    """Return the environment that the numbers depend on."""
    from verify_norm.running.environment import environment

    found: dict[str, Any] = dict(environment(device))
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    if device != "cpu":
        found["capability"] = "{}.{}".format(*torch.cuda.get_device_capability())
    return found


def run(name: str, jobs: list[Job], o: argparse.Namespace, device: str) -> list[Row]:
    """Return the rows of all jobs; print and write them after every piece of work."""
    from presets import picture
    from race import race
    from table import lines_of, span, summary
    from timing import Clock

    from verify_norm.core import files

    folder = Path(o.out) / name if o.out else None
    to_json = o.json or (f"{folder}.json" if folder else "")
    to_plot = o.plot or (f"{folder}.svg" if folder else "")
    about, rows = facts(device), []

    with Clock(device, o.seconds) as clock:
        empty = None if device == "cpu" else clock.host(lambda: torch.empty(8, device=device))
        for found in race(jobs, clock, device):
            rows += found
            print("\n".join(lines_of(found)), flush=True)
            report = {
                "preset": name or None,
                "environment": about,
                "smoke": device == "cpu",
                "seconds": o.seconds,
                "empty_host_us": empty,
                "rows": [row.record() for row in rows],
            }
            if to_json:
                files.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", to_json)
    if to_plot:
        files.write(picture(rows, about["device"]), to_plot)
    print(f"\n{summary(rows)}\n")
    if empty is not None:
        print(f"Each tensor that a call allocates takes {span(empty)} of its host time.\n")
    return rows


def show(path: str, to_plot: str) -> None:
    """Print and plot the results of an earlier run; raise UsageError for another file."""
    from presets import picture
    from race import Row
    from table import lines_of, summary

    from verify_norm.core import files

    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [Row.read(record) for record in report["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected the JSON of a benchmark: {type(error).__name__}: {error}") from None
    for work in dict.fromkeys(row.work for row in rows):
        print("\n".join(lines_of([row for row in rows if row.work == work])))
    print(f"\n{summary(rows)}\n\n{', '.join(f'{k} {v}' for k, v in report['environment'].items())}")
    if to_plot:
        files.write(picture(rows, report["environment"]["device"]), to_plot)


def warm(argv: list[str], count: int) -> None:
    """Run everything once in many processes, so that compiled code is on disk before the timing."""
    quiet = {**os.environ, "FLA_CACHE_RESULTS": "0"}  # fla must not cache its tuning on a busy GPU
    command = [sys.executable, __file__, *argv, "--shard"]
    started = [subprocess.Popen([*command, f"{i}/{count}"], env=quiet, stdout=subprocess.DEVNULL) for i in range(count)]
    until = time.monotonic() + WARM
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0.1))
        process.kill()  # the rest is compiled during the timing


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a norm is one kernel and needs no pool
    if not torch.cuda.is_available():
        from verify_norm.running.interpreter import patch

        patch.enable()  # before anything imports Triton
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        o = options(argv, str(__doc__))
        for path in (o.json, o.plot, o.out and f"{o.out}/x"):
            files.writable(path, ours=("",))
        if o.show:
            show(o.show, o.plot)
            return 0
        plans = plan(o)
    except UsageError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    if o.shard:
        from race import shard

        part, of = map(int, o.shard.split("/"))
        shard([job for jobs in plans.values() for job in jobs][part::of], device)
        return 0
    if device == "cpu":
        print("no GPU: this is a smoke test at tiny sizes; its times mean nothing", flush=True)
        plans = smoke(plans)
    elif o.warm:
        warm(sys.argv[1:] if argv is None else argv, o.warm)
    rows = [row for name, jobs in plans.items() for row in run(name, jobs, o, device)]
    return int(any(row.status != "ok" for row in rows if not row.peer))


if __name__ == "__main__":
    sys.exit(main())
