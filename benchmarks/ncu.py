"""Profile kernels with NVIDIA Nsight Compute: what limits each of their launches.

    python benchmarks/ncu.py --kernel layernorm_bwd --shapes 4096x8192,16384x16384 [--dtype bf16] [--json FILE]

Each launch of ours runs once for every group of counters, at the GPU's own clock, from an empty cache: so a kernel that
counts on what the one before has left in the L2 is slower here than in its place. Needs a GPU and `ncu`, which comes
with CUDA. Exit status: 0, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from plan import Parser, shapes
from run import facts
from table import markdown

from verify_norm import registry, session
from verify_norm.bind import UsageError
from verify_norm.ops import OPS
from verify_norm.report import json as json_form

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = (
    "long_scoreboard", "short_scoreboard", "barrier", "wait", "lg_throttle", "mio_throttle", "math_pipe_throttle",
    "not_selected",
)  # fmt: skip
COUNTED = {
    "ns": "gpu__time_duration.sum",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "spilled": "smsp__inst_executed_op_local_st.sum",
    **{f"stalled_{reason}": STALL.format(reason) for reason in REASONS},
}
OURS = "regex:^_?(forward|backward|fold|dx|partials|over|mean|rstd|normalize|layernorm)"


def read(text: str) -> list[dict[str, Any]]:
    """The launches in what `ncu --csv --page raw` prints: name, grid, and what is COUNTED.

    Lines that are not CSV are the program's own; under the names of the columns is a line of units.
    """
    table = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    found = []
    for line in table[2:]:
        cells = dict(zip(table[0], line, strict=True))
        counts = {name: float(cells[metric].replace(",", "")) for name, metric in COUNTED.items() if cells.get(metric)}
        found.append({"name": cells["Kernel Name"], "grid": cells["Grid Size"], **counts})
    return found


def stalls(launch: dict[str, Any], most: int = 3) -> str:
    """What a warp waits for between two of its instructions, in cycles: the longest waits."""
    waits = sorted(((launch[f"stalled_{r}"], r) for r in REASONS if f"stalled_{r}" in launch), reverse=True)
    return ", ".join(f"{reason.replace('_', ' ')} {cycles:.1f}" for cycles, reason in waits[:most])


def lines(profiles: list[dict[str, Any]]) -> str:
    """Markdown's table of all launches."""
    head = ["kernel", "launch", "µs", "memory", "L2", "issue slots", "registers", "waits, cycles an instruction"]
    rows = [
        [f"{p['kernel']} {p['shape']} {p['dtype']}", f"{launch['name']} {launch['grid']}", f"{launch['ns'] / 1e3:.1f}",
         *(f"{launch[k]:.0f} %" for k in ("memory_percent", "l2_percent", "issue_percent")),
         f"{launch['registers']:.0f}", stalls(launch)]
        for p in profiles
        for launch in p["launches"]
    ]  # fmt: skip
    return markdown(head, rows)


def profile(kernel: str, shape: str, dtype: str) -> dict[str, Any]:
    """Run one kernel at one shape under ncu; raises UsageError where that fails."""
    ours = [sys.executable, str(Path(__file__).with_name("run.py")), "--kernel", kernel, "--shapes", shape, "--dtype",
            dtype, "--peers", "none", "--shard", "0/1"]  # fmt: skip
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--kernel-name",
               OURS, "--metrics", ",".join(COUNTED.values()), *ours]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    launches = read(done.stdout) if done.returncode == 0 else []
    if not launches:
        said = (done.stdout + done.stderr).strip().splitlines() or ["(no output)"]
        raise UsageError(f"ncu found no launch of {kernel} at {shape}; it said: {said[-1]}")
    return {"kernel": kernel, "shape": shape, "dtype": dtype, "launches": launches}


def main(argv: list[str] | None = None) -> int:
    """Profile, print and keep."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="layernorm_bwd", help="names, separated by commas")
    parser.add_argument("--shapes", default="4096x8192")
    parser.add_argument("--dtype", default="bf16", help="fp32, fp16 or bf16")
    parser.add_argument("--json", default="", metavar="FILE")
    try:
        o = parser.parse_args(argv)
        session.writable(o.json)
        kernels, dtype = session.split(o.kernel), session.dtype(o.dtype)
        for name in kernels:
            shapes(o.shapes, OPS[registry.find(name, None).op].view, 32)
        if not torch.cuda.is_available() or shutil.which("ncu") is None:
            raise UsageError("a profile needs a GPU and NVIDIA's ncu, and one of them is not here")
        found = [profile(name, shape, dtype) for name in kernels for shape in session.split(o.shapes)]
    except UsageError as error:
        print(f"ncu.py: {error}", file=sys.stderr)
        return 2
    print(lines(found))
    if o.json:
        report = {"environment": facts("cuda:0"), "counters": COUNTED, "profiles": found}
        json_form.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", o.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
