"""Packages that are not there: what is said of them, and that nothing is said of those that are."""

import importlib.metadata
import sys
from types import ModuleType

import pytest

from verify_norm.core import packages
from verify_norm.core.errors import UsageError


@pytest.fixture
def lacking(monkeypatch):
    """The packages that are not installed in a test."""
    names = {"jinja2", "scipy", "rich", "triton"}
    monkeypatch.setattr(packages, "present", lambda package: package not in names)
    return names


def test_what_is_missing_is_named_with_its_extras(lacking):
    assert packages.missing("a page", "numpy", "jinja2") == "a page needs jinja2: pip install 'verify-norm[html]'"
    assert packages.missing("this", "rich", "scipy", "jinja2") == (
        "this needs rich and scipy and jinja2: pip install 'verify-norm[cli,html]'"
    )
    assert packages.missing("this", "triton", "rich") == (
        "this needs triton and rich: pip install 'verify-norm[triton,cli]', or the build of Triton that your torch "
        "comes with (CUDA, ROCm, XPU)"
    )
    assert packages.missing("this", "numpy") is None


def test_what_needs_a_package_says_so_where_it_is_missing(lacking):
    with pytest.raises(UsageError, match=r"^a page needs jinja2: pip install 'verify-norm\[html\]'$"):
        packages.need("a page", "numpy", "jinja2")
    packages.need("a page", "numpy")


def test_a_package_can_be_imported_and_is_more_than_a_folder(monkeypatch, tmp_path):
    (tmp_path / "bare_folder").mkdir()
    (tmp_path / "whole_package").mkdir()
    (tmp_path / "whole_package/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "without_a_spec", ModuleType("without_a_spec"))  # find_spec raises ValueError
    names = ("whole_package", "bare_folder", "no_such_package", "no_such_package.part", "without_a_spec")
    assert [name for name in names if packages.present(name)] == ["whole_package"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("3.6.0", ""),
        ("3.10.1+git1234", ""),
        ("4.0", ""),
        ("3.5.9", "Triton 3.5.9 is older than 3.6"),
        ("2.9", "Triton 2.9 is older than 3.6"),
    ],
)
def test_a_triton_that_is_too_old_is_named(monkeypatch, version, said):
    monkeypatch.setattr(packages, "present", lambda package: package == "triton")
    monkeypatch.setattr(importlib.metadata, "version", {"triton": version}.__getitem__)
    assert packages.without_triton() == said


def test_a_triton_of_another_name_is_taken_as_it_is(monkeypatch, lacking):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert packages.without_triton() == "Triton is not installed"
    lacking.clear()
    assert packages.without_triton() == ""
