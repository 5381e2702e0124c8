"""Names -> kernels: "layernorm_bwd", "package.module:attr" or "path/file.py:attr"."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from verify_norm.kernels import KERNELS
from verify_norm.ops import OPS
from verify_norm.spec import Kernel, Op


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one line: what is wrong, and what would be right."""


BUILTIN: dict[str, Kernel] = {kernel.name: kernel for kernel in KERNELS}


def one_of(kind: str, name: str, names: Iterable[str]) -> str:
    """`name` if it is among `names`; else a UsageError that lists them and guesses which was meant."""
    names = list(names)
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f" (did you mean {close[0]}?)" if close else ""
    raise UsageError(f"unknown {kind} {name!r}{guess}; there are: {', '.join(names)}")


def find(name: str, op: str | None = None) -> Kernel:
    """The kernel's record, without importing the kernel itself; raises UsageError.

    `op` names the operator of a kernel that is not ours; it may be left out where the attribute's name is an op's.
    """
    if ":" not in name:
        kernel = BUILTIN[one_of("kernel", name, BUILTIN)]
        if op is not None and op != kernel.op:
            raise UsageError(f"{name} is a kernel for {kernel.op}, not for {one_of('op', op, OPS)}")
        return kernel
    attribute = name.rpartition(":")[2]
    if op is None:
        if attribute not in OPS:
            raise UsageError(f"{attribute!r} is not an op's name, so say which op it is: --op {'|'.join(OPS)}")
        op = attribute
    return Kernel(name=name, op=one_of("op", op, OPS), target=name)


def load(name: str, op: str | None = None) -> Kernel:
    """The kernel, ready to run; raises UsageError where it cannot be found, imported or bound."""
    kernel = find(name, op)
    run = attribute(kernel.target)
    declared = getattr(run, "__verify_norm__", None)
    if isinstance(declared, Kernel):
        kernel = replace(declared, name=kernel.name, target=kernel.target)
    _check_arguments(run, OPS[kernel.op], kernel.name)
    return ready(kernel)


def ready(kernel: Kernel) -> Kernel:
    """The same kernel with what is to be called, found by its names; raises UsageError."""
    return replace(kernel, run=attribute(kernel.target), forward_run=_forward(kernel))


def _forward(kernel: Kernel) -> Any:
    """The forward that a backward belongs to: the one it names, else the one beside it that has the op's name."""
    forward = OPS[kernel.op].forward
    if kernel.forward is not None:
        return load(kernel.forward, forward).run
    where = kernel.target.rpartition(":")[0]
    module = sys.modules.get(_module_name(where))
    beside = getattr(module, forward, None) if forward else None
    return beside if callable(beside) else None


def attribute(target: str) -> Any:
    """The callable that "package.module:attr" or "path/file.py:attr" names; raises UsageError where there is none."""
    if ":" not in target:
        raise UsageError(f"{target!r} names no attribute; it is to be like path/file.py:fn or package.module:fn")
    where, _, name = target.rpartition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UsageError(f"{where} has no {name!r}; its callables are: {', '.join(names) or 'none'}")
    value = getattr(module, name)
    if not callable(value):
        raise UsageError(f"{target} is a {type(value).__name__}, not a callable")
    return value


def _module_name(where: str) -> str:
    """The name in sys.modules of what a target names before its colon."""
    return f"verify_norm_user_{Path(where).stem}" if where.endswith(".py") else where


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    specification = importlib.util.spec_from_file_location(_module_name(str(path)), path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # Triton and dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def _check_arguments(run: Any, op: Op, name: str) -> None:
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} has no signature to bind arguments by: {error}") from error
    offered = [tensor.name for tensor in op.inputs] + list(op.attrs)
    unknown = [
        p.name
        for p in parameters
        if p.name not in offered
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if unknown or positional:
        asks = ", ".join(unknown or positional)
        raise UsageError(f"{name} asks for {asks}; {op.name} offers, by name: {', '.join(offered)}")
