"""Installs the wheel with the oldest versions that pyproject.toml allows, and with the newest, and tries it there.

    python benchmarks/floors.py --old python3.10   # results/floors.json: its oldest versions; some GB, and minutes
    python benchmarks/floors.py --new python3.13   # … and the newest
    python benchmarks/floors.py --table            # the table of docs/how-to/install.md from it
    python benchmarks/floors.py --sizes            # what each extra adds beside torch and numpy

The oldest are those after ">=" in pyproject.toml. An environment with torch of another build, as ROCm's, is not made.
Each is removed before the next one is made.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from verify_norm.search.config import tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RESULTS = ROOT / "benchmarks" / "results" / "floors.json"
SHOWN = ("torch", "numpy", "triton", "hypothesis", "pydantic", "typer")
BINARIES = ("nvidia", "cuda", "triton")  # what torch brings for a GPU
BASE = """
import torch
from verify_norm.testing import assert_norm_close
x, w = torch.randn(8, 64).bfloat16(), torch.randn(64).bfloat16()
y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
assert_norm_close(y.bfloat16(), "rmsnorm", x, w, eps=1e-6)
try:
    assert_norm_close(y.bfloat16() * 1.01, "rmsnorm", x, w, eps=1e-6)
except AssertionError:
    print("passes")
"""
TRIALS = {  # with the extra cli
    "verify": """
import torch, verify_norm
def rmsnorm_fwd(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)
if __name__ == "__main__":
    report = verify_norm.verify(rmsnorm_fwd, dtypes="fp32", examples=20, seconds=600, device="cpu", config=False)
    report.raise_for_findings()
    print("passes")
""",
    "Triton kernel": """
import verify_norm
if __name__ == "__main__":
    try:
        verify_norm.verify("rmsnorm_fwd", dtypes="fp32", examples=0, seconds=600, device="cpu").raise_for_findings()
        print("passes")
    except verify_norm.UsageError as error:
        print("refused:", str(error).rpartition(": ")[2])
""",
}


def run(*command: str | Path, folder: str) -> tuple[int, str]:
    """Return the status and the output of a command, with nothing of this process's Python in its environment."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def wheel(folder: str) -> Path:
    """Return a wheel of this checkout."""
    copy = Path(folder) / "checkout"  # setuptools writes beside its sources, and packs what an older build left there
    for part in ("verify", "reference", "kernels"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*map(str, pip), str(copy)], check=True, capture_output=True)
    return next(Path(folder).glob("*.whl"))


def floors(extras: tuple[str, ...]) -> list[str]:
    """Return the oldest version of each requirement, as pip takes it, with those of the extras."""
    asked = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    return [one.replace(">=", "==") for one in asked]


def environment(python: str, folder: str, packages: list[str]) -> Path:
    """Return the Python of a fresh environment with these packages; end the program where pip finds none."""
    status, said = run(python, "-m", "venv", f"{folder}/venv", folder=folder)
    if status:
        raise SystemExit(f"{python}: no environment can be made: {said.strip().splitlines()[-1]}")
    inside = Path(folder) / "venv" / "bin" / "python"
    install(inside, packages, folder)
    return inside


def install(inside: Path, packages: list[str], folder: str) -> None:
    """Install packages; end the program where pip cannot."""
    status, said = run(inside, "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages, folder=folder)
    if status:
        raise SystemExit(f"{inside}: {said.strip().splitlines()[-1]}")


def tried(python: str, *, oldest: bool) -> dict[str, Any]:
    """Return the versions of an environment, and how each trial ends: of the base install, then with the extras."""
    extras = ("cli",) if oldest else ("cli", "triton")
    with tempfile.TemporaryDirectory() as folder:
        built = wheel(folder)
        inside = environment(python, folder, [str(built), *(floors(()) if oldest else [])])
        ends = {"assert_norm_close": trial(inside, BASE, folder)}
        command = (inside.with_name("verify-norm"), "list")
        status, said = run(*command, folder=folder)
        refused = said.strip() if status == 2 else f"status {status}: {said.strip()}"
        install(inside, [f"{built}[{','.join(extras)}]", *(floors(extras) if oldest else [])], folder)
        ends |= {name: trial(inside, code, folder) for name, code in TRIALS.items()}
        status, said = run(*command, folder=folder)
        ends["command line"] = "passes" if status == 0 and "layernorm_fwd" in said else f"status {status}"
        listed = json.loads(run(inside, "-m", "pip", "list", "--format", "json", folder=folder)[1].splitlines()[0])
        version = run(inside, "-V", folder=folder)[1].split()[1]
    versions = {one["name"].lower(): one["version"] for one in listed}
    shown = {name: versions.get(name, "–") for name in SHOWN}
    about = {
        "date": date.today().isoformat(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": version,
    }
    return {**about, "versions": shown, "without the extra cli": refused, "trials": ends}


def trial(inside: Path, code: str, folder: str) -> str:
    """Return the last line that a script prints."""
    script = Path(folder) / "trial.py"
    script.write_text(code)
    said = run(inside, script, folder=folder)[1].strip().splitlines() or ["prints nothing"]
    print(f"{inside}: {said[-1]}", file=sys.stderr)
    return said[-1]


def table(found: dict[str, Any]) -> str:
    """Return the versions and the trials of all environments as a table."""
    both = [found[name] for name in ("oldest", "newest")]
    rows = [[one["python"], *one["versions"].values(), *one["trials"].values()] for one in both]
    heads = ["Python", *SHOWN, *both[0]["trials"]]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])


def sizes() -> None:
    """Print what each set of packages takes on disk, compiled as pip leaves it, beside torch, numpy and theirs.

    torch itself is left out, which takes gigabytes: what it requires is there before.
    """
    print("| installed | MB beside torch and numpy |\n|---|--:|", flush=True)
    needed = [one for one in metadata.requires("torch") or () if not one.startswith(BINARIES) and "extra ==" not in one]
    with tempfile.TemporaryDirectory() as folder:
        python, built = environment(sys.executable, folder, ["numpy", *needed]), wheel(folder)
        before, extras = _megabytes(folder), PROJECT["optional-dependencies"]
        own = [one for one in PROJECT["dependencies"] if not one.startswith("torch")]
        for name, packages in (("", own), ("[cli]", extras["cli"]), ("[cli,html]", extras["html"])):
            for more in ([*packages], ["--no-deps", built]):
                status, said = run(python, "-m", "pip", "install", "--quiet", *more, folder=folder)
                assert status == 0, said
            print(f"| `verify-norm{name}` | {_megabytes(folder) - before:.0f} |", flush=True)


def _megabytes(folder: str) -> float:
    return sum(path.stat().st_size for path in Path(folder, "venv").rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", metavar="PYTHON", help="try the oldest versions with this Python")
    parser.add_argument("--new", metavar="PYTHON", help="try the newest versions with this Python")
    parser.add_argument("--sizes", action="store_true", help="measure what each extra adds")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    options = parser.parse_args()
    if options.sizes:
        sizes()
    for name, python in (("oldest", options.old), ("newest", options.new)):
        if python:
            found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
            found = {**found, name: tried(python, oldest=name == "oldest")}
            RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.table:
        print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
