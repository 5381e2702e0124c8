"""The table of kernels names what exists."""

import importlib
import inspect

import pytest

from verify_norm import kernels


@pytest.mark.parametrize("kernel", kernels.KERNELS, ids=lambda k: k.name)
def test_table_names_what_exists(kernel):
    module, name = kernel.target.split(":")
    function = getattr(importlib.import_module(module), name)
    assert name == kernel.name
    assert kernel.summary
    assert "eps" in inspect.signature(function).parameters
