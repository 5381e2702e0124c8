"""Is any right kernel of the zoo ever accused? All of them, at several seeds, with as many cases whatever the load.

    python benchmarks/zoo_seeds.py [--seeds 10] [--examples 60] [--jobs 2] [--out FILE]

Each run is the corner table and then `--examples` random cases; time limits are so wide that they cut none. The file is
written after every seed; seeds that it has already, of the same settings and versions, are not run again. Exit
status 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

from verify_norm import zoo  # noqa: E402 — Triton learns of its interpreter first
from verify_norm.environment import environment  # noqa: E402
from verify_norm.report.json import jsonable  # noqa: E402
from verify_norm.report.model import Settings  # noqa: E402

SECONDS = 1800.0  # for a kernel: far more than it takes
TIMEOUT = 180.0  # for a case: a loaded machine is no finding


def at(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One seed: how many cases each right kernel was given, and all that was found."""
    settings = Settings(examples=options.examples, seconds=SECONDS, seed=seed, device=options.device, timeout=TIMEOUT)
    right = [specimen for specimen in zoo.shown(options.device) if not specimen.wrong]
    outcomes = list(zoo.audit_all(settings, right, jobs=options.jobs))
    cases = {outcome.specimen.name: outcome.cases for outcome in outcomes}
    findings = [asdict(finding) for outcome in outcomes for finding in outcome.findings]
    return {
        "seed": seed, "kernels": len(cases), "cases": sum(cases.values()), "fewest": min(cases.values()),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)), "findings": jsonable(findings),
        "by_kernel": dict(sorted(cases.items())),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=0, help="kernels at a time; 0: one for each core")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/zoo/cpu-right-seeds.json")
    options = parser.parse_args()
    options.device = "cuda:0" if ON_GPU else "cpu"
    settings = {"examples": options.examples, "seconds": SECONDS, "timeout": TIMEOUT, "device": options.device}
    facts = environment(options.device)
    date = facts.pop("date")
    before = json.loads(options.out.read_text()) if options.out.is_file() else {}
    same = before.get("settings") == settings and before.get("environment") == facts
    done = {row["seed"]: row for row in before["runs"]} if same else {}
    for seed in range(options.seeds):
        if seed not in done:
            done[seed] = at(seed, options) | {"date": date}
        rows = [done[s] for s in sorted(done)]
        told = {"settings": settings, "environment": facts, "runs": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        row = done[seed]
        alarms = Counter(finding["kernel"] for finding in row["findings"])
        print(f"seed {seed}: {row['kernels']} right kernels, {row['cases']} cases, {len(alarms)} accused", flush=True)
        for finding in row["findings"]:
            print(f"  {finding['kernel']}: {finding['check']} {finding['output']}: {finding['message']}", flush=True)
    return int(any(row["findings"] for row in done.values()))


if __name__ == "__main__":
    sys.exit(main())
