"""Count the false alarms on the right kernels of the zoo, with several seeds.

    python benchmarks/zoo_seeds.py [--seeds 10] [--first 0] [--examples 60] [--jobs 2] [--together] [--only H08*]
                                  [--out FILE]

Seed 0 runs the corner table and `--examples` covering cases, which are the same for every seed; the others run
`--examples` random cases. The time limits are so wide that a loaded machine runs as many cases as an idle one. Several
GPUs share the runs. With `--together` the runs of a job share its process, whose compiled kernels stay loaded. The file
is written after every run; a run that it has for the same settings and versions is not repeated. Exit status 1 if there
is a finding or an incomplete run.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

from verify_norm.core.serial import jsonable  # noqa: E402
from verify_norm.core.settings import Settings  # noqa: E402
from verify_norm.running.environment import environment  # noqa: E402
from verify_norm.validation import zoo  # noqa: E402 — TRITON_INTERPRET is set first

SECONDS = 1800.0  # for a kernel, far more than it takes
TIMEOUT = 180.0  # for a case, so that a loaded machine causes no finding


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts over all runs: seeds, kernels, cases, and the kernels with a false alarm or a gap."""
    return {
        "runs": len(runs),
        "seeds": len({run["seed"] for run in runs}),
        "kernels": len({run["kernel"] for run in runs}),
        "cases": sum(run["cases"] for run in runs),
        "fewest": min((run["cases"] for run in runs), default=0),
        "seconds": round(sum(run["seconds"] for run in runs)),
        "alarms": sorted({run["kernel"] for run in runs if run["findings"]}),
        "gaps": sorted({run["kernel"] for run in runs if run["gap"]}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed; 0 alone has the corner table")
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=0, help="kernels at a time; 0: one for each core")
    parser.add_argument("--only", default="*", help="patterns of kernels, comma-separated")
    parser.add_argument("--together", action="store_true", help="no process for each run")
    name = "gpu-right-seeds.json" if ON_GPU else "cpu-right-seeds.json"
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/zoo" / name)
    options = parser.parse_args()
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if ON_GPU else ["cpu"]
    limits = {"seconds": SECONDS, "timeout": TIMEOUT}
    common = {"examples": options.examples, **limits, "isolate": not options.together}
    facts = environment(devices[0])
    date = facts.pop("date")
    before = json.loads(options.out.read_text()) if options.out.is_file() else {}
    same = before.get("settings") == common and before.get("environment") == facts
    runs: list[dict[str, Any]] = before["runs"] if same else []
    done = {(run["seed"], run["kernel"]) for run in runs}
    patterns = options.only.split(",")
    right = [
        example
        for example in zoo.detectable(devices[0])
        if not example.wrong and any(fnmatch(example.name, pattern) for pattern in patterns)
    ]
    left = [
        (seed, one)
        for seed in range(options.first, options.first + options.seeds)
        for one in right
        if (seed, one.name) not in done
    ]
    tasks = [
        (one, Settings(**common, seed=seed, tables=seed == 0, device=devices[i % len(devices)]))
        for i, (seed, one) in enumerate(left)
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for settings, outcome in zoo.run_each(tasks, jobs=options.jobs) if tasks else ():
        run = {"kernel": outcome.example.name, "seed": settings.seed, "cases": outcome.cases, "date": date}
        run |= {"seconds": round(outcome.seconds), "gap": outcome.gap}
        runs.append(run | {"findings": jsonable([asdict(finding) for finding in outcome.findings])})
        runs.sort(key=lambda run: (run["seed"], run["kernel"]))
        result = {"settings": common, "environment": facts, "summary": summary(runs), "runs": runs}
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print(f"seed {settings.seed} {outcome.example.name}: {outcome.cases} cases {outcome.gap}", flush=True)
        for finding in outcome.findings:
            print(f"  {finding.check} {finding.output}: {finding.message}", flush=True)
    print(json.dumps(summary(runs)))
    return int(any(run["findings"] or run["gap"] for run in runs))


if __name__ == "__main__":
    sys.exit(main())
