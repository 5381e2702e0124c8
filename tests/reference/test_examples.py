"""The examples in the docstrings of every module of the reference."""

import doctest
import importlib
import pkgutil

import pytest

from verify_norm import reference

START = "verify_norm.reference."
MODULES = [
    module.name.removeprefix(START) for module in pkgutil.walk_packages(reference.__path__, START) if not module.ispkg
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"verify_norm.reference.{name}"))
    assert result.failed == 0
    assert result.attempted or name in ("fixed", "norm", "rounding")  # whose functions take a whole Norm
