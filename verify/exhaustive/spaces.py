"""The spaces that a kernel can be run on as a whole: how many items they have, and the cases that hold them.

An item of a space of rows is one row, and the row number i is the bits of the number i: its first value has the lowest
bits. So each row occurs once, infinities and every NaN among them. What else the operator takes is fixed: random
weights, a random row as dy for all rows; zeros as what is added, bias and residual, which would hide small results; a
mask that keeps all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from verify_norm.cases import contents, draw, make
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case
from verify_norm.core.spec import CaseSpec
from verify_norm.exhaustive.model import Asked

CHANNELS = 8  # of fixed statistics: x meets as many weights, means and variances
EPS_SHAPES = {"rows": (16, 8), "groups": (4, 4, 8), "channels": (8, 16)}  # 16 rows, groups or channels of 8 or more
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
EPS_TYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Space:
    """A space: in words, how many values a row has, and their type if it is not that of x; no row for eps."""

    what: str
    length: int = 0
    form: str = ""


SPACES = {
    "rows2": Space("rows of 2 {dtype} values", 2),
    "rows4": Space("rows of 4 float8_e4m3fn values, in {dtype}", 4, "float8_e4m3fn"),
    "rows4_e5m2": Space("rows of 4 float8_e5m2 values, in {dtype}", 4, "float8_e5m2"),
    "x": Space(f"{{dtype}} values of x, in each of {CHANNELS} channels of fixed statistics", 1),
    "eps": Space("positive values of eps that bfloat16 and float16 have, each at 16 rows of {dtype}"),
}


def usual(op: Op) -> str:
    """Return the space that a user means who names none."""
    if op.view != "channels":
        return "rows2"
    return "eps" if op.forward else "x"


def checked(name: str, op: Op, dtype: str) -> Space:
    """Return the space of that name; raises UsageError if the operator has none, or it has too many rows."""
    space = SPACES[one_of("space", name, SPACES)]
    if name == "x" and (op.view != "channels" or op.forward):
        raise UsageError(
            f"--space x needs a y that depends on one x alone, such as batchnorm_fwd's in evaluation, not {op.name}"
        )
    if name.startswith("rows") and op.view == "channels":
        raise UsageError(f"--space {name} needs rows or groups, and {op.name} has channels: take --space {usual(op)}")
    if bits(space, dtype) > 32:
        other = "take --dtype bf16 or fp16, or --space rows4"
        raise UsageError(f"--space {name} has 2**{bits(space, dtype)} rows of {dtype}: {other}")
    return space


def bits(space: Space, dtype: str) -> int:
    """Return the bits of a row."""
    return 8 * space.length * FORMATS[space.form or dtype].dtype.itemsize


def count(space: Space, dtype: str) -> int:
    """Return how many items the space has."""
    return 2 ** bits(space, dtype) if space.length else len(every_eps())


@cache
def every_eps() -> Array:
    """Return the positive finite values of EPS_TYPES, each once."""
    found = [numbers(name, 1, 1, 2**15, "cpu").to(torch.float64).ravel() for name in EPS_TYPES]
    return np.unique([value for value in torch.cat(found).tolist() if np.isfinite(value)])


def numbers(form: str, length: int, start: int, stop: int, device: str) -> torch.Tensor:
    """Return the rows `start` to before `stop` of `length` values: row i has the bits of i, lowest first.

    >>> numbers("bfloat16", 2, 0x3F80, 0x3F81, "cpu").tolist()
    [[1.0, 0.0]]
    """
    size = length * FORMATS[form].dtype.itemsize
    raw = torch.arange(start, stop, device=device).view(torch.uint8).reshape(-1, 8)[:, :size]
    return raw.contiguous().view(getattr(torch, form))


def spec_of(asked: Asked, items: int, eps: float) -> CaseSpec:
    """Return the spec of a case: with a number of rows, or of one eps."""
    op, space = OPS[asked.op], SPACES[asked.space]
    groups = "num_groups" in op.attrs
    if not space.length:
        shape = EPS_SHAPES[op.view]
        return CaseSpec(shape, asked.dtype, eps=eps, data="uneven", num_groups=2 if groups else None)
    if op.view == "channels":
        return CaseSpec((items, CHANNELS), asked.dtype, eps=eps, training=False)
    row = (space.length,) if op.view == "rows" or groups else (1, space.length)
    return CaseSpec((items, *row), asked.dtype, eps=eps, num_groups=1 if groups else None)


def cases(kernel: Kernel, asked: Asked, start: int, stop: int, device: str) -> Iterator[tuple[int, Case]]:
    """Yield the cases that hold the items `start` to before `stop`, each with the number of its first item."""
    op = OPS[asked.op]
    if SPACES[asked.space].length:
        yield start, _rows(kernel, asked, start, stop, device)
        return
    for item, eps in enumerate(every_eps()[start:stop].tolist(), start):
        yield item, make.case(spec_of(asked, 1, eps), op, kernel.contract, device)


def varied(op: Op) -> str:
    """Return the name of the input that holds the rows: x, or the sum in a fused addition's backward."""
    return next(tensor.name for tensor in op.inputs if tensor.role == "input" and tensor.extent == "data")


def given(asked: Asked, item: int) -> str:
    """Return what an item is, in words: the bits and values of a row, or an eps."""
    space = SPACES[asked.space]
    if not space.length:
        return f"eps {float(every_eps()[item])!r}"
    form = space.form or asked.dtype
    row = numbers(form, space.length, item, item + 1, "cpu")
    digits = 2 * row.element_size()  # in hexadecimal
    patterns = row.view(_INTEGERS[row.element_size()]).ravel().tolist()
    in_hex = " ".join(f"{pattern % 16**digits:0{digits}x}" for pattern in patterns)  # %: some are negative
    values = ", ".join(f"{value:.9g}" for value in row.to(torch.float64).ravel().tolist())
    return f"{form} ({values}), bits {in_hex}"


def _rows(kernel: Kernel, asked: Asked, start: int, stop: int, device: str) -> Case:
    """Return the case whose rows are the items; its x has their very bits, also those of a NaN."""
    op, space = OPS[asked.op], SPACES[asked.space]
    spec = spec_of(asked, stop - start, asked.eps)
    judge = make.judge_of(spec, op, device)
    rows = numbers(space.form or asked.dtype, space.length, start, stop, device).to(getattr(torch, asked.dtype))
    shape = (len(rows), *(1,) * (len(spec.shape) - 2), space.length)
    x = rows.reshape(shape).expand(spec.shape)
    name = varied(op)
    exact: dict[str, Any] = {name: contents.to_float64(x, judge)}
    one = replace(spec, shape=(1, *spec.shape[1:]))
    for tensor in op.inputs:
        if tensor.role == "saved" or tensor.name == name:
            continue
        values: Any = draw.exact_values(one, op, tensor)
        if tensor.name in ("bias", "residual"):
            values = np.zeros_like(values)
        if tensor.name == "mask":
            values = np.ones_like(values)
        if tensor.extent in ("data", "sample", "position"):  # the same for all rows
            values = np.broadcast_to(values, geometry.shape_of(tensor, spec, op))
        exact[tensor.name] = values
    case = make.build(spec, op, kernel.contract, device, exact | make.saved(spec, op, exact), truth=True)
    case.arguments[name].copy_(x)
    return case
