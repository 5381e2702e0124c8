"""Cases that may come before or after a run's own: with almost its values, of another shape or type, other options."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from verify_norm.cases import placement
from verify_norm.checks.relations.rerun import other_shape
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec

NUDGE = 2.0**-12  # of an element: far more than rounding in float32, and less than what shows in 16 bits


def almost_the_same(run: Run, name: str) -> Iterator[tuple[dict[str, Array | None], str]]:
    """Yield the run's inputs with one or two elements of one changed, and in words how they were before."""
    case, tensor = run.case, next((t for t in run.case.op.inputs if t.name == name), None)
    values = np.array(case.exact.get(name), dtype=np.float64)
    if values.size < 4 or tensor is None:  # also of a weight that is None
        return
    form, layout = FORMATS[geometry.input_dtype(tensor, case.spec)], geometry.layout_of(case.spec, name)
    place = int(np.random.default_rng(case.spec.seed).integers(1, values.size - 1))  # no cache looks at the first alone
    other = 1 + (place - 1 + (values.size - 2) // 2) % (values.size - 2)
    one, two = values.flat[[place, other]]
    step = 1 + max(NUDGE, 2 * form.u)
    for new, words in (
        ((two, one), f"elements {place} and {other} of {name} were swapped"),
        ((one * step, two), f"element {place} of {name} was smaller by a factor {step:.7g}"),
        ((-one, -two), f"elements {place} and {other} of {name} had the opposite sign"),
    ):
        changed = values.copy()
        changed.flat[[place, other]] = new
        yield {**case.exact, name: placement.shared(form.round(changed), layout)}, words


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
