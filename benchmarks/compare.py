"""Measure `verify-norm compare`: its false alarms on other orders of a sum, and its detection of lost accuracy.

    python benchmarks/compare.py [--seeds 5] [--out benchmarks/results/compare.json]

Every kernel runs over the corner table, and over the typical data of audits with several seeds: two kernels have these
cases in common. The script compares every ordered pair of kernels that differ only in the order of their sums; a number
that gets worse is a false alarm. Then it compares kernels that lose accuracy with them. If the contract declares the
loss, no check finds anything; only the errors show it.
"""

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

from verify_norm.auditing.model import Audit
from verify_norm.auditing.survey import survey, typical
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report, Settings
from verify_norm.core.spec import Contract, Kernel
from verify_norm.report.compare.compare import compare
from verify_norm.search.search import search

DTYPES = ("float32", "float16", "bfloat16")
CASES = 300  # of an audit's typical data
OPERATORS = ("layernorm_fwd", "rmsnorm_fwd", "layernorm_bwd", "rmsnorm_bwd")
SUMS = ("pairwise", "tree", "reversed", "lanes256")
FORWARD, BACKWARD = Method(), replace(Method(), given=True)
PARTIALS = replace(BACKWARD, partials="bfloat16")
WORSE: tuple[tuple[str, str, Method, Contract], ...] = (
    ("one pass", "layernorm_fwd", replace(FORWARD, bug="one_pass"), Contract()),
    ("x̂ rounded early", "layernorm_fwd", replace(FORWARD, bug="xhat_bf16"), Contract()),
    ("x̂ rounded early, declared", "layernorm_fwd", replace(FORWARD, xhat="bfloat16"), Contract(xhat="bfloat16")),
    ("N − 1", "layernorm_fwd", replace(FORWARD, bug="n_minus_1"), Contract()),
    ("partials in bf16", "layernorm_bwd", replace(BACKWARD, bug="partials_bf16"), Contract()),
    ("partials in bf16, declared", "layernorm_bwd", PARTIALS, Contract(partials="bfloat16")),
)


def run(kernel: Kernel) -> Report:
    """Return the report of a run over the corner table."""
    checks = ("accuracy", "statistics", "distribution")
    return search(kernel, Settings(DTYPES, checks=checks, examples=0, seconds=600.0, isolate=False))


def audits(kernel: Kernel, report: Report, seeds: Iterable[int]) -> list[Audit]:
    """Return an audit for each seed, with nothing but the errors in typical data."""
    empty = replace(report, tallies=(), findings=(), checks=())
    return [
        Audit(
            replace(empty, settings=replace(report.settings, seed=seed)),
            survey(kernel, typical(OPS[kernel.op], DTYPES, "cpu", seed, CASES)),
        )
        for seed in seeds
    ]


def worse(pairs: Iterable[tuple[Report | Audit, Report | Audit]], kinds: tuple[str, ...]) -> dict[str, int]:
    """Return how many pairs there are, and in how many a change of these kinds is worse."""
    found = [compare([old], [new]).pairs[0].of("worse") for old, new in pairs]
    return {"pairs": len(found), "worse": sum(any(change.kind in kinds for change in changes) for changes in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="benchmarks/results/compare.json")
    options = parser.parse_args()
    started, seeds = time.perf_counter(), range(options.seeds)
    correct: dict[str, list[tuple[Report, list[Audit]]]] = {}
    for op, order in product(OPERATORS, SUMS):
        kernel = emulated.kernel(op, replace(BACKWARD if op.endswith("_bwd") else FORWARD, total=order), Contract())
        report = run(kernel)
        correct.setdefault(op, []).append((report, audits(kernel, report, seeds)))
    alarms, detected = {}, {}
    for op, kernels in correct.items():
        same_seed = (pair for one, other in permutations(kernels, 2) for pair in zip(one[1], other[1], strict=True))
        tables = permutations([report for report, _ in kernels], 2)
        alarms[op] = {"corner table": worse(tables, ("errors",)), "audits": worse(same_seed, ("errors",))}
        print(f"{op}: {alarms[op]}", flush=True)
    for name, op, method, contract in WORSE:
        kernel = emulated.kernel(op, method, contract)
        report = run(kernel)
        surveyed = audits(kernel, report, seeds)
        same_seed = (pair for _, old in correct[op] for pair in zip(old, surveyed, strict=True))
        tables = product([old for old, _ in correct[op]], [report])
        found = {"corner table": worse(tables, ("errors", "finding")), "audits": worse(same_seed, ("errors",))}
        detected[f"{op}: {name}"] = found
        print(f"{op}: {name}: {found}", flush=True)
    result = {
        "machine": machine(),
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - started),
        "orders of sums": alarms,
        "worse kernels": detected,
    }
    Path(options.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
