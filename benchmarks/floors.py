"""Installs the wheel with the oldest versions that pyproject.toml allows, and with the newest, and tries it there.

    python benchmarks/floors.py --old python3.10 --new python3.13   # a table; some GB and some minutes for each
    python benchmarks/floors.py --sizes                             # what each extra adds beside torch and numpy

The oldest are those after ">=" in pyproject.toml. An environment with torch of another build, as ROCm's, is not made.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from verify_norm.search.config import tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHOWN = ("torch", "numpy", "triton", "hypothesis", "pydantic", "typer")
BINARIES = ("nvidia", "cuda", "triton")  # what torch brings for a GPU
TRIALS = {
    "assert_norm_close": """
import torch
from verify_norm.testing import assert_norm_close
x, w = torch.randn(8, 64).bfloat16(), torch.randn(64).bfloat16()
y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
assert_norm_close(y.bfloat16(), "rmsnorm", x, w, eps=1e-6)
try:
    assert_norm_close(y.bfloat16() * 1.01, "rmsnorm", x, w, eps=1e-6)
except AssertionError:
    print("passes")
""",
    "verify": """
import torch, verify_norm
def rmsnorm_fwd(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)
if __name__ == "__main__":
    report = verify_norm.verify(rmsnorm_fwd, dtypes="fp32", examples=20, seconds=60, device="cpu", config=False)
    report.raise_for_findings()
    print("passes")
""",
    "Triton kernel": """
import verify_norm
if __name__ == "__main__":
    try:
        verify_norm.verify("rmsnorm_fwd", dtypes="fp32", examples=0, seconds=90, device="cpu").raise_for_findings()
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
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        copy,
    ]
    subprocess.run([*map(str, pip)], check=True, capture_output=True)
    return next(Path(folder).glob("*.whl"))


def floors(extras: tuple[str, ...]) -> list[str]:
    """Return the oldest version of each requirement, as pip takes it, with those of the extras."""
    asked = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    return [one.replace(">=", "==") for one in asked]


def environment(python: str, folder: str, packages: list[str]) -> Path:
    """Return the Python of a fresh environment with these packages; end the program where pip finds none."""
    run(python, "-m", "venv", f"{folder}/venv", folder=folder)
    inside = Path(folder) / "venv" / "bin" / "python"
    status, said = run(inside, "-m", "pip", "install", "--quiet", *packages, folder=folder)
    if status:
        raise SystemExit(f"{python}: {said.strip().splitlines()[-1]}")
    return inside


def tried(python: str, *, oldest: bool) -> list[str]:
    """Return a row of the table: the versions, and how each trial ends."""
    extras = ("cli",) if oldest else ("cli", "triton")
    with tempfile.TemporaryDirectory() as folder:
        packages = floors(extras) if oldest else []
        inside = environment(python, folder, [f"{wheel(folder)}[{','.join(extras)}]", *packages])
        listed = dict(
            line.lower().split()[:2] for line in run(inside, "-m", "pip", "list", folder=folder)[1].splitlines()
        )
        row = [run(inside, "-V", folder=folder)[1].split()[1], *(listed.get(name, "–") for name in SHOWN)]
        for name, code in TRIALS.items():
            script = Path(folder) / "trial.py"
            script.write_text(code)
            said = run(inside, script, folder=folder)[1].strip().splitlines() or [""]
            row.append(said[-1])
            print(f"{python}: {name}: {said[-1]}", file=sys.stderr)
        status = run(inside, "-m", "verify_norm", "hunt", "--help", folder=folder)[0]
        return [*row, "passes" if status == 0 else f"status {status}"]


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
    parser.add_argument("--old", default="python3.10", help="a Python for the oldest versions")
    parser.add_argument("--new", default=sys.executable, help="a Python for the newest versions")
    parser.add_argument("--sizes", action="store_true", help="measure what each extra adds")
    options = parser.parse_args()
    if options.sizes:
        sizes()
    else:
        heads = ["Python", *SHOWN, *TRIALS, "command line"]
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
        for python, oldest in ((options.old, True), (options.new, False)):
            print(f"| {' | '.join(tried(python, oldest=oldest))} |", flush=True)
