"""Modules of users, by name or file, and where an object of theirs stands."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from verify_norm.core.errors import UsageError, one_line


def module_of(where: str) -> ModuleType:
    """Return the module of that name, or in that file, the imported one if there is one; raises UsageError."""
    path = Path(where)
    if where.endswith(".py") and not path.is_file():
        raise UsageError(f"no file {where}")
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        there = (m for m in tuple(sys.modules.values()) if _file(m) == path.absolute())
        return next(there, None) or _imported(path)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{where} cannot be imported: {one_line(error)}") from error


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) and module.__name__ != "__main__" else None


def _imported(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"operator_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path += [folder for folder in [str(path.absolute().parent)] if folder not in sys.path]
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[specification.name]
        raise
    return module


def target_of(one: Any) -> str:
    """Return where an object stands, such as "path/file.py:name"; "" if no module holds it that can be imported."""
    for module in tuple(sys.modules.values()):
        file = _file(module) if type(module) is ModuleType else None
        for name, value in tuple(vars(module).items()) if file is not None else ():
            if value is one:
                return f"{file}:{name}"
    return ""
