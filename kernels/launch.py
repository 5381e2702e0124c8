"""What every kernel here shares: the checks on its arguments, the sizes of its tiles, and how it is launched."""

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (64, 1024, 4096)  # few, since each is compiled anew; a longer row is walked in tiles of the last
LANES = {"cuda": 4096, "cpu": 16384}  # elements a tile: what registers hold; what makes an interpreted program worth it
LONGEST = 2**31 - 2**15  # elements of a row, or positions of a channel: their numbers are 32-bit integers
CPU_PROGRAMS = 4  # the interpreter runs them one after another


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit with one compiled variant for all sizes, strides and alignments.

    Only types and constexpr tell variants apart. A fuzzer or a model with ragged batches would otherwise wait for
    the compiler at every shape.
    """
    parameters = inspect.signature(function).parameters.values()
    names = tuple(p.name for p in parameters if p.annotation is not tl.constexpr)
    return triton.jit(function, do_not_specialize=names, do_not_specialize_on_alignment=names)


@jit
def offsets(rows, row_stride, cols, col_stride, UNIT: tl.constexpr):
    """Where a tile's elements lie, in 64 bits; UNIT says that columns are adjacent, so that loads can be wide."""
    along = cols.to(tl.int64)
    if not UNIT:
        along *= col_stride
    return rows.to(tl.int64)[:, None] * row_stride + along[None, :]


@jit
def xhat(x, mean, rstd, mask):
    """x̂ of the lanes that hold an element, 0 in the others.

    A masked lane has x = 0, so its (x − mean)·rstd may overflow though no element's does, and infinity times the
    lane's gradient, 0, is a NaN in the row's sum.
    """
    return tl.where(mask, (x - mean) * rstd, 0.0)


@jit
def wide(t, PTX: tl.constexpr):
    """float32 values: a bfloat16 is the high half of one. Triton takes three instructions for a pair, where two do.

    PTX says that the target has sm_90's instructions, which the interpreter and other GPUs have not.
    """
    if PTX and t.dtype == tl.bfloat16:
        asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        w = tl.inline_asm_elementwise(asm, "=f,=f,r", [t], dtype=tl.float32, is_pure=True, pack=2)
    else:
        w = t.to(tl.float32)
    return w


@jit
def anew(t, PTX: tl.constexpr):
    """`wide` of what stays in registers in its own type, for every use anew.

    The compilers would convert it once and keep the float32 values for the next use, in twice the registers. They know
    neither of two of these instructions that they do the same, nor of these and those of `wide`.
    """
    if PTX and t.dtype == tl.bfloat16:
        bf: tl.constexpr = "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;"
        w = tl.inline_asm_elementwise(bf, "=f,=f,r", [t], dtype=tl.float32, is_pure=False, pack=2)
    elif PTX and t.dtype == tl.float16:
        half: tl.constexpr = """{
            .reg .b16 low, high; .reg .b32 turned;
            prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned;
            cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"""
        w = tl.inline_asm_elementwise(half, "=f,=f,r", [t], dtype=tl.float32, is_pure=False, pack=2)
    else:
        w = t.to(tl.float32)
    return w


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run `programs` programs on the first argument's device, all on axis 0: no other takes more than 65535."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants)


def tile(n: int, x: Tensor) -> dict[str, int]:
    """Tile sizes for rows of n elements. They never depend on how many rows there are: a row's bits may not either."""
    block = next((b for b in BLOCKS if n <= b), BLOCKS[-1])
    return {"BLOCK_M": LANES[x.device.type] // block, "BLOCK_N": block, "num_warps": 8}


def programs(x: Tensor) -> int:
    """How many programs fill the device a few times over."""
    if x.device.type == "cuda":
        return 4 * int(torch.cuda.get_device_properties(x.device).multi_processor_count)
    return CPU_PROGRAMS


def unit(*tensors: Tensor) -> bool:
    """Whether the columns of all of them are adjacent in memory."""
    return all(t.stride(-1) == 1 for t in tensors)


def stored(t: Tensor) -> Tensor:
    """The tensor with its own signs in its storage: torch negates z.conj().imag by a flag that no kernel would see."""
    return t.resolve_neg() if t.is_neg() else t


def dense(t: Tensor | None) -> Tensor | None:
    """The tensor in one dense run: a weight or statistic is small, one copy cheaper than a stride at every load."""
    return None if t is None else stored(t).reshape(-1).contiguous()


def located(t: Tensor | None) -> tuple[Tensor | None, torch.dtype | None, int]:
    """A parameter or statistic in one dense run of its own shape, its type and its address."""
    if t is None:
        return None, None, 0
    t = stored(t)
    t = t if t.is_contiguous() else t.contiguous()
    return t, t.dtype, t.data_ptr()


def rows(t: Tensor, m: int, n: int) -> Tensor:
    """The tensor as m rows of n; a copy only where its dimensions do not collapse to one stride each."""
    return stored(t).reshape(m, n)


def normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, normalized_shape: int | Sequence[int] | None
) -> tuple[int, ...]:
    """The trailing dimensions to normalize: as given, else those of the weight or bias, else the last.

    Raises
    ------
    ValueError
        If x does not end in that shape, or the weight or bias has another.
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
    """A shape as a tuple of Python's own integers, of which NumPy's are no instances.

    Raises
    ------
    TypeError
        If it is none.
    """
    try:
        if isinstance(shape, Sequence):
            return tuple(map(operator.index, shape))
        return (operator.index(shape),)
    except TypeError:
        raise TypeError(f"normalized_shape must be an integer or a tuple of them, not {shape!r}") from None


def check_length(n: int) -> None:
    """Refuse what 32-bit integers cannot count."""
    if n > LONGEST:
        raise ValueError(f"a row of {n} elements is too long: these kernels take at most {LONGEST}")


def check_types(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Refuse what the kernels would compute wrongly or not at all, rather than return it in silence."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}")
    if x.dtype == torch.float64:
        raise TypeError("x is float64, and these kernels compute in float32: the result would lose 29 bits unnoticed")
    if x.dtype not in TYPES:
        raise TypeError(f"x must be float32, float16 or bfloat16, not {x.dtype}")
    if x.device.type not in LANES:
        raise ValueError(f"x is on {x.device}; these kernels run on cuda, or on cpu in Triton's interpreter")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor or None, not {type(t).__name__}")
        if t.dtype not in (x.dtype, torch.float32):
            raise TypeError(f"{name} must be {x.dtype} like x, or torch.float32, not {t.dtype}")
        if t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, x on {x.device}")


def check_shapes(shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Refuse any of `tensors` that is given in another shape."""
    for name, t in tensors.items():
        if t is not None and tuple(t.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, not {tuple(t.shape)}")


def check_backward(x: Tensor, dy: Tensor, count: int, **statistics: Tensor) -> None:
    """Refuse a cotangent that is not like x, and saved statistics that are not float32, one a row or group."""
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


def split(x: Tensor, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of x when the dimensions `shape` are one row."""
    n = math.prod(shape)
    return math.prod(x.shape[: x.dim() - len(shape)]), n
