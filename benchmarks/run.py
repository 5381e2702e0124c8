"""Time this project's norm kernels, any kernel of yours, and other libraries', once each is found to be right.

    python benchmarks/run.py                                        a few sizes, every library that is here
    python benchmarks/run.py --kernel layernorm_bwd --peers torch,quack --shapes 4096x8192 --json F --plot F.svg
    python benchmarks/run.py --preset perf,fp8,seed001,seed003,seed004,choices --out FOLDER     known tables and plots

Every result is held, element by element, to the float64 reference and the bound of its contract, before it is timed
and as it was timed: a kernel that is wrong is reported as wrong and has no time. Times are medians with the L2 cache
flushed before each run: of the kernel, replayed from a CUDA graph; of the eager call; of Python alone (host). The limit
is a copy of as many bytes, in the same run. layernorm_fwd_cuda3@256 is a step of the CUDA ladder at a block size,
layernorm_bwd@row_plan.PAIRED=1024 our kernel with another constant in its plan (variants.py).
Without a GPU all this is a smoke test, whose times mean nothing. Exit status: 0, 1 where a kernel (not a peer) is wrong
or refused, 2 for a usage error.
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

from verify_norm import session
from verify_norm.bind import UsageError

if TYPE_CHECKING:
    from race import Row
    from work import Job

WARM = 100.0  # seconds that filling caches may take
LIBRARIES = ("liger-kernel", "fla-core", "quack-kernels", "apex", "cuda-core")


def facts(device: str) -> dict[str, Any]:
    """What the numbers depend on."""
    from verify_norm.environment import environment

    found: dict[str, Any] = dict(environment(device))
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    if device != "cpu":
        found["capability"] = "{}.{}".format(*torch.cuda.get_device_capability())
    return found


def run(name: str, jobs: list[Job], o: argparse.Namespace, device: str) -> list[Row]:
    """Race, print, and keep what there is so far after every piece of work."""
    from presets import picture
    from race import race
    from table import lines_of, span, summary
    from timing import Clock

    from verify_norm.report import json as json_form

    folder = Path(o.out) / name if o.out else None
    to_json = o.json or (f"{folder}.json" if folder else "")
    to_plot = o.plot or (f"{folder}.svg" if folder else "")
    about, rows = facts(device), []

    with Clock(device, o.seconds) as clock:
        empty = None if device == "cpu" else clock.host(lambda: torch.empty(8, device=device))
        for found in race(jobs, clock, device):
            rows += found
            print("\n".join(lines_of(found)), flush=True)
            report = {"preset": name or None, "environment": about, "smoke": device == "cpu", "seconds": o.seconds,
                      "empty_host_us": empty, "rows": [row.record() for row in rows]}  # fmt: skip
            if to_json:
                json_form.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", to_json)
    if to_plot:
        json_form.write(picture(rows, about["device"]), to_plot)
    print(f"\n{summary(rows)}\n")
    if empty is not None:
        print(f"Of a call's host time, each tensor that it allocates takes {span(empty)}.\n")
    return rows


def show(path: str, to_plot: str) -> None:
    """What an earlier run has written, as text and as a picture; raises UsageError where it is no such file."""
    from presets import picture
    from race import Row
    from table import lines_of, summary

    from verify_norm.report import json as json_form

    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [Row.read(record) for record in report["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no results of a benchmark: {type(error).__name__}: {error}") from None
    for work in dict.fromkeys(row.work for row in rows):
        print("\n".join(lines_of([row for row in rows if row.work == work])))
    print(f"\n{summary(rows)}\n\n{', '.join(f'{k} {v}' for k, v in report['environment'].items())}")
    if to_plot:
        json_form.write(picture(rows, report["environment"]["device"]), to_plot)


def warm(argv: list[str], count: int) -> None:
    """Run everything once in so many processes: what is compiled now is on disk when it is timed."""
    quiet = {**os.environ, "FLA_CACHE_RESULTS": "0"}  # not what fla finds fastest on a GPU that others use
    command = [sys.executable, __file__, *argv, "--shard"]
    started = [subprocess.Popen([*command, f"{i}/{count}"], env=quiet, stdout=subprocess.DEVNULL) for i in range(count)]
    until = time.monotonic() + WARM
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0.1))
        process.kill()  # what is not warm by now is compiled when it is timed


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a norm is one kernel: no pool need start for it
    if not torch.cuda.is_available():
        from verify_norm import interpreter

        interpreter.enable()  # before anything imports Triton
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        o = options(argv, str(__doc__))
        for path in (o.json, o.plot, o.out and f"{o.out}/x"):
            session.writable(path)
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
        print("no GPU here: a smoke test at tiny sizes, whose times mean nothing", flush=True)
        plans = smoke(plans)
    elif o.warm:
        warm(sys.argv[1:] if argv is None else argv, o.warm)
    rows = [row for name, jobs in plans.items() for row in run(name, jobs, o, device)]
    return int(any(row.status != "ok" for row in rows if not row.peer))


if __name__ == "__main__":
    sys.exit(main())
