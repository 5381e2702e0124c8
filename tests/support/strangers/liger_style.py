"""RMSNorm as a library of training kernels has it: an autograd.Function over Triton, capitals, casting modes."""

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(Y, X, W, RSTD, stride, n_cols, eps, offset, LLAMA: tl.constexpr, HAS_W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    loaded = tl.load(X + row * stride + cols, mask=mask, other=0.0)
    x = loaded.to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    tl.store(RSTD + row, rstd)
    xhat = x * rstd
    if LLAMA:
        xhat = xhat.to(loaded.dtype).to(tl.float32)
    if HAS_W:
        xhat = xhat * (offset + tl.load(W + cols, mask=mask, other=0.0).to(tl.float32))
    tl.store(Y + row * n_cols + cols, xhat.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(DX, DW, DY, X, W, RSTD, stride, n_cols, offset, HAS_W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(DY + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(RSTD + row)
    xhat = x * rstd
    m = dy
    if HAS_W:
        m = dy * (offset + tl.load(W + cols, mask=mask, other=0.0).to(tl.float32))
        tl.store(DW + row * n_cols + cols, dy * xhat, mask=mask)
    dx = rstd * (m - xhat * (tl.sum(m * xhat, axis=0) / n_cols))
    tl.store(DX + row * n_cols + cols, dx.to(DX.dtype.element_ty), mask=mask)


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, W, eps, offset=0.0, casting_mode="none", in_place=True):
        shape = X.shape
        X = X.reshape(-1, shape[-1]).contiguous()
        W = None if W is None else W.contiguous()
        Y = torch.empty_like(X)
        RSTD = torch.empty(X.shape[0], dtype=torch.float32, device=X.device)
        block = triton.next_power_of_2(X.shape[1])
        if X.shape[0]:
            _forward[(X.shape[0],)](
                Y, X, W, RSTD, X.stride(0), X.shape[1], eps, offset, LLAMA=casting_mode == "llama",
                HAS_W=W is not None, BLOCK=block,
            )  # fmt: skip
        ctx.save_for_backward(X, W, RSTD)
        ctx.offset, ctx.in_place, ctx.block = offset, in_place, block
        return Y.view(shape)

    @staticmethod
    def backward(ctx, dY):
        X, W, RSTD = ctx.saved_tensors
        shape = dY.shape
        dY = dY.reshape(X.shape).contiguous()
        DX = dY if ctx.in_place else torch.empty_like(dY)
        DW = torch.zeros(X.shape, dtype=torch.float32, device=X.device)
        if X.shape[0]:
            _backward[(X.shape[0],)](
                DX, DW, dY, X, W, RSTD, X.stride(0), X.shape[1], ctx.offset, HAS_W=W is not None, BLOCK=ctx.block
            )
        dW = None if W is None else DW.sum(0).to(W.dtype)
        return DX.view(shape), dW, None, None, None, None
