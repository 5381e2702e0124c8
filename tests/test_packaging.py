"""What is installed, what importing it costs, and who imports whom."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

import verify_norm
from verify_norm.core import packages
from verify_norm.search.config import tomllib

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "triton", "hypothesis", "scipy", "typer", "rich", "pydantic", "mpmath")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, verify_norm; print([m for m in {HEAVY} if m in sys.modules], verify_norm.__version__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("[]"), out


def test_the_public_names_resolve():
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


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution of this checkout, and the wheel that pip builds from it."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "checkout"  # setuptools writes beside its sources
    for part in ("verify", "reference", "kernels", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, copy)
    source = f"import setuptools.build_meta as s; s.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", source], cwd=copy, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(sdist)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_each_file_of_verify_norm_and_nothing_else(built):
    wheel = zipfile.ZipFile(built[1])
    names = wheel.namelist()
    top = {"verify": "verify_norm", "reference": "verify_norm/reference", "kernels": "verify_norm/kernels"}
    sources = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in top.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert "verify_norm/py.typed" in names
    (about,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    read = {name: wheel.read(f"{about}/{name}").decode() for name in ("entry_points.txt", "METADATA")}
    assert "verify-norm = verify_norm.cli:main" in read["entry_points.txt"]
    assert wheel.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    metadata = Metadata.from_email(read["METADATA"], validate=True)  # what an index refuses
    assert str(metadata.version) == verify_norm.__version__
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "MIT"


def test_the_source_distribution_holds_what_the_wheel_is_made_of(built):
    with tarfile.open(built[0]) as sdist:
        names = [name for name in sdist.getnames() if "/" in name]
    own = {"verify", "reference", "kernels", "verify_norm.egg-info"}
    assert {name.split("/")[1] for name in names} - own == {
        *("LICENSE", "README.md", "pyproject.toml", "MANIFEST.in", "PKG-INFO", "setup.cfg")
    }
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|\.log$|/\.", name)]


def test_one_version_stands_everywhere():
    version = verify_norm.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert citation["license"] == _project()["license"]
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[0] == version
    hook = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    assert re.findall(r"rev: v(\S+)", hook) == [version]
    assert set(re.findall(r"verify-norm@v(\S+)", hook)) == {version}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the programs of a fresh environment that has the wheel, and beside it what this one has."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "present.pth").write_text(sysconfig.get_path("purelib") + "\n")  # a line in it is no .pth of ours
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(built[1])], check=True, capture_output=True)
    return folder / "bin"


def run(installed, *arguments, folder, without=""):
    """Return what a program of the environment prints and its status; packages `without` cannot be imported."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    paths = {"PYTHONPATH": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin", "WITHOUT": without}
    program, *rest = arguments
    done = subprocess.run([installed / program, *rest], capture_output=True, text=True, cwd=folder, env=paths)
    return done.returncode, done.stdout + done.stderr


WITHOUT = """
import os, sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["WITHOUT"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""
OPTIONAL = " ".join(packages.EXTRAS.keys() - {"mpmath"})  # torch itself needs mpmath


@pytest.mark.nightly
@pytest.mark.slow
def test_from_the_wheel_the_lines_of_the_documents_run(installed, tmp_path):
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/how-to/assert-close.md")]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    blocks = [block for block in blocks if "assert_norm" in block or "verify_norm.bound" in block]
    assert len(blocks) == 4
    for number, block in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(block)
    status, said = run(installed, "python", "-m", "pytest", "-q", folder=tmp_path, without=OPTIONAL)
    assert (status, "4 passed" in said) == (0, True), said
    few = ("--dtype", "fp32", "--examples", "0", "--device", "cpu", "--seconds", "3", "--allow-incomplete")
    status, said = run(installed, "verify-norm", "--kernel", "rmsnorm_fwd_torch", *few, folder=tmp_path)
    assert (status, "PASS rmsnorm_fwd_torch" in said) == (0, True), said


BASE = """
import verify_norm
assert "site-packages/verify_norm" in verify_norm.__file__
few = dict(dtypes="fp32", examples=0, device="cpu", isolate=False, seconds=3, allow_incomplete=True)
report = verify_norm.verify("rmsnorm_fwd_torch", **few)
report.raise_for_findings()
for asked in (lambda: str(report), report.to_html, lambda: verify_norm.verify("layernorm_fwd", **few)):
    try:
        asked()
    except verify_norm.UsageError as error:
        print(error)
print(report.environment["triton"], "|", report.environment["interpreter"])
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_the_base_names_the_extra_that_it_lacks(installed, tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    status, said = run(installed, "python", "base.py", folder=tmp_path, without=OPTIONAL)
    assert status == 0, said
    assert said.splitlines() == [
        "this form of a report needs rich: pip install 'verify-norm[cli]'",
        "an HTML page needs jinja2: pip install 'verify-norm[html]'",
        "verify_norm.kernels.layernorm cannot be imported: it needs triton: pip install 'verify-norm[triton]', or the "
        "build of Triton that your torch comes with (CUDA, ROCm, XPU)",
        "none | none: Triton is not installed",
    ]
    status, said = run(installed, "verify-norm", "list", folder=tmp_path, without=OPTIONAL)
    needs = "verify-norm: the command line needs typer and rich: pip install 'verify-norm[cli]'\n"
    assert (status, said) == (2, needs)
    for text in ("torch>=2.6", "numpy>=2.1.1"):
        assert text in _project()["dependencies"]
    assert not any(name in one for one in _project()["dependencies"] for name in packages.EXTRAS)


def test_each_optional_package_is_in_its_extra():
    for name, extra in packages.EXTRAS.items():
        assert any(one.startswith(name) for one in _project()["optional-dependencies"][extra]), name


def test_triton_may_be_there_too_old_or_of_another_name(monkeypatch):
    assert packages.without_triton() == ""
    for version, said in (("3.2.0", "Triton 3.2.0 is older than 3.6"), ("3.10.1", ""), ("4.0", "")):
        monkeypatch.setattr(packages.importlib.metadata, "version", lambda name, version=version: version)
        assert packages.without_triton() == said
    monkeypatch.setattr(packages, "present", lambda name: False)
    assert packages.without_triton() == "Triton is not installed"


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
    return _table()["tool"]["setuptools"]["packages"]


def _project():
    return _table()["project"]


def _table():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
