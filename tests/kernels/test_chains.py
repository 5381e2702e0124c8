"""Gated and modulated norms, L2Norm and 8-bit rows against float64 formulas of the same rounded inputs."""

import pytest
import torch
from torch.nn import functional

from verify_norm.kernels.add_rmsnorm_quant import (
    add_rmsnorm_quant_fwd,
    add_rmsnorm_quant_group64_fwd,
    add_rmsnorm_quant_group_fwd,
    rmsnorm_quant_fwd,
)
from verify_norm.kernels.gated_rmsnorm import gated_rmsnorm_bwd, gated_rmsnorm_fwd
from verify_norm.kernels.l2norm import l2norm_bwd, l2norm_fwd
from verify_norm.kernels.modulate_layernorm import modulate_layernorm_fwd

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
EPS = 1e-5
CASES = [  # a shape, the layout of x, and the types of x and weight
    ((3, 64), "contiguous", (F32, F32)),
    ((2, 3, 100), "row_strided", (BF16, F32)),  # loaded one by one
    ((5, 1536), "contiguous", (F16, F16)),  # chunks, the last one short
    ((2, 2, 4096), "offset", (BF16, BF16)),
    ((3, 4, 33), "transposed", (F32, F32)),
    ((70, 8), "every_other", (F16, F32)),  # more rows than a tile
    ((1, 3), "contiguous", (F32, F32)),
]


def drawn(norms, device, shape, layout, types, *names):
    """x in this layout and others contiguous, of its type; weight and bias of their own."""
    tensors = [norms.draw(shape, types[0], device, seed=1, mean=0.5, layout=layout)]
    tensors += [norms.draw(shape, types[0], device, seed=2 + i) for i, name in enumerate(names) if name == "data"]
    return *tensors, *(norms.draw(shape[-1:], types[1], device, seed=9 + i) for i, n in enumerate(names) if n != "data")


def agree(norms, got, want, roundings=16):
    """Each result has few roundings of the size of its largest, in float32, then one."""
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        b = b.detach()
        norms.close(
            str(number), a, b, roundings * norms.bounds.__globals__["height"](b.shape[-1]) * 2.0**-24 * b.abs().max()
        )


def rms(x, total=False):
    return (x.square().sum(-1, keepdim=True) / (1 if total else x.shape[-1]) + EPS).rsqrt()


def doubles(*tensors):
    return [t.double().detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize(("shape", "layout", "types"), CASES)
def test_gated_rmsnorm(norms, device, shape, layout, types):
    x, gate, dy, w = drawn(norms, device, shape, layout, types, "data", "data", "weight")
    y, rstd = gated_rmsnorm_fwd(x, gate, w, EPS)
    x64, gate64, w64 = doubles(x, gate, w)
    want = x64 * rms(x64) * w64 * functional.silu(gate64)
    agree(norms, [y, rstd], [want, rms(x64).flatten()])
    got = gated_rmsnorm_bwd(dy, x, gate, w, rstd, EPS)
    agree(norms, got, torch.autograd.grad(want, (x64, gate64, w64), dy.double()))
    assert [t.dtype for t in (y, rstd, *got)] == [types[0], F32, types[0], types[0], types[1]]
    whole = (w.float() + 1).to(F32)  # an offset is added in float32
    assert torch.equal(gated_rmsnorm_fwd(x, gate, w, EPS, 1.0)[0], gated_rmsnorm_fwd(x, gate, whole, EPS)[0])
    dx = gated_rmsnorm_bwd(dy, x, gate, w, rstd, EPS, 1.0, shape[-1:])[0]
    assert torch.equal(dx, gated_rmsnorm_bwd(dy, x, gate, whole, rstd, EPS)[0])


def test_gated_rmsnorm_without_a_weight_or_rows(norms, device):
    x, gate, dy = drawn(norms, device, (4, 96), "contiguous", (F32, F32), "data", "data")
    y, rstd = gated_rmsnorm_fwd(x, gate, None, EPS)
    x64, gate64 = doubles(x, gate)
    want = x64 * rms(x64) * functional.silu(gate64)
    agree(norms, [y], [want])
    *got, dw = gated_rmsnorm_bwd(dy, x, gate, None, rstd, EPS)
    assert dw is None
    agree(norms, got, torch.autograd.grad(want, (x64, gate64), dy.double()))
    none, w = x[:0], torch.ones(96, device=device)
    dx, dgate, dw = gated_rmsnorm_bwd(none, none, none, w, rstd[:0], EPS)
    assert (dx.shape, dgate.shape, dw.abs().max()) == (none.shape, none.shape, 0)


@pytest.mark.parametrize(("shape", "layout", "types"), CASES)
def test_l2norm(norms, device, shape, layout, types):
    x, dy = drawn(norms, device, shape, layout, types, "data")
    y, rstd = l2norm_fwd(x, EPS)
    (x64,) = doubles(x)
    want = x64 * rms(x64, total=True)
    agree(norms, [y, rstd], [want, rms(x64, total=True).flatten()])
    agree(norms, [l2norm_bwd(dy, x, rstd, EPS)], torch.autograd.grad(want, x64, dy.double()))


@pytest.mark.parametrize(("shape", "layout", "types"), CASES)
def test_modulate_layernorm(norms, device, shape, layout, types):
    x, w, b = drawn(norms, device, shape, layout, types, "weight", "bias")
    scale, shift = (norms.draw((shape[0], shape[-1]), types[i], device, seed=20 + i) for i in (0, 1))
    y, mean, rstd = modulate_layernorm_fwd(x, w, b, scale, shift, EPS, shape[-1:])
    x64 = x.double()
    z = functional.layer_norm(x64, shape[-1:], w.double(), b.double(), EPS)
    line = (shape[0], *[1] * (len(shape) - 2), shape[-1])  # of a sample, for all its rows
    want = z * (1 + scale.double().reshape(line)) + shift.double().reshape(line)
    var = x64.var(-1, correction=0).flatten()
    agree(norms, [y, mean, rstd], [want, x64.mean(-1).flatten(), (var + EPS).rsqrt()], 64)
    assert modulate_layernorm_fwd(w, w, b, w, b, EPS)[0].shape == w.shape  # one row, of no sample
    of_tokens = (t.reshape(line).expand(shape) for t in (scale, shift))
    assert torch.equal(modulate_layernorm_fwd(x, w, b, *of_tokens, EPS, shape[-1:])[0], y)


@pytest.mark.parametrize(("shape", "layout", "types"), CASES)
def test_add_rmsnorm_quant(norms, device, shape, layout, types):
    x, residual, w = drawn(norms, device, shape, layout, types, "data", "weight")
    y, scale, h, rstd = add_rmsnorm_quant_fwd(x, residual, w, EPS)
    h64 = x.double() + residual.double()
    z = h64 * rms(h64) * w.double()
    amax = z.abs().amax(-1).flatten()
    agree(norms, [scale, h, rstd], [amax / 448, h64, rms(h64).flatten()])
    assert [t.dtype for t in (y, scale, h, rstd)] == [torch.float8_e4m3fn, F32, types[0], F32]
    want = z.flatten(0, -2) / scale.double()[:, None]
    nearest = 2.0 ** (want.abs().clamp_min(2.0**-6).log2().floor() - 3) / 2  # half an ulp of e4m3fn
    assert ((y.double().flatten(0, -2) - want).abs() <= nearest * (1 + 2.0**-18) + 448 * 2.0**-20).all()
    assert (y.float().abs().flatten(0, -2).amax(-1) == 448).all()


GROUPED = [  # a row that is shorter than a group, one whose last group is, and three chunks of 64 with groups of 64
    ((3, 40), "contiguous", (BF16, BF16)),
    ((2, 3, 100), "row_strided", (BF16, F32)),
    ((5, 192), "contiguous", (F16, F16)),
    ((2, 1160), "contiguous", (F32, F32)),
]


GROUPS = {64: add_rmsnorm_quant_group64_fwd, 128: add_rmsnorm_quant_group_fwd}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("shape", "layout", "types"), GROUPED)
def test_a_group_has_the_scale_of_a_row_of_its_own(norms, device, shape, layout, types, group):
    """Its z rounded to float32 is off by a few ulp, so y may be its other neighbour where z/scale is near a tie."""
    x, residual, w = drawn(norms, device, shape, layout, types, "data", "weight")
    y, scale, h, rstd = GROUPS[group](x, residual, w, EPS)
    _, _, *same = add_rmsnorm_quant_fwd(x, residual, w, EPS)
    assert all(torch.equal(a, b) for a, b in zip((h, rstd), same, strict=True))
    z = ((x.double() + residual.double()).flatten(0, -2) * rstd.double()[:, None] * w.double()).split(group, -1)
    assert scale.shape == (len(rstd), len(z))
    for k, (part, got) in enumerate(zip(z, y.double().flatten(0, -2).split(group, -1), strict=True)):
        norms.close("scale", scale[:, k], part.abs().amax(-1) / 448, 8 * 2.0**-24 * part.abs().amax() / 448)
        want = part / scale[:, k, None].double()
        half = 2.0 ** (want.abs().clamp_min(2.0**-6).log2().floor() - 3) / 2  # of an ulp of e4m3fn
        assert ((got - want).abs() <= half * (1 + 2.0**-18) + 448 * 2.0**-20).all()


def test_rows_quantized_alone_are_those_of_a_sum_with_zero(norms, device):
    for shape in ((6, 96), (3, 2048)):
        x, w = drawn(norms, device, shape, "contiguous", (BF16, BF16), "weight")
        y, scale, rstd = rmsnorm_quant_fwd(x, w, EPS)
        assert [t.dtype for t in (y, scale, rstd)] == [torch.float8_e4m3fn, F32, F32]
        z = x.double() * rms(x.double()) * w.double()
        agree(norms, [scale, rstd], [z.abs().amax(-1) / 448, rms(x.double()).flatten()])
        assert (y.float().abs().amax(-1) == 448).all()
        assert (y.double() * scale.double()[:, None] - z).abs().max() <= z.abs().max() * 2.0**-4


def test_rows_that_have_no_scale_or_a_tiny_one(device):
    """Zeros, what only a division by a subnormal scale keeps, and a NaN, which stays in its row."""
    x = torch.tensor([[0.0, 0.0], [3.0, -1.0], [torch.nan, 1.0], [2.0**-126, 0.0]], device=device)
    w = torch.tensor([2.0**-126, 2.0**-126], device=device)
    y, scale, _, rstd = add_rmsnorm_quant_fwd(x, torch.zeros_like(x), w, EPS)
    assert y[0].tolist() == y[3].tolist() == [0, 0]
    assert (scale[0], scale[3]) == (1, 1)
    assert 0 < scale[1] < 2.0**-126
    want = x[1].double() * rstd[1].double() * w.double() / scale[1].double()
    assert (y[1].double() - want).abs().max() <= 16
    assert y[2].isnan().all()
    assert scale[2].isnan()
    none = add_rmsnorm_quant_fwd(x[:0], x[:0], w, EPS)
    assert [t.shape for t in none] == [(0, 2), (0,), (0, 2), (0,)]
    none = (
        add_rmsnorm_quant_group_fwd(X[:0], X[:0], None, EPS),
        add_rmsnorm_quant_group_fwd(X[:, :0], X[:, :0], None, EPS),
    )
    assert [one[1].shape for one in none] == [(0, 1), (2, 0)]


def test_a_nan_and_zeros_stay_in_their_group(device):
    x = torch.cat([torch.ones(1, 128), torch.zeros(1, 128), torch.full((1, 64), 2.0)], 1).to(device)
    y, scale, _, _ = add_rmsnorm_quant_group_fwd(x, torch.zeros_like(x), None, EPS)
    assert [set(part.flatten().tolist()) for part in y.float().split(128, 1)] == [{448}, {0}, {448}]
    assert scale[0, 1] == 1
    w = torch.ones(320, device=device)
    w[200] = torch.nan
    y, scale, _, _ = add_rmsnorm_quant_group_fwd(x, torch.zeros_like(x), w, EPS)
    assert scale.isnan().tolist() == [[False, True, False]]
    assert [part.float().isnan().any().item() for part in y.split(128, 1)] == [False, True, False]


def test_a_row_never_sees_the_others(norms, device):
    x, other, w = drawn(norms, device, (6, 96), "contiguous", (BF16, BF16), "data", "weight")
    for call in (
        lambda x, r: gated_rmsnorm_fwd(x, r, w, EPS),
        lambda x, r: l2norm_fwd(x, EPS),
        lambda x, r: modulate_layernorm_fwd(x, w, None, r, r, EPS),
        lambda x, r: add_rmsnorm_quant_fwd(x, r, w, EPS),
        lambda x, r: add_rmsnorm_quant_group64_fwd(x, r, w, EPS),
        lambda x, r: rmsnorm_quant_fwd(x, w, EPS),
    ):
        whole, alone = call(x, other), call(x[2:3], other[2:3])
        assert all(torch.equal(a.float(), b[2:3].float()) for a, b in zip(alone, whole, strict=True))


X, W = torch.zeros(2, 4), torch.ones(4)
LONG = torch.zeros(1, 40000)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gated_rmsnorm_fwd(X, X[:1], W, EPS), ValueError, "gate must have shape"),
        (lambda: gated_rmsnorm_fwd(X, X.half(), W, EPS), TypeError, "gate must be torch.float32 like x"),
        (lambda: gated_rmsnorm_bwd(X, X, X, W, W[:1], EPS), ValueError, "rstd must have 2 elements"),
        (lambda: gated_rmsnorm_bwd(LONG, LONG, LONG, None, W[:1], EPS), ValueError, "at most 16384"),
        (lambda: l2norm_fwd(LONG, EPS), ValueError, "at most 32768"),
        (lambda: l2norm_bwd(LONG, LONG, W[:1], EPS), ValueError, "at most 16384"),
        (lambda: l2norm_fwd(X.double(), EPS), TypeError, "float64"),
        (lambda: modulate_layernorm_fwd(X, W, None, W, W, EPS), ValueError, "scale must have shape"),
        (lambda: modulate_layernorm_fwd(W, W, None, X, X, EPS), ValueError, "scale must have shape"),
        (lambda: modulate_layernorm_fwd(X, W, None, X, X.half(), EPS), TypeError, "shift must be torch.float32"),
        (lambda: add_rmsnorm_quant_fwd(X, X[0], W, EPS), ValueError, "residual must have shape"),
        (lambda: add_rmsnorm_quant_group_fwd(X, X[0], W, EPS), ValueError, "residual must have shape"),
        (lambda: rmsnorm_quant_fwd(LONG, None, EPS), ValueError, "at most 32768"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
