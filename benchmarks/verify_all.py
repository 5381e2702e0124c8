"""Verify every kernel of the project on one device, and write the reports.

    python benchmarks/verify_all.py --out benchmarks/results/h200 --examples 1000 --seconds 90
    python benchmarks/verify_all.py --out benchmarks/results/h200 --shapes models --seconds 300

Writes <out>/<kernel>-<shapes>.json and prints a line for each kernel. Exit status 1 if a kernel fails.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", default="fuzz")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"

    from verify_norm.core import files, serial
    from verify_norm.core.report_text import gap
    from verify_norm.core.settings import Settings
    from verify_norm.loading import builtin, registry
    from verify_norm.report import documents
    from verify_norm.running.interpreter import patch
    from verify_norm.search.search import search

    if not on_gpu:
        patch.enable()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.kernels or builtin.BUILTIN:
        started = time.perf_counter()
        settings = Settings(
            examples=0 if options.shapes == "models" else options.examples,
            seconds=options.seconds,
            seed=options.seed,
            device="cuda:0" if on_gpu else "cpu",
            shapes=options.shapes,
        )
        report = search(registry.load(name), settings)
        files.write(documents.dump(report), str(options.out / f"{name}-{options.shapes}.json"))
        failed += not report.ok
        gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{'pass' if report.ok else 'FAIL'} {name}: {report.cases} cases in {time.perf_counter() - started:.1f} s, "
            f"{report.seconds_in_kernel:.1f} s in the kernel, {gibibytes:.1f} GiB of host memory so far",
            flush=True,
        )
        for finding in report.findings:
            print(f"     {finding.check} {finding.output} ({finding.cases} cases): {finding.message}")
            print(f"     {serial.spec_text(name, finding.spec)}", flush=True)
        if missing := gap(report):
            print(f"     {missing}")
        for skip in report.skipped:
            print(f"     not checked: {skip.what} ({skip.cases}): {skip.reason}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
