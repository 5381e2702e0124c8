"""Shapes, types and layouts that a spec gives to an operator's tensors, and which specs are valid for an operator."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from math import prod
from typing import get_args

from verify_norm.core.spec import ALIASES, SHARED, Alias, CaseSpec, Op, Special, Tensor

LAYOUT_FIELDS = tuple(field.name for field in fields(CaseSpec) if field.name.endswith("_layout"))
VECTOR = 8  # elements: of 16 bytes in a type of 16 bits
CHUNKED = "row_strided"  # the layout of chunks: rows with gaps
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


def aliases(op: Op) -> tuple[Alias, ...]:
    """Return the pairs of inputs that a caller may give as one tensor, or as its chunks.

    >>> from verify_norm.core.ops import OPS
    >>> aliases(OPS["layernorm_bwd"]), aliases(OPS["add_rmsnorm_fwd"])
    (('weight:bias', 'x:dy'), ('x:residual', 'x+residual'))
    """
    kinds = {t.name: (t.extent, t.dtype, t.positive) for t in op.inputs}  # a user's own operator may have others

    def alike(one: str, two: str) -> bool:
        return one in kinds and kinds[one] == kinds.get(two)

    return tuple(pair for pair in ALIASES if alike(*pair.replace("+", ":").split(":")))


def one_tensor(spec: CaseSpec, op: Op, written: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return the two inputs that are one tensor; None if there are none, as where one is None or is `written`."""
    return None if spec.special is not None else _pair(spec, op, ":", written)


def chunks(spec: CaseSpec, op: Op, written: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return the two inputs that are chunks of one tensor; None if there are none.

    A row is whole vectors, so that no chunk begins at a misaligned address.
    """
    pair = _pair(spec, op, "+", written)
    tensors = [tensor for tensor in op.inputs if tensor.name in (pair or ())]
    placed = [layout_of(spec, t.name) == CHUNKED and shape_of(t, spec, op)[-1] % VECTOR == 0 for t in tensors]
    return pair if all(placed) else None


def _pair(spec: CaseSpec, op: Op, mark: str, written: Iterable[str]) -> tuple[str, str] | None:
    """Return the two inputs of an alias of this kind; None if it is another one, or if one is None or `written`."""
    if mark not in spec.alias or spec.alias not in aliases(op):
        return None
    one, two = spec.alias.split(mark)
    given = all(getattr(spec, name, True) is not False and name not in written for name in (one, two))
    return (one, two) if given else None


def aliased(spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the spec, with one layout for two inputs that are one tensor, and that of chunks for chunks."""
    pair = one_tensor(spec, op) or _pair(spec, op, "+", ())
    if pair is None:
        return spec
    layout = CHUNKED if "+" in spec.alias else layout_of(spec, pair[0])
    return replace(spec, **{layout_field(name): layout for name in pair})  # type: ignore[arg-type]


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
    if spec.special is not None and (lacking := _lacking(spec, op)):
        return f"{lacking} holds no {spec.special}"
    if spec.frozen != thawed(spec, differentiable(op)).frozen:
        return "no input needs a gradient"
    return None


def specials(op: Op) -> list[str]:
    """Return the inputs that may hold a special value."""
    return [tensor.name for tensor in op.inputs if tensor.name in get_args(Special) and tensor.extent != "one"]


def special_input(spec: CaseSpec, op: Op) -> Special:
    """Return the name of the input that holds the special value; the sum stands for x in a fused addition's backward.

    >>> from verify_norm.core.ops import OPS
    >>> special_input(CaseSpec((2, 3), special="nan"), OPS["add_rmsnorm_bwd"])
    'residual_out'
    """
    fused = spec.special_in == "x" and all(tensor.name != "x" for tensor in op.inputs)
    return "residual_out" if fused else spec.special_in


def special_words(spec: CaseSpec, op: Op | None = None) -> str:
    """Return the special value and its place in words; "" for a case without one.

    >>> special_words(CaseSpec((2, 3), special="-inf", special_in="dy", special_at="last"))
    '-inf in the last element of dy'
    """
    if spec.special is None:
        return ""
    places = {"rows": "every other row", "row": "all of the middle row"}
    where = places.get(spec.special_at, f"the {spec.special_at} element")
    values, name = spec.special.replace("+", " and "), spec.special_in if op is None else special_input(spec, op)
    return f"{values} in {where} of {name}"


def _lacking(spec: CaseSpec, op: Op) -> str | None:
    """Return the input that cannot hold the special value, in words; None if it can."""
    name = special_input(spec, op)
    tensor = next((tensor for tensor in op.inputs if tensor.name == name), None)
    if tensor is None or tensor.extent == "one" or special_lost(spec):
        return f"a {name} that is None or not used"
    if tensor.extent in ("data", "sample") and not prod(shape_of(tensor, spec, op)):
        return f"{'an' if name == 'x' else 'a'} {name} without elements"
    return None


def special_lost(spec: CaseSpec) -> bool:
    """Return whether the spec itself leaves out the input that holds the special value.

    In training a running statistic is moved by (1 − momentum)·old + momentum·new. Where one of these factors is 0, a
    kernel may skip the product or make NaN of it, so such a case has no special value there.

    >>> special_lost(CaseSpec((2, 3), special="nan", special_in="bias", bias=False))
    True
    """
    if spec.special is None:
        return False
    if spec.special_in.startswith("running_"):
        return not spec.running or (spec.training and spec.momentum in (0, 1))
    return getattr(spec, spec.special_in, True) is False


def needed(spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the spec; with weight and bias where the operator, as a user's own, needs all that it has."""
    return replace(spec, weight=True, bias=True) if op.user_defined else spec


def thawed(spec: CaseSpec, names: Iterable[str]) -> CaseSpec:
    """Return the spec; without frozen inputs if all of the inputs `names` would be frozen."""
    given = {name for name in names if getattr(spec, name, True)}
    return replace(spec, frozen=()) if spec.frozen and given <= set(spec.frozen) else spec


def without_shared_memory(spec: CaseSpec, written: Iterable[str]) -> CaseSpec:
    """Return the spec with no elements that share memory in the arguments that are `written`.

    >>> without_shared_memory(CaseSpec((2, 3), x_layout="expanded"), ("x",)).x_layout
    'contiguous'
    """
    shared = [layout_field(name) for name in written if layout_of(spec, name) in SHARED]
    return replace(spec, **dict.fromkeys(shared, "contiguous"))  # type: ignore[arg-type]  # mypy sees no names


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
    return tensor.among(spec.dtype, spec.weight_dtype)


def layout_of(spec: CaseSpec, name: str) -> str:
    """Return the layout of an argument; one that the spec does not name has that of the others."""
    return getattr(spec, layout_field(name))  # type: ignore[no-any-return]


def layout_field(name: str) -> str:
    """Return the field of a case that has the layout of an argument.

    >>> layout_field("weight"), layout_field("gamma")
    ('weight_layout', 'other_layout')
    """
    field = f"{name}_layout"
    return field if field in LAYOUT_FIELDS else "other_layout"


def layouts_drawn(op: Op) -> dict[str, Tensor]:
    """Return the fields of the layouts that cases of an operator choose, each with a tensor that it places.

    A kernel relies on the layouts of what its own forward saves. Of several tensors one that has rows stands for all.
    """
    drawn: dict[str, Tensor] = {}
    for tensor in op.inputs:
        field = layout_field(tensor.name)
        if tensor.extent != "one" and tensor.role != "saved" and (field not in drawn or tensor.extent == "data"):
            drawn[field] = tensor
    return drawn


def memory_span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie from a tensor's first to its last, in a storage with these strides.

    >>> memory_span((2, 3), (8, 1)), memory_span((2, 0), (8, 1))
    (11, 1)
    """
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if 0 not in shape else 1
