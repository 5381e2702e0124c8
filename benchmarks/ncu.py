"""Profile kernels with NVIDIA Nsight Compute: what limits each launch.

    python benchmarks/ncu.py --kernel layernorm_bwd --shapes 4096x8192,16384x16384 [--in-place] [--json FILE]

Takes the options of run.py that select kernels and shapes. Each launch runs once for every group of counters, at the
GPU's own clock, with an empty cache. A kernel that relies on what the previous launch left in the L2 is therefore
slower here than in normal use. With --in-place the whole program runs once for every group of counters, and the cache
keeps what the previous launch left; but no launch overlaps another. Needs a GPU and `ncu`, which comes with CUDA. Exit
status: 0, 2 for a usage error.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from plan import parser, plan
from run import facts
from table import markdown

from verify_norm.core import files
from verify_norm.core.errors import UsageError

if TYPE_CHECKING:
    from work import Work

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "wait",
    "lg_throttle",
    "mio_throttle",
    "math_pipe_throttle",
    "not_selected",
)
COUNTED = {
    "ns": "gpu__time_duration.sum",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "spilled": "smsp__inst_executed_op_local_st.sum",
    **{f"stalled_{reason}": STALL.format(reason) for reason in REASONS},
}
OURS = "regex:^_?(forward|backward|fold|largest|dx|partials|over)|_a_row|_of_rows|normalize_elements"


def read(text: str) -> list[dict[str, Any]]:
    """Return the launches in the output of `ncu --csv --page raw`: name, grid, and the metrics of COUNTED.

    Lines of the profiled program are skipped, and so is the line of units below the column names.
    """
    quoted = csv.reader(line for line in text.splitlines() if line.startswith('"'))
    head, found = None, []
    for line in quoted:
        if head is None and "Kernel Name" in line:
            head = line
        elif head is not None and len(line) == len(head):
            cells = dict(zip(head, line, strict=True))
            launch: dict[str, Any] = {"name": cells["Kernel Name"], "grid": cells["Grid Size"]}
            for name, metric in COUNTED.items():
                with suppress(ValueError):  # "n/a" or "" if the GPU does not count it
                    launch[name] = float(cells.get(metric, "").replace(",", ""))
            found += [launch] if launch["name"] else []  # the line of units has no name
    return found


def stalls(launch: dict[str, Any], most: int = 3) -> str:
    """Return the longest stalls of a warp, in cycles per instruction."""
    waits = sorted(((launch[f"stalled_{r}"], r) for r in REASONS if f"stalled_{r}" in launch), reverse=True)
    return ", ".join(f"{reason.replace('_', ' ')} {cycles:.1f}" for cycles, reason in waits[:most])


def lines(profiles: list[dict[str, Any]]) -> str:
    """Return a Markdown table of all launches."""
    head = ["kernel", "launch", "µs", "memory", "read", "written", "L2", "L2 hits", "issue slots"]
    head += ["registers", "spill stores", "stalls, cycles per instruction"]
    rows = [
        [" ".join([p["kernel"], p["shape"], p["dtype"], *p.get("how", ())]), *cells(launch)]
        for p in profiles
        for launch in p["launches"]
    ]
    return markdown(head, rows)


def cells(launch: dict[str, Any]) -> list[str]:
    """Return the table cells of one launch."""

    def cell(name: str, form: str, each: float = 1.0) -> str:
        return form.format(launch[name] / each) if name in launch else "–"

    return [
        f"{launch['name']} {launch['grid']}",
        cell("ns", "{:.1f}", 1e3),
        cell("memory_percent", "{:.0f} %"),
        *(cell(f"{way}_bytes", "{:.1f} MB", 1e6) for way in ("read", "written")),
        *(cell(f"{name}_percent", "{:.0f} %") for name in ("l2", "l2_hit", "issue")),
        cell("registers", "{:.0f}"),
        cell("spilled", "{:,.0f}"),
        stalls(launch),
    ]


def profile(kernel: str, work: Work, in_place: bool) -> dict[str, Any]:
    """Return the profile of one kernel at one shape; raise UsageError if ncu finds no launch."""
    shape = "x".join(map(str, work.shape))
    options = {
        "--kernel": kernel,
        "--op": work.op,
        "--shapes": shape,
        "--dtype": work.dtype,
        "--groups": str(work.num_groups),
        "--layout": work.layout,
        "--mean": str(work.mean),
        "--peers": "none",
        "--shard": "0/1",
    }
    ours = [
        sys.executable,
        str(Path(__file__).with_name("run.py")),
        *(word for pair in options.items() for word in pair),
    ]
    kept = ["--replay-mode", "application", "--cache-control", "none"] if in_place else []
    command = ["ncu", "--clock-control", "none", *kept, "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--kernel-name", OURS, "--metrics", ",".join(COUNTED.values()), *ours]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    launches = read(done.stdout) if done.returncode == 0 else []
    if not launches:
        printed = (done.stdout + done.stderr).strip().splitlines() or ["(no output)"]
        raise UsageError(f"expected a launch of {kernel} at {shape}, ncu found none; its last line: {printed[-1]}")
    how = [*(["channels_last"] if work.layout == "channels_last" else []), *(["in place"] if in_place else [])]
    return {"kernel": kernel, "shape": shape, "dtype": work.dtype, "how": how, "launches": launches}


def main(argv: list[str] | None = None) -> int:
    """Profile the kernels, print the table, write the JSON; return the exit status."""
    try:
        made = parser(str(__doc__))
        made.add_argument("--in-place", action="store_true", help="keep what the previous launch left in the L2")
        o = made.parse_args(argv)
        files.writable(o.json)
        jobs = [(kernel, job.work) for job in plan(o)[""] for kernel in job.kernels]
        if not jobs:
            raise UsageError("nothing to profile: --kernel and --shapes select no kernel or no shape")
        if not torch.cuda.is_available() or shutil.which("ncu") is None:
            raise UsageError("a profile needs a GPU and NVIDIA's ncu; at least one of them is missing")
        found = [profile(kernel, work, o.in_place) for kernel, work in jobs]
        print(lines(found))
        if o.json:
            report = {"environment": facts("cuda:0"), "counters": COUNTED, "profiles": found}
            files.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", o.json)
    except UsageError as error:
        print(f"ncu.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
