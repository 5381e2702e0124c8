"""The arguments of a checked function: --shapes, make_inputs(), usual names."""

import pytest
import torch
from torch.nn import functional

from verify_norm.core.errors import UsageError
from verify_norm.gradcheck.gradcheck import gradcheck
from verify_norm.gradcheck.inputs import parse_shapes


def test_shapes_are_read():
    assert parse_shapes("x=4x64, w=64") == {"x": (4, 64), "w": (64,)}
    for wrong in ("x", "x=", "x=4x", "=4", "x=-1", "x=4;y"):
        with pytest.raises(UsageError, match="--shapes"):
            parse_shapes(wrong)
    with pytest.raises(UsageError, match="unknown argument"):
        gradcheck(functional.relu, shapes="z=4")


def test_a_file_is_checked_with_the_inputs_beside_it(tmp_path):
    path = tmp_path / "fused.py"
    path.write_text(
        "import torch\n"
        "def f(a, scale, b=None):\n    return a.sin() * scale\n"
        "def make_inputs():\n    return {'a': torch.randn(3, 5), 'scale': 2.0}\n"
    )
    report = gradcheck(f"{path}:f")
    assert report.ok
    assert report.inputs == {"a": (3, 5)}


def test_inputs_may_be_positional():
    def f(*tensors):
        return tensors[0] * tensors[1]

    f.make_inputs = lambda: (torch.randn(3, 4), torch.randn(4))
    assert gradcheck(f).ok
