"""RMSNorm of heads and their rotation against float64 formulas of the same rounded inputs."""

import pytest
import torch

from verify_norm.kernels.qk_norm_rope import (
    qk_norm_rope_bwd,
    qk_norm_rope_fwd,
    qk_norm_rope_interleaved_bwd,
    qk_norm_rope_interleaved_fwd,
)

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
EPS = 1e-5
CASES = [  # a shape, R/2, the layout of x, and the types of x, weight and angles
    ((5, 3, 64), 32, "contiguous", (F32, F32, F32)),
    ((2, 3, 8, 128), 32, "contiguous", (BF16, F32, BF16)),  # a part of the row, several dimensions of tokens
    ((5, 3, 72), 8, "contiguous", (F16, F32, F16)),  # the last pairs of the rest have no second vector
    ((3, 4, 96), 48, "offset", (F16, F16, F32)),  # no power of two, one by one
    ((4, 5, 33), 16, "transposed", (F32, F32, F32)),  # a rest of one element, and an odd number of heads
    ((150, 6), 3, "every_other", (BF16, BF16, BF16)),  # no heads, more rows than a tile
    ((2, 2, 1), 0, "contiguous", (F32, F32, F32)),  # nothing turns
    ((40,), 20, "row_strided", (F32, F32, F32)),  # one row, of no token
    ((3, 2, 2048), 512, "contiguous", (BF16, F32, F32)),  # a tile of few rows
]


def drawn(norms, device, shape, half, layout, types):
    """x and dy, the weight, and cos and sin of one angle a token."""
    x, dy = (norms.draw(shape, types[0], device, seed=i, mean=0.5, layout=layout) for i in (1, 2))
    weight = norms.draw(shape[-1:], types[1], device, seed=3)
    angle = norms.draw((*(shape[:-2] if len(shape) > 2 else shape[:-1]), half), F32, device, seed=4) * 8
    return x, dy, weight, angle.cos().to(types[2]), angle.sin().to(types[2])


def turned(x, weight, cos, sin, interleaved):
    """y in x's type, of float64 tensors."""
    z = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    half = cos.shape[-1]
    if x.dim() > 2:
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    first, last = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    a, b, y = z[..., first], z[..., last], z.clone()
    y[..., first], y[..., last] = a * cos - b * sin, b * cos + a * sin
    return y


def agree(norms, name, got, want, terms):
    """Few roundings of the size of the largest value, or of 1 where terms cancel, in float32, then one."""
    bound = 16 * norms.bounds.__globals__["height"](terms) * 2.0**-24 * want.abs().max().clamp_min(1.0)
    norms.close(name, got, want.detach(), bound.detach())


@pytest.mark.parametrize("interleaved", [False, True], ids=["neox", "interleaved"])
@pytest.mark.parametrize(("shape", "half", "layout", "types"), CASES)
def test_values_and_gradients(norms, device, shape, half, layout, types, interleaved):
    x, dy, weight, cos, sin = drawn(norms, device, shape, half, layout, types)
    forward, backward = (
        (qk_norm_rope_interleaved_fwd, qk_norm_rope_interleaved_bwd)
        if interleaved
        else (qk_norm_rope_fwd, qk_norm_rope_bwd)
    )
    y, rstd = forward(x, weight, cos, sin, EPS)
    x64, w64 = (t.double().detach().clone().requires_grad_() for t in (x, weight))
    want = turned(x64, w64, cos.double(), sin.double(), interleaved)
    agree(norms, "y", y, want, shape[-1])
    agree(norms, "rstd", rstd, (x64.square().mean(-1) + EPS).rsqrt().flatten(), shape[-1])
    dx, dw = backward(dy, x, weight, cos, sin, rstd, EPS, 0.0, shape[-1:])
    for name, got, truth in zip(
        ("dx", "dweight"), (dx, dw), torch.autograd.grad(want, (x64, w64), dy.double()), strict=True
    ):
        agree(norms, name, got, truth, max(shape[-1], x.numel() // shape[-1]))
    assert [t.dtype for t in (y, rstd, dx, dw)] == [types[0], F32, types[0], types[1]]
    assert y.is_contiguous()


def test_heads_of_a_packed_qkv_are_read_where_they_are(norms, device, monkeypatch):
    qkv = norms.draw((2, 5, 12, 64), BF16, device, seed=1)
    q, k = qkv[:, :, :8], qkv[:, :, 8:10]
    _, _, weight, cos, sin = drawn(norms, device, (2, 5, 8, 64), 32, "contiguous", (BF16, BF16, BF16))
    wanted = [qk_norm_rope_fwd(t.contiguous(), weight, cos, sin, EPS) for t in (q, k)]
    gradients = [qk_norm_rope_bwd(t.contiguous(), t.contiguous(), weight, cos, sin, r, EPS)
                 for t, (_, r) in zip((q, k), wanted, strict=True)]  # fmt: skip
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    for t, want, gradient in zip((q, k), wanted, gradients, strict=True):
        assert all(map(torch.equal, qk_norm_rope_fwd(t, weight, cos, sin, EPS), want))
        assert all(map(torch.equal, qk_norm_rope_bwd(t, t, weight, cos, sin, want[1], EPS), gradient))


def test_an_offset_no_weight_and_several_dimensions(norms, device):
    x, dy, weight, cos, sin = drawn(norms, device, (3, 4, 24), 6, "contiguous", (F32, F32, F32))
    ones = torch.ones_like(weight)
    whole, rstd = qk_norm_rope_fwd(x, weight + 1, cos, sin, EPS)
    assert torch.equal(qk_norm_rope_fwd(x, weight, cos, sin, EPS, 1.0)[0], whole)
    assert torch.equal(qk_norm_rope_fwd(x, None, cos, sin, EPS)[0], qk_norm_rope_fwd(x, ones, cos, sin, EPS)[0])
    dx, dw = qk_norm_rope_bwd(dy, x, None, cos, sin, rstd, EPS)
    assert dw is None
    assert torch.equal(dx, qk_norm_rope_bwd(dy, x, ones, cos, sin, rstd, EPS)[0])
    shaped = qk_norm_rope_fwd(x.reshape(3, 4, 4, 6), (weight + 1).reshape(4, 6), cos, sin, EPS, 0.0, (4, 6))[0]
    assert torch.equal(shaped.reshape(whole.shape), whole)


def test_a_row_never_sees_the_others(norms, device):
    x, dy, weight, cos, sin = drawn(norms, device, (70, 3, 40), 10, "contiguous", (BF16, BF16, BF16))
    y, rstd = qk_norm_rope_fwd(x, weight, cos, sin, EPS)
    dx, _ = qk_norm_rope_bwd(dy, x, weight, cos, sin, rstd, EPS)
    one = slice(66, 67)
    alone = qk_norm_rope_fwd(x[one], weight, cos[one], sin[one], EPS)
    assert torch.equal(alone[0], y[one])
    assert torch.equal(qk_norm_rope_bwd(dy[one], x[one], weight, cos[one], sin[one], alone[1], EPS)[0], dx[one])


def test_nothing_to_turn(norms, device):
    x, _, weight, cos, sin = drawn(norms, device, (2, 3, 8), 4, "contiguous", (F32, F32, F32))
    y, rstd = qk_norm_rope_fwd(x[:0], weight, cos[:0], sin[:0], EPS)
    assert (y.shape, rstd.shape) == ((0, 3, 8), (0,))
    dx, dw = qk_norm_rope_bwd(y, y, weight, cos[:0], sin[:0], rstd, EPS)
    assert (dx.shape, dw.tolist()) == ((0, 3, 8), [0.0] * 8)
    y, rstd = qk_norm_rope_fwd(x[..., :0], None, cos[..., :0], sin[..., :0], EPS)
    assert (y.shape, rstd.isnan().all()) == ((2, 3, 0), True)


X, W, HALF = torch.zeros(2, 3, 8), torch.ones(8), torch.ones(2, 4)
LONG, FEW = torch.zeros(1, 8194), torch.zeros(1, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qk_norm_rope_fwd(X, W, HALF[:1], HALF, EPS), ValueError, r"cos must have shape \(2, R/2\) with R/2"),
        (lambda: qk_norm_rope_fwd(X, W, torch.ones(2, 5), HALF, EPS), ValueError, r"of at most 4, not \(2, 5\)"),
        (lambda: qk_norm_rope_fwd(X[0], W, torch.ones(()), HALF, EPS), ValueError, r"cos must have shape \(3, R/2\)"),
        (lambda: qk_norm_rope_fwd(X, W, HALF, HALF[:, :3], EPS), ValueError, "sin must be like cos"),
        (lambda: qk_norm_rope_fwd(X, W, HALF, None, EPS), TypeError, "sin must be a torch.Tensor, not NoneType"),
        (lambda: qk_norm_rope_fwd(X, W, HALF.half(), HALF, EPS), TypeError, "cos must be torch.float32 like x"),
        (lambda: qk_norm_rope_fwd(X.half(), W, HALF, HALF.half(), EPS), ValueError, "sin must be like cos"),
        (lambda: qk_norm_rope_fwd(X.double(), W, HALF, HALF, EPS), TypeError, "float64"),
        (lambda: qk_norm_rope_fwd(X, W[:4], HALF, HALF, EPS), ValueError, "normalized_shape"),
        (lambda: qk_norm_rope_fwd(LONG, None, FEW, FEW, EPS), ValueError, "at most 8192"),
        (lambda: qk_norm_rope_bwd(LONG, LONG, None, FEW, FEW, W[:1], EPS), ValueError, "at most 8192"),
        (lambda: qk_norm_rope_bwd(X[:1], X, W, HALF, HALF, W[:6], EPS), ValueError, "dy must have shape"),
        (lambda: qk_norm_rope_bwd(X, X, W, HALF, HALF, W, EPS), ValueError, "rstd must have 6 elements"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
