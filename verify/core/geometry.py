"""Shapes and types that a spec gives to an operator's tensors, and which specs are valid for an operator."""

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import CaseSpec
from verify_norm.core.specials import special_input, special_lost

ROTARY = {"full": 1, "half": 2, "quarter": 4}  # what part of a row a rotation turns


def affine_shape(spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """Return the shape of weight and bias."""
    return spec.shape[len(spec.shape) - spec.normalized_ndim :] if op.view == "rows" else spec.shape[1:2]


def sample_shape(spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """Return the shape of a modulation's scale and shift: a row for each sample, or for each token.

    >>> from verify_norm.core.ops import OPS
    >>> sample_shape(CaseSpec((2, 5, 8)), OPS["modulate_rmsnorm_fwd"])
    (2, 8)
    """
    affine = affine_shape(spec, op)
    return spec.shape if spec.modulation == "token" else (*spec.shape[: len(spec.shape) - len(affine)][:1], *affine)


def position_shape(spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """Return the shape of a rotation's cos and sin: a row for each token, which has the heads of x's last leading axis.

    >>> from verify_norm.core.ops import OPS
    >>> op = OPS["qk_norm_rope_fwd"]
    >>> position_shape(CaseSpec((2, 5, 4, 64)), op), position_shape(CaseSpec((5, 64), rotary="half"), op)
    ((2, 5, 32), (5, 16))
    """
    lead, N = spec.shape[: leads(spec, op)], row_length(spec, op)
    return (*(lead[:-1] if len(lead) > 1 else lead), max(N // (2 * ROTARY[spec.rotary]), min(N // 2, 1)))


def variance_size(spec: CaseSpec, op: Op) -> int:
    """Return how many of the first elements of a row make the statistic of a partial norm.

    >>> from verify_norm.core.ops import OPS
    >>> [variance_size(CaseSpec((5, 7), variance_size=n), OPS["partial_rmsnorm_fwd"]) for n in (None, 1, 8)]
    [3, 1, 7]
    """
    N = row_length(spec, op)
    return max(N // 2, 1) if spec.variance_size is None else min(spec.variance_size, N)


def shape_of(tensor: Tensor, spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """Return the shape of an argument or a result.

    >>> from verify_norm.core.ops import OPS
    >>> op = OPS["groupnorm_fwd"]
    >>> [shape_of(tensor, CaseSpec((2, 6, 5), num_groups=3), op) for tensor in op.outputs]
    [(2, 6, 5), (2, 3), (2, 3)]
    """
    if tensor.extent == "statistic":
        return (spec.shape[0], groups(spec, op)) if op.view == "groups" else (rows(spec, op),)
    if tensor.extent == "sample":
        return sample_shape(spec, op)
    if tensor.extent == "block":
        return (rows(spec, op), op.quantizer.blocks(row_length(spec, op)))
    if tensor.extent == "position":
        return position_shape(spec, op)
    return {"data": spec.shape, "affine": affine_shape(spec, op), "one": (1,)}[tensor.extent]


def groups(spec: CaseSpec, op: Op) -> int:
    """Return the number of groups of a sample's channels: that of the spec; for InstanceNorm, one per channel."""
    return spec.num_groups or 1 if "num_groups" in op.attrs else spec.shape[1]


def row_length(spec: CaseSpec, op: Op) -> int:
    """Return how many elements are normalized together."""
    if op.view == "channels":
        return prod(spec.shape[:1] + spec.shape[2:])
    return prod(spec.shape[1:]) // groups(spec, op) if op.view == "groups" else prod(affine_shape(spec, op))


def constant_output(name: str, spec: CaseSpec, op: Op) -> bool:
    """Return whether an output of a centred row of one element is the same for all x, dy and weight: x̂ = x − x is 0.

    What is added last, bias to y and dresidual_out to dx, is not meant.

    >>> from verify_norm.core.ops import OPS
    >>> [constant_output("y", CaseSpec((4, 1)), OPS[name]) for name in ("layernorm_fwd", "rmsnorm_fwd")]
    [True, False]
    """
    one = op.centred and op.view != "channels" and row_length(spec, op) == 1
    return one and name in ("y", "rstd", op.dh, "dx", "dweight")


def leads(spec: CaseSpec, op: Op) -> int:
    """Return how many of the first dimensions of x are not normalized, nor channels."""
    return len(spec.shape) - spec.normalized_ndim if op.view == "rows" else 1


def rows(spec: CaseSpec, op: Op) -> int:
    """Return the rows, the groups of all samples, or the channels of x, also where they are empty."""
    if op.view == "rows":
        return prod(spec.shape[: leads(spec, op)])
    return spec.shape[0] * groups(spec, op) if op.view == "groups" else spec.shape[1]


def repeated(spec: CaseSpec) -> CaseSpec:
    """Return the case whose first dimension is the spec's `batch`; the spec itself where it has none.

    >>> repeated(CaseSpec((4, 512), batch=300)).shape
    (300, 512)
    """
    return replace(spec, shape=(spec.batch, *spec.shape[1:]), batch=0) if spec.batch else spec


def size(spec: CaseSpec, op: Op) -> tuple[int, int]:
    """Return the rows, groups or channels of x, and its elements.

    >>> from verify_norm.core.ops import OPS
    >>> size(CaseSpec((4, 2, 512)), OPS["rmsnorm_fwd"])
    (8, 4096)
    """
    elements = prod(spec.shape)
    return elements // max(row_length(spec, op), 1), elements


def refusal(spec: CaseSpec, op: Op) -> str | None:
    """Return why the operator has no such case, beyond the ranges of the fields; None if it has.

    BatchNorm defines no variance of a single value, and evaluation needs running statistics. If every input is frozen,
    there is nothing to check.

    >>> from verify_norm.core.ops import OPS
    >>> refusal(CaseSpec((1, 3)), OPS["batchnorm_fwd"])
    'training needs more than one value a channel'
    """
    if "num_groups" in op.attrs and spec.num_groups is None:
        return f"{op.name} needs num_groups"
    if op.view == "channels" and not spec.training and not spec.running:
        return "evaluation needs running statistics"
    if op.view == "channels" and spec.training and row_length(spec, op) == 1:
        return "training needs more than one value a channel"
    if sum_dtype(spec) != spec.dtype:
        if not op.takes_residual:
            return f"{op.name} has no residual_dtype: forwards with a residual have one"
        if spec.residual_dtype != "float32" or FORMATS[spec.dtype].dtype.itemsize != 2:
            return "residual_dtype: expected the type of x, or float32 beside an x of 16 bits"
    if spec.special is not None and (lacking := _lacking(spec, op)):
        return f"{lacking} holds no {spec.special}"
    if spec.frozen != thawed(spec, differentiable(op)).frozen:
        return "no input needs a gradient"
    return None


def _lacking(spec: CaseSpec, op: Op) -> str | None:
    """Return the input that cannot hold the special value, in words; None if it can."""
    name = special_input(spec, op)
    tensor = next((tensor for tensor in op.inputs if tensor.name == name), None)
    if tensor is None or tensor.extent == "one" or special_lost(spec):
        return f"a {name} that is None or not used"
    if tensor.extent in ("data", "sample") and not prod(shape_of(tensor, spec, op)):
        return f"{'an' if name == 'x' else 'a'} {name} without elements"
    return None


def needed(spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the spec; with weight and bias where the operator, such as a user's own, needs all that it has."""
    return replace(spec, weight=True, bias=True) if op.user_defined else spec


def thawed(spec: CaseSpec, names: Iterable[str]) -> CaseSpec:
    """Return the spec; without frozen inputs if all of the inputs `names` would be frozen."""
    given = {name for name in names if getattr(spec, name, True)}
    return replace(spec, frozen=()) if spec.frozen and given <= set(spec.frozen) else spec


def summands(op: Op) -> tuple[str, str]:
    """Return the input of a fused addition that may stand for the sum, and the one that is 0 then.

    >>> from verify_norm.core.ops import OPS
    >>> summands(OPS["add_rmsnorm_bwd"]), summands(OPS["dropout_add_rmsnorm_bwd"])  # a dropout changes x
    (('x', 'residual'), ('residual', 'x'))
    """
    return ("x", "residual") if op.dropout is None else ("residual", "x")


def differentiable(op: Op) -> list[str]:
    """Return the inputs whose gradients a backward returns; residual has that of x, where no dropout is between."""
    return [tensor.name.removeprefix("d") for tensor in op.outputs] if op.forward else []


def input_dtype(tensor: Tensor, spec: CaseSpec) -> str:
    """Return the type of an argument."""
    return tensor.among(spec.dtype, spec.weight_dtype, spec.other_dtype, spec.residual_dtype)


def sum_dtype(spec: CaseSpec) -> str:
    """Return the type of residual_out, the sum of x and residual."""
    return spec.residual_dtype or spec.dtype
