"""How a spec lays out an operator's inputs in memory, and which of them are one tensor, or its chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from verify_norm.core.geometry import input_dtype, shape_of
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import ALIASES, SHARED, Alias, CaseSpec, having

VECTOR = 8  # elements: of 16 bytes in a type of 16 bits
CHUNKED = "row_strided"  # the layout of chunks: rows with gaps
LAYOUT_FIELDS = tuple(field.name for field in fields(CaseSpec) if field.name.endswith("_layout"))


def aliases(op: Op) -> tuple[Alias, ...]:
    """Return the pairs of inputs that a caller may give as one tensor, or as its chunks.

    >>> from verify_norm.core.ops import OPS
    >>> aliases(OPS["layernorm_bwd"]), aliases(OPS["add_rmsnorm_fwd"])
    (('weight:bias', 'x:dy'), ('x:residual', 'x+residual'))
    """
    kinds = {  # a user's own operator may have others
        t.name: (t.extent, "x" if t.dtype == "residual" else t.dtype, t.positive) for t in op.inputs
    }

    def alike(one: str, two: str) -> bool:
        return one in kinds and kinds[one] == kinds.get(two)

    return tuple(pair for pair in ALIASES if alike(*pair.replace("+", ":").split(":")))


def one_tensor(spec: CaseSpec, op: Op, written: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return the two inputs that are one tensor; None if there are none, or one is None or is `written`."""
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
    """Return the two inputs of an alias of this kind; None if it is another one, or one of them is None or `written`.

    Inputs of different types are none either.
    """
    if mark not in spec.alias or spec.alias not in aliases(op):
        return None
    one, two = spec.alias.split(mark)
    if len({input_dtype(tensor, spec) for tensor in op.inputs if tensor.name in (one, two)}) > 1:
        return None
    given = all(getattr(spec, name, True) is not False and name not in written for name in (one, two))
    return (one, two) if given else None


def aliased(spec: CaseSpec, op: Op) -> CaseSpec:
    """Return the spec, with one layout for two inputs that are one tensor, and that of chunks for chunks."""
    pair = one_tensor(spec, op) or _pair(spec, op, "+", ())
    if pair is None:
        return spec
    layout = CHUNKED if "+" in spec.alias else layout_of(spec, pair[0])
    return having(spec, {layout_field(name): layout for name in pair})


def without_shared_memory(spec: CaseSpec, written: Iterable[str]) -> CaseSpec:
    """Return the spec with no elements that share memory in the arguments that are `written`.

    >>> without_shared_memory(CaseSpec((2, 3), x_layout="expanded"), ("x",)).x_layout
    'contiguous'
    """
    shared = [layout_field(name) for name in written if layout_of(spec, name) in SHARED]
    return having(spec, dict.fromkeys(shared, "contiguous"))


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
