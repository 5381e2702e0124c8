"""Modules of users: each is imported once, and an object is found in the one that holds it."""

import sys
from types import ModuleType

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.core.modules import module_of, target_of


def test_a_file_is_imported_once_and_holds_its_objects(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [before := "/no/such/folder"])
    (tmp_path / "held_by_modules.py").write_text("held = object()\n")
    module = module_of(f"{tmp_path}/held_by_modules.py")
    assert sys.path == [before, str(tmp_path)], "it may import its neighbours"
    assert module_of(f"{tmp_path}/held_by_modules.py") is module
    assert target_of(module.held) == f"{tmp_path}/held_by_modules.py:held"
    assert target_of(object()) == ""
    del sys.modules[module.__name__]


def test_a_file_that_fails_leaves_no_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "fails_at_once.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match="cannot be imported: ZeroDivisionError"):
        module_of(f"{tmp_path}/fails_at_once.py")
    assert "operator_fails_at_once" not in sys.modules


class Lazy:
    """What stands in for a module, and imports it when it is looked at."""

    def __getattr__(self, name):
        raise ImportError(name)


def test_an_object_is_found_only_in_a_module_that_can_be_imported_again(monkeypatch):
    held = object()
    for name, file in {"no_file": None, "__main__": "/no/such/script.py"}.items():
        module = ModuleType(name)
        module.held = held
        if file:
            module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lazy", Lazy())
    assert target_of(held) == ""
