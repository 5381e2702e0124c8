"""Names -> kernels: "layernorm_bwd", "package.module:attr" or "path/file.py:attr"; or the callable itself."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from verify_norm.bind import UsageError as UsageError
from verify_norm.kernels import KERNELS, THIRD_PARTY
from verify_norm.ops import OPS
from verify_norm.spec import Contract, Kernel

BUILTIN: dict[str, Kernel] = {kernel.name: kernel for kernel in KERNELS}
PEERS: dict[str, Kernel] = {kernel.name: kernel for kernel in THIRD_PARTY}  # of other libraries, which may be missing
BOTH: dict[str, tuple[str, str]] = {  # what is differentiable has both directions: layernorm: its forward and backward
    op.forward.removesuffix("_fwd"): (op.forward, op.name) for op in OPS.values() if op.forward is not None
}
EXTRA = "'verify-norm[third-party]'"
BUILT = {"flash_attn": "flash-attn --no-build-isolation"}  # what no extra can install: it is compiled for minutes
FAMILIES = (  # letters of a name that tell the operator, the most telling first
    (r"rmsnorm.*(fp8|float8|e4m3|e5m2)|(fp8|float8).*rmsnorm", "rmsnorm_fp8"),
    (r"layernorm.*(fp8|float8|e4m3|e5m2)|(fp8|float8).*layernorm", "layernorm_fp8"),
    (r"(add|residual).*rmsnorm", "add_rmsnorm"),
    (r"(add|residual).*layernorm", "add_layernorm"),
    (r"rmsnorm|t5layernorm", "rmsnorm"),  # T5LayerNorm has neither a mean nor a bias
    (r"layernorm", "layernorm"),
    (r"groupnorm", "groupnorm"),
    (r"batchnorm", "batchnorm"),
    (r"instancenorm", "instancenorm"),
)
METHODS = ("apply", "forward", "__call__")  # whose owner's name tells more


def one_of(kind: str, name: str, names: Iterable[str]) -> str:
    """`name` if it is among `names`; else a UsageError that lists them and guesses which was meant."""
    names = list(names)
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f" (did you mean {close[0]}?)" if close else ""
    raise UsageError(f"unknown {kind} {name!r}{guess}; there are: {', '.join(names)}")


def infer(attribute: str) -> str | None:
    """The operator that an attribute's name tells, without a direction where it tells none; None if it tells nothing.

    >>> infer("layernorm_bwd"), infer("rms_norm_forward"), infer("Qwen2RMSNorm"), infer("LigerLayerNormFunction.apply")
    ('layernorm_bwd', 'rmsnorm_fwd', 'rmsnorm', 'layernorm')
    >>> infer("fused_add_rms_norm"), infer("fused")
    ('add_rmsnorm', None)
    """
    *owners, last = attribute.split(".")
    if owners and last in METHODS:
        last = owners[-1]
    letters = re.sub(r"[^a-z0-9]", "", last.lower())
    base = next((name for pattern, name in FAMILIES if re.search(pattern, letters)), None)
    if base is None or last in OPS:
        return last if last in OPS else None
    if base not in BOTH:
        return f"{base}_fwd"
    directions = {"_fwd": r"fwd|forward", "_bwd": r"bwd|backward"}
    told = [suffix for suffix, pattern in directions.items() if re.search(pattern, letters)]
    return base + told[0] if len(told) == 1 else base


def find(name: str, op: str | None = None, bind: str = "") -> Kernel:
    """The kernel's record, its `op` as it is asked for, or declared, or told by its name; raises UsageError.

    A kernel of the table is not imported. `op` may be without a direction: "layernorm" is layernorm_fwd and _bwd.
    """
    if ":" in name:
        return _record(attribute(name), name, name, op, bind)
    kernel = (BUILTIN | PEERS).get(name) or _registered(name)
    if op not in (None, kernel.op, *BOTH.get(kernel.op, ())):
        raise UsageError(f"{name} is a kernel for {kernel.op}, not for {one_of('op', str(op), (*OPS, *BOTH))}")
    return replace(kernel, op=op or kernel.op, bind=bind or kernel.bind)


def missing(kernel: Kernel) -> str | None:
    """Why a kernel of another library cannot run here, as far as can be told without importing it."""
    if importlib.util.find_spec(kernel.origin) is not None:
        return None
    return f"{kernel.origin} is not installed here: pip install {BUILT.get(kernel.origin, EXTRA)}"


def _require(kernel: Kernel) -> None:
    """Import the library that a kernel is of; raises UsageError where that cannot be done."""
    if kernel.name in PEERS:
        reason = missing(kernel)
        if reason is not None:
            raise UsageError(reason)
        _imported(kernel.origin)


def _registered(name: str) -> Kernel:
    """The kernel of that name that an installed package registers; raises UsageError."""
    from verify_norm.entry_points import registered  # it imports this module

    said = registered(name)  # its own package alone is imported, if an entry point has its name
    if name not in said.kernels:
        said = registered()
    broken = [line for line in said.complaints if line.startswith(f"kernel {name!r} of ")]
    if name not in said.kernels and broken:
        raise UsageError(broken[0])
    kernels = BUILTIN | said.kernels
    return kernels[one_of("kernel", name, kernels)]


def _record(target: Any, name: str, where: str, op: str | None, bind: str) -> Kernel:
    """What is known of a callable that is none of the table: what it declares, and what was asked."""
    declared = getattr(target, "__verify_norm__", None)
    kernel = declared if isinstance(declared, Kernel) else Kernel(name, "")
    last = name.rpartition(":")[2]
    op = op or kernel.op or infer(last) or infer(_called(target))
    if op is None:
        raise UsageError(f"{last!r} is not an op's name, so say which op it is: --op {'|'.join((*OPS, *BOTH))}")
    return replace(kernel, name=name, op=one_of("op", op, (*OPS, *BOTH)), target=where, bind=bind or kernel.bind)


def load_all(
    kernel: object, op: str | None = None, bind: str = "", *, contract: Contract | None = None
) -> list[Kernel]:
    """The kernels that a name, a target or a callable stands for, ready to run: two where `op` has no direction.

    Raises UsageError where it cannot be found, imported or bound.
    """
    if isinstance(kernel, str):
        target = attribute(kernel) if ":" in kernel else None
        record = find(kernel, op, bind) if target is None else _record(target, kernel, kernel, op, bind)
        _require(record)
        target = attribute(record.target) if target is None else target
    else:
        target, where = kernel, target_of(kernel)
        if not callable(target):
            raise UsageError(f"{target!r:.60} is a {type(target).__name__}, not a callable")
        record = _record(target, where or _called(target), where, op, bind)
    record = replace(record, contract=contract or record.contract)
    forward, *backward = (replace(record, op=name) for name in BOTH.get(record.op, (record.op,)))
    return [_bound(forward, target), *_gradients(backward, target, asked=record.op == op)]


def _gradients(kernels: list[Kernel], target: Any, *, asked: bool) -> list[Kernel]:
    """The backward that comes with a forward; none where nobody `asked` for it and there can be none."""
    from verify_norm.adapt import WritesError

    try:
        return [_bound(kernel, target) for kernel in kernels]
    except WritesError:
        if asked:
            raise
        return []


def load(name: str, op: str | None = None, bind: str = "") -> Kernel:
    """The one kernel of that name, ready to run; raises UsageError where `load_all` does, or finds two."""
    first, *others = load_all(name, op, bind)
    if others:
        raise UsageError(f"{name} is to be checked in both directions: say --op {first.op} or --op {others[0].op}")
    return first


def ready(kernel: Kernel) -> Kernel:
    """The same kernel with what is to be called, found by its names; raises UsageError."""
    return _running(kernel, attribute(kernel.target))


def _bound(kernel: Kernel, target: Any) -> Kernel:
    """The kernel ready to run, with the cases that it takes."""
    from verify_norm import adapt

    within = replace(adapt.of_kernel(kernel, target).limits, own=kernel.unsupported)
    return replace(_running(kernel, target), unsupported=within.unsupported, fit=within.fit)


def _running(kernel: Kernel, target: Any) -> Kernel:
    from verify_norm import adapt  # it imports torch, which names need not wait for

    adapted = adapt.of_kernel(kernel, target)
    forward_run = adapted.forward_run or _forward(kernel, target)
    return replace(kernel, run=adapted.run, forward_run=forward_run, autograd=adapted.autograd)


def _forward(kernel: Kernel, target: Any) -> Any:
    """The forward that a backward belongs to: the one it names, else the one beside it that has the op's name."""
    from verify_norm import adapt

    forward = OPS[kernel.op].forward
    if forward is None:
        return None
    if kernel.forward is not None:
        return load(kernel.forward, forward).run
    where = kernel.target.rpartition(":")[0]
    module = sys.modules.get(_module_name(where) if where else getattr(target, "__module__", ""))
    beside = getattr(module, forward, None)
    if not callable(beside):
        return None
    try:
        return adapt.of_kernel(replace(kernel, op=forward, bind=""), beside).run
    except UsageError:
        return None  # nobody has asked for it


def attribute(target: str) -> Any:
    """The callable that "package.module:attr" or "path/file.py:attr" names; raises UsageError where there is none.

    The attribute may have dots, as Class.method.
    """
    if ":" not in target:
        raise UsageError(f"{target!r} names no attribute; it is to be like path/file.py:fn or package.module:fn")
    where, _, name = target.rpartition(":")
    value, found = _imported(where), where
    for part in name.split("."):
        if not hasattr(value, part):
            beside = getattr(value, "__dict__", {}).items()
            names = [n for n, v in beside if callable(v) and not n.startswith("_")]
            raise UsageError(f"{found} has no {part!r}; its callables are: {', '.join(names) or 'none'}")
        value, found = getattr(value, part), f"{found}{'.' if ':' in found else ':'}{part}"
    if not callable(value):
        raise UsageError(f"{target} is a {type(value).__name__}, not a callable")
    return value


def _imported(where: str) -> Any:
    """The module of that name, or in that file; raises UsageError where it cannot be imported."""
    try:
        return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error).strip().splitlines() or ["(no message)"]
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {said[0]}") from error


def target_of(value: Any) -> str:
    """Where a callable can be found again by another process, as "package.module:attr"; "" where it cannot.

    What the running script defines cannot: another process would run the script again.
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


def _importable(name: str, file: str | None) -> bool:
    """Whether importing that name anew, as another process would, finds that file."""
    path, found = None, None
    for end in range(1, name.count(".") + 2):
        full = ".".join(name.split(".")[:end])
        finders = (f.find_spec(full, path) for f in sys.meta_path if hasattr(f, "find_spec"))
        found = next((specification for specification in finders if specification is not None), None)
        if found is None:
            return False
        path = found.submodule_search_locations
    return found is not None and (file is None or found.origin == file)


def _called(value: Any) -> str:
    """What a callable that has no target is called in reports."""
    return str(getattr(value, "__qualname__", None) or type(value).__name__).rpartition("<locals>.")[2]


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
