"""Count the mistakes in the code of packages or modules that their own tests do not see.

    python benchmarks/mutation.py [core checks.sums ...] [--jobs 2] [--minutes 10] [--out FILE.json]

mutmut makes the mistakes: another operator, constant, argument or condition, one at a time. It runs, for each, the fast
tests of the module (`benchmarks/mirrored.py` says which) that reach the function, from a process that has imported
them. It is chosen over cosmic-ray, which starts Python and imports torch anew for each mistake: seconds, not tenths.

It knows a module by its path, so it gets a copy in which the folders have their import names. The modules in question
are written there so that they mean the same (`Mutable`), because mutmut leaves out decorated functions, and because two
kinds of mistakes are none. A string of several words is a text for readers: no name, key or type has a space. Tests
hold what a message must contain, not its words, so mutmut, which takes strings in three quotes for docstrings, gets it
in three quotes. What an f-string inserts, and whether there is a message at all, remains. `strict=True` of zip asserts
what holds anyway. Left out are Triton's kernels: Triton compiles the text of a function, never what mutmut calls
instead.

Copy and results are kept in build/mutants. A second run tries what has changed, what is new, what survived, and what
there was no time for: after --minutes no more is tried, and what was not is counted, but not scored. Nor
is what ran out of time, since that is no evidence on a busy machine; the next run tries it again.
Survivors are printed with file and line. A survivor that changes no behaviour stands in
benchmarks/equivalent_mutants.toml with the reason, and is left out of the score. The results of packages and modules
that are not named stay in --out.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from mirrored import tests_of
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

from verify_norm.search.config import tomllib

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"
PACKAGES = ("core", "cases", "running", "checks", "search", "reference")
KERNEL = m.Attribute(m.Name("triton"), m.Name("jit"))  # what decorates one
MISSED = ("survived", "no tests")
KEYS = ("function", "before", "after")  # what tells one mutant from another
FOLDERS = {"verify": "verify_norm", "reference": "verify_norm/reference", "kernels": "verify_norm/kernels"}
FOLDERS |= {"tests": "tests", "benchmarks": "benchmarks"}
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "constraints.txt", "Makefile", "LICENSE")
FILES += ("benchmarks/results/interpreter.json",)  # which a test compares with
# Rewritten test modules are kept; plugins that no test needs are not loaded for each mistake.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CONFIG = """
[tool.mutmut]
source_paths = ["verify_norm"]
only_mutate = {mutated}
pytest_add_cli_args = ["-m", "not slow and not gpu", "-p", "no:cacheprovider", "-p", "benchmarks.mirrored"]
pytest_add_cli_args_test_selection = {tests}
timeout_constant = 3.0
timeout_multiplier = 4.0
also_copy = {also}
use_git_change_detection = false
on_dependency_change = "ignore"
"""


class Mutable(cst.CSTTransformer):
    """Writes a module so that it means the same: mutmut reaches its decorated functions, and leaves its texts alone."""

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        """Return the module with `f = decorator(f)` after each function f, instead of its decorators."""
        body: list[Any] = []
        for statement in updated_node.body:
            decorators = statement.decorators if isinstance(statement, cst.FunctionDef) else ()
            if any(m.matches(one.decorator, KERNEL) for one in decorators):
                decorators = ()
            body.append(statement.with_changes(decorators=()) if decorators else statement)
            for decorator in reversed(decorators):
                assert isinstance(statement, cst.FunctionDef)
                call = cst.Call(decorator.decorator, [cst.Arg(statement.name)])
                target = cst.AssignTarget(statement.name)
                body.append(cst.SimpleStatementLine([cst.Assign([target], call)]))
        return updated_node.with_changes(body=body)

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:  # noqa: N802
        """Return a string of several words in three quotes, which mutmut takes for a text."""
        node = updated_node
        if not re.search(r"\w\W* \W*\w", node.raw_value) or len(node.quote) == 3 or node.raw_value.endswith(node.quote):
            return node
        return node.with_changes(value=f"{node.prefix}{3 * node.quote}{node.raw_value}{3 * node.quote}")

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        """Return a zip without strict=True, which asserts that lengths are equal."""
        if not m.matches(updated_node.func, m.Name("zip")):
            return updated_node
        return updated_node.with_changes(args=[arg for arg in updated_node.args if arg.keyword is None])


def copied(source: Path, target: Path, *, mutated: bool) -> None:
    """Copy a file, with its time, where it has changed; one that is to be mutated as `Mutable` writes it."""
    if target.is_file() and target.stat().st_mtime == source.stat().st_mtime:
        return
    shutil.copy2(source, target)
    if mutated:
        target.write_text(cst.parse_module(source.read_text()).visit(Mutable()).code)
        shutil.copystat(source, target)


def tree(unit: str) -> Path:
    """Return a folder with the whole project under its import names, and mutmut's settings for a package or module."""
    folder = ROOT / "build/mutants" / unit
    place = folder / "verify_norm" / unit.replace(".", "/")
    for ours, theirs in FOLDERS.items():
        for source in (ROOT / ours).rglob("*"):
            target = folder / theirs / source.relative_to(ROOT / ours)
            if source.is_file() and not {"__pycache__", "results"} & {*source.parts}:
                target.parent.mkdir(parents=True, exist_ok=True)
                inside = place in target.parents or target == place.with_suffix(".py")
                copied(source, target, mutated=inside and target.suffix == ".py")
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    modules = sorted(place.rglob("*.py")) or [place.with_suffix(".py")]
    paths = [path.relative_to(folder).as_posix() for path in modules]
    tests = {entry.partition("::")[0] for path in paths for entry in tests_of(module_of(path))}
    lists = {
        "mutated": paths,
        "tests": sorted(f"tests/{entry}" for entry in tests if (folder / "tests" / entry).exists()),
        "also": ["benchmarks", *FILES],
    }
    settings = CONFIG.format(**{name: json.dumps(entries) for name, entries in lists.items()})
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    return folder


def again(folder: Path) -> None:
    """Forget all but what was killed, and which tests call what: the tests may be others now."""
    (folder / "mutants/mutmut-stats.json").unlink(missing_ok=True)
    for path in (folder / "mutants").rglob("*.meta"):
        text = path.read_text()
        if not text:  # the run was stopped while mutmut wrote it
            path.unlink()
            continue
        meta = json.loads(text)
        codes = meta["exit_code_by_key"]
        codes.update({name: None for name, code in codes.items() if status_by_exit_code[code] != "killed"})
        path.write_text(json.dumps(meta))


def module_of(path: str) -> str:
    """Return the name of a module of the copy, as "checks.sums"."""
    return path.removeprefix("verify_norm/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def change(name: str, path: str) -> tuple[str, str]:
    """Return the lines that a mutant takes out and puts in."""
    lines = get_diff_for_mutant(name, path=path).splitlines()[2:]
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return before.replace(3 * '"', '"'), after.replace(3 * '"', '"')  # as it stands in the repository


def place(path: str, function: str, before: str) -> str:
    """Return file:line in the repository, of the first line after the function's head that `before` begins with."""
    ours = path.replace("verify_norm/reference/", "reference/").replace("verify_norm/", "verify/")
    lines = [line.strip() for line in (ROOT / ours).read_text().splitlines()]
    head = next((i for i, line in enumerate(lines) if line.startswith(f"def {function}(")), 0)
    return f"{ours}:{next((i for i in range(head, len(lines)) if lines[i] and before.startswith(lines[i])), head) + 1}"


def judged(unit: str, folder: Path) -> dict[str, Any]:
    """Return the counts of a package or module and of its modules, its score and its survivors, of mutmut's results."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    known = {tuple(e[key] for key in KEYS) for e in entries if e["function"].startswith(f"{unit}.")}
    found: set[tuple[str, ...]] = set()
    counts: dict[str, Counter[str]] = {}
    survivors: list[dict[str, str]] = []
    os.chdir(folder)
    for meta in sorted(Path("mutants", "verify_norm").rglob("*.meta")):
        path, text = str(meta.relative_to("mutants")).removesuffix(".meta"), meta.read_text()
        if not text:
            print(f"{path}: the results were lost as the run was stopped; run it again", file=sys.stderr)
            continue
        module = module_of(path)
        for name, code in json.loads(text)["exit_code_by_key"].items():
            status = status_by_exit_code[code]
            if status in MISSED:
                function = name.rpartition(".")[2].partition("__mutmut_")[0].removeprefix("x_").split("ǁ")[-1]
                before, after = change(name, path)
                key = (f"{module}.{function}", before, after)
                if key in known:
                    found.add(key)
                    status = "equivalent"
                else:
                    row = dict(zip(KEYS, key, strict=True))
                    survivors.append({"at": place(path, function, before), "status": status, **row})
            counts.setdefault(module, Counter())[status] += 1
    total: Counter[str] = sum(counts.values(), Counter())
    stale = [dict(zip(KEYS, key, strict=True)) for key in sorted(known - found)]
    modules = {module: dict(sorted(c.items())) for module, c in counts.items()}
    whole = {"counts": dict(sorted(total.items())), "score": score(total), "modules": modules}
    return whole | {"survivors": survivors, "stale": stale}


def score(counts: Counter[str]) -> float | None:
    """Return the share of the mutants that were seen, of those that were tried and change a behaviour, if any were.

    One that ran out of time counts on neither side: it may loop forever, or the machine be busy.
    """
    rest = counts.total() - counts["equivalent"] - counts["not checked"] - counts["timeout"]
    return round(1 - sum(counts[status] for status in MISSED) / rest, 4) if rest else None


def run(folder: Path, jobs: int, seconds: float | None) -> int:
    """Run mutmut in the folder, at most so many seconds, and return its exit status."""
    command = [sys.executable, "-P", "-m", "mutmut", "run", "--max-children", str(jobs)]
    with subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends in good order, as by Ctrl-C
            return process.wait()


def report(unit: str, result: dict[str, Any]) -> None:
    """Print the survivors, the entries of the equivalent ones that are none any more, and the score."""
    for row in result["survivors"]:
        print(f"{row['at']}: {row['status']}\n  - {row['before']}\n  + {row['after']}")
    for row in result["stale"]:
        print(f"{EQUIVALENT.name}: no survivor is as this entry, delete it: {row}")
    print(f"{unit}: {result['counts']}, score {result['score']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("units", nargs="*", metavar="package or module", default=list(PACKAGES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, help="of each package or module; without, until all is tried")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/mutation.json")
    options = parser.parse_args()
    if unknown := sorted({unit for unit in options.units if unit.partition(".")[0] not in PACKAGES}):
        parser.error(f"unknown package {unknown[0]}; known are {', '.join(PACKAGES)}")
    out = options.out.resolve()
    results: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    for unit in options.units:
        folder = tree(unit)
        again(folder)
        started = datetime.datetime.now(datetime.UTC)
        status = run(folder, options.jobs, options.minutes and 60 * options.minutes)
        result = judged(unit, folder)
        if status or not result["counts"]:
            print(f"mutmut ended with status {status} on {unit}", file=sys.stderr)
            return 1
        seconds = (datetime.datetime.now(datetime.UTC) - started).seconds
        about = {"date": f"{started:%Y-%m-%d}", "seconds": seconds, "jobs": options.jobs, "cores": os.cpu_count()}
        about |= {"python": platform.python_version(), "mutmut": version("mutmut")}
        results[unit] = about | {key: value for key, value in result.items() if key != "stale"}
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        report(unit, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
