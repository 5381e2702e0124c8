"""Cases that differ from a run's own in one option: of what is kept by all others, a call of them shows it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from verify_norm.cases import further_runs, placement
from verify_norm.core import geometry
from verify_norm.core.layouts import layout_field, layout_of
from verify_norm.core.op import Op
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec

FEW = 4  # options of a case that are changed besides numbers, one at a time
NEAR = 2.0**-9  # between two numbers that have two digits alike


def one_option(run: Run) -> Iterator[tuple[CaseSpec, str]]:
    """Yield cases of the run's shape, type and eps with one option changed, and in words which.

    Numbers all have their turn in each case; presence, types and layouts of inputs some of them.
    """
    kernel, op = run.kernel, run.case.op
    base = replace(run.case.spec, special=None, alias="", seed=run.case.spec.seed ^ 8)

    def taken(change: dict[str, Any]) -> bool:
        spec = replace(base, **change)
        return kernel.fitted(spec) == spec and (geometry.refusal(spec, op) or kernel.refuses(spec)) is None

    numbers = [(change, f"another {next(iter(change))}") for change in _numbers(base, op) if taken(change)]
    others = [(change, words) for change, words in _changes(base, op) if taken(change)]
    few = further_runs.from_variant(base, others)[:FEW] if others else ()
    for change, words in (*numbers, *few):
        yield replace(base, **change), words


def _changes(spec: CaseSpec, op: Op) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield which inputs are there, and their types and layouts, as changes of the case, and what each is in words."""
    names = {tensor.name for tensor in op.inputs}
    for name in ("weight", "bias", "dresidual_out"):
        if name in names and not op.user_defined:
            given = getattr(spec, name)
            yield {name: not given}, f"no {name}" if given else f"a {name}"
    if any(tensor.dtype == "weight" and getattr(spec, tensor.name, True) is not False for tensor in op.inputs):
        own = spec.weight_dtype in (None, spec.dtype)
        another = "bfloat16" if spec.dtype == "float32" else "float32"
        yield {"weight_dtype": another if own else None}, "weights of another type"
    if op.other_inputs and spec.dtype != "float32":
        yield (
            {"other_dtype": None if spec.other_dtype else "float32"},
            f"{' and '.join(op.other_inputs)} of another type",
        )
    if op.takes_residual and spec.dtype != "float32":
        yield {"residual_dtype": None if spec.residual_dtype else "float32"}, "a residual of another type"
    for tensor in op.inputs:
        if tensor.extent not in ("data", "affine", "sample"):
            continue
        strided = "every_other" if tensor.extent == "affine" else "row_strided"
        layout = strided if layout_of(spec, tensor.name) == "contiguous" else "contiguous"
        given = getattr(spec, tensor.name, True) is not False
        if given and placement.applies(strided, geometry.shape_of(tensor, spec, op)):
            yield {layout_field(tensor.name): layout}, f"another layout of {tensor.name}"


def _near(share: float) -> float:
    """Return a number from 0 to 1 near another one.

    >>> _near(0.5), _near(0.25)
    (0.498046875, 0.251953125)
    """
    return share + (NEAR if share < 0.5 else -NEAR)


def _numbers(spec: CaseSpec, op: Op) -> Iterator[dict[str, Any]]:
    """Yield changes of what an operator's attributes and the shapes of its other inputs are.

    In a third of the cases real numbers change little: what is kept by them may be kept by few of their digits.
    """
    little = further_runs.variant(spec, (False, True, False))
    if "weight_offset" in op.attrs:
        yield {"weight_offset": spec.weight_offset + NEAR if little else 1.0 - spec.weight_offset}
    if "dropout_p" in op.attrs:
        far = 0.25 if spec.dropout_p == 0.5 else 0.5
        yield {"dropout_p": _near(spec.dropout_p) if little else far}
    if "num_groups" in op.attrs and spec.shape[1] > 1:
        yield {"num_groups": 1 if spec.num_groups != 1 else spec.shape[1]}
    if "variance_size" in op.attrs:
        size, length = geometry.variance_size(spec, op), geometry.row_length(spec, op)
        if length > 1:
            yield {"variance_size": size // 2 if size > 1 else length}
    if "training" in op.attrs:
        yield {"training": not spec.training}
    if "momentum" in op.attrs and spec.training:
        far = 0.1 if spec.momentum == 0.9 else 0.9
        yield {"momentum": _near(spec.momentum) if little else far}
    if any(tensor.extent == "sample" for tensor in op.inputs):
        change = {"modulation": "token" if spec.modulation == "sample" else "sample"}
        other = replace(spec, **change)  # type: ignore[arg-type]
        if geometry.sample_shape(other, op) != geometry.sample_shape(spec, op):
            yield change
    if any(tensor.extent == "position" for tensor in op.inputs):
        yield {"rotary": "half" if spec.rotary == "full" else "full"}
    if op.view == "rows" and op.chain is None and len(spec.shape) > 2 and all(spec.shape):
        yield {"normalized_ndim": 2 if spec.normalized_ndim == 1 else 1}
