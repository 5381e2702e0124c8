"""The truth of one call and its bound, and the errors of results relative to it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from verify_norm.cases import make
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import Array
from verify_norm.core.geometry import leads
from verify_norm.core.promises import Truths
from verify_norm.core.run import Expected
from verify_norm.testing.arguments import Call

BLOCK = 2**16  # elements of x in one part: an array of float64 then takes half a megabyte


def truths(call: Call, contract: Contract) -> Truths:
    """Return the truth of every output, and its bound: where a backward was given statistics, that of either use.

    A kernel may use these, or compute its own.
    """
    parts = [make.truths(part.spec, call.op, contract, part.exact) for part in _parts(call)]
    found = {name: _whole(call, name, [part[name] for part in parts]) for name in parts[0]}
    if not call.given or (call.op.view == "channels" and not call.spec.training):
        return found
    known: make.Exact = {name: one.values for name, one in call.given.items()}
    if any(tensor.role == "saved" and tensor.name not in known for tensor in call.op.inputs):
        known = {**make.saved(call.spec, call.op, call.exact), **known}
    with_given = make.errors(call.spec, call.op, contract, {**call.exact, **known}, given=True)
    pairs = zip(found.items(), with_given, strict=True)
    return {name: e and replace(e, delta=np.maximum(e.delta, delta)) for (name, e), delta in pairs}


def _parts(call: Call) -> list[Call]:
    """Return the call in parts of some rows or samples each, if these do not depend on each other.

    NumPy makes an array of every intermediate. Small ones stay in the cache, and memory for large ones costs more time
    than the arithmetic.
    """
    spec, op = call.spec, call.op
    whole = op.quantized or any(tensor.extent in ("sample", "position") for tensor in op.inputs)
    if op.forward is not None or op.view == "channels" or whole:
        return [call]
    first = leads(spec, op)
    count, inner = prod(spec.shape[:first]), spec.shape[first:]
    each = max(BLOCK // max(prod(inner), 1), 1)
    data = {t.name for t in op.inputs if t.extent == "data"}
    exact = {n: v.reshape(count, *inner) if n in data and v is not None else v for n, v in call.exact.items()}
    return [
        replace(
            call,
            spec=replace(spec, shape=(min(each, count - start), *inner)),
            exact={n: v[start : start + each] if n in data and v is not None else v for n, v in exact.items()},
        )
        for start in range(0, max(count, 1), each)
    ]


def _whole(call: Call, name: str, parts: Sequence[Expected | None]) -> Expected | None:
    """Return the truth of an output from that of its parts."""
    first = parts[0]
    if first is None:
        return first
    extent = next(tensor.extent for tensor in call.op.outputs if tensor.name == name)
    value, delta = (np.concatenate([getattr(part, field) for part in parts]) for field in ("value", "delta"))
    shape = call.spec.shape if extent == "data" else value.shape
    return replace(first, value=value.reshape(shape), delta=delta.reshape(shape))


def ratios(got: Array, expected: Expected) -> Array:
    """Return `judge.ratio`, part by part: each element is judged alone."""
    found, flat = np.empty(got.size), got.reshape(-1)
    value, delta = expected.value.reshape(-1), np.broadcast_to(expected.delta, got.shape).reshape(-1)
    for start in range(0, got.size, BLOCK):
        at = slice(start, start + BLOCK)
        found[at] = judge.ratio(flat[at], replace(expected, value=value[at], delta=delta[at]))
    return found.reshape(got.shape)
