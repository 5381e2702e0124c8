"""Profile kernels with NVIDIA Nsight Compute: what limits each of their launches.

    python benchmarks/ncu.py --kernel layernorm_bwd --shapes 4096x8192,16384x16384 [--in-place] [--json FILE]

It takes the options of run.py that say what is run. Each launch runs once for every group of counters, at the GPU's own
clock, from an empty cache: so a kernel that counts on what the one before has left in the L2 is slower here than in its
place. With --in-place all of the program runs once for every group of counters, and the cache is as the launch before
has left it; only that no launch overlaps another. Needs a GPU and `ncu`, which comes with CUDA. Exit status: 0, 2 for a
usage error.
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

from verify_norm import session
from verify_norm.bind import UsageError
from verify_norm.report import json as json_form

if TYPE_CHECKING:
    from work import Work

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
    """The launches in what `ncu --csv --page raw` prints: name, grid, and what is COUNTED and has a number.

    Lines that are not of its table are the program's own; under the names of the columns is a line of units.
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
                with suppress(ValueError):  # "n/a", or nothing, where a GPU does not count it
                    launch[name] = float(cells.get(metric, "").replace(",", ""))
            found += [launch] if launch["name"] else []  # the units have none
    return found


def stalls(launch: dict[str, Any], most: int = 3) -> str:
    """What a warp waits for between two of its instructions, in cycles: the longest waits."""
    waits = sorted(((launch[f"stalled_{r}"], r) for r in REASONS if f"stalled_{r}" in launch), reverse=True)
    return ", ".join(f"{reason.replace('_', ' ')} {cycles:.1f}" for cycles, reason in waits[:most])


def lines(profiles: list[dict[str, Any]]) -> str:
    """Markdown's table of all launches."""
    head = ["kernel", "launch", "µs", "memory", "read", "written", "L2", "L2 hits", "issue slots", "registers",
            "spilling stores", "waits, cycles an instruction"]  # fmt: skip
    rows = [
        [" ".join([p["kernel"], p["shape"], p["dtype"], *p.get("how", ())]), *cells(launch)]
        for p in profiles
        for launch in p["launches"]
    ]
    return markdown(head, rows)


def cells(launch: dict[str, Any]) -> list[str]:
    """A launch's part of its line."""

    def told(name: str, form: str, each: float = 1.0) -> str:
        return form.format(launch[name] / each) if name in launch else "–"

    return [
        f"{launch['name']} {launch['grid']}", told("ns", "{:.1f}", 1e3), told("memory_percent", "{:.0f} %"),
        *(told(f"{way}_bytes", "{:.1f} MB", 1e6) for way in ("read", "written")),
        *(told(f"{name}_percent", "{:.0f} %") for name in ("l2", "l2_hit", "issue")),
        told("registers", "{:.0f}"), told("spilled", "{:,.0f}"), stalls(launch),
    ]  # fmt: skip


def profile(kernel: str, work: Work, in_place: bool) -> dict[str, Any]:
    """Run one kernel at one shape under ncu; raises UsageError where that fails."""
    shape = "x".join(map(str, work.shape))
    ours = [sys.executable, str(Path(__file__).with_name("run.py")), "--kernel", kernel, "--op", work.op, "--shapes",
            shape, "--dtype", work.dtype, "--groups", str(work.num_groups), "--layout", work.layout, "--mean",
            str(work.mean), "--peers", "none", "--shard", "0/1"]  # fmt: skip
    kept = ["--replay-mode", "application", "--cache-control", "none"] if in_place else []
    command = ["ncu", "--clock-control", "none", *kept, "--csv", "--page", "raw", "--print-units", "base",
               "--kernel-name", OURS, "--metrics", ",".join(COUNTED.values()), *ours]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    launches = read(done.stdout) if done.returncode == 0 else []
    if not launches:
        said = (done.stdout + done.stderr).strip().splitlines() or ["(no output)"]
        raise UsageError(f"ncu found no launch of {kernel} at {shape}; it said: {said[-1]}")
    how = [*(["channels_last"] if work.layout == "channels_last" else []), *(["in place"] if in_place else [])]
    return {"kernel": kernel, "shape": shape, "dtype": work.dtype, "how": how, "launches": launches}


def main(argv: list[str] | None = None) -> int:
    """Profile, print and keep."""
    try:
        made = parser(str(__doc__))
        made.add_argument("--in-place", action="store_true", help="keep what the launch before has left in the L2")
        o = made.parse_args(argv)
        session.writable(o.json)
        jobs = [(kernel, job.work) for job in plan(o)[""] for kernel in job.kernels]
        if not jobs:
            raise UsageError("nothing to profile: --kernel and --shapes name no kernel at no shape")
        if not torch.cuda.is_available() or shutil.which("ncu") is None:
            raise UsageError("a profile needs a GPU and NVIDIA's ncu, and one of them is not here")
        found = [profile(kernel, work, o.in_place) for kernel, work in jobs]
        print(lines(found))
        if o.json:
            report = {"environment": facts("cuda:0"), "counters": COUNTED, "profiles": found}
            json_form.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n", o.json)
    except UsageError as error:
        print(f"ncu.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
