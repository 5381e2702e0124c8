"""What --untrusted costs: processor time and wall clock of the same run with and without it.

    python benchmarks/untrusted.py [--device cpu] [--examples 60] [--seed 0] [--out benchmarks/results/untrusted.json]

The processor time is that of all processes of a run, which /proc tells ten times a second: what a process uses in its
last tenth is missed in both. Other work on the machine changes the wall clock, and the processor time much less.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verify_norm.running.environment import environment

KERNELS = (  # one in Triton's interpreter, a backward, and modules of torch, which are fast
    ("rmsnorm_fwd", "rmsnorm_fwd"),
    ("layernorm_bwd", "layernorm_bwd"),
    ("torch.nn:LayerNorm", "layernorm_fwd"),
    ("torch.nn:RMSNorm", "rmsnorm"),
)
TICKS = os.sysconf("SC_CLK_TCK")
EVERY = 0.1  # seconds


def used(root: int) -> dict[int, float]:
    """Return the processor time of a process and of its descendants, by process."""
    known: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        known[int(path.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    found = {root}
    while more := {pid for pid, (parent, _) in known.items() if parent in found} - found:
        found |= more
    return {pid: known[pid][1] for pid in found if pid in known}


def measured(command: list[str]) -> dict[str, float]:
    """Return the seconds of a command."""
    started, seen = time.perf_counter(), dict[int, float]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        seen |= used(process.pid)
        time.sleep(EVERY)
    return {"wall": round(time.perf_counter() - started, 1), "processor": round(sum(seen.values()), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = ["--device", given.device, "--no-config", "--seconds", "600"]
    options += ["--examples", str(given.examples), "--seed", str(given.seed)]
    rows = []
    for kernel, op in KERNELS:
        row = {"kernel": kernel, "op": op}
        for name, flag in (("plain", []), ("untrusted", ["--untrusted"])):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "report.json"
                line = [sys.executable, "-m", "verify_norm", "--kernel", kernel, "--op", op, *options, *flag]
                took = measured([*line, "--json", str(path)])
                found = json.loads(path.read_text(encoding="utf-8"))
            reports = found if isinstance(found, list) else [found]
            findings = sum(len(report["findings"]) for report in reports)
            row[name] = took | {"cases": sum(report["cases"] for report in reports), "findings": findings}
        row["ratio"] = {k: round(row["untrusted"][k] / row["plain"][k], 2) for k in ("wall", "processor")}
        print(json.dumps(row))
        rows.append(row)
    facts = environment(given.device)
    if given.out:
        text = json.dumps(
            {"examples": given.examples, "seed": given.seed, "runs": rows, "environment": facts}, indent=1
        )
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
