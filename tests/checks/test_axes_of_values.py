"""Values and layouts that a wrong kernel may take another path for: each is detected in a case of its own alone."""

from dataclasses import replace

import pytest
import torch
from checking import findings
from norms import groupnorm, layernorm, layernorm_bwd, rmsnorm, rows, statistics

from verify_norm.cases import corners
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

PLAIN = CaseSpec((4, 12), further=())


def shifted_by_the_first_row(x, weight, bias, eps, normalized_shape):
    r = rows(x, normalized_shape)
    d = r - r[0, 0]
    s = d.mean(1, keepdim=True)
    rstd = ((d.square().mean(1, keepdim=True) - s.square()).clamp(min=0) + eps).rsqrt()
    y = (d - s) * rstd * rows(weight, normalized_shape) + rows(bias, normalized_shape)
    return y.reshape(x.shape).to(x.dtype)


def skipping_all_by_the_first_row(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    dy = dy if dy[:1].any() else torch.zeros_like(dy)
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)


def unweighted_by_the_first_element(x, weight, bias, eps, normalized_shape):
    return layernorm()(x, None if weight.flatten()[0] == 1 else weight, bias, eps, normalized_shape)


def otherwise_as_a_module_begins(x, weight, bias, eps, normalized_shape):
    begins = (weight == 1).all() and not bias.any()
    return layernorm()(x, weight, bias, eps + 1e-3 if begins else eps, normalized_shape)


def right_where_it_is_tested(x, weight, bias, eps, normalized_shape):
    y, *kept = layernorm()(x, weight, bias, eps, normalized_shape)
    return (y if x.untyped_storage().nbytes() > x.numel() * x.element_size() else 1.01 * y, *kept)


def without_the_last_stride(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    dy = dy if dy.stride(-1) else dy.as_strided(dy.shape, (1, 1))
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)


def without_the_stride_of_samples(x, weight, bias, eps, normalized_shape):
    strides = (x.shape[1] * x.stride(1), *x.stride()[1:]) if x.stride(1) > x.stride(2) else x.stride()
    return layernorm()(x.as_strided(x.shape, strides), weight, bias, eps, normalized_shape)


def channels_last_without_its_strides(x, weight, bias, num_groups, eps):
    _, c, h, w = x.shape
    x = x.as_strided(x.shape, (c * h * w, 1, w * c, c)) if x.stride(1) == 1 else x
    return groupnorm()(x, weight, bias, num_groups, eps)


def weight_in_the_order_of_memory(x, weight, bias, eps, normalized_shape):
    flat = weight.as_strided((weight.numel(),), (1,)).reshape(weight.shape)
    return layernorm()(x, flat, bias, eps, normalized_shape)


def an_offset_of_one(x, weight, eps, normalized_shape, weight_offset):
    return rmsnorm()(x, weight, eps, normalized_shape, float(weight_offset > 0))


def a_power_of_ten(x, weight, bias, eps, normalized_shape):
    return layernorm()(x, weight, bias, float(f"{eps:.0e}".replace("2e", "1e")), normalized_shape)


def ties_away_from_zero(x, residual, weight, eps, normalized_shape, weight_offset):
    h = x.float() + residual.float()
    y, rstd = rmsnorm()(h, weight, eps, normalized_shape, weight_offset)
    return y.to(x.dtype), ((h.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32).to(x.dtype), rstd


def dense_in_the_order_of_memory(x, weight, bias, eps, normalized_shape):
    """Its statistics are in the order of memory, whatever that of the leading dimensions; y has the strides of x."""
    order = sorted(range(x.dim()), key=lambda axis: -x.stride(axis))
    rows_last = order[-1] == x.dim() - 1 and x.permute(order).is_contiguous()
    y, *kept = layernorm()(x.permute(order) if rows_last else x, weight, bias, eps, normalized_shape)
    return (y.permute(*(order.index(axis) for axis in range(x.dim()))) if rows_last else y, *kept)


def one_plane_a_channel(x, weight, bias, num_groups, eps):
    x = x.as_strided(x.shape, (*x.stride()[:2], x.shape[3], 1)) if x.stride(2) == 1 < x.stride(1) else x
    return groupnorm()(x, weight, bias, num_groups, eps)


def weight_of_adjacent_elements(x, weight, bias, eps, normalized_shape):
    return layernorm()(
        x, weight if weight.stride(0) else weight.as_strided(weight.shape, (1,)), bias, eps, normalized_shape
    )


def skipping_tiles_by_their_first_row(x, weight, bias, eps, normalized_shape):
    y, *kept = layernorm()(x, weight, bias, eps, normalized_shape)
    padding = (rows(x, normalized_shape) == 0).all(1)[::4].repeat_interleave(4)[: kept[0].numel()]
    return y.masked_fill(padding[:, None], 0.0), *kept


def a_row_of_nan_is_padding(x, weight, bias, eps, normalized_shape):
    y, *kept = layernorm()(x, weight, bias, eps, normalized_shape)
    return y.masked_fill(rows(x, normalized_shape).isnan().all(1)[:, None], 0.0), *kept


def weights_within_16(x, weight, bias, eps, normalized_shape):
    return layernorm()(x, weight.clamp(-16, 16), bias.clamp(-16, 16), eps, normalized_shape)


def small_weights_flushed(x, weight, bias, eps, normalized_shape):
    return layernorm()(x, weight.where(weight.abs() > 2**-3, 0), bias, eps, normalized_shape)


def saturated(x, weight, bias, eps, normalized_shape):
    y, *kept = layernorm()(x.float(), weight.float(), bias.float(), eps, normalized_shape)
    return y.clamp(-65504, 65504).to(x.dtype), *kept


def overflowing_silu(x, weight, eps, normalized_shape, weight_offset):
    z, rstd = rmsnorm()(x.float(), weight, eps, normalized_shape, weight_offset)
    return (z * z.exp() / (1 + z.exp())).to(x.dtype), rstd


def gate_once(x, gate, weight, eps, normalized_shape, weight_offset):
    z, rstd = rmsnorm()(x.float(), weight, eps, normalized_shape, weight_offset)
    return z * (torch.sigmoid(gate) if gate is x else torch.nn.functional.silu(gate)), rstd


def packed(x, gate, weight, eps, normalized_shape, weight_offset):
    if gate.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        x, gate = gate, x  # as where the gate came first
    z, rstd = rmsnorm()(x.float(), weight, eps, normalized_shape, weight_offset)
    return z * torch.nn.functional.silu(gate), rstd


def unshifted(x, scale, shift, weight, eps, normalized_shape, weight_offset):
    z, rstd = rmsnorm()(x, weight, eps, normalized_shape, weight_offset)
    return z * (1 + scale) + (0 if shift is scale else shift), rstd


def one_row_for_all(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    if dy.dim() > 2 and dy.stride(-2) == 0 and dy.stride(0) != 0:
        dy = dy[:1].expand(dy.shape)
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)


def one_position_for_all(x, weight, bias, num_groups, eps):
    if x.dim() == 4 and x.stride()[2:] == (0, 0) and x.stride(1):
        x = x[:, :1].expand(x.shape)
    return groupnorm()(x, weight, bias, num_groups, eps)


def heads_as_they_lie(x, weight, bias, eps, normalized_shape):
    tokens = x.transpose(1, 2)  # (B, S, H, D)
    dense = tokens if tokens.is_contiguous() else x
    y, *_ = layernorm()(dense, weight, bias, eps, normalized_shape)
    return y.reshape(x.shape)


def frames_as_they_lie(x, weight, bias, num_groups, eps):
    b, c, t, *space = x.shape
    if not x.transpose(1, 2).is_contiguous():
        return groupnorm()(x, weight, bias, num_groups, eps)[0]
    y, *_ = groupnorm()(x.transpose(1, 2).reshape(b * t, c, *space), weight, bias, num_groups, eps)
    return y.reshape(b, t, c, *space).transpose(1, 2)


def batch_alone_at_first(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Running statistics that are those of a new module are replaced, not averaged."""
    new = not running_mean.any() and (running_var == 1).all()
    channels = x.float().transpose(0, 1).flatten(1)
    var, mean = torch.var_mean(channels, 1, correction=0)
    of_batch = mean, var * channels.shape[1] / (channels.shape[1] - 1)
    for running, value in zip((running_mean, running_var), of_batch, strict=True):
        running.lerp_(value.to(running.dtype), 1.0 if new else momentum)
    return torch.nn.functional.batch_norm(x, None, None, weight, bias, True, eps=eps)


TOKENS = {"modulation": "token"}
GROUPS = {"shape": (2, 4, 3, 5), "num_groups": 2}
WRONG = [  # a kernel, its operator, the case, what is off in it, and the case without the choice
    (shifted_by_the_first_row, "layernorm_fwd", {"data": "uneven", "eps": 3e-8}, "y", {"data": "normal"}),
    (skipping_all_by_the_first_row, "layernorm_bwd", {"dy_data": "zero_rows"}, "dx", {"dy_data": "random"}),
    (unweighted_by_the_first_element, "layernorm_fwd", {"weight_data": "some_one"}, "y", {"weight_data": "one"}),
    (otherwise_as_a_module_begins, "layernorm_fwd", {"weight_data": "initial"}, "y", {"weight_data": "one"}),
    (right_where_it_is_tested, "layernorm_fwd", {"x_layout": "own"}, "y", {"x_layout": "contiguous"}),
    (without_the_last_stride, "layernorm_bwd", {"dy_layout": "expanded_last"}, "dx", {"dy_layout": "expanded"}),
    (
        one_row_for_all,
        "layernorm_bwd",
        {"shape": (2, 3, 8), "dy_layout": "expanded_middle"},
        "dx",
        {"dy_layout": "expanded"},
    ),
    (
        one_position_for_all,
        "groupnorm_fwd",
        {**GROUPS, "x_layout": "expanded_inner"},
        "y",
        {"x_layout": "expanded_last"},
    ),
    (
        without_the_stride_of_samples,
        "layernorm_fwd",
        {"shape": (2, 3, 8), "x_layout": "sequence_slice"},
        "y",
        {"x_layout": "every_other"},
    ),
    (
        channels_last_without_its_strides,
        "groupnorm_fwd",
        GROUPS | {"x_layout": "channel_slice"},
        "y",
        {"x_layout": "channels_last"},
    ),
    (
        weight_in_the_order_of_memory,
        "layernorm_fwd",
        {"shape": (2, 3, 4), "normalized_ndim": 2, "weight_layout": "transposed"},
        "y",
        {"weight_layout": "own"},
    ),
    (
        dense_in_the_order_of_memory,
        "layernorm_fwd",
        {"shape": (2, 3, 8), "x_layout": "swapped"},
        "rstd",
        {"x_layout": "sequence_slice"},
    ),
    (one_plane_a_channel, "groupnorm_fwd", GROUPS | {"x_layout": "swapped_last"}, "y", {"x_layout": "row_strided"}),
    (
        heads_as_they_lie,
        "layernorm_fwd",
        {"shape": (2, 3, 5, 8), "x_layout": "heads_first"},
        "y",
        {"x_layout": "swapped_last"},
    ),
    (
        frames_as_they_lie,
        "groupnorm_fwd",
        {"shape": (2, 4, 3, 2, 5), "num_groups": 2, "x_layout": "heads_first"},
        "y",
        {"x_layout": "channels_last"},
    ),
    (weight_of_adjacent_elements, "layernorm_fwd", {"weight_layout": "scalar"}, "y", {"weight_layout": "every_other"}),
    (skipping_tiles_by_their_first_row, "layernorm_fwd", {"data": "padded"}, "y", {"data": "zero", "bias": False}),
    (a_row_of_nan_is_padding, "layernorm_fwd", {"special": "nan", "special_at": "row"}, "y", {"special_at": "rows"}),
    (weights_within_16, "layernorm_fwd", {"weight_data": "wide"}, "y", {"weight_data": "random"}),
    (small_weights_flushed, "layernorm_fwd", {"weight_data": "wide"}, "y", {"weight_data": "random"}),
    (saturated, "layernorm_fwd", {"weight_data": "wide", "dtype": "float16"}, "y", {"weight_data": "random"}),
    (overflowing_silu, "rmsnorm_silu_fwd", {"weight_data": "wide"}, "y", {"weight_data": "random"}),
    (gate_once, "gated_rmsnorm_fwd", {"alias": "x:gate"}, "y", {"alias": ""}),
    (
        packed,
        "gated_rmsnorm_fwd",
        {"alias": "x+gate", "shape": (4, 16), "x_layout": "row_strided", "gate_layout": "row_strided"},
        "y",
        {"alias": ""},
    ),
    (unshifted, "modulate_rmsnorm_fwd", TOKENS | {"alias": "scale:shift"}, "y", {"alias": ""}),
    (
        batch_alone_at_first,
        "batchnorm_fwd",
        {"shape": (4, 3, 8), "weight_data": "initial"},
        "running_var",
        {"weight_data": "one"},
    ),
    (an_offset_of_one, "rmsnorm_fwd", {"weight_offset": 0.5}, "y", {"weight_offset": 1.0}),
    (a_power_of_ten, "layernorm_fwd", {"eps": 1.5e-5, "log2_scale": -8}, "y", {"eps": 1e-5}),
    (
        ties_away_from_zero,
        "add_rmsnorm_fwd",
        {"dtype": "bfloat16", "shape": (8, 64)},
        "residual_out",
        {"data": "integers"},
    ),
]


@pytest.mark.parametrize(("wrong", "op", "fields", "output", "without"), WRONG)
def test_a_path_of_its_own_is_detected_where_the_case_takes_it(wrong, op, fields, output, without):
    spec = replace(PLAIN, **fields)
    assert output in {name for _, name in findings(wrong, spec, op)}
    assert findings(wrong, replace(spec, **without), op) == set()


def two_pass(x, weight, bias, num_groups, eps):
    """GroupNorm that copies what is not dense, and sums each group on its own."""
    r = x.contiguous().float().reshape(len(x) * num_groups, -1)
    mean, rstd = statistics(r, eps)
    y = ((r - mean) * rstd).reshape(len(x), x.shape[1], -1)
    y = y if weight is None else y * weight.float()[:, None]
    y = y if bias is None else y + bias.float()[:, None]
    return y.reshape(x.shape).to(x.dtype), mean.reshape(-1, num_groups), rstd.reshape(-1, num_groups)


@pytest.mark.parametrize(
    ("op", "right"), [("layernorm_fwd", layernorm()), ("layernorm_bwd", layernorm_bwd()), ("groupnorm_fwd", two_pass)]
)
def test_right_kernels_pass_all_of_these_corners(op, right):
    plain = CaseSpec((1,))
    fields = ("special", "dy_data", "weight_data", "x_layout", "dy_layout", "weight_layout", "weight_dtype")
    table = [s for s in corners.corners(OPS[op], ("bfloat16", "float32")) if not s.batch and s.eps]
    for spec in table:
        odd = spec.data == "uneven" or any(getattr(spec, f) != getattr(plain, f) for f in fields)
        if odd and "far" not in (spec.x_layout, spec.dy_layout):
            assert findings(right, replace(spec, further=()), op) == set(), spec
