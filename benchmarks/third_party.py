"""Check stock torch and the kernels of other libraries on one device, keep the reports, and print what was found.

    python benchmarks/third_party.py run --out benchmarks/results/third_party/cpu --seconds 60 --jobs 2
    python benchmarks/third_party.py table              # kernels/THIRD_PARTY.md, from the reports and judgements.json

`run` writes <out>/<kernel>.json for each kernel that can be loaded here, and says why the others cannot. `table` ends
with status 1 where a finding has no judgement, or a judgement no finding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "third_party"


def names(patterns: list[str]) -> list[str]:
    from verify_norm import registry

    stock = [kernel.name for kernel in registry.BUILTIN.values() if kernel.backend == "torch"]
    return [name for name in [*stock, *registry.PEERS] if any(fnmatch(name, pattern) for pattern in patterns)]


def versions() -> dict[str, str]:
    found = {}
    for library in ("torch", "triton", "liger-kernel", "fla-core", "quack-kernels"):
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def run(options: argparse.Namespace) -> None:
    """Each kernel in a process of its own: one that breaks its library breaks no other's report."""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")

    def one(name: str) -> str:
        started = time.perf_counter()
        path = options.out / f"{name}.json"
        command = [
            sys.executable, "-m", "verify_norm", "--kernel", name, "--examples", str(options.examples), "--seconds",
            str(options.seconds), "--timeout", str(options.timeout), "--seed", str(options.seed), "--json", str(path),
        ]  # fmt: skip
        path.unlink(missing_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        verdict = {0: "pass", 1: "FAIL", 2: "none"}.get(done.returncode, f"status {done.returncode}")
        last = done.stderr.strip().splitlines()[-1:] if done.returncode not in (0, 1) else []
        return f"{verdict} {name} in {time.perf_counter() - started:.0f} s {' '.join(last)}".rstrip()

    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(one, names(options.kernels)):
            print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--kernels", nargs="*", default=["*"], help="patterns as liger_*")
    running.add_argument("--examples", type=int, default=300)
    running.add_argument("--seconds", type=float, default=60.0)
    running.add_argument("--timeout", type=float, default=60.0, help="for one case: torch.compile takes its time")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--jobs", type=int, default=2)
    commands.add_parser("table")
    options = parser.parse_args()
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
