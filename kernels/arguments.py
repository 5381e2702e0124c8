"""Checks on the arguments of every kernel here, and the forms in which kernels take them."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ("cuda", "cpu")
Shape = int | Sequence[int] | None
Gradients = tuple[Any, Tensor | None, Tensor | None]  # dx is a Tensor, or None where it is not wanted
LONGEST = 2**31 - 2**15  # elements of a row, or positions of a channel: their numbers are 32-bit integers


def unit(*tensors: Tensor) -> bool:
    """Return whether the columns of all tensors are adjacent in memory."""
    return all(t.stride(-1) == 1 for t in tensors)


def stored(t: Tensor) -> Tensor:
    """Return the tensor with its own signs in memory: torch negates z.conj().imag by a flag that no kernel sees."""
    return t.resolve_neg() if t.is_neg() else t


def dense(t: Tensor | None) -> Tensor | None:
    """Return the tensor in one dense run: a weight is small, and one copy costs less than a stride at every load."""
    return None if t is None else stored(t).reshape(-1).contiguous()


def located(t: Tensor | None) -> tuple[Tensor | None, torch.dtype | None, int]:
    """Return a parameter or statistic in one dense run of its own shape, its type and its address."""
    if t is None:
        return None, None, 0
    t = stored(t)
    t = t if t.is_contiguous() else t.contiguous()
    return t, t.dtype, t.data_ptr()


def rows(t: Tensor, m: int, n: int) -> Tensor:
    """Return the tensor as m rows of n; a copy only where its dimensions do not collapse to one stride each."""
    return stored(t).reshape(m, n)


def normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, normalized_shape: int | Sequence[int] | None
) -> tuple[int, ...]:
    """Return the trailing dimensions to normalize: as given, else those of the weight or bias, else the last.

    Raises
    ------
    ValueError
        If x does not end in that shape, or the weight or bias has another shape.
    TypeError
        If a type is not one of `TYPES`, or the weight's is neither float32 nor x's.
    """
    check_types(x, weight, bias)
    if normalized_shape is not None:
        shape = integers(normalized_shape)
    else:
        affine = bias if weight is None else weight
        shape = tuple(x.shape[-1:] if affine is None else affine.shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"x has shape {tuple(x.shape)}, which does not end in normalized_shape {shape}")
    check_shapes(shape, weight=weight, bias=bias)
    check_length(math.prod(shape))
    return shape


def integers(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python integers; NumPy integers are converted.

    Raises
    ------
    TypeError
        If it is not a shape.
    """
    try:
        if isinstance(shape, Sequence):
            return tuple(map(operator.index, shape))
        return (operator.index(shape),)
    except TypeError:
        raise TypeError(f"normalized_shape must be an integer or a tuple of them, not {shape!r}") from None


def check_length(n: int) -> None:
    """Raise ValueError for a row that 32-bit integers cannot count."""
    if n > LONGEST:
        raise ValueError(f"a row of {n} elements is too long: these kernels take at most {LONGEST}")


def check_types(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise TypeError or ValueError for what the kernels would compute wrongly or not at all."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}")
    if x.dtype == torch.float64:
        raise TypeError("x must be float32, float16 or bfloat16, not float64: these kernels compute in float32")
    if x.dtype not in TYPES:
        raise TypeError(f"x must be float32, float16 or bfloat16, not {x.dtype}")
    if x.device.type not in DEVICES:
        raise ValueError(f"x is on {x.device}; these kernels run on cuda, or on cpu in Triton's interpreter")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor or None, not {type(t).__name__}")
        check_beside(x, **{name: t})


def check_shapes(shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Raise ValueError if one of `tensors` is given in another shape."""
    for name, t in tensors.items():
        if t is not None and tuple(t.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, not {tuple(t.shape)}")


def check_backward(x: Tensor, dy: Tensor, count: int, **statistics: Tensor) -> None:
    """Raise an error unless dy is like x and the saved statistics are float32, one a row or group."""
    for name, t in {"dy": dy, **statistics}.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(t).__name__}")
    check_shapes(tuple(x.shape), dy=dy)
    if dy.dtype != x.dtype:
        raise TypeError(f"dy must be {x.dtype} like x, not {dy.dtype}")
    for name, t in {"dy": dy, **statistics}.items():
        if t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, x on {x.device}")
    for name, t in statistics.items():
        if t.numel() != count:
            raise ValueError(f"{name} must have {count} elements, one a row or group, not {t.numel()}")
        if t.dtype != torch.float32:
            raise TypeError(f"{name} must be float32, not {t.dtype}")


def check_like(t: Tensor, name: str, **others: Tensor) -> None:
    """Raise an error for what is added to `t`, or is its gradient, in another shape or type or on another device."""
    for other, value in {name: t, **others}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{other} must be a torch.Tensor, not {type(value).__name__}")
    check_shapes(tuple(t.shape), **others)
    for other, value in others.items():
        if value.dtype != t.dtype:
            raise TypeError(f"{other} must be {t.dtype} like {name}, not {value.dtype}")
        if value.device != t.device:
            raise ValueError(f"{other} is on {value.device}, {name} on {t.device}")


def check_beside(x: Tensor, **others: Tensor) -> None:
    """Raise an error for what rows of x are multiplied with, unless it is a tensor of x's type or float32, beside x."""
    for name, t in others.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(t).__name__}")
        if t.dtype not in (x.dtype, torch.float32):
            raise TypeError(f"{name} must be {x.dtype} like x, or torch.float32, not {t.dtype}")
        if t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, x on {x.device}")


def split(x: Tensor, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many rows and columns x has when the dimensions `shape` are one row."""
    n = math.prod(shape)
    return math.prod(x.shape[: x.dim() - len(shape)]), n
