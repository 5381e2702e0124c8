"""Finds the callable of a target as "package.module:attr" or "path/file.py:attr", and the target of a callable."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from verify_norm.core.errors import UsageError, one_line
from verify_norm.loading import nested


def attribute(target: str) -> Any:
    """Return the callable of a target; raises UsageError if there is none. The attribute may be Class.method."""
    if ":" not in target:
        raise UsageError(f"{target!r} names no attribute; expected path/file.py:fn or package.module:fn")
    where, _, name = target.rpartition(":")
    return _part(imported(where), where, name, target)


def again(target: str) -> Any:
    """Return the callable of a target whose module is imported already; a file is not run anew."""
    where, _, name = target.rpartition(":")
    return _part(sys.modules[module_name(where)], where, name, target)


def _part(value: Any, found: str, name: str, target: str) -> Any:
    for part in name.split("."):
        if not hasattr(value, part):
            beside = getattr(value, "__dict__", {}).items()
            names = [n for n, v in beside if callable(v) and not n.startswith("_")]
            raise UsageError(f"{found} has no {part!r}; its callables are: {', '.join(names) or 'none'}")
        value, found = getattr(value, part), f"{found}{'.' if ':' in found else ':'}{part}"
    if not callable(value):
        raise UsageError(f"{target}: expected a callable, got a {type(value).__name__}")
    return value


def target_of(value: Any) -> str:
    """Return the target by which another process can find a callable; "" if it cannot.

    What the running script defines has no target: another process would run the script again.
    """
    where, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    module = sys.modules.get(where or "")
    if module is None or not isinstance(name, str) or where == "__main__" or "<" in name:
        return ""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return ""
    file = getattr(module, "__file__", None)
    if _importable(str(where), file):
        return f"{where}:{name}"
    return f"{file}:{name}" if file and file.endswith(".py") else ""


def imported(where: str) -> Any:
    """Return the module of that name, or in that file; raises UsageError if it cannot be imported."""
    try:
        with nested.inside(nested.importing(where)):
            return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too, and whatever else a file raises
        raise UsageError(f"{where} cannot be imported: {one_line(error)}") from error


def _importable(name: str, file: str | None) -> bool:
    """Return whether another process that imports that name finds that file."""
    path, found = None, None
    for end in range(1, name.count(".") + 2):
        full = ".".join(name.split(".")[:end])
        finders = (f.find_spec(full, path) for f in sys.meta_path if hasattr(f, "find_spec"))
        found = next((specification for specification in finders if specification is not None), None)
        if found is None:
            return False
        path = found.submodule_search_locations
    return found is not None and (file is None or found.origin == file)


def called(value: Any) -> str:
    """Return the name in reports of a callable without a target."""
    return str(getattr(value, "__qualname__", None) or type(value).__name__).rpartition("<locals>.")[2]


def module_name(where: str) -> str:
    """Return the name in sys.modules of the part of a target before its colon."""
    return f"verify_norm_user_{Path(where).stem}" if where.endswith(".py") else where


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"no file {path}")
    specification = importlib.util.spec_from_file_location(module_name(str(path)), path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # Triton and dataclasses look their module up
    specification.loader.exec_module(module)
    return module
