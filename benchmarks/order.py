"""Measure when the corner table first detects each wrong kernel of the zoo.

    python benchmarks/order.py [--jobs 2] [--out FILE]

Every wrong kernel whose bug shows on a CPU runs the corner cases that every kernel runs, in one process, until one
detects it.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from verify_norm.cases.corners import corners
from verify_norm.checks import CHECKS
from verify_norm.core.geometry import repeated, size
from verify_norm.core.ops import OPS
from verify_norm.core.settings import DEFAULTS
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.running.environment import environment
from verify_norm.running.interpreter import patch
from verify_norm.search.examine import examine
from verify_norm.search.pace import Pace
from verify_norm.validation.zoo import detectable, explains


def measured(name: str) -> dict[str, Any]:
    """Return how many corner cases run until one detects a bug, and the CPU seconds; None if none does."""
    patch.enable()
    example = ZOO[name]
    kernel, op = registry.ready(example.kernel), OPS[example.kernel.op]
    checks = tuple(check.name for check in CHECKS.values() if check.applies(op))
    pace, cases, began = Pace("cpu", DEFAULTS.seconds), 0, time.process_time()
    for spec in corners(op, tuple(dtype for dtype in DEFAULTS.dtypes if dtype in kernel.dtypes)):
        if not pace.usual(size(repeated(spec), op)):
            continue
        cases += 1
        if any(explains(example, finding) for finding in examine(kernel, spec, checks, "cpu").findings):
            return {"name": name, "op": op.name, "cases": cases, "seconds": round(time.process_time() - began, 2)}
    return {"name": name, "op": op.name, "cases": None, "seconds": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="kernels at a time; 0: one for each core")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/order.json")
    options = parser.parse_args()
    names = [example.name for example in detectable("cpu") if example.wrong]
    with ProcessPoolExecutor(options.jobs or os.cpu_count(), get_context("spawn")) as pool:
        rows = []
        for row in pool.map(measured, names):
            rows.append(row)
            print(f"{row['name']}: case {row['cases']}, {row['seconds']} s", flush=True)
    found = {"environment": environment("cpu"), "kernels": rows}
    options.out.write_text(json.dumps(found, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
