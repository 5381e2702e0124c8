"""LayerNorm and RMSNorm over rows, forward and backward, with or without a residual: what four operators share.

LayerNorm subtracts the mean (`centered`), RMSNorm does not and may add an offset to its weight; a residual is added in
float32, and the sum normalized before it is rounded. All arithmetic is float32, the variance is that of centred values.
Rows that registers hold are read once (`rows`), longer ones are walked in tiles (`long_rows`). A row's results do not
depend on how many others there are: the cut of a row follows from its length, its types, its strides and its
alignment alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels import long_rows
from verify_norm.kernels.launch import check_backward, check_shapes, integers, located, normalized, split, stored
from verify_norm.kernels.row_plan import HELD, backward_plan, fold, forward_plan

Shape = int | Sequence[int] | None
Gradients = tuple[Any, Tensor | None, Tensor | None]  # dx is a Tensor, or None where it is not wanted

_known: dict[tuple[Any, ...], tuple[int, int, int]] = {}


def geometry(x: Tensor, weight: Tensor | None, bias: Tensor | None, normalized_shape: Shape) -> tuple[int, int, int]:
    """Rows, columns, and how many dimensions count rows; the checks of `launch.normalized` are made once a form."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}")
    shape = normalized_shape if normalized_shape is None else integers(normalized_shape)
    if torch.compiler.is_compiling():  # which would take a size that is looked up for a constant
        shape = normalized(x, weight, bias, shape)
        return (*split(x, shape), x.dim() - len(shape))
    key = (x.shape, x.dtype, x.device, shape, _form(weight), _form(bias))
    found = _known.get(key)
    if found is None:
        shape = normalized(x, weight, bias, shape)
        found = (*split(x, shape), x.dim() - len(shape))
        if len(_known) >= 4096:  # ragged batches have a shape each
            _known.clear()
        _known[key] = found
    return found


def _form(t: Any) -> Any:
    return (t.shape, t.dtype, t.device) if isinstance(t, Tensor) else t is None or id(t)  # no tensor is refused anew


def check_like(t: Tensor, name: str, **others: Tensor) -> None:
    """Refuse what is to be added to `t`, or is its gradient, in another shape or type or elsewhere."""
    for other, value in {name: t, **others}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{other} must be a torch.Tensor, not {type(value).__name__}")
    check_shapes(tuple(t.shape), **others)
    for other, value in others.items():
        if value.dtype != t.dtype:
            raise TypeError(f"{other} must be {t.dtype} like {name}, not {value.dtype}")
        if value.device != t.device:
            raise ValueError(f"{other} is on {value.device}, {name} on {t.device}")


def _like(t: Tensor, x: Tensor) -> bool:
    """Whether `check_like` would find nothing to refuse, in a third of its time."""
    return isinstance(t, Tensor) and t.shape == x.shape and t.dtype == x.dtype and t.device == x.device


def _statistic(t: Tensor, x: Tensor, m: int) -> bool:
    return isinstance(t, Tensor) and t.numel() == m and t.dtype == torch.float32 and t.device == x.device


def _rows(t: Tensor, m: int, n: int, lead: int) -> tuple[Tensor, int, int, int]:
    """`t` as m rows of n, the strides of rows and columns, and bits whose last four are 0 where vectors can load it.

    A copy is made only where the dimensions do not collapse to one stride each. A dimension of size 1 counts too: the
    stride that its rows would have may not decide over one row when it does over many.
    """
    t = stored(t)
    size, bits = t.element_size(), t.data_ptr()
    for stride in t.stride()[:lead]:
        bits |= stride * size
    if t.is_contiguous():
        return t, n, 1, bits | n * size
    t = t.reshape(m, n)
    row, column = t.stride()
    return t, row, column, bits | t.data_ptr() | row * size | n * size | (column != 1)


def _empty(t: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and type."""
    return torch.empty_like(t) if t.is_contiguous() else torch.empty(t.shape, dtype=t.dtype, device=t.device)


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float,
    shape: tuple[int, int, int], centered: bool, scale: Tensor | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    """Y, the sum with the residual, the mean, rstd, and the largest magnitudes; None for what there is not.

    `shape` is that of `geometry`. With a scale, y is of type `dtype`, and the last result has the largest magnitude
    before that scale of every tile, if there is one.
    """
    m, n, lead = shape
    y = _empty(x) if dtype is None else torch.empty(x.shape, dtype=dtype, device=x.device)
    h = None if residual is None else torch.empty_like(y)
    rstd = x.new_empty(m, dtype=torch.float32)  # torch.empty, and sizes in a tuple, take longer
    mean = torch.empty_like(rstd) if centered else None
    if not m or not n:
        for statistic in (mean, rstd):
            if statistic is not None:
                statistic.fill_(torch.nan)  # of no elements
        return y, h, mean, rstd, None
    x, sxm, sxn, bits = _rows(x, m, n, lead)
    r, srm, srn = None, 0, 1
    if residual is not None:
        r, srm, srn, more = _rows(residual, m, n, lead)
        bits |= more
    w, w_type, more = located(weight)
    b, b_type, also = located(bias)
    vec = 1 if (bits | more | also) & 15 else 16 // x.element_size()
    factor = float(offset) if offset else None
    if n > HELD["forward"]:
        most = None if scale is None else torch.empty_like(rstd)
        strides = (sxm, sxn, srm, srn)
        long_rows.forward(x, r, h, y, w, b, mean, rstd, scale, most, m, n, strides, float(eps), factor, vec)
        return y, h, mean, rstd, most
    plan = forward_plan(x.device, n, vec, x.dtype, w_type, b_type, r is not None, centered, factor is not None, dtype)
    tiles = -(-m // plan.rows)
    most = None if scale is None else rstd.new_empty(tiles)
    plan.launch(
        tiles, x, r, h, y, w, b, mean, rstd, scale, most, m, n // vec, sxm // vec, sxn, srm // vec, srn, plan.ahead,
        float(eps), factor,
    )  # fmt: skip
    return y, h, mean, rstd, most


def checked(
    dy: Tensor, dh: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None,
    rstd: Tensor, normalized_shape: Shape, name: str, *, centered: bool = True,
) -> tuple[int, int, int]:  # fmt: skip
    """The geometry of a backward pass, once its arguments fit each other; `name` is what x is called there."""
    found = geometry(x, weight, bias, normalized_shape)
    if centered and mean is None:
        raise TypeError("mean must be a torch.Tensor: without one, the gradient would be RMSNorm's")
    if not (_like(dy, x) and (dh is None or _like(dh, x)) and _statistic(rstd, x, found[0])
            and (mean is None or _statistic(mean, x, found[0]))):  # fmt: skip
        check_backward(x, dy, found[0], **({"rstd": rstd} if mean is None else {"mean": mean, "rstd": rstd}))
        if dh is not None:
            check_like(x, name, dresidual_out=dh)
    return found


def backward(
    dy: Tensor, dh: Tensor | None, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, offset: float,
    shape: tuple[int, int, int], wanted: tuple[bool, Tensor | None, Tensor | None],
) -> Gradients:  # fmt: skip
    """The gradients in `wanted`: whether dx, and the weight and bias if theirs. `dh` is added to dx."""
    m, n, lead = shape
    dx = _empty(x) if wanted[0] else None
    _, dw, db = wanted
    dw, db = None if dw is None else _empty(dw), None if db is None else _empty(db)
    parts = (dw is not None) + (db is not None)
    if not n or (not (m and dx is not None) and not parts):
        return dx, dw, db
    x, sxm, sxn, bits = _rows(x, m, n, lead)
    d, sdm, sdn, more = _rows(dy, m, n, lead)
    a, sam, san, also = (None, 0, 1, 0) if dh is None or dx is None else _rows(dh, m, n, lead)
    w, w_type, aligned = located(weight)
    vec = 1 if (bits | more | also | aligned) & 15 else 16 // x.element_size()
    mean, rstd = located(mean)[0], stored(rstd).contiguous()
    factor = float(offset) if offset else None
    if n > (HELD["backward"] if vec > 1 else HELD["backward"] // 2):
        strides = (sdm, sdn, sxm, sxn, sam, san)
        long_rows.backward(dx, d, x, a, w, mean, rstd, dw, db, m, n, strides, factor, vec)
        return dx, dw, db
    plan = backward_plan(
        x.device, n, vec, x.dtype, w_type, a is not None, mean is not None, factor is not None, dx is not None,
        dw is not None, db is not None,
    )  # fmt: skip
    tiles = -(-m // plan.rows)
    programs = -(-tiles // -(-tiles // plan.most)) if m else 1  # one without rows writes lines of zeros
    lines = rstd.new_empty(parts, programs, n) if parts else None
    plan.launch(
        programs, dx, d, x, a, w, mean, rstd, lines, m, n // vec, sdm // vec, sdn, sxm // vec, sxn, sam // vec, san,
        factor,
    )  # fmt: skip
    if lines is not None:
        fold(lines, dw, db)
    return dx, dw, db
