"""Count the false alarms on the right kernels of the zoo, with several seeds.

    python benchmarks/zoo_seeds.py [--seeds 10] [--examples 60] [--jobs 2] [--out FILE]

Each run takes the corner table, then `--examples` random cases. Its time limits are so wide that a loaded machine runs
as many cases as an idle one. The file is written after every seed. A seed that the file has for the same settings and
versions is not run again. Exit status 1 if there is a finding.
"""

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

from verify_norm.core.results import Settings  # noqa: E402
from verify_norm.core.serial import jsonable  # noqa: E402
from verify_norm.running.environment import environment  # noqa: E402
from verify_norm.validation import zoo  # noqa: E402 — TRITON_INTERPRET is set first

SECONDS = 1800.0  # for a kernel, far more than it takes
TIMEOUT = 180.0  # for a case, so that a loaded machine causes no finding


def at(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the number of cases of each right kernel, and all findings, for one seed."""
    settings = Settings(examples=options.examples, seconds=SECONDS, seed=seed, device=options.device, timeout=TIMEOUT)
    right = [example for example in zoo.detectable(options.device) if not example.wrong]
    outcomes = list(zoo.run_all(settings, right, jobs=options.jobs))
    cases = {outcome.example.name: outcome.cases for outcome in outcomes}
    findings = [asdict(finding) for outcome in outcomes for finding in outcome.findings]
    return {
        "seed": seed,
        "kernels": len(cases),
        "cases": sum(cases.values()),
        "fewest": min(cases.values()),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "findings": jsonable(findings),
        "gaps": {outcome.example.name: outcome.gap for outcome in outcomes if outcome.gap},
        "by_kernel": dict(sorted(cases.items())),
    }


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
        result = {"settings": settings, "environment": facts, "runs": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        row = done[seed]
        alarms = Counter(finding["kernel"] for finding in row["findings"])
        print(
            f"seed {seed}: {row['kernels']} right kernels, {row['cases']} cases, {len(alarms)} falsely flagged",
            flush=True,
        )
        for finding in row["findings"]:
            print(f"  {finding['kernel']}: {finding['check']} {finding['output']}: {finding['message']}", flush=True)
        for name, gap in row.get("gaps", {}).items():
            print(f"  {name}: {gap}", flush=True)
    return int(any(row["findings"] or row.get("gaps") for row in done.values()))


if __name__ == "__main__":
    sys.exit(main())
