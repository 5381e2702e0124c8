"""The examples in the docstrings of every module."""

import doctest
import importlib
from pathlib import Path

import pytest

import verify_norm

ROOT = Path(verify_norm.__file__).parent
ELSEWHERE = {  # why the example of a module does not run here
    "validation.certify": "it takes seconds: its own test runs it",
    "pytest_plugin.marking": "its marker is the plugin's: its own tests load that",
}


def modules():
    """The modules with an example, as "core.ulp"."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if ">>> " in path.read_text() and not name.startswith(("kernels", "reference")) and name not in ELSEWHERE:
            yield name


@pytest.mark.parametrize("name", list(modules()))
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"verify_norm.{name}"))
    assert result.attempted
    assert not result.failed
