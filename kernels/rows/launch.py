"""LayerNorm and RMSNorm over rows, forward and backward, with or without a residual: what four operators share.

LayerNorm subtracts the mean (`centered`), RMSNorm does not and may add an offset to its weight; a residual is added in
float32, and the sum normalized before it is rounded. All arithmetic is float32, the variance is that of centred values.
Rows that registers hold are read once (`forward`, `backward`); longer ones are walked in tiles (`long`). A row's
results do not depend on how many other rows there are: its length, types, strides and alignment decide how it is cut.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients, check_backward, check_like, located, stored
from verify_norm.kernels.rows import long
from verify_norm.kernels.rows.norm import Known, Norm, keep
from verify_norm.kernels.rows.plan import HELD, backward_plan, fold, forward_plan, gated_plan, scales

Wanted = tuple[bool, Tensor | None, Tensor | None]  # whether dx is wanted, and the weight and bias whose gradients are


class Form(NamedTuple):
    """What a forward does beyond LayerNorm, RMSNorm and an addition.

    name : the FORM of `ForwardConstants`, or one of `plan.GROUPS`
    dtype : of y, if it is not that of x
    scale : by which y is multiplied before it is rounded to 8 bits
    factor, shift : dense; `per` rows have a line of each
    joint : mean and rstd are one tensor, first all means, which is returned as both: an allocation less
    """

    name: str = ""
    dtype: torch.dtype | None = None
    scale: Tensor | None = None
    factor: Tensor | None = None
    shift: Tensor | None = None
    per: int = 1
    joint: bool = False


PLAIN, JOINT = Form(), Form(joint=True)


def _like(t: Tensor, x: Tensor) -> bool:
    """Return whether `check_like` would accept t, in a third of its time."""
    return isinstance(t, Tensor) and t.shape == x.shape and t.dtype == x.dtype and t.device == x.device


def _statistic(t: Tensor, x: Tensor, m: int) -> bool:
    return isinstance(t, Tensor) and t.numel() == m and t.dtype == torch.float32 and t.device == x.device


def _rows(t: Tensor, m: int, n: int, lead: int) -> tuple[Tensor, int, int, int]:
    """Return t as m rows of n, the strides of rows and columns, and bits whose last four are 0 if vectors can load it.

    A copy is made only where the dimensions do not collapse to one stride each. A dimension of size 1 counts too: the
    stride that its rows would have decides over one row as it does over many.
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
    """Return a contiguous tensor of the same shape and type."""
    return torch.empty_like(t) if t.is_contiguous() else torch.empty(t.shape, dtype=t.dtype, device=t.device)


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm: Norm,
    form: Form = PLAIN,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """Return y, the sum with the residual, the mean, rstd and the largest magnitudes; None for what does not exist.

    With a scale, the last result has the largest magnitude before it of every tile, if there is one; in the form "rows"
    the scales of the rows, and of groups in those of `plan.GROUPS`. In the form "gate", `residual` is the gate.
    """
    m, n, lead, centered, offset = norm
    kind, dtype, scale, factor, shift, per, joint = form
    y = _empty(x) if dtype is None else torch.empty(x.shape, dtype=dtype, device=x.device)
    h = None if residual is None or kind == "gate" else _empty(x)
    rstd = x.new_empty(2 * m if joint else m, dtype=torch.float32)  # torch.empty, and sizes in a tuple, take longer
    mean = None if not centered else rstd if joint else torch.empty_like(rstd)
    own = scales(kind, n)
    if not m or not n:
        for statistic in (mean, rstd):
            if statistic is not None:
                statistic.fill_(torch.nan)  # of no elements
        return y, h, mean, rstd, None if own is None else rstd.new_ones(m * own)
    given, key, eps = (x, weight, bias), None, float(eps)
    if residual is None and (form is JOINT or form is PLAIN) and isinstance(norm, Known):
        at = x.data_ptr() | (0 if weight is None else weight.data_ptr()) | (0 if bias is None else bias.data_ptr())
        key = at & 15, eps, joint
        if (call := norm.calls.get(key)) is not None:
            plan, tiles, numbers = call
            plan.launch(tiles, x, None, None, y, weight, bias, mean, rstd, None, None, None, None, *numbers)
            return y, None, mean, rstd, None
    x, sxm, sxn, bits = _rows(x, m, n, lead)
    r, srm, srn = None, 0, 1
    if residual is not None:
        r, srm, srn, more = _rows(residual, m, n, lead)
        bits |= more
    w, w_type, more = located(weight)
    b, b_type, also = located(bias)
    if factor is not None:
        factor, f_type, where = located(factor)
        shift, s_type, last = located(shift)
        also |= where | last
    else:
        f_type = s_type = None
    vec = 1 if (bits | more | also) & 15 else 16 // x.element_size()
    nv, sxm, srm = n // vec, sxm // vec, srm // vec
    if n > HELD["forward"] and (kind or factor is not None):
        raise ValueError(f"a row of {n} elements is too long: this kernel takes at most {HELD['forward']}")
    if n > HELD["forward"]:
        most = None if scale is None else torch.empty_like(rstd)
        tensors = (x, r, h, y, w, b, *_apart(mean, rstd, m), scale, most)
        long.forward(tensors, (m, nv, sxm, sxn, srm, srn, eps, offset), vec)
        return y, h, mean, rstd, most
    more_types = (dtype, kind, f_type, s_type, joint)
    shifted = offset is not None
    plan = forward_plan(x.device, n, vec, x.dtype, w_type, b_type, r is not None, centered, shifted, *more_types)
    tiles = -(-m // plan.rows)
    most = rstd.new_empty(m * own) if own is not None else None if scale is None else rstd.new_empty(tiles)
    numbers = (m, nv, sxm, sxn, srm, srn, plan.ahead, per, eps, offset)
    if key is not None:
        keep(norm, key, given, (x, w, b), plan, tiles, numbers)
    plan.launch(tiles, x, r, h, y, w, b, mean, rstd, scale, most, factor, shift, *numbers)
    return y, h, mean, rstd, most


def _apart(mean: Tensor | None, rstd: Tensor, m: int) -> tuple[Tensor | None, Tensor]:
    """Return mean and rstd as two tensors."""
    return (mean, rstd) if rstd.numel() == m else (rstd[:m], rstd[m:])


def check_gradient(
    norm: Norm, dy: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, dh: Tensor | None = None, name: str = "x"
) -> None:
    """Raise an error unless the arguments of a backward fit each other; `name` is what x is called there."""
    if norm.centered and mean is None:
        raise TypeError("mean must be a torch.Tensor: without one, the gradient would be RMSNorm's")
    m = norm.rows
    fits = _like(dy, x) and (dh is None or _like(dh, x))
    if not (fits and _statistic(rstd, x, m) and (mean is None or _statistic(mean, x, m))):
        check_backward(x, dy, m, **({"rstd": rstd} if mean is None else {"mean": mean, "rstd": rstd}))
        if dh is not None:
            check_like(x, name, dresidual_out=dh)


def backward(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    norm: Norm,
    wanted: Wanted,
    form: str = "",
) -> Gradients:
    """Return dx, dweight and dbias, None for those that are not wanted. `dh` is added to dx.

    mean and rstd may be the one tensor that the forward returned as both. In the form "l2" the squares of a row are
    added up, not averaged.
    """
    m, n, lead, _, offset = norm
    dx = _empty(x) if wanted[0] else None
    _, dw, db = wanted
    dw, db = None if dw is None else _empty(dw), None if db is None else _empty(db)
    parts = (dw is not None) + (db is not None)
    if not n or (not (m and dx is not None) and not parts):
        return dx, dw, db
    joint, rstd = rstd.numel() > m, stored(rstd).contiguous()
    mean = rstd if joint else located(mean)[0]
    call = key = None
    given, d, a, w = (x, dy, weight), dy, None, weight
    if dh is None and not form and isinstance(norm, Known):
        w_form = w if w is None else (w.data_ptr() & 15, w.dtype, w.stride(), w.is_neg())
        types = None if dw is None else dw.dtype, None if db is None else db.dtype
        at, signs = (x.data_ptr() | dy.data_ptr()) & 15, x.is_neg() or dy.is_neg()
        key = (at, x.stride(), dy.stride(), signs, x.dtype, w_form, wanted[0], types, joint)
        call = norm.calls.get(key)
    if call is None:
        x, sxm, sxn, bits = _rows(x, m, n, lead)
        d, sdm, sdn, more = _rows(dy, m, n, lead)
        a, sam, san, also = (None, 0, 1, 0) if dh is None or dx is None else _rows(dh, m, n, lead)
        w, w_type, aligned = located(weight)
        vec = 1 if (bits | more | also | aligned) & 15 else 16 // x.element_size()
        numbers = (m, n // vec, sdm // vec, sdn, sxm // vec, sxn, sam // vec, san, offset)
        longest = HELD["backward"] if vec > 1 else HELD["backward"] // 2
        if n > longest and form:
            raise ValueError(f"a row of {n} elements is too long: this kernel takes at most {longest} so aligned")
        if n > longest:
            long.backward((d, x, a, w, *_apart(mean, rstd, m)), (dx, dw, db), numbers, vec)
            return dx, dw, db
        asked = (a is not None, mean is not None, offset is not None, dx is not None, dw is not None, db is not None)
        call = (*_backward_programs(m, (x.device, n, vec, x.dtype, w_type, *asked, form, joint), dw, db), numbers)
        if key is not None:
            keep(norm, key, given, (x, d, w), *call)
    plan, programs, alone, numbers = call
    if alone:
        plan.launch(1, dx, d, x, a, w, mean, rstd, None, dw, db, *numbers)
        return dx, dw, db
    lines = rstd.new_empty(parts, programs, n) if parts else None
    plan.launch(programs, dx, d, x, a, w, mean, rstd, lines, None, None, *numbers)
    if lines is not None:
        fold(lines, dw, db)
    return dx, dw, db


def _backward_programs(m: int, key: Any, dw: Tensor | None, db: Tensor | None) -> tuple[Any, int, bool]:
    """Return the plan of a backward of m rows, how many programs it has, and whether one writes dweight and dbias."""
    plan = backward_plan(*key)
    tiles = -(-m // plan.rows)
    if (dw is not None or db is not None) and tiles <= plan.alone:  # zeros of no rows too
        return backward_plan(*key, (None if dw is None else dw.dtype, None if db is None else db.dtype)), 1, True
    return plan, -(-tiles // -(-tiles // plan.most)), False


def gated_backward(
    dy: Tensor, x: Tensor, gate: Tensor, weight: Tensor | None, rstd: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return dx, dgate and dweight of a gated norm, None without a weight."""
    m, n, lead, _, offset = norm
    if n > HELD["backward"]:
        raise ValueError(f"a row of {n} elements is too long: this kernel takes at most {HELD['backward']}")
    dx, dgate, dw = _empty(x), _empty(x), None if weight is None else _empty(weight)
    if not m or not n:
        return dx, dgate, dw if dw is None else dw.zero_()
    x, sxm, sxn, bits = _rows(x, m, n, lead)
    d, sdm, sdn, more = _rows(dy, m, n, lead)
    g, sgm, sgn, also = _rows(gate, m, n, lead)
    w, w_type, aligned = located(weight)
    vec = 1 if (bits | more | also | aligned) & 15 else 16 // x.element_size()
    rstd = stored(rstd).contiguous()
    plan = gated_plan(x.device, n, vec, x.dtype, w_type, offset is not None)
    tiles = -(-m // plan.rows)
    programs = -(-tiles // -(-tiles // plan.most))
    lines = None if dw is None else rstd.new_empty(1, programs, n)
    sizes = (m, n // vec, sdm // vec, sdn, sxm // vec, sxn, sgm // vec, sgn)
    plan.launch(programs, dx, dgate, d, x, g, w, rstd, lines, *sizes, offset)
    if lines is not None:
        fold(lines, dw, None)
    return dx, dgate, dw
