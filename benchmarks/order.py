"""Measure when the corner table first detects each wrong kernel of the zoo, and which of its cases detect it at all.

    python benchmarks/order.py [--label after] [--all] [--jobs 2] [--out FILE]

Every wrong kernel whose bug shows on a CPU runs the corner cases that every kernel runs, in one process, until one
detects it; with `--all` it runs all of them, as a greedy order needs. The file keeps one run under each label;
`benchmarks/tables.py` compares them.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from verify_norm.cases.corners import corners
from verify_norm.checks import CHECKS
from verify_norm.core.geometry import repeated, size
from verify_norm.core.ops import OPS
from verify_norm.core.results import DEFAULTS
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.running.environment import environment
from verify_norm.running.interpreter import patch
from verify_norm.search.examine import examine
from verify_norm.search.pace import Pace
from verify_norm.validation.zoo import detectable, explains


def measured(name: str, every: bool) -> dict[str, Any]:
    """Return the numbers of the corner cases that detect one bug, and the CPU seconds until the first has."""
    patch.enable()
    example = ZOO[name]
    kernel, op = registry.ready(example.kernel), OPS[example.kernel.op]
    checks = tuple(check.name for check in CHECKS.values() if check.applies(op))
    pace, detecting, seconds, began = Pace("cpu", DEFAULTS.seconds), [], [], time.process_time()
    for spec in corners(op, tuple(dtype for dtype in DEFAULTS.dtypes if dtype in kernel.dtypes)):
        if not pace.usual(size(repeated(spec), op)):
            continue
        findings = examine(kernel, spec, checks, "cpu").findings
        if any(explains(example, finding) for finding in findings):
            detecting.append(len(seconds))
        seconds.append(round(time.process_time() - began, 2))
        if detecting and not every:
            break
    after = seconds[detecting[0]] if detecting else None
    return {"name": name, "op": op.name, "cases": len(seconds), "seconds": after, "detecting": detecting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="after", help="the name of this run in the file")
    parser.add_argument("--all", action="store_true", help="do not stop at the first case that detects a bug")
    parser.add_argument("--jobs", type=int, default=0, help="kernels at a time; 0: one for each core")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/order.json")
    options = parser.parse_args()
    names = [example.name for example in detectable("cpu") if example.wrong]
    with ProcessPoolExecutor(options.jobs or os.cpu_count(), get_context("spawn")) as pool:
        rows = []
        for row in pool.map(measured, names, repeat(options.all)):
            rows.append(row)
            first = row["detecting"][0] + 1 if row["detecting"] else "none"
            print(f"{row['name']}: case {first}, {row['seconds']} s", flush=True)
    found = json.loads(options.out.read_text()) if options.out.is_file() else {"runs": {}}
    found["runs"][options.label] = {"environment": environment("cpu"), "all": options.all, "kernels": rows}
    options.out.write_text(json.dumps(found, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
