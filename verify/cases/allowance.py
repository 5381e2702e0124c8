"""How far a contract lets results be off in one typical case, by the bounds of the references."""

from functools import cache

import numpy as np

from verify_norm.cases import make
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

SHAPES = {"rows": (64, 1024), "groups": (2, 32, 64), "channels": (64, 32, 16)}


def words(op: str) -> str:
    """Return the typical case in words.

    >>> words("rmsnorm_fwd")
    'the median element of 64×1024 normal values around 1'
    """
    return f"the median element of {'×'.join(map(str, SHAPES[OPS[op].view]))} normal values around 1"


@cache
def allowances(op: str, contract: Contract, dtype: str, weight_dtype: str | None = None) -> dict[str, float]:
    """Return how far each output may be off in the typical case, in ulp of the type that the strict contract gives it.

    The allowance of an element is its error bound and the last rounding (`judge.allowed`). It is that of the median
    element: where terms cancel, the largest allowance says nothing about the other elements. The values are normal with
    a mean and a standard deviation of 1. Where the arithmetic may overflow there is no bound: the allowance is inf.
    """
    spec = typical(op, dtype, weight_dtype)
    medians = {}
    for name, expected in make.truths(spec, OPS[op], contract, _inputs(op, dtype, weight_dtype)).items():
        if expected is not None:
            form = FORMATS[types(op, dtype, weight_dtype)[name]]
            medians[name] = float(np.median(judge.allowed(expected) / form.ulp(expected.value)))
    return medians


def typical(op: str, dtype: str, weight_dtype: str | None) -> CaseSpec:
    """Return the typical case in these types."""
    groups = 8 if "num_groups" in OPS[op].attrs else None
    offset = 1.0 if "weight_offset" in OPS[op].attrs else 0.0
    shape = SHAPES[OPS[op].view]
    return CaseSpec(shape, dtype, weight_dtype, num_groups=groups, offset=1.0, weight_offset=offset)


@cache
def _inputs(op: str, dtype: str, weight_dtype: str | None) -> dict[str, Array | None]:
    return make.exact_inputs(typical(op, dtype, weight_dtype), OPS[op])


@cache
def types(op: str, dtype: str, weight_dtype: str | None = None) -> dict[str, str]:
    """Return the types of the outputs under the strict contract."""
    strict = make.truths(typical(op, dtype, weight_dtype), OPS[op], Contract(), _inputs(op, dtype, weight_dtype))
    return {name: expected.dtype for name, expected in strict.items() if expected is not None}
