"""Cases that may come before or after a run's own: of another shape, of another type, or with other options."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from verify_norm.checks.relations.rerun import other_shape
from verify_norm.core import geometry
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec


def other_options(run: Run) -> Iterator[CaseSpec]:
    """Yield cases of the same shape and type in which all else differs that a kernel may keep by them, weight last."""
    spec, op = run.case.spec, run.case.op
    new: dict[str, Any] = {"eps": 4 * spec.eps if 0 < spec.eps < 1 else 1e-3, "special": None, "seed": spec.seed ^ 4}
    if "weight_offset" in op.attrs:
        new["weight_offset"] = 1.0 - spec.weight_offset
    if "num_groups" in op.attrs:
        new["num_groups"] = 1 if spec.num_groups != 1 else spec.shape[1]
    for tensor in op.inputs:
        if tensor.extent == "data":
            layout = geometry.layout_of(spec, tensor.name)
            new[f"{tensor.name}_layout"] = "row_strided" if layout == "contiguous" else "contiguous"
    flipped = {**new, "weight": not spec.weight, "bias": not spec.weight}
    for changes in (flipped if any(tensor.name == "bias" for tensor in op.inputs) else flipped | {"bias": True}, new):
        fitted = run.kernel.fitted(geometry.thawed(replace(spec, **changes), geometry.differentiable(op)))
        if fitted.shape == spec.shape and (geometry.refusal(fitted, op) or run.kernel.refuses(fitted)) is None:
            yield fitted


def others_between(run: Run) -> Iterator[tuple[CaseSpec, str]]:
    """Yield cases of another shape and of another type that the kernel takes, and what they are in words."""
    spec, shaped = run.case.spec, other_shape(run)
    if shaped is not None:
        yield shaped, f"of {shaped.shape}"
    for dtype in [dtype for dtype in run.kernel.dtypes if dtype != spec.dtype][:1]:
        typed = replace(spec, dtype=dtype, seed=spec.seed ^ 2)
        if run.kernel.refuses(typed) is None:
            yield typed, f"in {dtype}"
