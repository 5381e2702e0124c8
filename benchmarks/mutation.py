"""Count the mistakes in the code of a package that its own tests do not see.

    python benchmarks/mutation.py [core running ...] [--jobs 2] [--out benchmarks/results/mutation.json]

mutmut makes the mistakes: another operator, constant, argument or condition, one at a time. It runs, for each, the fast
tests that mirror the package and reach the function (`tests/<package>`), from a process that has imported them. It is
chosen over cosmic-ray, which starts Python and imports torch anew for each mistake: seconds, not tenths of one.

mutmut leaves out decorated functions; here their decorators are called below them. It knows a module by its path, so
it gets a copy in which the folders have their import names. What has not changed since the last run is not run again:
copy and results are kept in build/mutants. Survivors are printed with file and line. A survivor that changes no
behaviour stands in benchmarks/equivalent_mutants.toml with the reason, and is left out of the score.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import libcst as cst
import tomllib
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"
PACKAGES = ("core", "cases", "running", "checks", "search", "reference")
KEYS = ("function", "before", "after")  # what tells one mutant from another
FOLDERS = {"verify": "verify_norm", "reference": "verify_norm/reference", "kernels": "verify_norm/kernels"}
FOLDERS |= {"tests": "tests", "benchmarks": "benchmarks"}
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "constraints.txt", "Makefile", "LICENSE")
CONFIG = """
[tool.mutmut]
source_paths = ["verify_norm"]
only_mutate = ["verify_norm/{package}/*"]
pytest_add_cli_args = ["-m", "not slow and not gpu", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestWarning"]
pytest_add_cli_args_test_selection = ["tests/{package}"]
also_copy = {also}
use_git_change_detection = false
on_dependency_change = "ignore"
"""


class Undecorated(cst.CSTTransformer):
    """Calls the decorators of a module's functions below them, which means the same."""

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        """Return the module with `f = decorator(f)` after each function f, instead of its decorators."""
        body: list[Any] = []
        for statement in updated_node.body:
            decorators = statement.decorators if isinstance(statement, cst.FunctionDef) else ()
            body.append(statement.with_changes(decorators=()) if decorators else statement)
            for decorator in reversed(decorators):
                assert isinstance(statement, cst.FunctionDef)
                call = cst.Call(decorator.decorator, [cst.Arg(statement.name)])
                target = cst.AssignTarget(statement.name)
                body.append(cst.SimpleStatementLine([cst.Assign([target], call)]))
        return updated_node.with_changes(body=body)


def copied(source: str, target: str) -> str:
    """Copy a file, with its time, where it has changed; a module of a package undecorated."""
    there = Path(target)
    if there.is_file() and there.stat().st_mtime == Path(source).stat().st_mtime:
        return target
    if there.suffix == ".py" and "verify_norm" in there.parts:
        there.write_text(cst.parse_module(Path(source).read_text()).visit(Undecorated()).code)
        shutil.copystat(source, target)
        return target
    return shutil.copy2(source, target)


def tree(package: str) -> Path:
    """Return a folder with the whole project under its import names, and mutmut's settings for one package."""
    folder = ROOT / "build/mutants" / package
    for ours, theirs in FOLDERS.items():
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / ours, folder / theirs, dirs_exist_ok=True, copy_function=copied, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    settings = CONFIG.format(package=package, also=json.dumps(["benchmarks", *FILES]))
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    return folder


def change(name: str, path: str) -> tuple[str, str]:
    """Return the lines that a mutant takes out and puts in."""
    lines = get_diff_for_mutant(name, path=path).splitlines()[2:]
    before, after = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    return " ".join(before), " ".join(after)


def place(path: str, function: str, before: str) -> str:
    """Return file:line in the repository, of the first line after the function's head that `before` begins with."""
    ours = path.replace("verify_norm/reference/", "reference/").replace("verify_norm/", "verify/")
    lines = [line.strip() for line in (ROOT / ours).read_text().splitlines()]
    head = next((i for i, line in enumerate(lines) if line.startswith(f"def {function}(")), 0)
    return f"{ours}:{next((i for i in range(head, len(lines)) if lines[i] and before.startswith(lines[i])), head) + 1}"


def judged(package: str, folder: Path) -> dict[str, Any]:
    """Return the counts of one package, its score and its survivors, from mutmut's results."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    known = {tuple(e[key] for key in KEYS) for e in entries if e["function"].startswith(f"{package}.")}
    found: set[tuple[str, ...]] = set()
    counts: Counter[str] = Counter()
    survivors: list[dict[str, str]] = []
    os.chdir(folder)
    for meta in sorted(Path("mutants", "verify_norm", package).rglob("*.meta")):
        path = str(meta.relative_to("mutants")).removesuffix(".meta")
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            status = status_by_exit_code[code]
            if status in ("survived", "no tests", "not checked"):
                function = name.rpartition(".")[2].partition("__mutmut_")[0].removeprefix("x_").split("ǁ")[-1]
                before, after = change(name, path)
                module = path.removeprefix("verify_norm/").removesuffix(".py").replace("/", ".")
                key = (f"{module}.{function}", before, after)
                if key in known:
                    found.add(key)
                    status = "equivalent"
                else:
                    row = dict(zip(KEYS, key, strict=True))
                    survivors.append({"at": place(path, function, before), "status": status, **row})
            counts[status] += 1
    rest = counts.total() - counts["equivalent"]
    missed = counts["survived"] + counts["no tests"] + counts["not checked"]
    score = round(1 - missed / rest, 4) if rest else None
    stale = [dict(zip(KEYS, key, strict=True)) for key in sorted(known - found)]
    return {"counts": dict(sorted(counts.items())), "score": score, "survivors": survivors, "stale": stale}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/mutation.json")
    options = parser.parse_args()
    if unknown := sorted(set(options.packages) - set(PACKAGES)):
        parser.error(f"unknown package {unknown[0]}; known are {', '.join(PACKAGES)}")
    out = options.out.resolve()
    results: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    for package in options.packages:
        folder = tree(package)
        started = datetime.datetime.now(datetime.UTC)
        command = [sys.executable, "-P", "-m", "mutmut", "run", "--max-children", str(options.jobs)]
        done = subprocess.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        result = judged(package, folder)
        if done.returncode or not result["counts"]:
            print(f"mutmut ended with status {done.returncode} on {package}", file=sys.stderr)
            return 1
        seconds = (datetime.datetime.now(datetime.UTC) - started).seconds
        about = {"date": f"{started:%Y-%m-%d}", "seconds": seconds, "cores": os.cpu_count()}
        about |= {"python": platform.python_version(), "mutmut": version("mutmut")}
        results[package] = about | result
        stale = result.pop("stale")
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        for row in result["survivors"]:
            print(f"{row['at']}: {row['status']}\n  - {row['before']}\n  + {row['after']}")
        for row in stale:
            print(f"{EQUIVALENT.name}: no survivor is as this entry, delete it: {row}")
        print(f"{package}: {result['counts']}, score {result['score']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
