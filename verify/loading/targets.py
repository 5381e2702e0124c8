"""Finds the callable of a target as "package.module:attr" or "path/file.py:attr", and the target of a callable."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

from verify_norm.core import packages
from verify_norm.core.errors import UsageError, alternatives, one_line, quoted
from verify_norm.loading import functions, nested, tuned, user_code

LISTED = 24  # callables of a module: of more a message names those alone that may be meant


def attribute(target: str) -> Any:
    """Return the callable of a target; raises UsageError if there is none. The attribute may be Class.method.

    The configuration that may follow is the only one that its tuner takes in this process from then on.
    """
    plain, configuration = tuned.parted(target)
    where, _, name = plain.rpartition(":")
    if not where or not name or where.endswith(":"):
        raise UsageError(f"{target!r} names no attribute; expected path/file.py:fn or package.module:fn")
    module = imported(where)
    with user_code.blamed(where):
        found = _part(module, where, name, plain)
    if configuration:
        reach(where)  # for what the kernel imports when it is called
        tuned.pin(found, configuration)
    return found


def again(target: str) -> Any:
    """Return the callable of a target whose module is imported already; a file is not run anew."""
    where, _, name = tuned.parted(target)[0].rpartition(":")
    return _part(sys.modules[module_name(where)], where, name, target)


def _part(value: Any, found: str, name: str, target: str) -> Any:
    for part in name.split("."):
        if not hasattr(value, part):
            beside = getattr(value, "__dict__", {}).items()
            names = [n for n, v in beside if callable(v) and not n.startswith("_")]
            if not names and getattr(value, "__file__", "") is None:  # a namespace package, such as any folder
                raise UsageError(f"{found} is a folder: name a file in it, such as {found}/norms.py:{part}")
            raise UsageError(f"{found} has no {part!r}; {_beside(part, names)}")
        value, found = getattr(value, part), f"{found}{'.' if ':' in found else ':'}{part}"
    if not callable(value):
        raise UsageError(f"{target}: expected a callable, got {quoted(value)}")
    return value


def _beside(missing: str, names: list[str]) -> str:
    """Return the callables that there are, in words, and those whose names are near; of many only these."""
    close = difflib.get_close_matches(missing, names, n=3, cutoff=0.5)
    few = len(names) <= LISTED
    there = f"its callables are: {', '.join(names) or 'none'}" if few else f"it has {len(names)} other callables"
    return there + (f"; did you mean {alternatives(close)}?" if close else "")


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
    """Return the module of that name, or in that file; raises UsageError if it cannot be imported.

    Meanwhile the working folder and the folder of the file are last on sys.path: what stands there can be imported.
    """
    if not where.endswith(".py") and "." in where and Path(where).is_file():
        raise UsageError(f"{where} is no .py file")
    before = list(sys.path)
    reach(where)
    added = sys.path[len(before) :]
    try:
        with nested.inside(nested.importing(where)), functions.importing(where), user_code.staying():
            return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too, and whatever else a file raises
        of_triton = isinstance(error, ImportError) and str(error.name).partition(".")[0] == "triton"
        reason = (packages.missing("it", "triton") or packages.without_triton()) if of_triton else ""
        own = where.endswith(".py") and not isinstance(error, SyntaxError)  # which says its line itself
        line = f" ({line})" if own and (line := user_code.line_of(error, where)) else ""
        raise UsageError(f"{where} cannot be imported: {reason or one_line(error)}{line}") from error
    finally:
        sys.path[:] = [folder for folder in sys.path if folder not in added]


def reach(where: str) -> None:
    """Let this process import what stands in the working folder, and beside the file, from now on."""
    folders = [Path.cwd(), *(folders_of(Path(where).absolute()) if where.endswith(".py") else ())]
    sys.path += [folder for folder in dict.fromkeys(map(str, folders)) if folder not in sys.path]


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


def preset(value: Any) -> dict[str, Any]:
    """Return the arguments that functools.partial has bound, by their names; none of any other callable.

    >>> preset(partial(round, 2.5, ndigits=1))
    {'number': 2.5, 'ndigits': 1}
    """
    if not isinstance(value, partial):
        return {}
    try:
        taken = inspect.signature(value.func)
        bound = taken.bind_partial(*value.args, **value.keywords).arguments
    except (TypeError, ValueError):  # Python does not know its arguments, or it has no such ones
        return dict(value.keywords)
    more = next((p.name for p in taken.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    return {name: bound[name] for name in bound if name != more} | value.keywords


def located(value: Any) -> tuple[str, str]:
    """Return the target by which another process can find a callable, and the --bind of what functools.partial bound.

    The target is "" where it cannot be found, or where what is bound is no number, text, flag or None.
    """
    if where := target_of(value) or _attribute_of(value):
        return where, ""
    constants = preset(value)
    if not all(isinstance(constant, (int, float, str, bool, NoneType)) for constant in constants.values()):
        return "", ""
    where = target_of(value.func) if constants else ""
    return where, ",".join(f"{name}={constant!r}" for name, constant in constants.items()) if where else ""


def _attribute_of(value: Any) -> str:
    """Return the target of what has no name of its own, such as an instance, by a module that holds it; "" if none."""
    for where, module in tuple(sys.modules.items()):
        names = vars(module) if type(module) is ModuleType and where != "__main__" else {}
        name = next((name for name, held in tuple(names.items()) if held is value and name.isidentifier()), "")
        if name:
            file = getattr(module, "__file__", None)
            return f"{where}:{name}" if _importable(where, file) else f"{file}:{name}" if file else ""
    return ""


def called(value: Any) -> str:
    """Return the name in reports of a callable without a target."""
    if isinstance(value, partial):
        return called(value.func)
    return str(getattr(value, "__qualname__", None) or type(value).__name__).rpartition("<locals>.")[2]


def module_name(where: str) -> str:
    """Return the name in sys.modules of the part of a target before its colon."""
    return f"user_{Path(where).stem}" if where.endswith(".py") else where


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"no file {path}")
    specification = importlib.util.spec_from_file_location(module_name(str(path)), path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # Triton and dataclasses look their module up
    try:
        specification.loader.exec_module(module)
    except ImportError as error:
        if "attempted relative import" not in str(error):
            raise
        return _of_package(path.absolute())
    return module


def folders_of(path: Path) -> list[Path]:
    """Return the folder of a file, and that of the outermost package that it belongs to."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return [path.parent, root]


def _of_package(path: Path) -> Any:
    """Return the module in that file of a package, imported by its full name."""
    relative = path.relative_to(folders_of(path)[1]).with_suffix("")
    return importlib.import_module(".".join(relative.parts))
