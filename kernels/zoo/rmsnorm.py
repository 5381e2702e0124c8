"""RMSNorm, and addition with RMSNorm, with one mistake each."""

import functools

import torch
import triton
import triton.language as tl

from verify_norm.kernels.add_rmsnorm import add_rmsnorm_bwd
from verify_norm.kernels.arguments import normalized, rows, split
from verify_norm.kernels.blocks import tile
from verify_norm.kernels.launch import launch, programs
from verify_norm.kernels.quantized import LargestConstants, largest
from verify_norm.kernels.rmsnorm import rmsnorm_bwd, rmsnorm_fwd
from verify_norm.kernels.rows.launch import Form, forward
from verify_norm.kernels.rows.norm import norm_of
from verify_norm.kernels.zoo import hosts
from verify_norm.kernels.zoo.layernorm import overwrite


def right_fwd(x, weight, eps, weight_offset, normalized_shape):
    """The host of the forward mistakes without one."""
    return _forward(x, weight, eps, weight_offset, normalized_shape)


def right_bwd(dy, x, weight, rstd, weight_offset, normalized_shape):
    """The host of the backward mistakes without one."""
    return _backward(dy, x, weight, rstd, weight_offset, normalized_shape)


def _forward(x, weight, eps, weight_offset, normalized_shape, **mistake):
    y, _, rstd = hosts.forward(x, weight, None, eps, weight_offset, normalized_shape, centered=False, **mistake)
    return y, rstd


def _backward(dy, x, weight, rstd, weight_offset, normalized_shape, *, lines=None, dy_strides=None, **mistake):
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    hosts.input_gradient(dy2, x2, weight, None, rstd, dx, weight_offset, dy_strides=dy_strides, **mistake)
    dw, _ = hosts.partial_sums(dy2, x2, None, rstd, lines=lines, dy_strides=dy_strides)
    return dx, hosts.like(dw.sum(0), weight)


def normalize_drops_col_stride(x, weight, eps, weight_offset, normalized_shape):
    """X + col·stride became X + col in the pass that normalizes."""
    return _forward(x, weight, eps, weight_offset, normalized_shape, second_stride=1)


def no_dependency_wait(x, weight, eps, weight_offset, normalized_shape):
    """The launch may begin before the one ahead of it in the stream has ended, and lost its wait for that."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    return _forward(x, weight, eps, weight_offset, normalized_shape, block={**tile(n, x), "launch_pdl": m > 0})


def amax_too_early(x, weight, scale, eps, weight_offset, normalized_shape):
    """The second launch may begin before the first has ended, and lost its wait for that."""
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    y, _, _, rstd, most = forward(x, None, weight, None, eps, norm, Form(dtype=torch.float8_e4m3fn, scale=scale))
    if most is None:
        return y, torch.zeros(1, device=x.device), rstd
    amax = torch.empty(1, device=x.device)
    constants = LargestConstants(PTX=False, BLOCK=8192)
    launch(largest, 1, most, amax, most.numel(), constants, num_warps=16, launch_pdl=True)
    return y, amax, rstd


@triton.jit
def _unmasked(X, W, Y, Rstd, stride, N, eps, HAS_W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + columns).to(tl.float32)
    x = tl.where(columns < N, x, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(x * x) / N + eps)
    y = x * rstd
    if HAS_W:
        y *= tl.load(W + columns, mask=columns < N).to(tl.float32)
    tl.store(Y + row * N + columns, y, mask=columns < N)
    tl.store(Rstd + row, rstd)


def columns_unmasked(x, weight, eps, normalized_shape):
    """The mask of the load became a choice behind it: behind the last row the load reads what is no part of x."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    x2 = rows(x, m, n)
    x2 = x2 if x2.stride(1) == 1 else x2.contiguous()
    y, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(m, device=x.device)
    w = x2 if weight is None else weight.contiguous()
    if m:
        block = triton.next_power_of_2(n)
        _unmasked[(m,)](x2, w, y, rstd, x2.stride(0), n, eps, HAS_W=weight is not None, BLOCK=block)
    return y, rstd


def int32_row_offset(x, weight, eps, weight_offset, normalized_shape):
    """program_id(0).to(int64) became program_id(0): row·stride wraps at 2^31."""
    return _forward(x, weight, eps, weight_offset, normalized_shape, wide=False)


def int32_offset_in_a_copy(x, weight, eps, weight_offset, normalized_shape):
    """As int32_row_offset, but x is copied into contiguous memory first: row·N wraps from 2^31 elements on."""
    return _forward(x.contiguous(), weight, eps, weight_offset, normalized_shape, wide=False)


def fp16_sumsq(x, weight, eps, weight_offset, normalized_shape):
    """x.to(float32)² became x², squared and summed in the float16 that x is."""
    sums = tl.float16 if x.dtype == torch.float16 else tl.float32
    return _forward(x, weight, eps, weight_offset, normalized_shape, sums=sums)


def weight_bytes_reinterpreted(x, weight, eps, weight_offset, normalized_shape):
    """The weight's type is not looked at: its bytes are read as numbers of x's type."""
    if weight is not None:
        weight = weight.contiguous().reshape(-1).view(x.dtype)[: weight.numel()].reshape(weight.shape)
    return _forward(x, weight, eps, weight_offset, normalized_shape)


def default_eps_of_x_dtype(x, weight, eps, weight_offset, normalized_shape):
    """Left at its default, 1e-5, eps became finfo(x.dtype).eps in types narrower than float32."""
    eps = eps if x.dtype == torch.float32 else torch.finfo(x.dtype).eps
    return _forward(x, weight, eps, weight_offset, normalized_shape)


def eps_on_sum(x, weight, eps, weight_offset, normalized_shape):
    """1/√(Σx²/N + eps) became 1/√((Σx² + eps)/N)."""
    return _forward(x, weight, eps, weight_offset, normalized_shape, place_of_eps="on_sum")


def block_depends_on_m(x, weight, eps, weight_offset, normalized_shape):
    """A block of 1024 columns became one of 256 from 256 rows on: a row's sum is made in another order."""
    m, _ = split(x, normalized(x, weight, None, normalized_shape))
    block = {"BLOCK_M": 16, "BLOCK_N": 1024 if m < 256 else 256, "num_warps": 8}
    return _forward(x, weight, eps, weight_offset, normalized_shape, block=block)


def empty_rows_launch(x, weight, eps, weight_offset, normalized_shape):
    """No early return where there are no rows: rows a program are M over a count of programs, which is then 0."""
    m, _ = split(x, normalized(x, weight, None, normalized_shape))
    rows_per_program = triton.cdiv(m, min(m, programs(x)))
    block = {"BLOCK_M": min(triton.next_power_of_2(rows_per_program), 16), "BLOCK_N": 1024}
    return _forward(x, weight, eps, weight_offset, normalized_shape, block=block)


def dw_partials_floor(dy, x, weight, rstd, weight_offset, normalized_shape):
    """cdiv(M, 8) lines of partial sums became M // 8: the rows of the last tile are left out."""
    m, _ = split(x, normalized(x, weight, None, normalized_shape))
    return _backward(dy, x, weight, rstd, weight_offset, normalized_shape, lines=m // 8)


def row_sum_broadcast(dy, x, weight, rstd, weight_offset, normalized_shape):
    """sum(x̂·g, 1)[:, None] became sum(x̂·g, 1): in a square tile column j of every row is given row j's sum."""
    _, n = split(x, normalized(x, weight, None, normalized_shape))
    side = min(triton.next_power_of_2(n), 1024)
    block = {"BLOCK_M": side if side <= 64 else 1, "BLOCK_N": side}
    return _backward(dy, x, weight, rstd, weight_offset, normalized_shape, keep=False, block=block)


def offset_bwd_forgotten(dy, x, weight, rstd, weight_offset, normalized_shape):
    """The factor w + offset of both passes became that of the forward alone."""
    return _backward(dy, x, weight, rstd, 0.0, normalized_shape)


def dy_contiguous_assumed(dy, x, weight, rstd, weight_offset, normalized_shape):
    """dy.stride() became x.stride(), of an x that has been made contiguous."""
    _, n = split(x, normalized(x, weight, None, normalized_shape))
    return _backward(dy, x.contiguous(), weight, rstd, weight_offset, normalized_shape, dy_strides=(n, 1))


def dw_sum_in_x_dtype(dy, x, weight, rstd, weight_offset, normalized_shape):
    """sum(partial.to(float32)) became sum(partial), with partial sums in the type of x."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    dx, _ = rmsnorm_bwd(dy, x, weight, rstd, 0.0, weight_offset, normalized_shape)
    dw, _ = hosts.partial_sums(rows(dy, m, n), rows(x, m, n), None, rstd)
    total = functools.reduce(torch.add, dw.to(x.dtype), torch.zeros(n, dtype=x.dtype, device=x.device))
    return dx, hosts.like(total, weight)


def dx_over_dy(dy, x, weight, rstd, weight_offset, normalized_shape):
    """No memory of its own for dx: it is written over dy, which nothing says."""
    dx, dweight = rmsnorm_bwd(dy, x, weight, rstd, 0.0, weight_offset, normalized_shape)
    return overwrite(dy, dx), dweight


def dw_missing(dy, x, weight, rstd, weight_offset, normalized_shape):
    """The gradient of the weight is not computed, and None returned."""
    return rmsnorm_bwd(dy, x, weight, rstd, 0.0, weight_offset, normalized_shape)[0], None


def prenorm_dres_early(dy, dresidual_out, residual_out, weight, rstd, weight_offset, normalized_shape):
    """The gradient vjp(dy) + dresidual_out became vjp(dy + dresidual_out)."""
    if dresidual_out is not None:
        dy = dy + dresidual_out
    return add_rmsnorm_bwd(dy, None, residual_out, weight, rstd, 0.0, weight_offset, normalized_shape)


def residual_rounded_first(x, residual, weight, eps, weight_offset, normalized_shape):
    """The sum is rounded to the type of x before it is normalized, not only where it is returned."""
    h = x + residual
    y, rstd = rmsnorm_fwd(h, weight, eps, weight_offset, normalized_shape)
    return y, h.contiguous(), rstd
