"""Compare a hunt of 30 seconds with 10,000 random cases: the largest error that each finds in correct kernels.

    python benchmarks/hunt.py [--cases 10000] [--seconds 30] [--random FILE] [--out benchmarks/results/hunt.json]

The kernels compute in float32. The random cases are those of an ordinary run (Hypothesis's strategy without its
target), of the same sizes as the hunt's. The hunt targets one output of each kernel. The table lists the largest
error/bound and the largest ULP of both. Exit status 1 if the hunt finds more on fewer than three kernels.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated
import hypothesis
from bounds import machine
from emulate import Method

from verify_norm.auditing.hunt import ELEMENTS, HuntOptions, hunt, measure
from verify_norm.cases import make, strategies
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel


def kernels() -> list[Kernel]:
    """Return five correct kernels."""
    plain = Method()
    rows = (
        ("two_pass", "layernorm_fwd", plain, Contract(variance="two_pass")),
        ("welford", "layernorm_fwd", replace(plain, variance="welford", total="lanes256"), Contract()),
        ("gradients", "layernorm_bwd", replace(plain, total="lanes128", given=True), Contract()),
        ("rms_gradients", "rmsnorm_bwd", replace(plain, total="tree", sums=True), Contract()),
        ("groups", "groupnorm_fwd", replace(plain, total="runs128", variance="chan"), Contract()),
    )
    return [replace(emulated.kernel(op, m, c), name=f"{name} {op}") for name, op, m, c in rows]


def at_random(kernel: Kernel, count: int, seed: int) -> dict[str, Any]:
    """Return the largest error/bound and ULP over `count` random cases."""
    op, began = OPS[kernel.op], time.perf_counter()
    worst: dict[str, float] = {}
    outputs = ("dx",) if op.forward else ("y",)
    tried = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.specs(op, ("float32",), ELEMENTS["cpu"]))
    def attempt(spec: CaseSpec) -> None:
        nonlocal tried
        tried += 1
        for (name, what), value in measure(kernel, make.case(spec, op, kernel.contract), outputs).items():
            worst[f"{name} {what}"] = max(worst.get(f"{name} {what}", 0.0), value)

    attempt()
    return {"cases": tried, "seconds": round(time.perf_counter() - began, 1), **worst}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hunt.json")
    parser.add_argument("--kernels", type=int, default=5, help="how many kernels to hunt [5]")
    parser.add_argument("--random", type=Path, help="reuse the random cases of an earlier result")
    options = parser.parse_args()
    rows, better = [], 0
    earlier = json.loads(options.random.read_text())["kernels"] if options.random else []
    known = {row["kernel"]: row["random"] for row in earlier}
    for kernel in kernels()[: options.kernels]:
        drawn = known.get(kernel.name) or at_random(kernel, options.cases, options.seed)
        output = "dx" if kernel.op.endswith("_bwd") else "y"
        found = hunt(kernel, HuntOptions(options.seconds, output, seed=options.seed))
        by = {f"{w.output} {w.measure}": (w.value, w.beyond, w.found) for w in found.worst}
        better += found.ratio(output) > drawn[f"{output} ratio"]
        rows.append(
            {
                "kernel": kernel.name,
                "random": drawn,
                "hunt": {
                    "cases": found.cases,
                    "drawn": found.drawn,
                    "evolved": found.evolved,
                    "moved": found.moved,
                    "worst": by,
                },
            }
        )
        print(f"{kernel.name}: {drawn['cases']} random cases in {drawn['seconds']} s, {found.cases} hunted")
        for key, (value, beyond, stage) in by.items():
            print(f"   {key:<15} random {drawn[key]:9.4g}  hunt {value:9.4g} ({stage}), by its data {beyond:9.4g}")
        sys.stdout.flush()
    report = {"seconds": options.seconds, "better": better, "of": len(rows), "machine": machine(), "kernels": rows}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"the hunt found more on {better} of {len(rows)} kernels")
    return 0 if better >= min(3, len(rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
