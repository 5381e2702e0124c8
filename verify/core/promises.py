"""What a contract promises, in numbers: the arithmetic of a bound, the types of outputs, and how values are rounded."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS, Format
from verify_norm.core.op import Tensor
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.reference.arithmetic import Arithmetic

Truths = Mapping[str, Expected | None]  # by output


@lru_cache(2**10)  # a case asks some times
def arithmetic(contract: Contract, dtype: str, weight_dtype: str | None = None) -> Arithmetic:
    """Return the arithmetic that `contract` promises for x and weight of these types, as the error bounds take it.

    A weight_dtype of None means that of x.
    """
    form, offset = FORMATS[contract.accumulate], FORMATS[weight_dtype or dtype].u
    narrow = {
        field: FORMATS[dtype if name == "x" else name]
        for field, name in (("stats", contract.stats), ("xhat", contract.xhat), ("partials", contract.partials))
        if name is not None
    }
    roundoff = {field: f.u if f.u > form.u else 0.0 for field, f in narrow.items()}
    narrower = [f for field, f in narrow.items() if roundoff[field]]
    z = form if contract.z is None else FORMATS[dtype if contract.z == "x" else contract.z]
    return Arithmetic(
        u=form.u,
        tiny=form.smallest_normal,
        huge=form.largest,
        summation="sequential" if contract.summation == "sequential" else "blocked",
        variance=contract.variance,
        expanded=contract.expanded,
        products=contract.products,
        offset_u=offset if contract.offset_weight == "weight" and offset > form.u else 0.0,
        stats_u=roundoff["stats"],
        xhat_u=roundoff.get("xhat", 0.0),
        partials_u=roundoff["partials"],
        narrow_tiny=max(map(_lost_below, narrower), default=0.0),
        narrow_huge=min((f.largest for f in narrower), default=np.inf),
        lanes=contract.lanes,
        atomic=contract.summation == "atomic",
        **(between(z) if z.u > form.u else {}),
    )


def between(form: Format) -> dict[str, Any]:
    """Return the fields of an arithmetic in which results between a norm and other operations have this type."""
    return {"z_u": form.u, "z_tiny": _lost_below(form), "z_huge": form.largest}


def _lost_below(form: Format) -> float:
    """Return what a rounding to a subnormal number of a type loses, at most."""
    return float(form.ulp(0.0)) / 2


def output_dtype(
    tensor: Tensor,
    contract: Contract,
    dtype: str,
    weight_dtype: str | None = None,
    other_dtype: str | None = None,
    residual_dtype: str | None = None,
) -> str:
    """Return the type of an output, given the types of x, of weight, of cos and the like, and of residual."""
    if tensor.extent == "statistic" and tensor.dtype == "float32":
        return dtype if contract.stats == "x" else contract.stats
    output = contract.output
    if output == "promoted":  # x and a weight of another 16-bit type make y float32
        alike = {weight_dtype, other_dtype, residual_dtype} <= {None, dtype}
        output = "float32" if tensor.name == "y" and not alike else None
    promised = {"y": output, "dx": output, "dresidual": output}
    if tensor.dtype == "weight" and tensor.name.startswith("d"):
        promised[tensor.name] = contract.weight_grad
    return promised.get(tensor.name) or tensor.among(dtype, weight_dtype, other_dtype, residual_dtype)


def promoted(expected: Truths, got: str | None, contract: Contract, spec: CaseSpec) -> Truths:
    """Return the truths with y's in the type that a kernel's y has, where that is right too, else as they are.

    Beside cos, a scale or a residual in float32 a kernel may keep the type of x, or return what torch promotes to.
    """
    if got is None or got not in (spec.other_dtype, spec.residual_dtype) or contract.output is not None:
        return expected
    y = expected.get("y")
    return expected if y is None or y.dtype != spec.dtype else {**expected, "y": replace(y, dtype=got)}


def roundings(contract: Contract, summed: str, output: str) -> dict[str, Any]:
    """Return what a reference may ask of a contract: how a fused sum is rounded, and the range of a quantized y.

    They have the types `summed` and `output`.
    """
    rounded = FORMATS[summed].round if contract.residual == "rounded" else None
    largest = np.inf if contract.saturate == "overflow" else FORMATS[output].largest
    return {"rounded": rounded, "largest": largest, "scale_floor": contract.scale_floor, "e8m0": contract.e8m0}
