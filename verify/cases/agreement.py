"""Whether a device computes truth and bound as NumPy does: fast or emulated arithmetic would spoil every verdict."""

from functools import cache

import numpy as np

from verify_norm.cases import make
from verify_norm.cases.device_array import in_memory, on_device
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec

ALLOWED = 1e-3  # of the bound on an element's error
SHAPES = {"rows": (64, 257), "groups": (4, 12, 33), "channels": (16, 5, 37)}
TYPES = ("float32", "bfloat16")


@cache
def require(op: str, device: str) -> None:
    """Raise UsageError if the device computes the truth of an operator, or its bound, otherwise than NumPy."""
    distance = disagreement(op, device)
    if not distance <= ALLOWED:
        raise UsageError(
            f"{device}: expected float64 as in NumPy, but {op}'s truth is {distance:.2g} of the allowed error "
            f"apart, at most {ALLOWED:g}; use another device, or --device cpu"
        )


def disagreement(op: str, device: str, contract: Contract | None = None) -> float:
    """Return how far truth and bound of two devices are apart, over the allowed error, in the worst element.

    >>> disagreement("layernorm_bwd", "cpu") < ALLOWED
    True
    """
    return max(_largest_distance(op, device, dtype, contract or Contract()) for dtype in TYPES)


def _largest_distance(name: str, device: str, dtype: str, contract: Contract) -> float:
    op = OPS[name]
    groups = 3 if "num_groups" in op.attrs else None
    spec = CaseSpec(SHAPES[op.view], dtype, offset=3.0, num_groups=groups)
    exact = make.exact_inputs(spec, op)
    moved = {name: on_device(values, device) for name, values in exact.items()}  # the case leaves nothing out
    in_numpy, on_the_device = (make.truths(spec, op, contract, values) for values in (exact, moved))
    distances = [_distance(one, on_the_device[name]) for name, one in in_numpy.items() if one is not None]
    return float(np.max(distances))


def _distance(expected: Expected, other: Expected | None) -> float:
    """Return the largest distance of truth or bound over the allowed error; inf where only one of them is finite."""
    if other is None:
        return np.inf
    value, delta = in_memory(other.value), in_memory(other.delta)
    same_value = np.isfinite(expected.value) == np.isfinite(value)
    same_bound = np.isfinite(expected.delta) == np.isfinite(delta)
    with np.errstate(all="ignore"):
        distance = np.maximum(np.abs(expected.value - value), np.abs(expected.delta - delta))
        ratio = np.where(judge.judged(expected), distance / judge.allowed(expected), 0.0)
    return float(np.where(same_value & same_bound, ratio, np.inf).max())
