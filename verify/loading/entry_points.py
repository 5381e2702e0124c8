"""Kernels that installed packages register, in the group `verify_norm.kernels` of their entry points.

[project.entry-points."verify_norm.kernels"]
fused_layernorm = "mypkg.norms:fused_layernorm"   # a verify_norm.Kernel, or what verify_norm.kernel decorates
mypkg = "mypkg.norms:KERNELS"                     # several Kernels, each under its own name
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as _installed
from typing import Any

from verify_norm.core.chains import is_chain
from verify_norm.core.errors import LIST, UsageError, first_line, one_line, one_of
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.loading import nested
from verify_norm.loading.builtin import BOTH, BUILTIN
from verify_norm.loading.domain import declaration, right
from verify_norm.loading.targets import target_of

GROUP = "verify_norm.kernels"


@dataclass(frozen=True, slots=True)
class Registered:
    """The kernels by name, and a line for each registration that cannot be used."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


def registered(name: str = "") -> Registered:
    """Import the installed packages with entry points, of that name if given, and return what they register.

    Raises nothing: `complaints` has a line for each broken registration. A kernel of verify-norm keeps its name; of two
    packages that register a name, the first in alphabetical order has it.
    """
    kernels: dict[str, Kernel] = {}
    complaints = list(shadowed())
    for entry in _entries():
        if entry.name in BUILTIN or name not in ("", entry.name):
            continue
        try:
            found = _kernels(entry)
        except (Exception, SystemExit) as error:  # anything can happen in the import of a package
            why = first_line(error) if isinstance(error, UsageError) else f"cannot be imported: {one_line(error)}"
            complaints.append(f"{_label(entry)}: {entry.value} {why}")
            continue
        for kernel in found:
            if kernel.name in BUILTIN:
                complaints.append(_taken(entry, kernel.name, kernel.target))
            elif kernel.name in kernels:
                first = kernels[kernel.name].origin
                complaints.append(f"{_label(entry)}: {first} registers {kernel.name!r} too, and comes first")
            else:
                kernels[kernel.name] = kernel
    return Registered(kernels, tuple(complaints))


def shadowed(name: str = "") -> tuple[str, ...]:
    """Return a line for each entry point with the name of a builtin kernel, or with that name only; imports nothing."""
    return tuple(_taken(e, e.name, e.value) for e in _entries() if e.name in BUILTIN and name in ("", e.name))


def _entries() -> list[EntryPoint]:
    """Return the entry points, sorted by package; a package that is on sys.path twice counts once."""
    found = {(entry.name, entry.value, _origin(entry)): entry for entry in _installed(group=GROUP)}
    return sorted(found.values(), key=lambda entry: (_origin(entry), entry.name))


def _kernels(entry: EntryPoint) -> list[Kernel]:
    with nested.inside(nested.importing(entry.value)):
        value = entry.load()
    declared = declaration(value)
    if isinstance(value, Kernel):
        value = [replace(value, name=entry.name)]
    elif declared is not None:
        value = [replace(declared, name=entry.name, target=entry.value)]
    values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return [_complete(kernel, _origin(entry)) for kernel in values]


def _complete(kernel: Any, origin: str) -> Kernel:
    if not isinstance(kernel, Kernel):
        declares = "; verify_norm.kernel(op=…) declares one" if callable(kernel) else ""
        raise UsageError(f"is or holds a {type(kernel).__name__}, not a verify_norm.Kernel{declares}")
    if not is_chain(right(kernel).op):
        one_of(f"op of {kernel.name}", kernel.op, (*OPS, *BOTH), see=LIST)
    target = kernel.target or target_of(kernel.run)
    if ":" not in target:
        raise UsageError(f"has {kernel.name} without a target as 'package.module:attr'")
    return replace(kernel, target=target, origin=origin)


def _origin(entry: EntryPoint) -> str:
    """Return the package that registers it, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def _label(entry: EntryPoint) -> str:
    return f"kernel {entry.name!r} of {_origin(entry)}"


def _taken(entry: EntryPoint, name: str, target: str) -> str:
    return f"{_label(entry)}: {name} is a kernel of verify-norm; use --kernel {target} for this one"
