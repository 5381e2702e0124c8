"""Check stock torch and other libraries' kernels on one device, write reports, and print the table of findings.

    python benchmarks/third_party.py run --out benchmarks/results/third_party/cpu --seconds 60 --jobs 2
    python benchmarks/third_party.py table

`run` writes <out>/<kernel>.json for each kernel that loads on this machine, and prints why the others do not load.
`table` writes the tables of THIRD_PARTY.md from the reports and third_party_judgements.py. Exit status 1 if a finding
has no judgement, or a judgement no finding.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path

from third_party_judgements import JUDGEMENTS, Judgement

from verify_norm.core import serial
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.results import Report
from verify_norm.report import documents

RESULTS = Path(__file__).parent / "results" / "third_party"
DOCUMENT = Path(__file__).parents[1] / "kernels" / "adapters" / "THIRD_PARTY.md"
BEGIN, END = "<!-- printed by benchmarks/third_party.py table -->", "<!-- end of the printed tables -->"
DEVICES = {"cpu": "On a CPU", "gpu": "On a GPU"}
ALONE = "OMP_NUM_THREADS=1"  # torch's CPU kernels sum by threads
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def names(patterns: list[str]) -> list[str]:
    from verify_norm.loading import builtin

    stock = [kernel.name for kernel in builtin.BUILTIN.values() if kernel.backend == "torch"]
    return [name for name in [*stock, *builtin.PEERS] if any(fnmatch(name, pattern) for pattern in patterns)]


def versions() -> dict[str, str]:
    found = {}
    for library in ("torch", "triton", "liger-kernel", "fla-core", "quack-kernels", "flash-attn"):
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def run(options: argparse.Namespace) -> int:
    """Run each kernel in its own process: a kernel that breaks its library breaks no other report."""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")

    def one(name: str) -> str:
        started = time.perf_counter()
        path = options.out / f"{name}.json"
        command = [
            sys.executable,
            "-m",
            "verify_norm",
            "--kernel",
            name,
            "--examples",
            str(options.examples),
            "--seconds",
            str(options.seconds),
            "--timeout",
            str(options.timeout),
            "--seed",
            str(options.seed),
            "--workers",
            str(options.workers),
            "--json",
            str(path),
        ]
        path.unlink(missing_ok=True)
        environment = {**os.environ, **dict([ALONE.split("=")]), "NO_COLOR": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        verdict = {0: "pass", 1: "FAIL", 2: "none"}.get(done.returncode, f"status {done.returncode}")
        wanted = {0: 0, 1: 0, Exit.INTERNAL: 40}.get(done.returncode, 1)  # lines: a traceback of ours is for us
        last = done.stderr.strip().splitlines()[-wanted:] if wanted else []
        newline = "\n"
        return f"{verdict} {name} in {time.perf_counter() - started:.0f} s {newline.join(last)}".rstrip()

    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(one, names(options.kernels)):
            print(line, flush=True)
    return 0


@dataclass(frozen=True)
class Row:
    """The findings of one kernel's report that share one judgement."""

    device: str
    kernel: str
    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    report: Report


def reports(device: str) -> Iterator[Report]:
    for path in sorted((RESULTS / device).glob("*.json")):
        if path.name != "versions.json":
            yield documents.load(path.read_text())


def judged() -> tuple[list[Row], list[str]]:
    """Return a row for each kernel and judgement, and a line for each finding or judgement without the other."""
    rows, used = [], set()
    wrong = []
    for device in DEVICES:
        for report in reports(device):
            of: dict[Judgement, list[Finding]] = {}
            for finding in report.findings:
                found = next((j for j in JUDGEMENTS if j.about(device, finding)), None)
                if found is None:
                    wrong.append(f"no judgement: {device} {finding.kernel} {finding.check} {finding.output}")
                else:
                    of.setdefault(found, []).append(finding)
            used |= of.keys()
            rows += [Row(device, report.kernel, j.verdict, j.reason, tuple(f), report) for j, f in of.items()]
    wrong += [f"no finding: {j.devices} {j.kernel} {j.checks} {j.outputs}" for j in JUDGEMENTS if j not in used]
    devices, order = [*DEVICES], [j.reason for j in JUDGEMENTS]
    return sorted(rows, key=lambda row: (devices.index(row.device), order.index(row.reason))), wrong


def size(row: Row) -> str:
    """Return the largest error/bound for each type that exceeds it, and the error of the smallest case in ulp."""
    numbers = [f for f in row.findings if f.ulp is not None and f.allowed]
    if not numbers:
        return "–"
    outputs = {f.output for f in numbers}
    worst: dict[str, float] = {}
    for tally in row.report.tallies:
        if tally.output in outputs and tally.ratio > 1:
            worst[tally.dtype] = max(tally.ratio, worst.get(tally.dtype, 0.0))
    first = numbers[0]
    cells = [
        f"{SHORT[dtype]} {ratio:.2g}×" if isfinite(ratio) else f"{SHORT[dtype]} NaN or ∞"
        for dtype, ratio in worst.items()
    ]
    return f"{', '.join(cells)}; smallest case: {first.output} {first.ulp:.3g} ulp, {first.allowed:.2g} allowed"


def checks(row: Row) -> str:
    """Return the checks with findings, each with its outputs."""
    by: dict[str, list[str]] = {}
    for finding in row.findings:
        by.setdefault(finding.check, []).append(finding.output or "")
    return "; ".join(f"{check} {', '.join(filter(None, outputs))}".strip() for check, outputs in by.items())


def table() -> int:
    rows, wrong = judged()
    lines = []
    for device, words in DEVICES.items():
        mine = [row for row in rows if row.device == device]
        if not mine:
            continue
        found = list(reports(device))
        lines += [f"### {words}", "", *environments(found), ""]
        versions_there = json.loads((RESULTS / device / "versions.json").read_text())
        lines += [", ".join(f"{name} {number}" for name, number in versions_there.items()) + ".", ""]
        lines += ["| | kernel | op | found by | largest error/bound | judgement |", "|--:|---|---|---|---|---|"]
        for row in mine:
            number = rows.index(row) + 1
            cells = [
                str(number),
                f"`{row.kernel}`",
                row.report.op,
                checks(row),
                size(row),
                f"**{row.verdict}**: {row.reason}",
            ]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        clean = [f"`{r.kernel}` ({r.cases})" for r in found if r.ok]
        lines += [
            "",
            f"No findings, with the number of cases: {', '.join(clean)}.",
            "",
            "The smallest case of each finding:",
            "",
            "```sh",
        ]
        lines += [f"# {rows.index(row) + 1}\n" + replay(row, device) for row in mine]
        lines += ["```", ""]
    text = DOCUMENT.read_text()
    start, end = (text.index(mark) for mark in (BEGIN, END))
    DOCUMENT.write_text(text[: start + len(BEGIN)] + "\n" + "\n".join(lines).rstrip() + "\n" + text[end:])
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


def environments(found: list[Report]) -> Iterator[str]:
    """Yield a line for each device and date of the reports, with its kernels where there are several."""
    by: dict[str, list[str]] = {}
    for report in found:
        by.setdefault(f"{report.environment['device']}, {report.environment['date']}", []).append(report.kernel)
    for place, kernels in by.items():
        yield f"- {place}: " + (", ".join(f"`{name}`" for name in kernels) if len(by) > 1 else "all of these") + "."


def replay(row: Row, device: str) -> str:
    first = row.findings[0]
    line = serial.spec_text(row.kernel, first.spec)
    return f"verify-norm replay '{line}'" if device == "gpu" else f"{ALONE} verify-norm replay '{line}' --device cpu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--kernels", nargs="*", default=["*"], help="patterns as liger_*")
    running.add_argument("--examples", type=int, default=300)
    running.add_argument("--seconds", type=float, default=60.0)
    running.add_argument("--timeout", type=float, default=60.0, help="seconds for one case; torch.compile is slow")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--workers", type=int, default=1, help="processes of each run")
    commands.add_parser("table")
    options = parser.parse_args()
    return table() if options.command == "table" else run(options)


if __name__ == "__main__":
    sys.exit(main())
