"""Finds an untrusted kernel: a worker loads it and describes its signature; the user states its contract."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from verify_norm.core import only as taking
from verify_norm.core.contract_fields import checked
from verify_norm.core.errors import LIST, UsageError, one_of, quoted, visible
from verify_norm.core.geometry import differentiable
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import declared, overwritten
from verify_norm.core.ops import OPS
from verify_norm.core.user_operators import Operator, is_own
from verify_norm.loading import registry
from verify_norm.loading.builtin import BUILTIN, PEERS, directions, infer, known, unnamed
from verify_norm.loading.domain import Domain, Own, refuse_only
from verify_norm.running.untrusted.processes import Worker, load
from verify_norm.running.untrusted.runner import RemoteFunction
from verify_norm.running.untrusted.wire import Described

# The fields of a case that a signature may decide, with the values that they may have; no data, shapes or sizes.
DECIDED = {
    **dict.fromkeys(("weight", "bias", "running", "training", "dresidual_out"), (True, False)),
    "frozen": ((),),
    "modulation": ("sample", "token"),
    "rotary": ("full", "half", "quarter"),
    "normalized_ndim": (1,),
    "weight_layout": ("contiguous",),
    "bias_layout": ("contiguous",),
    "weight_offset": float,
    "scale": float,
    "eps": float,
    "momentum": float,
    "num_groups": int,
    "variance_size": int,
    "dropout_p": float,
}
TIED = ("", "follows", "needs", "untold")
LARGE = 2**20  # elements of a weight whose shape a kernel decides
NAME_IT = "name it by its file or module, such as path/file.py:fn: this process must not import it"


def load_untrusted(
    kernel: object,
    op: str | Operator | None = None,
    bind: str = "",
    contract: str = "",
    only: str = "",
    device: str = "cpu",
) -> list[Kernel]:
    """Return the kernels of a name or target, one a direction, which this process never imports; raises UsageError.

    What the kernel declares itself is not believed: its contract is that of our table, else the strict one, changed by
    `contract`; `only` is the user's.
    """
    if sys.platform != "linux":
        raise UsageError(f"untrusted: the sandbox and the shared memory need Linux, and this is {sys.platform}")
    if not isinstance(kernel, str):
        raise UsageError(f"untrusted: expected the name of a kernel, got {quoted(kernel)}; {NAME_IT}")
    if isinstance(op, Operator):
        op = op.name
    if op and is_own(op) and Path(op.rpartition(":")[0]).absolute() == Path(kernel.rpartition(":")[0]).absolute():
        raise UsageError(f"untrusted: {op} stands in the kernel's file; expected it in a file that you trust")
    if ":" not in kernel:
        one_of("kernel", kernel, BUILTIN | PEERS, see=LIST)
        record = registry.find(kernel, op, bind)
    else:
        last = kernel.rpartition(":")[2]
        named = op or infer(last)
        if not named:
            raise unnamed(last)
        name, bind = known(named, bind)
        record = Kernel(kernel, name, kernel, bind=bind)
    names = directions(record.op)
    refuse_only(only, [OPS[name] for name in names])
    request = {"target": kernel, "op": op, "bind": bind, "contract": contract}
    worker = Worker(kernel, bind, device)
    try:
        descriptions = load(worker, request)
    finally:
        worker.end()
    ops = tuple(description.op for description in descriptions)
    if ops not in (names, names[:1]):
        got = ", ".join(map(visible, ops)) or "nothing"
        raise UsageError(f"{kernel} cannot be loaded: expected {' and '.join(names)}, got {got}")
    own = checked(record.contract)
    kernels = []
    for number, description in enumerate(descriptions):
        promised = replace(record, op=description.op, contract=declared(own, contract, OPS[description.op]))
        kernels.append(_kernel(promised, description, number, request, only))
    return kernels


def _kernel(record: Kernel, description: Described, number: int, request: dict[str, Any], only: str) -> Kernel:
    """Return the kernel with the cases that its signature allows, and with remote functions for its own."""
    op = OPS[record.op]
    offered = {*(tensor.name for tensor in op.inputs), *op.attrs, "frozen"}
    run = RemoteFunction(2 * number, op.name, _offered_names(description.takes, offered, record), request)
    forward_run = None
    if description.forward is not None and op.forward is not None:
        forward = OPS[op.forward]
        inputs = {*(tensor.name for tensor in forward.inputs), *forward.attrs}
        forward_run = RemoteFunction(
            2 * number + 1, forward.name, _offered_names(description.forward, inputs, record), request
        )
    text = taking.joined(only, taking.of_constants(dict(description.constants)))
    domain = Domain(
        op.view,
        _fields(description, record),
        description.affine,
        description.ranks,
        one_of("tie", description.tied, TIED),
        tuple(argument for _, argument in overwritten(record.contract)),
        tuple(differentiable(op)) if description.autograd else (),
        own=Own(record.unsupported, record.target, False) if record.unsupported else None,  # of our own table
        op=op.name,
        only=text,
    )
    if description.affine is not None and not 0 < math.prod(description.affine) <= LARGE:
        _refuse(record, f"a weight of shape {description.affine}")
    return replace(
        record,
        dtypes=taking.dtypes(text, record.dtypes),
        autograd=description.autograd and op.forward is not None,
        only=text,
        unsupported=domain.unsupported,
        fit=domain.fit,
        unset=tuple(map(visible, description.unset)),
        kept=tuple((visible(name), visible(words)) for name, words in description.kept),
        run=run,
        forward_run=forward_run,
        later=run.later,
    )


def _offered_names(names: tuple[str, ...], offered: set[str], record: Kernel) -> tuple[str, ...]:
    """Return the names of a function's arguments; raises UsageError if the operator does not offer one of them."""
    for name in names:
        if name not in offered:
            _refuse(record, f"an argument {name!r}")
    return names


def _fields(description: Described, record: Kernel) -> tuple[tuple[str, Any], ...]:
    """Return the fields of cases that the signature decides; raises UsageError for what no signature can decide."""
    for name, value in description.fields:
        allowed: Any = DECIDED.get(name, ())
        valid = isinstance(value, (int, float)) if isinstance(allowed, type) else value in allowed
        if not valid or (isinstance(value, float) and not math.isfinite(value)):
            _refuse(record, f"{name} = {value!r}")
    return description.fields


def _refuse(record: Kernel, what: str) -> NoReturn:
    raise UsageError(f"{visible(record.name)} cannot be loaded: no signature decides {visible(what)}")
