"""What is normalized, and how: looked up for arguments of a form that was checked before, with its launches."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Shape, integers, normalized, split


class Norm(NamedTuple):
    """What is normalized, and how.

    rows, columns : how many rows there are, and elements of each
    lead : how many dimensions count rows
    centered : the mean is subtracted
    offset : what is added to the weight, or None
    """

    rows: int
    columns: int
    lead: int
    centered: bool
    offset: float | None


class Known(Norm):
    """The norm of arguments of one form and layout, with the launches that follow from them and from alignments."""

    calls: dict[tuple[Any, ...], tuple[Any, ...]]


MOST = 64  # launches that a norm keeps: of each direction, eps and alignment, and layout of dy
_known: dict[tuple[Any, ...], Known] = {}


def norm_of(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Shape,
    centered: bool = True,
    offset: float = 0.0,
) -> Norm:
    """Return the norm of x; the checks of `arguments.normalized` are made once for each form of the arguments.

    So are the plans of launches where no argument has to be copied.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}")
    shape = normalized_shape if normalized_shape is None else integers(normalized_shape)
    if torch.compiler.is_compiling():  # a compiler would take a size that is looked up for a constant
        shape = normalized(x, weight, bias, shape)
        return Norm(*split(x, shape), x.dim() - len(shape), centered, float(offset) if offset else None)
    form = x.shape, x.stride(), x.dtype, x.device, x.is_neg()
    key = (form, shape, centered, offset, _form(weight), _form(bias))
    found = _known.get(key)
    if found is None:
        shape = normalized(x, weight, bias, shape)
        found = Known(*split(x, shape), x.dim() - len(shape), centered, float(offset) if offset else None)
        found.calls = {}
        if len(_known) >= 4096:  # ragged batches have a shape each
            _known.clear()
        _known[key] = found
    return found


def _form(t: Any) -> Any:
    if isinstance(t, Tensor):
        return t.shape, t.dtype, t.device, t.is_contiguous(), t.is_neg()
    return t is None or id(t)  # what is no tensor raises


def keep(norm: Norm, key: tuple[Any, ...], given: tuple[Any, ...], taken: tuple[Any, ...], *call: Any) -> None:
    """Keep a launch for the next arguments like these, if the tensors given are those that it takes, in memory."""
    if isinstance(norm, Known) and all(
        t is own or t.data_ptr() == own.data_ptr() for t, own in zip(given, taken, strict=True)
    ):
        if len(norm.calls) >= MOST:
            norm.calls.clear()
        norm.calls[key] = call
