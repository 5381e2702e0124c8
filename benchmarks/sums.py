"""Test whether the check `sums` is sound: its probable error beside the errors of right kernels in many orders.

    python benchmarks/sums.py [--cases 4000] [--seed 0] [--jobs 2] [--out benchmarks/results/sums.json]

Every case draws an operator, a shape with long rows or many of them, types, random data, and a float32 method of
`emulate`, one in five by matrix products. The table has the largest error over its tolerance, by output, type and
whether sums are matrix products. Exit status 1 if one exceeds 1.
"""

import argparse
import datetime
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulate
import emulated
import numpy as np
import torch
from emulate import Method

from verify_norm.cases import make
from verify_norm.checks.sums import equations, looks
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec
from verify_norm.reference.arithmetic import PRODUCTS
from verify_norm.running.execute import execute

HUGE = 0.03  # the share of cases of up to 2^22 terms
OPERATORS = ("layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "groupnorm_fwd", "groupnorm_bwd")


def drawn(seed: int, index: int) -> Run:
    """Return a right kernel's run of case number `index`."""
    rng = np.random.default_rng((seed, index))
    tall = bool(rng.random() < 0.5)
    huge = rng.random() < HUGE  # there a lane adds up to 2^15 terms
    long, short = int(2 ** rng.uniform(8, 22 if huge else 14.3)), 1 if huge else int(2 ** rng.uniform(0, 5))
    op, dtype = str(rng.choice(OPERATORS)), str(rng.choice(("float32", "float32", "bfloat16", "float16")))
    shape = (long, short) if tall else (short, long)
    spec = CaseSpec(
        shape,
        dtype,
        weight_dtype=None if dtype == "float32" or rng.random() < 0.5 else "float32",
        data=str(rng.choice(("normal", "heavy", "channel"))),
        offset=float(rng.choice((0, 0, 0, 1, 10, 100))),
        eps=float(rng.choice((1e-5, 1e-6, 1e-3, 1.0))),
        log2_scale=int(rng.choice((0, 0, -8, 3))),
        seed=index,
    )
    if op.startswith("groupnorm"):
        spec = replace(spec, shape=(shape[0], 4, max(shape[1], 2)) if tall else (2, 4, long), num_groups=2)
    variance = str(rng.choice(("two_pass", "welford", "chan")))
    products = str(rng.choice((*PRODUCTS,))) if rng.random() < 0.2 else None
    method = Method(
        total=str(rng.choice((*emulate.BLOCKED, "sequential"))),
        variance=variance,
        lanes=int(rng.choice((128, 256))),
        reciprocal=bool(rng.random() < 0.5),
        fused=bool(rng.random() < 0.4),
        # in each of Welford's updates, a quotient that is always off to one side would be no chance
        approximate=0 if variance == "welford" else int(rng.choice((0, 1, -1))),
        sums=bool(rng.random() < 0.5),
        given=bool(rng.random() < 0.5),
        products=products,
        cut=bool(rng.random() < 0.5),
        ones=bool(rng.random() < 0.5),
    )
    order = "sequential" if method.total == "sequential" and not products else "blocked"
    contract = Contract(summation=order, products=products or "float32")
    return execute(emulated.kernel(op, method, contract), make.case(spec, OPS[op], contract))


def study(seed: int, indices: range) -> tuple[int, dict[str, float]]:
    """Return how many of these cases the check looks at, and the largest error over tolerance of each kind."""
    torch.set_num_threads(1)
    looked, largest = 0, dict[str, float]()
    for index in indices:
        run = drawn(seed, index)
        if not looks(run):
            continue
        looked += 1
        how = "" if run.kernel.contract.products == "float32" else " products"
        with np.errstate(all="ignore"):
            for one in equations(run):
                key = f"{one.name or one.output} {run.case.spec.dtype}{how}"
                largest[key] = max(largest.get(key, 0.0), float(one.ratio.max(initial=0.0)))
    return looked, largest


def main() -> int:
    parser = argparse.ArgumentParser(description="Test whether the probable error of long sums is sound.")
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sums.json")
    options = parser.parse_args()
    began, shares = time.time(), [range(i, min(i + 50, options.cases)) for i in range(0, options.cases, 50)]
    looked, largest = 0, dict[str, float]()
    with ProcessPoolExecutor(options.jobs) as pool:
        for count, found in pool.map(study, [options.seed] * len(shares), shares):
            looked += count
            largest |= {key: max(value, largest.get(key, 0.0)) for key, value in found.items()}
    report: dict[str, Any] = {
        "cases": options.cases,
        "looked": looked,
        "seed": options.seed,
        "seconds": round(time.time() - began),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        "largest": dict(sorted(largest.items())),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for key, value in report["largest"].items():
        print(f"{key:<28} {value:.3f}")
    print(f"{looked} of {options.cases} cases, {report['seconds']} s")
    return int(max(largest.values(), default=0.0) > 1)


if __name__ == "__main__":
    sys.exit(main())
