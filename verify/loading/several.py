"""Several kernels by one name: patterns of files, of attributes and of the table; a file stands for all its kernels."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from glob import glob, has_magic
from inspect import isclass, isroutine
from os.path import isfile
from typing import Any

from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.loading.builtin import BUILTIN, infer
from verify_norm.loading.registry import find
from verify_norm.loading.targets import attribute, imported, reach
from verify_norm.loading.tuned import SIGN, configurations


def expanded(names: Iterable[str]) -> list[str]:
    """Return the kernels that these names stand for, each once.

    "ops/*.py:rms_norm" is that attribute of each file, "ops/norms.py" each kernel of the file, "ops/norms.py:fused_*"
    those that match, "layernorm_*" those of our table. Raises UsageError for a name that stands for no kernel.
    """
    return list(dict.fromkeys(kernel for name in names for kernel in _one(name)))


def configured(name: str) -> list[str]:
    """Return the names of a kernel in each configuration of each tuner that it reaches; none without a tuner."""
    target = name if ":" in name else find(name).target
    found = attribute(target)
    reach(target.rpartition(":")[0])  # for what the kernel imports when it is called
    return [f"{name}{SIGN}{one}" for one in configurations(found)]


def _one(name: str) -> list[str]:
    where, _, attribute = (f"{name}:" if name.endswith(".py") else name).rpartition(":")
    if not where:
        found = [known for known in BUILTIN if fnmatchcase(known, name)] if has_magic(name) else [name]
    elif attribute and not has_magic(attribute if isfile(where) else name):
        found = [name]
    else:
        files = sorted(glob(where, recursive=True)) if has_magic(where) and not isfile(where) else [where]
        found = [kernel for file in files for kernel in _of_file(file, attribute)]
        if files and not found:
            raise UsageError(_without(files, attribute))
    if not found:
        raise UsageError(f"--kernel {name}: no {'file' if where else 'kernel'} matches")
    return found


def _of_file(file: str, attribute: str) -> list[str]:
    """Return the kernels in a file: the attribute if it is no pattern, else what matches and is called like a norm."""
    named = callables(file)
    if attribute and not has_magic(attribute):
        return [f"{file}:{attribute}"] * (attribute.partition(".")[0] in named)
    matching = [name for name in named if fnmatchcase(name, attribute or "*")]
    return [f"{file}:{name}" for name in matching if _is_kernel(name, named[name])]


def callables(file: str) -> dict[str, Any]:
    """Return what a file defines itself and can be called, by name: no function or class that it imports."""
    module = imported(file)
    own = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    foreign = {
        name
        for name, value in own.items()
        if (isclass(value) or isroutine(value)) and getattr(value, "__module__", None) != module.__name__
    }
    return {name: value for name, value in own.items() if name not in foreign}


def _is_kernel(name: str, value: Any) -> bool:
    launched = type(value).__module__.partition(".")[0] == "triton"  # a kernel's body, which takes pointers
    return not launched and (isinstance(getattr(value, "__verify_norm__", None), Kernel) or infer(name) is not None)


def _without(files: list[str], attribute: str) -> str:
    """Return that no file has such a kernel, and what they have."""
    names = [f"{file}:{name}" for file in files for name in callables(file)]
    if not names:
        return f"no function and no class is defined in {', '.join(files[:6])}"
    lacking = f"no file has {attribute}" if attribute else "no function and no class has the name of a norm"
    return f"{lacking}: add :function and --op, such as --kernel {names[0]}; there are {', '.join(names[:6])}"
