"""`verify-norm compare`: it does not call a kernel worse than itself under another seed, and it sees what is worse.

    python benchmarks/compare.py [--seeds 10] [--examples 50 400] [--out benchmarks/results/compare.json]

Every kernel is run with several seeds. Of a kernel's runs every ordered pair is compared, by the checks' cases and by
the typical data of audits: nothing is to be worse. Then kernels that lose accuracy are compared with the one that does
not, over the corner table (which is the same cases), over other seeds, and by audits; where the loss is declared in the
contract, no check finds anything, and the errors alone can tell.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import emulated
from bounds import machine
from emulate import Method

from verify_norm import registry
from verify_norm.auditing.model import Audit
from verify_norm.auditing.ulps import survey, typical
from verify_norm.ops import OPS
from verify_norm.report.compare import compare
from verify_norm.report.model import Report, Settings
from verify_norm.search import search
from verify_norm.spec import Contract, Kernel

DTYPES = ("float32", "float16", "bfloat16")
CASES = 300  # of an audit's typical data
STOCK = ("layernorm_fwd_torch", "rmsnorm_fwd_torch", "layernorm_bwd_torch", "rmsnorm_bwd_torch")
FORWARD, BACKWARD = Method(), replace(Method(), given=True)
WORSE: tuple[tuple[str, str, Method, Contract], ...] = (
    ("one pass", "layernorm_fwd", replace(FORWARD, bug="one_pass"), Contract()),
    ("x̂ rounded early", "layernorm_fwd", replace(FORWARD, bug="xhat_bf16"), Contract()),
    ("x̂ rounded early, declared", "layernorm_fwd", replace(FORWARD, xhat="bfloat16"), Contract(xhat="bfloat16")),
    ("N − 1", "layernorm_fwd", replace(FORWARD, bug="n_minus_1"), Contract()),
    ("partials in bf16", "layernorm_bwd", replace(BACKWARD, bug="partials_bf16"), Contract()),
    ("partials in bf16, declared", "layernorm_bwd", replace(BACKWARD, partials="bfloat16"),
     Contract(partials="bfloat16")),
)  # fmt: skip


def runs(kernel: Kernel, seeds: Iterable[int], examples: int) -> list[Report]:
    """A run for each seed."""
    found = []
    for seed in seeds:
        settings = Settings(DTYPES, examples=examples, seconds=600.0, seed=seed, isolate=False,
                            checks=("accuracy", "statistics", "distribution"))  # fmt: skip
        found.append(search(kernel, settings))
    return found


def audits(kernel: Kernel, seeds: Iterable[int]) -> list[Audit]:
    """An audit for each seed, with nothing in it but the errors in typical data."""
    empty = runs(kernel, (0,), 0)[0]
    return [
        Audit(replace(empty, tallies=(), findings=(), settings=replace(empty.settings, seed=seed)),
              survey(kernel, typical(OPS[kernel.op], DTYPES, "cpu", seed, CASES)))
        for seed in seeds
    ]  # fmt: skip


def worse(pairs: Iterable[tuple[Report | Audit, Report | Audit]]) -> dict[str, int]:
    """How many of the pairs are called worse."""
    said = [compare([old], [new]).worse for old, new in pairs]
    return {"pairs": len(said), "worse": sum(said)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, nargs="+", default=[50, 400])
    parser.add_argument("--out", default="benchmarks/results/compare.json")
    options = parser.parse_args()
    started, seeds = time.perf_counter(), range(options.seeds)
    right = {name: registry.load(name) for name in STOCK} | {
        f"emulated {op}": emulated.kernel(op, method, Contract())
        for op, method in (("layernorm_fwd", FORWARD), ("layernorm_bwd", BACKWARD))
    }
    alarms, reference = {}, {}
    for name, kernel in right.items():
        every = [report for examples in options.examples for report in runs(kernel, seeds, examples)]
        surveyed = audits(kernel, seeds)
        reference[name] = runs(kernel, (0,), 0), every, surveyed
        alarms[name] = {"cases": worse(permutations(every, 2)), "audits": worse(permutations(surveyed, 2))}
        print(f"{name}: {alarms[name]}", flush=True)
    caught = {}
    for name, op, method, contract in WORSE:
        kernel = emulated.kernel(op, method, contract)
        old = reference[f"emulated {op}"]
        new = [report for examples in options.examples for report in runs(kernel, range(3), examples)]
        caught[f"{op}: {name}"] = {
            "same cases": worse(product(old[0], runs(kernel, (1,), 0))),
            "other cases": worse(product(old[1], new)),
            "audits": worse(product(old[2], audits(kernel, range(3)))),
        }
        print(f"{op}: {name}: {caught[f'{op}: {name}']}", flush=True)
    result = {"machine": machine(), "seeds": options.seeds, "examples": options.examples,
              "seconds": round(time.perf_counter() - started), "same kernel": alarms,
              "worse kernels": caught}  # fmt: skip
    Path(options.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
