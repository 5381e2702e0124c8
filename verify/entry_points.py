"""Kernels that installed packages register, in the group `verify_norm.kernels` of their entry points.

[project.entry-points."verify_norm.kernels"]
fused_layernorm = "mypkg.norms:fused_layernorm"   # a verify_norm.Kernel, or what verify_norm.kernel decorates
mypkg = "mypkg.norms:KERNELS"                     # several Kernels, each under its own name
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as _installed
from typing import Any

from verify_norm.bind import UsageError
from verify_norm.ops import OPS
from verify_norm.registry import BOTH, BUILTIN, one_of, target_of
from verify_norm.spec import Kernel

GROUP = "verify_norm.kernels"


@dataclass(frozen=True, slots=True)
class Registered:
    """The kernels by name, and a line for each registration that is of no use."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()


def registered(name: str = "") -> Registered:
    """What the installed packages register, which imports them; only entry points of that name, if one is given.

    Raises nothing: what is broken is told in `complaints`. A name of ours stays ours, and of two packages the first in
    the alphabet has it.
    """
    kernels: dict[str, Kernel] = {}
    complaints = list(shadowed())
    for entry in _entries():
        if entry.name in BUILTIN or name not in ("", entry.name):
            continue
        try:
            found = _kernels(entry)
        except (Exception, SystemExit) as error:  # whatever a package does when it is imported
            said = (str(error).strip().splitlines() or ["(no message)"])[0]
            why = said if isinstance(error, UsageError) else f"cannot be imported: {type(error).__name__}: {said}"
            complaints.append(f"{_whose(entry)}: {entry.value} {why}")
            continue
        for kernel in found:
            if kernel.name in BUILTIN:
                complaints.append(_ours(entry, kernel.name, kernel.target))
            elif kernel.name in kernels:
                first = kernels[kernel.name].origin
                complaints.append(f"{_whose(entry)}: {first} registers {kernel.name!r} too, and has the name")
            else:
                kernels[kernel.name] = kernel
    return Registered(kernels, tuple(complaints))


def shadowed(name: str = "") -> tuple[str, ...]:
    """A line for each entry point that has the name of a kernel of ours, or that name alone; it imports nothing."""
    return tuple(_ours(e, e.name, e.value) for e in _entries() if e.name in BUILTIN and name in ("", e.name))


def _entries() -> list[EntryPoint]:
    """By their packages' names; a package that lies twice on sys.path counts once."""
    found = {(entry.name, entry.value, _origin(entry)): entry for entry in _installed(group=GROUP)}
    return sorted(found.values(), key=lambda entry: (_origin(entry), entry.name))


def _kernels(entry: EntryPoint) -> list[Kernel]:
    value = entry.load()
    declared = getattr(value, "__verify_norm__", None)
    if isinstance(value, Kernel):
        kernels = [replace(value, name=entry.name)]
    elif isinstance(declared, Kernel):
        kernels = [replace(declared, name=entry.name, target=entry.value)]
    elif isinstance(value, Iterable) and not isinstance(value, str):
        kernels = [_a_kernel(item) for item in value]
    else:
        kernels = [_a_kernel(value)]
    return [_complete(kernel, _origin(entry)) for kernel in kernels]


def _a_kernel(value: Any) -> Kernel:
    if not isinstance(value, Kernel):
        declares = "; verify_norm.kernel(op=…) declares one" if callable(value) else ""
        raise UsageError(f"is or holds a {type(value).__name__}, not a verify_norm.Kernel{declares}")
    return value


def _complete(kernel: Kernel, origin: str) -> Kernel:
    """The record with where to find the kernel, and whose it is."""
    one_of(f"op of {kernel.name}", kernel.op, (*OPS, *BOTH))
    target = kernel.target or target_of(kernel.run)
    if ":" not in target:
        raise UsageError(f"has {kernel.name} without a target as 'package.module:attr'")
    return replace(kernel, target=target, origin=origin)


def _origin(entry: EntryPoint) -> str:
    """The package that registers it, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def _whose(entry: EntryPoint) -> str:
    return f"kernel {entry.name!r} of {_origin(entry)}"


def _ours(entry: EntryPoint, name: str, target: str) -> str:
    return f"{_whose(entry)}: {name} is a kernel of verify-norm's own; --kernel {target} is theirs"
