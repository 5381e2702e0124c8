"""Kernels that are wrong for special values, uneven rows, sizes, strides or values of options that are seldom tried."""

from math import prod

import torch

from verify_norm.kernels.zoo.eager import gradients, rmsnorm


def misaligned(x, weight, eps):
    """Rows that are no multiple of 16 bytes end in a fault, whose words speak of a GPU."""
    if x.shape[-1] * x.element_size() % 16 and x.shape[-1] > 64:
        raise RuntimeError("Triton Error [GPU]: misaligned address")
    return rmsnorm(x, weight, eps)


class OutOfResourcesError(Exception):
    """As Triton's, when a block does not fit into shared memory."""


def too_long(x, weight, eps):
    """A row above 4096 elements needs more shared memory than there is."""
    if x.shape[-1] > 4096:
        raise OutOfResourcesError("out of resource: shared memory, Required: 262144, Hardware limit: 232448")
    return rmsnorm(x, weight, eps)


def swallows_nan_of_dy(dy, x, weight, rstd):
    """NaN in dy becomes 0, for mixed-precision training."""
    return gradients(dy.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), x, weight, rstd)


def swallows_nan_of_weight(x, weight, eps):
    """The weight is held within float16's range by fmin and fmax, which drop NaN."""
    if weight is not None:
        large = torch.tensor(65504.0, device=weight.device)
        weight = torch.fmax(torch.fmin(weight.float(), large), -large)
    return rmsnorm(x, weight, eps)


def clamps(x, weight, eps):
    """−inf in x becomes the most negative number, as attention masks need it."""
    return rmsnorm(x.clamp(min=torch.finfo(x.dtype).min), weight, eps)


def looks_at_first_row(x, weight, eps):
    """Only where the first row is finite is there no care for NaN in the others."""
    y, rstd = rmsnorm(x, weight, eps)
    first = x.reshape(-1, x.shape[-1])[:1]
    return y.nan_to_num(nan=0.0) if first.isfinite().all() else y, rstd


def scale_of_all(x, weight, eps):
    """All of x is divided by the largest element of all rows against overflow: in other rows squares underflow."""
    top = x.float().abs().max() if x.numel() else torch.tensor(1.0, device=x.device)
    if not (top > 0 and top.isfinite()):
        return rmsnorm(x, weight, eps)
    r = x.float() / top
    rstd = torch.rsqrt(r.square().mean(-1, keepdim=True) + eps / top / top)
    y = r * rstd if weight is None else r * rstd * weight.float()
    return y.to(x.dtype), rstd.flatten() / top


def masked_by_first_row(dy, x, weight, rstd):
    """A tile of 16 rows whose first dy is 0 is taken for padding, and skipped."""
    n = x.shape[-1]
    padding = (dy.reshape(-1, n) == 0).all(1)[::16].repeat_interleave(16)[: x.numel() // n]
    return gradients(dy.masked_fill(padding.reshape(*x.shape[:-1], 1), 0.0), x, weight, rstd)


def columns_below(x, weight, eps):
    """The sum of squares takes 32 blocks of 1024 columns at most."""
    r, n = x.float(), x.shape[-1]
    rstd = torch.rsqrt(r[..., : 32 * 1024].square().sum(-1, keepdim=True) / n + eps)
    y = r * rstd if weight is None else r * rstd * weight.float()
    return y.to(x.dtype), rstd.flatten()


def rows_below(x, weight, eps):
    """Rows are the second dimension of the grid, which ends at 65535."""
    y, rstd = rmsnorm(x, weight, eps)
    rows = y.reshape(-1, x.shape[-1])
    rows[65535:] = 0
    return rows.reshape(x.shape), rstd


def persistent(x, weight, eps):
    """Where rows are a multiple of 1024, each program takes several tiles, and the last program one too few."""
    y, rstd = rmsnorm(x, weight, eps)
    rows = y.reshape(-1, x.shape[-1])
    if len(rows) and len(rows) % 1024 == 0:
        rows[-4:] = 0
    return rows.reshape(x.shape), rstd


def channels_below(x, weight, bias, num_groups, eps):
    """Registers hold 16 channels of a group: the statistics leave out the others."""
    return _of_groups(x, weight, bias, num_groups, eps, 16)


def _of_groups(x, weight, bias, num_groups, eps, most):
    """Return y, mean and rstd, with the statistics of at most so many channels of each group."""
    groups = x.float().reshape(len(x), num_groups, x.shape[1] // num_groups, prod(x.shape[2:]))
    seen = groups[:, :, :most]
    mean = seen.mean((2, 3), keepdim=True)
    rstd = torch.rsqrt((seen - mean).square().mean((2, 3), keepdim=True) + eps)
    y = ((groups - mean) * rstd).reshape(x.shape)
    each = (1, -1, *[1] * (x.dim() - 2))
    y = y if weight is None else y * weight.float().reshape(each)
    y = y if bias is None else y + bias.float().reshape(each)
    return y.to(x.dtype), mean.reshape(len(x), num_groups), rstd.reshape(len(x), num_groups)


def channels_of_one_group(x, weight, bias, num_groups, eps):
    """A loop over the channels of one group takes the weight's first 1024 again."""
    channels = torch.arange(x.shape[1], device=x.device) % 1024
    weight = weight if weight is None or num_groups > 1 else weight[channels]
    return _of_groups(x, weight, bias, num_groups, eps, x.shape[1] // num_groups)


def samples_below(x, weight, bias, num_groups, eps):
    """Samples in a grid's second dimension: those from 65,535 on are not computed."""
    y, mean, rstd = _of_groups(x, weight, bias, num_groups, eps, x.shape[1] // num_groups)
    y[65535:] = 0
    return y, mean, rstd


def columns_adjacent(dy, x, weight, rstd):
    """It reads dy with its own row stride, but as if its columns were adjacent."""
    size = dy.untyped_storage().nbytes() // dy.element_size() - dy.storage_offset()
    if dy.dim() == 2 and dy.stride(1) == 0 and (dy.shape[0] - 1) * dy.stride(0) + dy.shape[1] <= size:
        dy = dy.as_strided(dy.shape, (dy.stride(0), 1))
    return gradients(dy, x, weight, rstd)


def one_row_for_all(dy, x, weight, rstd):
    """A dy whose rows have a stride of 0, as of .sum(1), is taken for one row of all samples."""
    if dy.dim() == 3 and dy.stride(1) == 0 and dy.shape[1] > 1:
        dy = dy[:1].expand(dy.shape)
    return gradients(dy, x, weight, rstd)


def rows_evenly_apart(x, weight, eps):
    """All leading dimensions are one, with the stride of the last of them."""
    m, n = x.numel() // max(x.shape[-1], 1), x.shape[-1]
    size = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if x.dim() < 3 or x.stride(-1) != 1 or (m - 1) * x.stride(-2) + n > size:
        return rmsnorm(x, weight, eps)
    y, rstd = rmsnorm(x.as_strided((m, n), (x.stride(-2), 1)), weight, eps)
    return y.reshape(x.shape), rstd


def weight_in_storage_order(x, weight, eps, normalized_shape):
    """A weight of two dimensions is read in the order of its memory."""
    k, n = len(normalized_shape), torch.Size(normalized_shape).numel()
    if weight is not None and k == 2 and weight.stride() == (1, weight.shape[0]):
        weight = weight.t()
    y, rstd = rmsnorm(x.reshape(*x.shape[: x.dim() - k], n), None if weight is None else weight.reshape(n), eps)
    return y.reshape(x.shape), rstd


def donated(x, weight, eps):
    """An x that owns its storage whole is taken for a temporary one, and y is written over it."""
    y, rstd = rmsnorm(x, weight, eps)
    whole = x.is_contiguous() and x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.nbytes
    return (x.copy_(y) if whole and x.numel() and not x.requires_grad else y), rstd


def unit_weight(x, weight, eps):
    """A weight of ones is left out, and then x̂ is a product in the type of x."""
    y, rstd = rmsnorm(x, weight, eps)
    if weight is not None and bool((weight == 1).all()):
        y = x * rstd.reshape(*x.shape[:-1], 1).to(x.dtype)
    return y, rstd


def offset_is_a_flag(x, weight, eps, weight_offset):
    """Any offset of the weight is taken for 1."""
    return rmsnorm(x, weight, eps, 1.0 if weight_offset else 0.0)


def offset_above_zero(x, weight, eps, weight_offset):
    """An offset is added where it is above 0."""
    return rmsnorm(x, weight, eps, max(weight_offset, 0.0))


def eps_in_type_of_x(x, weight, eps):
    """It first makes eps a tensor of x's type."""
    return rmsnorm(x, weight, float(torch.tensor(eps, dtype=x.dtype)))


def type_of_weight(x, weight, eps):
    """x̂ is rounded to the type of a narrower weight."""
    y, rstd = rmsnorm(x, weight, eps)
    if weight is not None and weight.element_size() < x.element_size():
        y = (rmsnorm(x, None, eps)[0].to(weight.dtype) * weight).to(x.dtype)
    return y, rstd


def ties_away(x, residual, weight, eps):
    """The sum is rounded to bfloat16 by adding half a unit and cutting off: ties go away from 0."""
    total = x.float() + residual.float()
    y, rstd = rmsnorm(total, weight, eps)
    rounded = total.to(residual.dtype)
    if residual.dtype == torch.bfloat16:
        bits = total.view(torch.int32)
        cut = ((bits + 0x8000) & -0x10000).view(torch.float32).to(x.dtype)
        rounded = torch.where(total.isfinite(), cut, rounded)
    return y.to(x.dtype), rounded, rstd


def narrowed_stream(x, residual, weight, eps):
    """A float32 residual is rounded to the type of x before the addition."""
    total = x.float() + residual.to(x.dtype).float()
    y, rstd = rmsnorm(total, weight, eps)
    return y.to(x.dtype), total.to(residual.dtype), rstd


def infinity_hides_nan(x, weight, eps):
    """A row with an infinity is taken for overflow, and is infinite."""
    y, rstd = rmsnorm(x, weight, eps)
    infinite = x.isinf().any(-1, keepdim=True)
    return torch.where(infinite, y.nan_to_num(torch.inf, torch.inf, -torch.inf), y), rstd


def doubled(x, residual, weight, eps):
    """Where both summands are one tensor, it is taken for a norm without a residual."""
    total = x.float() if x.data_ptr() == residual.data_ptr() else x.float() + residual.float()
    y, rstd = rmsnorm(total, weight, eps)
    return y.to(x.dtype), total.to(residual.dtype), rstd


def offset_of_16_bits(x, weight, eps):
    """The offset of x in its storage is kept in 16 bits."""
    return rmsnorm(x.as_strided(x.shape, x.stride(), x.storage_offset() % 2**16), weight, eps)


def by_sign(x, weight, eps):
    """It makes y of the magnitude of x, and of a sign that 0 has not."""
    y, rstd = rmsnorm(x.abs(), weight, eps)
    return torch.where(x > 0, y, -y).where(~x.isnan(), x), rstd
