"""Finds an untrusted kernel: a worker loads it, and says what a signature says. The user says what it promises."""

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
from verify_norm.running.untrusted.runner import Stand
from verify_norm.running.untrusted.wire import Described

# What a signature decides about the cases, and the values it can give; no data, shapes or sizes.
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
    asked = {"target": kernel, "op": op, "bind": bind, "contract": contract}
    worker = Worker(kernel, bind, device)
    try:
        described = load(worker, asked)
    finally:
        worker.end()
    found = tuple(one.op for one in described)
    if found not in (names, names[:1]):
        got = ", ".join(map(visible, found)) or "nothing"
        raise UsageError(f"{kernel} cannot be loaded: expected {' and '.join(names)}, got {got}")
    own = checked(record.contract)
    promised = [replace(record, op=name, contract=declared(own, contract, OPS[name])) for name in found]
    return [_kernel(one, said, n, asked, only) for n, (one, said) in enumerate(zip(promised, described, strict=True))]


def _kernel(record: Kernel, said: Described, number: int, asked: dict[str, Any], only: str) -> Kernel:
    """Return the kernel with the cases that its signature allows, and with stands for its functions."""
    op = OPS[record.op]
    offered = {*(tensor.name for tensor in op.inputs), *op.attrs, "frozen"}
    run = Stand(2 * number, op.name, _known(said.takes, offered, record), asked)
    forward_run = None
    if said.forward is not None and op.forward is not None:
        forward = OPS[op.forward]
        inputs = {*(tensor.name for tensor in forward.inputs), *forward.attrs}
        forward_run = Stand(2 * number + 1, forward.name, _known(said.forward, inputs, record), asked)
    text = taking.joined(only, taking.of_constants(dict(said.constants)))
    within = Domain(
        op.view,
        _fields(said, record),
        said.affine,
        said.ranks,
        one_of("tie", said.tied, TIED),
        tuple(argument for _, argument in overwritten(record.contract)),
        tuple(differentiable(op)) if said.autograd else (),
        own=Own(record.unsupported, record.target, False) if record.unsupported else None,  # of our own table
        op=op.name,
        only=text,
    )
    if said.affine is not None and not 0 < math.prod(said.affine) <= LARGE:
        _refuse(record, f"a weight of shape {said.affine}")
    return replace(
        record,
        dtypes=taking.dtypes(text, record.dtypes),
        autograd=said.autograd and op.forward is not None,
        only=text,
        unsupported=within.unsupported,
        fit=within.fit,
        unset=tuple(map(visible, said.unset)),
        kept=tuple((visible(name), visible(words)) for name, words in said.kept),
        run=run,
        forward_run=forward_run,
        later=run.later,
    )


def _known(names: tuple[str, ...], offered: set[str], record: Kernel) -> tuple[str, ...]:
    for name in names:
        if name not in offered:
            _refuse(record, f"an argument {name!r}")
    return names


def _fields(said: Described, record: Kernel) -> tuple[tuple[str, Any], ...]:
    """Return what the signature decides about cases; raises UsageError for what no signature can decide."""
    for name, value in said.fields:
        values: Any = DECIDED.get(name, ())
        right = isinstance(value, (int, float)) if isinstance(values, type) else value in values
        if not right or (isinstance(value, float) and not math.isfinite(value)):
            _refuse(record, f"{name} = {value!r}")
    return said.fields


def _refuse(record: Kernel, what: str) -> NoReturn:
    raise UsageError(f"{visible(record.name)} cannot be loaded: no signature decides {visible(what)}")
