"""How fast a warm judge is with several processes, and where one case's time goes: all in less than two minutes.

    python benchmarks/judging.py [--kernels rmsnorm_fwd,layernorm_bwd] [--workers 1,4,8,10] [--seconds 7]

Each kernel first runs with the most processes, which fills Triton's cache. Its other runs find most of it there. A run
is `verify-norm --kernel K` with more random cases than its time allows. Its rate counts from the first process that has
started; what starting took is printed beside. Then usual random cases run in this process under cProfile and, on a GPU,
under torch's profiler, which counts launches, copies and waits.
"""

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # a TorchDispatchMode would import it in the first case

from verify_norm.cases import strategies
from verify_norm.cases.exploration import explore
from verify_norm.checks import CHECKS
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import functions, registry
from verify_norm.search.drawing import USUAL
from verify_norm.search.examine import examine

RUN = "from verify_norm.cli import main; main()"
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpyAsync",
    "cudaLaunchKernel",
)
LINES = 25  # of a profile


def rates(kernel: str, workers: list[int], seconds: float, cache: str) -> Iterator[str]:
    """Yield the rate of a warm run with each number of processes, after one that compiles."""
    for number, count in enumerate([max(workers), *workers]):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            options = [
                "--workers",
                str(count),
                "--seconds",
                str(seconds),
                "--examples",
                "100000",
                "--json",
                str(report),
            ]
            line = [sys.executable, "-c", RUN, "--kernel", kernel, *options]
            given = {**os.environ, "TRITON_CACHE_DIR": cache}
            started = time.perf_counter()
            ended = subprocess.run(line, env=given, check=False, capture_output=True, text=True)
            if not report.is_file():
                raise SystemExit(f"{kernel} with {count} workers made no report: {ended.stderr.strip()[-400:]}")
            found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        wall, work = time.perf_counter() - started, found.get("work", {})
        starting = work.get("starting", 0.0) / max(work.get("started", 1), 1)
        rate = found["cases"] / max(found["seconds"] - starting, 1e-3)
        yield (
            f"{kernel}, {'warm' if number else 'cold'}, {count} workers: {rate:.1f} cases/s ({found['cases']} cases in "
            f"{found['seconds']:.1f} s, a process starts in {starting:.1f} s, {wall:.1f} s in all), "
            f"{100 * found['seconds_in_kernel'] / max(found['seconds'] * count, 1e-3):.0f} % of the processes' time in "
            f"the kernel, {len(found['findings'])} findings"
        )


def profile(name: str, device: str, examples: int) -> None:
    """Print where the time of usual random cases goes, by function and, on a GPU, by what waits for it."""
    kernel, specs = registry.load(name), list[CaseSpec]()
    op, usual = OPS[kernel.op], USUAL[torch.device(device).type]
    drawn = strategies.specs(op, KERNEL_DTYPES, usual[0], gpu=device != "cpu", rows=usual[1])
    explore(drawn, lambda spec: specs.append(spec) or {}, examples=examples, seed=0)
    functions.remember(functions.Functions())

    def run() -> float:
        started = time.perf_counter()
        for spec in specs:
            examine(kernel, spec, tuple(CHECKS), device)
        return (time.perf_counter() - started) / len(specs)

    run()  # compiles
    gc.collect()
    gc.freeze()
    print(f"\n{name}: {1000 * run():.1f} ms a case, {len(specs)} random cases in one process")
    profiler = cProfile.Profile()
    profiler.runcall(run)
    for key in ("tottime", "cumtime"):
        pstats.Stats(profiler).sort_stats(key).print_stats(r"verify_norm|torch|numpy", LINES)
    if device != "cpu":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            run()
        for event in seen.key_averages():
            if event.key in WAITS:
                took = event.self_cpu_time_total / 1e3 / len(specs)
                print(f"{event.key}: {event.count / len(specs):.1f} a case, {took:.2f} ms a case")


def main(argv: list[str] | None = None) -> int:
    """Print the rates of all runs, and the profiles; return 0."""
    parser = argparse.ArgumentParser(prog="judging.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernels", default="rmsnorm_fwd,layernorm_bwd")
    parser.add_argument("--workers", default="1,4,8,10")
    parser.add_argument("--seconds", type=float, default=7.0)
    parser.add_argument("--examples", type=int, default=60, help="cases of a profile")
    args = parser.parse_args(argv)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as cache:
        for kernel in args.kernels.split(","):
            for line in rates(kernel, [int(count) for count in args.workers.split(",")], args.seconds, cache):
                print(line, flush=True)
        os.environ["TRITON_CACHE_DIR"] = cache
        for kernel in args.kernels.split(","):
            profile(kernel, device, args.examples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
