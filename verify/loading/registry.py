"""Finds kernels by name: "layernorm_bwd", "package.module:attr" or "path/file.py:attr"; or takes a callable."""

import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from verify_norm.core import only
from verify_norm.core.contract import Contract
from verify_norm.core.contract_fields import checked
from verify_norm.core.errors import LIST, UsageError, first_line, one_of, quoted
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import declared, overwritten, whole
from verify_norm.core.ops import OPS
from verify_norm.core.user_operators import HERE, Operator
from verify_norm.loading import adapt
from verify_norm.loading.adapt import WritesError
from verify_norm.loading.builtin import BUILTIN, PEERS, directions, infer, known, missing, unnamed
from verify_norm.loading.domain import Own, declaration, refuse_impossible, refuse_only
from verify_norm.loading.entry_points import registered
from verify_norm.loading.targets import attribute, called, imported, located, module_name, reach
from verify_norm.loading.tuned import SIGN, parted
from verify_norm.loading.user_code import blamed


def find(name: str, op: str | Operator | None = None, bind: str = "") -> Kernel:
    """Return the kernel's record; its op is the given one, else the declared, else inferred. Raises UsageError.

    A kernel of the table is not imported. `op` may lack a direction: "layernorm" is layernorm_fwd and layernorm_bwd.
    """
    if ":" in name:
        return _record(attribute(name), name, name, op, bind)
    name, configuration = parted(name)
    kernel = (BUILTIN | PEERS).get(name) or _registered(name)
    if configuration:
        kernel = replace(kernel, name=f"{name}{SIGN}{configuration}", target=f"{kernel.target}{SIGN}{configuration}")
    if op is not None:
        op, bind = known(op, bind)
    if op not in (None, kernel.op, *directions(kernel.op)):
        raise UsageError(f"{name} is a kernel for {kernel.op}, not for {op}")
    return replace(kernel, op=op or kernel.op, bind=bind or kernel.bind)


def _registered(name: str) -> Kernel:
    found = registered(name)  # an entry point of its name needs only the import of its own package
    if name not in found.kernels:
        found = registered()
    broken = [line for line in found.complaints if line.startswith(f"kernel {name!r} of ")]
    if name not in found.kernels and broken:
        raise UsageError(broken[0])
    kernels = BUILTIN | PEERS | found.kernels
    if name not in kernels and ("." in name or os.path.exists(name)):
        raise UsageError(
            f"unknown kernel {quoted(name)}: expected path/file.py:fn or package.module:fn, or a name of {LIST}"
        )
    return kernels[one_of("kernel", name, kernels, see=LIST)]


def _record(target: Any, name: str, where: str, op: str | Operator | None, bind: str) -> Kernel:
    """Return the record of a callable that is not in the table, from its declaration and the given options."""
    kernel = declaration(target) or Kernel(name, "")
    last = parted(name)[0].rpartition(":")[2]
    op = op or kernel.op or infer(last) or infer(called(target))
    if op is None:
        raise unnamed(last)
    op, bind = known(op, bind or kernel.bind)
    where = where if not op.startswith(HERE) else ""  # another process does not know the operator
    return replace(kernel, name=name, op=op, target=where, bind=bind)


def load_directions(
    kernel: object, op: str | Operator | None = None, bind: str = "", contract: Contract | str = "", taken: str = ""
) -> list[Kernel]:
    """Return the kernels of a name, a target or a callable, ready to run: both directions if `op` names none.

    A text for `contract` changes the declared one (`verify_norm.core.known`), a Contract stands for it. `taken` says
    which cases the kernel takes, besides what it declares (`verify_norm.core.only`). Raises UsageError if the kernel
    cannot be found, imported or bound.
    """
    with blamed(kernel if isinstance(kernel, str) else called(kernel)):
        return _loaded(kernel, op, bind, contract, taken)


def _loaded(kernel: object, op: str | Operator | None, bind: str, contract: Contract | str, taken: str) -> list[Kernel]:
    if isinstance(kernel, str):
        target = attribute(kernel) if ":" in kernel else None
        record = find(kernel, op, bind) if target is None else _record(target, kernel, kernel, op, bind)
        if parted(record.name)[0] in PEERS:
            if (reason := missing(record)) is not None:
                raise UsageError(reason)
            imported(record.origin)
        target = attribute(record.target) if target is None else target
    else:
        if not callable(kernel):
            named = "expected a callable, or its name as 'path/file.py:fn'"
            raise UsageError(f"{named}, got {kernel!r:.60} of type {type(kernel).__name__}")
        where, constants = located(kernel)
        target = kernel.func if constants and isinstance(kernel, partial) else kernel
        bind = f"{constants}{', ' * (bool(constants) and bind[:1] not in ('', '-'))}{bind}"
        record = _record(target, where or called(target), where, op, bind)
    record = replace(record, contract=checked(contract if isinstance(contract, Contract) else record.contract))
    record = replace(record, only=only.joined(only.checked(record.only), taken))
    names = directions(record.op)
    refuse_only(record.only, [OPS[name] for name in names])
    forward, *backward = (_promising(replace(record, op=name), contract) for name in names)
    return [_bound(forward, target), *_gradients(backward, target, asked=op is not None)]


def _promising(kernel: Kernel, contract: Contract | str) -> Kernel:
    text = whole(contract) if isinstance(contract, Contract) else contract
    return replace(kernel, contract=declared(kernel.contract, text, OPS[kernel.op])) if text else kernel


def _gradients(kernels: list[Kernel], target: Any, *, asked: bool) -> list[Kernel]:
    """Return the backward of a forward; none if it has none and the user has not `asked` for it."""
    try:
        return [_bound(kernel, target) for kernel in kernels]
    except WritesError:
        if asked:
            raise
        return []


def load(name: str, op: str | Operator | None = None, bind: str = "") -> Kernel:
    """Return the kernel of that name, ready to run; raises UsageError as `load_directions`, or if there are two."""
    return single(load_directions(name, op, bind))


def single(kernels: Sequence[Kernel]) -> Kernel:
    """Return the one kernel; raises UsageError if there are two, one a direction."""
    first, *others = kernels
    if others:
        raise UsageError(f"{first.name} has two directions: choose one as its op, {first.op} or {others[0].op}")
    return first


def ready(kernel: Kernel) -> Kernel:
    """Return the same kernel with its functions, found by their names; raises UsageError."""
    reach(kernel.target.rpartition(":")[0])  # for what the kernel imports when it is called
    return _running(kernel, attribute(kernel.target))


def limited(kernel: Kernel) -> Kernel:
    """Return `ready(kernel)`, with the cases that its arguments allow; raises UsageError."""
    return _bound(kernel, attribute(kernel.target))


def sent(kernel: Kernel) -> tuple[str, bytes]:
    """Return what `received` makes the kernel of, in another process; raises UsageError if that is impossible."""
    try:
        return kernel.target, pickle.dumps(replace(kernel, run=None, forward_run=None))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        why = f"its unsupported cannot be sent to a process of its own: {first_line(error)}"
        hint = (
            "name that function in a module, or take --in-process (isolate=False), which does not protect from crashes"
        )
        raise UsageError(f"{kernel.name}: {why}; {hint}") from error


def received(target: str, record: bytes) -> Kernel:
    """Return the kernel that `sent` describes, with its functions; raises UsageError if its target has changed."""
    found = attribute(target)  # before the record, which may refer to its module
    return _running(pickle.loads(record), found)


def _bound(kernel: Kernel, target: Any) -> Kernel:
    written = tuple(argument for _, argument in overwritten(kernel.contract))
    within = adapt.of_kernel(kernel, target).domain
    declared = declaration(target)
    known = declared is not None and declared.unsupported is kernel.unsupported
    own = Own(kernel.unsupported, kernel.target, known) if kernel.unsupported else None
    constants = only.of_constants(dict(within.constants))
    text = only.joined(kernel.only, within.only, constants)
    if kernel.only and constants:
        refuse_impossible(text, [OPS[kernel.op]])
    within = replace(within, own=own, written=written, op=kernel.op, only=text)
    kernel = replace(_running(kernel, target), only=text, dtypes=only.dtypes(text, kernel.dtypes))
    return replace(kernel, unsupported=within.unsupported, fit=within.fit, unset=within.unset, kept=within.kept)


def _running(kernel: Kernel, target: Any) -> Kernel:
    adapted = adapt.of_kernel(kernel, target)
    forward_run = adapted.forward_run or _forward(kernel, target)
    return replace(kernel, run=adapted.run, forward_run=forward_run, autograd=adapted.autograd)


def _forward(kernel: Kernel, target: Any) -> Any:
    """Return the forward of a backward: the one it names, else the one in its module with the op's name."""
    forward = OPS[kernel.op].forward
    if forward is None:
        return None
    if kernel.forward is not None:
        return load(kernel.forward, forward).run
    where = kernel.target.rpartition(":")[0]
    module = sys.modules.get(module_name(where) if where else getattr(target, "__module__", ""))
    beside = getattr(module, forward, None)
    if not callable(beside):
        return None
    try:
        return adapt.of_kernel(replace(kernel, op=forward, bind=""), beside).run
    except UsageError:
        return None  # the user has not asked for it
