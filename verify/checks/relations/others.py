"""Cases that may come before or after a run's own: with almost its values, of another shape or type, other options."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from verify_norm.cases import further_runs, make, placement
from verify_norm.checks.relations.rerun import other_shape
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.layouts import layout_field, layout_of, one_tensor
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec

ALONE = 2  # inputs of a case that get new values, one at a time
LARGER, USUAL = 4.0, 8  # a factor of them, where x is neither large nor small (log2)
NUDGE = 2.0**-12  # of an element: far more than rounding in float32, and less than what shows in 16 bits


def almost_the_same(run: Run, name: str) -> Iterator[tuple[dict[str, Array | None], str]]:
    """Yield the run's inputs with one or two elements of one changed, and in words how they were before."""
    case, tensor = run.case, next((t for t in run.case.op.inputs if t.name == name), None)
    values = np.array(case.exact.get(name), dtype=np.float64)
    if values.size < 4 or tensor is None:  # also of a weight that is None
        return
    form, layout = FORMATS[geometry.input_dtype(tensor, case.spec)], layout_of(case.spec, name)
    place = int(np.random.default_rng(case.spec.seed).integers(1, values.size - 1))  # no cache looks at the first alone
    second = 1 + (place - 1 + (values.size - 2) // 2) % (values.size - 2)
    a, b = values.flat[[place, second]]
    step = 1 + max(NUDGE, 2 * form.u)
    for new, words in (
        ((b, a), f"elements {place} and {second} of {name} were swapped"),
        ((a * step, b), f"element {place} of {name} was smaller by a factor {step:.7g}"),
        ((-a, -b), f"elements {place} and {second} of {name} had the opposite sign"),
    ):
        changed = values.copy()
        changed.flat[[place, second]] = new
        yield {**case.exact, name: placement.shared(form.round(changed), layout)}, words


def one_alone(run: Run, other: Mapping[str, Array | None]) -> Iterator[tuple[CaseSpec, dict[str, Array | None], str]]:
    """Yield cases in which one input alone has other values than the run's, and words for that; ALONE of a case.

    What is made of several inputs may be kept by some of them. The new values are larger, so that statistics that are
    kept show. Two inputs that are one tensor change together, and saved statistics with what they are of.
    """
    case, op = run.case, run.case.op
    another = replace(case.spec, eps=1.0 if case.spec.eps < 0.5 else 1e-3)
    takes_other_eps = (
        "eps" in op.attrs and run.kernel.fitted(another) == another and run.kernel.refuses(another) is None
    )
    pair: tuple[str, ...] = one_tensor(case.spec, op) or ()
    inputs = {t.name: t for t in op.inputs if t.role != "saved"}
    names: list[tuple[str, ...]] = [(name,) for name in inputs if case.exact.get(name) is not None and name not in pair]
    if pair:
        names.append(pair)
    if takes_other_eps:
        names.append(("eps",))
    for together in further_runs.from_variant(case.spec, names)[:ALONE]:
        if together == ("eps",):
            yield another, {**case.exact, **make.saved(another, op, case.exact)}, "eps alone was another"
            continue
        tensor = inputs[together[0]]
        values, form = other[tensor.name], FORMATS[geometry.input_dtype(tensor, case.spec)]
        assert values is not None
        if tensor.extent != "position" and abs(case.spec.log2_scale) <= USUAL and case.spec.special is None:
            layout = layout_of(case.spec, tensor.name)
            values = placement.shared(np.clip(form.round(LARGER * values), -form.largest, form.largest), layout)
        exact = {**case.exact, **dict.fromkeys(together, values)}
        exact |= make.saved(case.spec, op, exact)
        yield case.spec, exact, f"{' and '.join(together)} alone had other values"


def nudged(run: Run) -> tuple[str, ...]:
    """Return the inputs to change slightly: x or dy, the weight, and another one in turn.

    In a backward x stays, to which the saved statistics belong.
    """
    op, case = run.case.op, run.case
    main = "dy" if op.forward else "x"
    others = [
        tensor.name
        for tensor in op.inputs
        if case.exact.get(tensor.name) is not None
        and tensor.name not in (main, "weight")
        and tensor.extent != "one"
        and (op.forward is None or tensor.role in ("cotangent", "weight"))
    ]
    if not others:
        return main, "weight"
    return main, "weight", further_runs.from_variant(case.spec, others)[0]


def other_options(run: Run) -> Iterator[CaseSpec]:
    """Yield cases of the same shape and type in which all else differs that a kernel may keep by them, weight last."""
    spec, op = run.case.spec, run.case.op
    factor = further_runs.variant(spec, (4.0, 1.25))  # the second has the name of the first where a name has one digit
    eps = factor * spec.eps if 0 < spec.eps < 1 else 1e-3
    new: dict[str, Any] = {"eps": eps, "special": None, "seed": spec.seed ^ 4}
    if "weight_offset" in op.attrs:
        new["weight_offset"] = 1.0 - spec.weight_offset
    if "dropout_p" in op.attrs:
        new["dropout_p"] = 0.25 if spec.dropout_p == 0.5 else 0.5
    if "num_groups" in op.attrs:
        new["num_groups"] = 1 if spec.num_groups != 1 else spec.shape[1]
    for tensor in op.inputs:
        if tensor.extent == "data":
            layout = layout_of(spec, tensor.name)
            new[layout_field(tensor.name)] = "row_strided" if layout == "contiguous" else "contiguous"
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
