"""Measure the store of a campaign: the time of a commit, the size of the file, the time until its report is there.

    python benchmarks/campaign.py [--units 3100] [--kernels 50] [--out FILE]
    python benchmarks/campaign.py --gpus 4 [--examples 2000] [--out FILE]
    python benchmarks/campaign.py --cores 2 --only layernorm_fwd_torch [--examples 200]

Every unit has the report of one real block of random cases; the default is 10^6 cases or somewhat more. The same
rows go into DuckDB too, if it is installed, with a transaction for each unit as here. `readable` says whether another
process can read the file while this one has it open to write. Since all units have one report, and a store of columns
keeps once what repeats, DuckDB's file would be larger in use.

With --gpus N it measures scaling instead: the cases a second of one campaign on one GPU and on N, by the local workers
and through Ray, and N's speed in units of N times one's. It needs a machine with N GPUs and the extra `ray`; nobody has
measured it yet. --cores does the same on a CPU. The kernels are all of ours, or `--only` a pattern of them. Each worker
starts cold, as in use: take enough --examples that a run lasts minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from verify_norm.campaign import worker
from verify_norm.campaign.merging import merged
from verify_norm.campaign.model import Outcome, Unit
from verify_norm.campaign.plan import checked, expand
from verify_norm.campaign.store import Store
from verify_norm.campaign.summary import summarize
from verify_norm.campaign.tables import SCHEMA, counts, rows
from verify_norm.core.results import Report
from verify_norm.report.html.campaign import page
from verify_norm.running.environment import environment

CASES = 500  # random ones of a block
READ = {
    "sqlite": "import sqlite3; sqlite3.connect('file:{}?mode=ro', uri=True).execute('SELECT count(*) FROM outcomes')",
    "duckdb": "import duckdb; duckdb.connect('{}', read_only=True).execute('SELECT count(*) FROM outcomes')",
}


def units_of(units: int, kernels: int) -> tuple[Unit, ...]:
    """Return so many units of so many kernels."""
    named = ((number, f"k{number % kernels:03}") for number in range(units))
    return tuple(
        Unit(f"{n:016x}", n, name, "layernorm_fwd", "", "", "", "float32", n // kernels, n, CASES, "")
        for n, name in named
    )


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def readable(engine: str, path: Path) -> bool:
    """Return whether another process can read a file that this one writes."""
    return subprocess.run([sys.executable, "-c", READ[engine].format(path)], capture_output=True).returncode == 0


def of_sqlite(path: Path, units: tuple[Unit, ...], outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what the store takes."""
    facts: dict[str, Any] = {"plan": {}, "units": "", "versions": {}}
    with Store.writing(str(path), units, facts) as store:
        commits = [timed(lambda at=n: store.enter(units[at], outcomes[at])) for n in range(len(units))]  # type: ignore[misc]
        while_open = readable("sqlite", path)
        status = timed(lambda: summarize(Store.reading(str(path))))
    with Store.reading(str(path)) as store:
        shown = timed(lambda: page(summarize(store)))
        names = sorted({unit.kernel for unit in units})
        whole = timed(lambda: [merged(store.reports(name, "layernorm_fwd")) for name in names])
    return {
        "commit_ms": 1e3 * median(commits),
        "megabytes": path.stat().st_size / 1e6,
        "readable": while_open,
        "status_seconds": status,
        "page_seconds": shown,
        "all_merged_reports_seconds": whole,
    }


def of_duckdb(path: Path, units: tuple[Unit, ...], outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what the same rows take in DuckDB."""
    import duckdb  # type: ignore[import-not-found,unused-ignore]

    database = duckdb.connect(str(path))
    for statement in filter(str.strip, SCHEMA.replace("REFERENCES units", "").split(";")):
        database.execute(statement)

    def insert(table: str, found: list[tuple[Any, ...]]) -> None:
        if found:
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(found[0]))})", found)

    def enter(unit: Unit, outcome: Outcome) -> None:
        assert outcome.report is not None
        database.execute("BEGIN")
        for table, found in rows(outcome.report).items():
            insert(table, [(unit.id, *row) for row in found])
        times = (outcome.worker, outcome.started, outcome.finished, outcome.problem)
        insert("outcomes", [(unit.id, outcome.verdict.name, *times, *counts(outcome.report))])
        database.execute("COMMIT")

    insert("units", [tuple(getattr(unit, name) for name in Unit.__slots__) for unit in units])
    commits = [timed(lambda at=n: enter(units[at], outcomes[at])) for n in range(len(units))]  # type: ignore[misc]
    while_open = readable("duckdb", path)
    question = "SELECT kernel, sum(cases), max(ratio) FROM units JOIN errors ON unit = id GROUP BY kernel"
    asked = timed(lambda: database.execute(question).fetchall())
    database.close()
    found = {"commit_ms": 1e3 * median(commits), "megabytes": path.stat().st_size / 1e6, "readable": while_open}
    return found | {"question_seconds": asked, "version": duckdb.__version__}


def of_store(number: int, kernels: int) -> dict[str, Any]:
    """Return what so many units of so many kernels take in each database."""
    report, units = block(), units_of(number, kernels)
    outcomes = [Outcome(unit.id, "w", float(unit.number), unit.number + 1.0, report) for unit in units]
    found: dict[str, Any] = {"units": len(units), "cases": len(units) * report.cases, "kernels": kernels}
    with tempfile.TemporaryDirectory() as folder:
        found["sqlite"] = of_sqlite(Path(folder) / "s", units, outcomes)
        with suppress(ImportError):
            found["duckdb"] = of_duckdb(Path(folder) / "d", units, outcomes)
    return found


def block() -> Report:
    """Return the report of one block of random cases of a kernel of stock torch."""
    plan = checked({"kernels": ["layernorm_fwd_torch"], "dtypes": "fp32", "examples": 2 * CASES, "device": "cpu"})
    outcome = worker.examine(expand(plan)[1], plan.settings | {"seconds": 3600.0}, "w")
    assert outcome.report is not None, outcome.problem
    return outcome.report


def scaling(places: int, pattern: str, examples: int, *, on_gpu: bool) -> dict[str, Any]:
    """Return the cases a second of a campaign in one place and in so many, by each executor, and their efficiency."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(places)))
    found: dict[str, Any] = {"places": places, "kernels": pattern, "examples": examples}
    for on in ("local", "ray"):
        speed = {}
        for number in (1, places):
            few = {"CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:number])} if on_gpu else {}
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "verify_norm", "campaign", "--kernel", pattern, "--on", on]
                command += ["--device", "cuda" if on_gpu else "cpu", "--block", "100", "--examples", str(examples)]
                command += ["--store", f"{folder}/s"] + ([] if on_gpu else ["--jobs", str(number)])
                began = time.perf_counter()
                done = subprocess.run(command, env=os.environ | few, stdout=subprocess.DEVNULL)
                seconds = time.perf_counter() - began
                with Store.reading(f"{folder}/s") as store:
                    summary = summarize(store)
            assert done.returncode == summary.verdict, f"{on}: exit status {done.returncode}"
            assert summary.done == summary.units, f"{on}: {summary.problems or summary.missing}"
            speed[number] = summary.cases / seconds
            said = {"cases": summary.cases, "findings": len(summary.findings), "workers": len(summary.workers)}
            found[f"{on} {number}"] = said | {"seconds": seconds, "cases_a_second": speed[number]}
        found[f"{on} efficiency"] = speed[places] / speed[1] / places
    return found


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=3100)
    parser.add_argument("--kernels", type=int, default=50)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--only", default="*")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    if places := given.gpus or given.cores:
        found = scaling(places, given.only, given.examples, on_gpu=bool(given.gpus))
    else:
        found = of_store(given.units, given.kernels)
    found["environment"] = environment("cuda" if given.gpus else "cpu")
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    print(text, end="")
    if given.out:
        Path(given.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
