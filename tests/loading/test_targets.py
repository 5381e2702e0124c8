"""The callable of a target, and the target of a callable."""

import sys
from pathlib import Path

import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.loading.registry import load
from verify_norm.loading.targets import attribute, called, module_name, target_of

GOOD = "import torch\ndef layernorm_fwd(x, eps, weight=None, bias=None):\n    return x\n"


def test_a_kernel_in_a_module(tmp_path, monkeypatch):
    (tmp_path / "some_norms.py").write_text(
        GOOD.replace("layernorm_fwd", "fused") + "class Norms:\n    inner = fused\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load("some_norms:fused", "layernorm_fwd").op == "layernorm_fwd"
    assert load("some_norms:Norms.inner", "layernorm_fwd").run(1, 2) == 1
    with pytest.raises(UsageError, match=r"some_norms:Norms has no 'outer'; its callables are: inner"):
        load("some_norms:Norms.outer", "layernorm_fwd")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError: "),
        ("import sys\nsys.exit('no GPU')\n", "SystemExit: no GPU"),
        ("raise ValueError('first\\nsecond')\n", "ValueError: first"),
    ],
)
def test_a_file_that_does_not_import(tmp_path, text, said):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(f"{path}:layernorm_fwd")
    assert str(caught.value).startswith(f"{path} cannot be imported: {said}")
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_module(tmp_path, monkeypatch):
    (tmp_path / "some_ops").mkdir()
    (tmp_path / "some_ops" / "norms.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"^some_ops is a folder: name a file in it, such as some_ops/norms.py:fused$"):
        attribute("some_ops:fused")


def test_where_a_callable_is_found_again(tmp_path, monkeypatch):
    reached = (str(Path(__file__).parents[2]), str(Path(__file__).parent), "", ".")  # perhaps by a run of another test
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in reached])
    assert target_of(torch.nn.LayerNorm) == "torch.nn.modules.normalization:LayerNorm"
    assert target_of(test_where_a_callable_is_found_again) == f"{__file__}:test_where_a_callable_is_found_again"
    assert target_of(lambda x: x) == ""
    assert target_of(torch.nn.LayerNorm(3)) == ""
    (tmp_path / "shadowed_norms.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    import shadowed_norms

    assert target_of(shadowed_norms.layernorm_fwd) == "shadowed_norms:layernorm_fwd"
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert target_of(shadowed_norms.layernorm_fwd) == f"{tmp_path}/shadowed_norms.py:layernorm_fwd"


def test_only_what_is_callable_has_a_target():
    with pytest.raises(UsageError, match=r"^'math' names no attribute; expected path/file.py:fn or package.module:fn$"):
        attribute("math")
    with pytest.raises(UsageError, match=r"^math:pi: expected a callable, got 3.14"):
        attribute("math:pi")
    assert attribute("torch.nn:LayerNorm.forward") is torch.nn.LayerNorm.forward


def test_what_the_running_script_defines_has_no_target(monkeypatch):
    """Another process would run the script again."""
    function = test_what_the_running_script_defines_has_no_target
    monkeypatch.setattr(function, "__module__", "__main__")
    for name, value in ((function.__name__, function), ("__file__", __file__)):
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    assert target_of(function) == ""


def test_a_name_that_now_means_something_else_is_no_target(monkeypatch):
    one = test_only_what_is_callable_has_a_target
    monkeypatch.setitem(globals(), one.__name__, lambda: None)
    assert target_of(one) == ""


def test_the_name_of_what_has_no_target():
    def inner():
        pass

    assert called(inner) == "inner"
    assert called(torch.nn.LayerNorm(3)) == "LayerNorm"
    assert module_name("some/folder/mine.py") == "user_mine"
    assert module_name("package.mine") == "package.mine"


def test_of_many_callables_the_near_ones_are_named():
    with pytest.raises(
        UsageError, match=r"^torch has no 'layer_nrom'; it has \d{3,} other callables; did you mean layer_norm"
    ):
        attribute("torch:layer_nrom")
    with pytest.raises(UsageError, match=r"^torch has no 'qqqqqqqqqq'; it has \d{3,} other callables$"):
        attribute("torch:qqqqqqqqqq")
