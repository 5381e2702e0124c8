"""Kernels that are right, each in a way that a verifier may take for wrong."""

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, rows, split
from verify_norm.kernels.blocks import tile
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.layernorm import layernorm_bwd, layernorm_fwd
from verify_norm.kernels.rmsnorm import rmsnorm_bwd
from verify_norm.kernels.zoo import hosts
from verify_norm.kernels.zoo.layernorm import gradients_from, overwrite

LANES = 1024  # of Welford's: each keeps a state of its own


@jit
def _atomic(X, DY, Mean, Rstd, DW, DB, Order, N, sxm, sxn, sdm, sdn, BLOCK: tl.constexpr):
    row = tl.load(Order + tl.program_id(0))
    mean, rstd = tl.load(Mean + row), tl.load(Rstd + row)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        x = tl.load(X + row * sxm + cols * sxn, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(DY + row * sdm + cols * sdn, mask=mask, other=0.0).to(tl.float32)
        tl.atomic_add(DW + cols, dy * ((x - mean) * rstd), mask=mask)
        tl.atomic_add(DB + cols, dy, mask=mask)


def atomic_dweight(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Atomic additions of dweight and dbias, in no fixed order; where programs run one by one, the order is drawn."""
    dx, _, _ = layernorm_bwd(dy, x, weight, bias, mean, rstd, 0.0, normalized_shape)
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    dw, db = (torch.zeros(n, dtype=torch.float32, device=x.device) for _ in range(2))
    order = torch.randperm(m).to(x.device)
    launch(
        _atomic,
        m,
        x2,
        dy2,
        dense(mean),
        dense(rstd),
        dw,
        db,
        order,
        n,
        *x2.stride(),
        *dy2.stride(),
        BLOCK=tile(n, x)["BLOCK_N"],
    )
    return dx, hosts.like(dw, weight), hosts.like(db, bias)


def llama_order(x, weight, eps, weight_offset, normalized_shape):
    """First x̂ is rounded to the type of x, and then multiplied by the weight."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    values = rows(x, m, n).float()
    rstd = torch.rsqrt(values.square().mean(1) + eps)
    y = (values * rstd[:, None]).to(x.dtype)
    if weight is not None:
        y = (y.float() * (weight.float().reshape(-1) + weight_offset)).to(x.dtype)
    return y.reshape(x.shape), rstd


def gemma_order(x, weight, eps, weight_offset, normalized_shape):
    """Everything in float32, the weight's offset too, and one rounding at the end."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    values = rows(x, m, n).float()
    rstd = torch.rsqrt(values.square().mean(1) + eps)
    y = values * rstd[:, None]
    if weight is not None:
        y = y * (weight.float().reshape(-1) + weight_offset)
    return y.to(x.dtype).reshape(x.shape), rstd


def _layernorm(x, weight, bias, eps, normalized_shape, statistics):
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    values = rows(x, m, n).float()
    mean, var = statistics(values)
    rstd = 1 / (var + eps).sqrt()
    y = (values - mean[:, None]) * rstd[:, None]
    if weight is not None:
        y = y * weight.float().reshape(-1)
    if bias is not None:
        y = y + bias.float().reshape(-1)
    return y.to(x.dtype).reshape(x.shape), mean, rstd


def shifted_onepass(x, weight, bias, eps, normalized_shape):
    """One pass, E[d²] − E[d]², of d = x − x[0]: what is subtracted is small, whatever the offset."""

    def statistics(values):
        d = values - values[:, :1]
        mean = d.mean(1)
        return values[:, 0] + mean, (d.square().mean(1) - mean.square()).clamp(min=0.0)

    return _layernorm(x, weight, bias, eps, normalized_shape, statistics)


def welford(x, weight, bias, eps, normalized_shape):
    """Welford's running mean and squares in each of 1024 lanes, merged by Chan's formula in a tree."""

    def statistics(values):
        m, n = values.shape
        mean, m2, count = (torch.zeros((m, LANES), device=values.device) for _ in range(3))
        for start in range(0, n, LANES):
            x = values[:, start : start + LANES]
            here = torch.arange(LANES, device=values.device) < x.shape[1]
            x = torch.nn.functional.pad(x, (0, LANES - x.shape[1]))
            count = count + here
            delta = torch.where(here, x - mean, 0.0)
            mean = mean + delta / count.clamp(min=1.0)
            m2 = m2 + delta * (x - mean)
        while mean.shape[1] > 1:
            (mean, other), (m2, m2_other), (count, n_other) = (t.chunk(2, 1) for t in (mean, m2, count))
            delta, all_ = other - mean, (count + n_other).clamp(min=1.0)
            share = n_other / all_
            mean, m2, count = mean + delta * share, m2 + m2_other + delta * (delta * (count * share)), count + n_other
        return mean[:, 0], m2[:, 0] / n

    return _layernorm(x, weight, bias, eps, normalized_shape, statistics)


def library_var_mean(x, weight, bias, eps, normalized_shape):
    """Statistics by torch.var_mean, Welford's: some ulp from those of two passes."""

    def statistics(values):
        var, mean = torch.var_mean(values, 1, correction=0)
        return mean, var

    return _layernorm(x, weight, bias, eps, normalized_shape, statistics)


def approximate_rsqrt(x, weight, bias, eps, normalized_shape):
    """Rstd is off by up to 2 ulp, as an approximate reciprocal root is: up in one row, down in the next."""
    y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    up = torch.arange(m, device=x.device) % 2 == 0
    for _ in range(2):
        rstd = torch.where(rstd.isinf(), rstd, torch.nextafter(rstd, torch.where(up, torch.inf, 0.0).to(rstd)))
    y = (rows(x, m, n).float() - mean[:, None]) * rstd[:, None]
    if weight is not None:
        y = y * weight.float().reshape(-1)
    if bias is not None:
        y = y + bias.float().reshape(-1)
    return y.to(x.dtype).reshape(x.shape), mean, rstd


def in_place(dy, x, weight, rstd, weight_offset, normalized_shape):
    """Write dx over dy, as its contract says."""
    dx, dweight = rmsnorm_bwd(dy, x, weight, rstd, 0.0, weight_offset, normalized_shape)
    return overwrite(dy, dx), dweight


def overflowing(x, weight, eps, weight_offset, normalized_shape):
    """Squares in float32, which overflow from 2e19 on: there is no rstd then, and no promise of one."""
    return gemma_order(x, weight, eps, weight_offset, normalized_shape)


def one_column(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Rows of one element: x̂ = (x − x)·rstd, so dx = 0 and dweight = 0, but where x or rstd is no number."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    if n != 1:
        return layernorm_bwd(dy, x, weight, bias, mean, rstd, 0.0, normalized_shape)
    g, values = rows(dy, m, n).float(), rows(x, m, n).float()
    xhat = (values - values) * rstd.reshape(-1, 1)
    return xhat.to(x.dtype).reshape(x.shape), hosts.like((g * xhat).sum(0), weight), hosts.like(g.sum(0), bias)


def exact_zero(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Computed in float64 and rounded once, so that dx of a constant w·dy is an exact 0."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    g, values = rows(dy, m, n).double(), rows(x, m, n).double()
    xhat = (values - mean.reshape(-1, 1).double()) * rstd.reshape(-1, 1).double()
    wdy = g if weight is None else g * weight.double().reshape(-1)
    wdy_c = wdy - wdy.mean(1, keepdim=True)
    flat = (wdy == wdy[:, :1]).all(1, keepdim=True)
    dx = (wdy_c - xhat * (wdy * xhat).mean(1, keepdim=True)) * rstd.reshape(-1, 1).double()
    dx = torch.where(flat & dx.isfinite(), 0.0, dx).to(x.dtype).reshape(x.shape)
    return dx, hosts.like((g * xhat).sum(0), weight), hosts.like(g.sum(0), bias)


def own_mean(dy, x, weight, bias, mean, rstd, normalized_shape):
    """The given rstd, but a mean computed again from x, whose error is that of a sum."""
    values = rows(x, *split(x, normalized(x, weight, bias, normalized_shape))).float()
    xhat = (values - values.mean(1, keepdim=True)) * rstd.reshape(-1, 1)
    return gradients_from(xhat, dy, x, weight, bias, rstd)


def no_rows(dy, x, weight, rstd, weight_offset, normalized_shape):
    """No rows, no launch: an empty dx and a dweight of zeros; without a weight, none."""
    if x.numel() == 0:
        return torch.empty_like(x), None if weight is None else torch.zeros_like(weight)
    return rmsnorm_bwd(dy, x, weight, rstd, 0.0, weight_offset, normalized_shape)


def memory_format_of_x(x, weight, bias, eps, normalized_shape):
    """X is copied where it is not dense, and y has the strides of x where it is."""
    y, mean, rstd = layernorm_fwd(x.contiguous(), weight, bias, eps, normalized_shape)
    return torch.empty_like(x).copy_(y), mean, rstd


@jit
def _by_columns(X, Y, W, B, Mean, Rstd, N, blocks, eps, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
        xc = tl.where(cols < N, x - mean, 0.0)
        squares += xc * xc
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) / N + eps))
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    cols = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    y = (tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32) - mean) * rstd
    if W is not None:
        y *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)
    if B is not None:
        y += tl.load(B + cols, mask=cols < N, other=0.0).to(tl.float32)
    tl.store(Y + row * N + cols, y, mask=cols < N)


def same_value_by_many(x, weight, bias, eps, normalized_shape):
    """Each block of a row's columns has a program, and all of them store the row's mean and rstd, the same numbers."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    block = min(max(triton.next_power_of_2(n) // 2, 1), 1024)
    blocks = triton.cdiv(n, block)
    launch(
        _by_columns,
        m * blocks,
        rows(x, m, n).contiguous(),
        y,
        dense(weight),
        dense(bias),
        mean,
        rstd,
        n,
        blocks,
        float(eps),
        BLOCK=block,
    )
    return y, mean, rstd


def own_stream(x, weight, bias, eps, normalized_shape):
    """In a stream of its own, which waits for the current one, and which that waits for."""
    current, own = torch.cuda.current_stream(x.device), torch.cuda.Stream(x.device)
    own.wait_stream(current)
    with torch.cuda.stream(own):
        results = layernorm_fwd(x, weight, bias, eps, normalized_shape)
    current.wait_stream(own)
    for result in results:
        result.record_stream(current)
    return results
