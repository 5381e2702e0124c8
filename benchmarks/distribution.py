"""Measure the check `distribution`: its false alarms, and its detection of mistakes within every element's bound.

    python benchmarks/distribution.py [--cases 2000] [--seed 0] [--out benchmarks/results/distribution.json]

Every case draws an operator, a shape, types, data and a method of computation, and sums the errors of every output. The
table lists the sums of right kernels relative to the allowed sums (above 1 is a false alarm), and how many of the wrong
kernels that pass `accuracy` are detected.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated
import numpy as np
from bounds import draw_method, log_uniform, machine
from emulate import Method

from verify_norm.cases import make
from verify_norm.checks.relations.moments import moments
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

WRONG = ("n_minus_1", "eps_outside", "one_pass", "xhat_bf16", "partials_bf16", "stats_bf16")


def drawn(rng: np.random.Generator, op: str) -> CaseSpec:
    """Return a random case of moderate size."""
    n = int(log_uniform(rng, 16, 4097))
    rows = int(log_uniform(rng, 1, max(2, min(2049, 32768 // n))))
    shape, more = (rows, n), {}
    if op.startswith("groupnorm"):
        D, G = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        shape, more = (rows // G + 1, G * D, max(n // D, 16)), {"num_groups": G}
    dtype = str(rng.choice(["float32", "float16", "bfloat16"]))
    return CaseSpec(
        shape,
        dtype,
        weight_dtype=None if rng.random() < 0.6 else "float32",
        eps=float(rng.choice([1e-12, 1e-6, 1e-5, 1e-3, 0.1, 1e3])),
        data=str(rng.choice(["normal", "heavy", "channel"], p=[0.6, 0.2, 0.2])),
        offset=float(rng.choice([0, 0, 1, -10, 100, -300] + [1e4] * (dtype != "float16"))),
        log2_scale=int(rng.integers(-8, 6)),
        dy_log2_scale=int(rng.integers(-6, 6)),
        weight=bool(rng.random() < 0.8),
        bias=op.startswith("rmsnorm") or bool(rng.random() < 0.7),
        weight_offset=float(op.startswith("rmsnorm") and rng.random() < 0.3),
        weight_data=str(rng.choice(["random", "some_zero"], p=[0.9, 0.1])),
        seed=int(rng.integers(2**32)),
        **more,
    )


def contract(m: Method, kind: str) -> Contract:
    """Return the contract that a kernel of this method declares."""
    variance = {"two_pass": "two_pass", "shifted": "shifted"}.get(m.variance, "centered")
    return Contract(
        variance=variance,
        summation="sequential" if m.total == "sequential" and not m.products else "blocked",
        products=m.products or "float32",
        expanded=m.expanded,
        stats=m.stats or "float32",
        xhat=m.xhat,
        partials=m.partials or "float32",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "distribution.json")
    options = parser.parse_args()
    began = time.time()
    right: dict[str, Any] = defaultdict(lambda: {"cases": 0, "bias": 0.0, "mean": 0.0, "power": []})
    wrong: dict[str, Any] = defaultdict(lambda: {"pass accuracy": 0, "caught": 0})
    alarms = 0
    for index in range(options.cases):
        rng = np.random.default_rng((options.seed, index))
        family = str(rng.choice(["layernorm", "rmsnorm", "groupnorm"]))
        op = family + str(rng.choice(["_fwd", "_bwd"]))
        spec = drawn(rng, op)
        m, _, kind = draw_method(rng, family)
        m = replace(m, bug=None)
        promised = contract(m, kind)
        for bug in (None, WRONG[index % len(WRONG)]):
            kernel = emulated.kernel(op, replace(m, bug=bug), promised)
            run = execute(kernel, make.case(spec, OPS[op], promised))
            assert run.problem is None, run.problem
            for name, one in moments(run).items():
                bias = abs(one.signed) / max(one.bias_allowed, 1e-300)
                mean = one.excess / max(one.excess_allowed, 1e-300)
                if bug is None:
                    row = right[f"{op} {name} {one.dtype} {kind}"]
                    row.update(cases=row["cases"] + 1, bias=max(row["bias"], bias), mean=max(row["mean"], mean))
                    row["power"].append(max(one.smallest))
                    if bias > 1 or mean > 1:
                        alarms += 1
                        print(f"FALSE ALARM case {index}: {bias:.3g} {mean:.3g} {one} {m} {spec}")
                elif run.outputs[name].ratio.max() <= 1:
                    row = wrong[f"{bug} {name}"]
                    row["pass accuracy"] += 1
                    row["caught"] += bias > 1 or mean > 1
    for row in right.values():
        row["power"] = float(np.median(row["power"]))
    report = {
        "cases": options.cases,
        "alarms": alarms,
        "seconds": round(time.time() - began),
        "machine": machine(),
        "right": dict(sorted(right.items())),
        "wrong": dict(sorted(wrong.items())),
    }
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for key, row in report["right"].items():
        print(f"{key:<45} {row['cases']:>5} bias {row['bias']:8.3g} mean {row['mean']:8.3g} power {row['power']:.2g}")
    for key, row in report["wrong"].items():
        print(f"{key:<30} {row['pass accuracy']:>5} pass accuracy, {row['caught']:>4} detected")
    print(f"{alarms} false alarms, {report['seconds']} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
