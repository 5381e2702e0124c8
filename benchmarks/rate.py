"""How fast kernels are judged: cases a second of a whole run, and what a case costs by its size.

    python benchmarks/rate.py [--kernel layernorm_bwd] [--workers 1,4] [--seconds 55] [--out FILE]

Writes FILE.json, and FILE.svg with the cost by size. A run is `verify-norm --kernel K` with its default settings, first
with an empty cache of Triton ("cold"), then with what that run has compiled ("warm"). So is one of random cases of
usual size alone, warm with each number of workers. A case's cost is the median time to draw its inputs, to compute
truth and bound, and to run the kernel once and check signature, accuracy and memory; on a GPU beside the same with
NumPy, up to 2^22 elements.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import plots
import torch

from verify_norm.cases import make
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import functions, registry
from verify_norm.running.environment import environment
from verify_norm.search.examine import examine

POWERS = range(8, 28, 1)
LENGTH = 4096  # of a row, at most
NUMPY = 2**22  # elements: NumPy takes seconds for more
CHECKS = ("signature", "accuracy", "memory")
REPEATS = 3
COUNTED = ("cases", "seconds", "seconds_in_kernel", "work")
# A whole run by the command line, or of random cases alone; the arguments are the kernel, workers, seconds and a file.
DEFAULT = """
import sys
from verify_norm.cli import main
kernel, workers, seconds, file = sys.argv[1:]
sys.argv[1:] = "--kernel", kernel, "--workers", workers, "--seconds", seconds, "--json", file
main()
"""
RANDOM = """
import json
import sys
from dataclasses import replace
from pathlib import Path
from verify_norm.running import fork_server
from verify_norm.search import PRELOAD
fork_server.start_ahead(PRELOAD, TRITON_INTERPRET=None)
from verify_norm.core.serial import jsonable
from verify_norm.search import drawing, search
from verify_norm.search.request import request
kernel, workers, seconds, file = sys.argv[1:]
drawing.LARGE_SHARE = 10**9
asked = request(kernel, {"examples": 2400, "workers": int(workers), "seconds": float(seconds)})
report = search.search(asked.kernels[0], replace(asked.settings, tables=False))
Path(file).write_text(json.dumps(jsonable(report)))
"""


def runs(kernel: str, workers: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what runs did: with the first number of workers cold and warm, random ones warm with the others too."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as kept:
        report = Path(kept) / "report.json"
        for which, code in {"default": DEFAULT, "random": RANDOM}.items():
            others = workers[1:] if which == "random" else ()
            for state, count in (("cold", workers[0]), ("warm", workers[0]), *(("warm", other) for other in others)):
                arguments = [sys.executable, "-c", code, kernel, str(count), str(seconds), str(report)]
                started, environment = time.perf_counter(), {**os.environ, "TRITON_CACHE_DIR": cache}
                subprocess.run(arguments, env=environment, check=False, capture_output=True)
                found = json.loads(report.read_text(encoding="utf-8"))
                yield {
                    "kernel": kernel,
                    "run": which,
                    "state": state,
                    "workers": count,
                    "wall_seconds": time.perf_counter() - started,
                    "cases_a_second": found["cases"] / found["seconds"],
                    **{
                        name: found[name] for name in ("cases", "seconds", "seconds_in_kernel", "work") if name in found
                    },
                    "coverage": found["coverage"],
                    "findings": len(found["findings"]),
                }


def sizes(kernel: Kernel, device: str, powers: Iterable[int] = POWERS) -> Iterator[dict[str, Any]]:
    """Yield what one case of each size costs, by the judge that computes it."""
    usual = make.JUDGES, make.LARGE
    functions.remember(functions.Functions())  # as where a run begins
    for power in powers:
        length = min(LENGTH, 2**power // 2)
        spec = CaseSpec((2**power // length, length), "bfloat16", further=())
        for judge in ("numpy", "device"):
            if (judge == "numpy" and 2**power > NUMPY) or (judge == "device" and device == "cpu"):
                continue
            make.JUDGES, make.LARGE = frozenset({"cuda"} if judge == "device" else ()), 1
            try:
                yield {"elements": 2**power, "shape": spec.shape, "judge": judge, **_cost(kernel, spec, device)}
            finally:
                make.JUDGES, make.LARGE = usual


def _cost(kernel: Kernel, spec: CaseSpec, device: str) -> dict[str, Any]:
    op = OPS[kernel.op]
    exact = make.exact_inputs(spec, op, device)
    examined = examine(kernel, spec, CHECKS, device)
    times = {
        "draw": _timed(lambda: make.exact_inputs(spec, op, device), device),
        "truth": _timed(lambda: make.truths(spec, op, kernel.contract, exact), device),
        "case": _timed(lambda: examine(kernel, spec, CHECKS, device), device),
    }
    return {"right": bool(examined.tallies) and not examined.findings, **times}


def _timed(function: Callable[[], Any], device: str) -> float:
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return median(taken)


def picture(rows: Iterable[dict[str, Any]], kernel: str) -> str:
    """Return the cost of a case by its size as SVG, in log2 of milliseconds."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for part in ("truth", "case"):
            series.setdefault(f"{part}, {row['judge']}", []).append((row["elements"], row[part] * 1000))
    return plots.lines(series, f"The cost of one case of {kernel}", "elements of x", "ms", log_x=True)


def main(argv: list[str] | None = None) -> int:
    """Measure, write, print a line a run and a size; return 1 if a run found something or a case was wrong."""
    parser = argparse.ArgumentParser(prog="rate.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernel", default="layernorm_bwd")
    parser.add_argument("--workers", default="1", help="numbers of processes, as 1,4; 0: no whole run")
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--out", type=Path, help="by default results/rate/KERNEL")
    args = parser.parse_args(argv)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    counts = [int(count) for count in args.workers.split(",") if int(count)]
    out = args.out or Path(__file__).parent / "results" / "rate" / args.kernel
    out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"date": date.today().isoformat(), "environment": environment(device)}
    found |= {"kernel": args.kernel, "runs": [], "sizes": []}

    def measured(kind: str, row: dict[str, Any], said: str) -> None:
        """Keep a row: what comes later may not end."""
        found[kind].append(row)
        out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(said, flush=True)

    for row in runs(args.kernel, counts, args.seconds) if counts else ():
        of = f"{row['run']}, {row['state']}, {row['workers']} workers"
        measured("runs", row, f"{of}: {row['cases_a_second']:.1f} cases/s, {row['cases']} cases")
    for row in sizes(registry.load(args.kernel), device, POWERS if device != "cpu" else range(8, 18)):
        parts = ", ".join(f"{part} {row[part] * 1000:.2f} ms" for part in ("draw", "truth", "case"))
        measured("sizes", row, f"2^{row['elements'].bit_length() - 1} elements, {row['judge']}: {parts}")
    out.with_suffix(".svg").write_text(picture(found["sizes"], args.kernel), encoding="utf-8")
    return int(any(row["findings"] for row in found["runs"]) or not all(row["right"] for row in found["sizes"]))


if __name__ == "__main__":
    sys.exit(main())
