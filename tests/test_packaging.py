"""What is installed, what importing it costs, and who imports whom."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "triton", "hypothesis", "scipy", "typer", "rich", "pydantic", "mpmath")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, verify_norm; print([m for m in {HEAVY} if m in sys.modules], verify_norm.__version__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("[]"), out


def test_the_public_names_resolve():
    import verify_norm

    for name in verify_norm.__all__:
        assert getattr(verify_norm, name) is not None
    assert set(verify_norm.__all__) == set(dir(verify_norm))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = verify_norm.nothing


@pytest.mark.parametrize("module", ["verify_norm.kernels", "verify_norm.reference.layernorm", "verify_norm.core.spec"])
def test_leaves_are_light(module):
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_file_can_be_checked_out_on_windows_too():
    names = [
        path.name
        for folder in ("verify", "reference", "kernels", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*")
    ]
    assert len(names) > 500
    reserved = r"[<>:\"|?*\\\x00-\x1f]|[ .]$|^(?i:con|prn|aux|nul|com\d|lpt\d)(\.|$)"
    assert [name for name in names if re.search(reserved, name)] == []


def test_the_wheel_holds_verify_norm_alone(tmp_path):
    copy = tmp_path / "checkout"  # setuptools writes beside its sources
    for folder in ("verify", "reference", "kernels"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(copy)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"verify_norm"}
    for part in ("cli/app.py", "py.typed", "reference/layernorm.py", "kernels/layernorm.py", "checks/values.py"):
        assert f"verify_norm/{part}" in names
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "verify-norm = verify_norm.cli:main" in zipfile.ZipFile(wheel).read(entry).decode()


def test_every_module_is_packaged():
    folders = {
        p.parent.relative_to(ROOT).as_posix()
        for top in ("verify", "reference", "kernels")
        for p in (ROOT / top).rglob("*.py")
    }
    packages = {
        name.replace("verify_norm.reference", "reference")
        .replace("verify_norm.kernels", "kernels")
        .replace("verify_norm", "verify")
        .replace(".", "/")
        for name in _packages()
    }
    assert folders == packages


def _packages():
    from verify_norm.search.config import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
