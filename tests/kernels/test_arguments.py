"""What a caller may hand over and a kernel may miss: signs that are a flag, sizes of NumPy, rows that are too long."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from verify_norm.kernels import (
    add_layernorm,
    add_rmsnorm,
    add_rmsnorm_quant,
    batchnorm,
    gated_rmsnorm,
    groupnorm,
    instancenorm,
    l2norm,
    layernorm,
    modulate_layernorm,
    qk_norm_rope,
    quantized,
    rmsnorm,
)
from verify_norm.kernels.variants import groupnorm_welford, layernorm_locked

EPS = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def negated(t):
    """The same values behind torch's negative bit: what z.conj().imag is."""
    flagged = torch._neg_view(-t)
    assert flagged.is_neg()
    return flagged


CALLS = {  # each of tensors alone, the first ones (6, 40)
    "layernorm_fwd": lambda x, dy, r, w, b, m, s: layernorm.layernorm_fwd(x, w, b, EPS),
    "layernorm_bwd": lambda x, dy, r, w, b, m, s: layernorm.layernorm_bwd(dy, x, w, b, m, s, EPS),
    "layernorm_bwd_locked": lambda x, dy, r, w, b, m, s: layernorm_locked.layernorm_bwd_locked(dy, x, w, b, m, s, EPS),
    "rmsnorm_fwd": lambda x, dy, r, w, b, m, s: rmsnorm.rmsnorm_fwd(x, w, EPS, 1.0),
    "rmsnorm_bwd": lambda x, dy, r, w, b, m, s: rmsnorm.rmsnorm_bwd(dy, x, w, s, EPS, 1.0),
    "add_layernorm_fwd": lambda x, dy, r, w, b, m, s: add_layernorm.add_layernorm_fwd(x, r, w, b, EPS),
    "add_rmsnorm_bwd": lambda x, dy, r, w, b, m, s: add_rmsnorm.add_rmsnorm_bwd(dy, r, x, w, s, EPS),
    "layernorm_fwd_e4m3fn": lambda x, dy, r, w, b, m, s: quantized.layernorm_fwd_e4m3fn(x, w, b, s[:1], EPS),
    "groupnorm_silu_fwd": lambda x, dy, r, w, b, m, s: groupnorm.groupnorm_silu_fwd(x, w, b, 1, EPS),
    "groupnorm_bwd": lambda x, dy, r, w, b, m, s: groupnorm.groupnorm_bwd(dy, x, w, b, m, s, 1, EPS),
    "batchnorm_fwd": lambda x, dy, r, w, b, m, s: batchnorm.batchnorm_fwd(x, w, b, w, b.square(), False, 0.1, EPS),
    "batchnorm_bwd": lambda x, dy, r, w, b, m, s: batchnorm.batchnorm_bwd(dy, x, w, b, w, b, None, None, True, EPS),
    "instancenorm_bwd": lambda x, dy, r, w, b, m, s: instancenorm.instancenorm_bwd(dy, x, w, b, r, dy, EPS),
    "gated_rmsnorm_fwd": lambda x, dy, r, w, b, m, s: gated_rmsnorm.gated_rmsnorm_fwd(x, r, w, EPS, 1.0),
    "gated_rmsnorm_bwd": lambda x, dy, r, w, b, m, s: gated_rmsnorm.gated_rmsnorm_bwd(dy, x, r, w, s, EPS),
    "l2norm_bwd": lambda x, dy, r, w, b, m, s: [l2norm.l2norm_bwd(dy, x, s, EPS)],
    "qk_norm_rope_fwd": lambda x, dy, r, w, b, m, s: qk_norm_rope.qk_norm_rope_fwd(x, w, r[:, :20], dy[:, :20], EPS),
    "qk_norm_rope_bwd": lambda x, dy, r, w, b, m, s: qk_norm_rope.qk_norm_rope_bwd(
        dy, x, w, r[:, :20], r[:, 20:], s, EPS
    ),
    "modulate_layernorm_fwd": lambda x, dy, r, w, b, m, s: modulate_layernorm.modulate_layernorm_fwd(
        x, w, b, r, dy, EPS
    ),
    "add_rmsnorm_quant_fwd": lambda x, dy, r, w, b, m, s: add_rmsnorm_quant.add_rmsnorm_quant_fwd(x, r, w, EPS),
    "add_rmsnorm_quant_group_fwd": lambda x, dy, r, w, b, m, s: add_rmsnorm_quant.add_rmsnorm_quant_group_fwd(
        x, r, w, EPS
    ),
    "groupnorm_fwd_welford": lambda x, dy, r, w, b, m, s: groupnorm_welford.groupnorm_fwd_welford(x, w, b, 1, EPS),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_negative_bit_is_a_sign(norms, device, name):
    data = [norms.draw((6, 40), torch.float32, device, seed=seed) for seed in range(3)]
    affine = [norms.draw((40,), torch.float32, device, seed=seed) for seed in (3, 4)]
    statistics = [
        norms.draw((6,), torch.float32, device, seed=5),
        norms.draw((6,), torch.float32, device, seed=6).abs(),
    ]
    plain = [*data, *affine, *statistics]
    want = CALLS[name](*plain)
    for got in (CALLS[name](*map(negated, plain)), CALLS[name](negated(plain[0]), *plain[1:])):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a.float(), b.float())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: layernorm.layernorm_fwd(x, None, None, EPS),
        lambda x: rmsnorm.rmsnorm_fwd(x, None, EPS),
        lambda x: groupnorm.groupnorm_fwd(x[:, None], None, None, 1, EPS),
    ],
)
def test_rows_that_32_bits_do_not_count_are_refused(device, call):
    x = torch.ones(1, device=device, dtype=torch.float16).expand(1, 2**31)
    with pytest.raises(ValueError, match="a row of 2147483648 elements is too long"):
        call(x)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: layernorm.LayerNormFunction.apply(x, None, None, EPS, None),
        lambda x: rmsnorm.RMSNormFunction.apply(x, None, EPS, 0.0, None),
        lambda x: groupnorm.GroupNormFunction.apply(x, None, None, 2, EPS),
    ],
)
def test_gradients_are_not_differentiated_in_silence(norms, device, norm):
    """Of a frozen head too, whose gradient depends on nothing."""
    x = norms.draw((4, 16), torch.float32, device, seed=1).requires_grad_()
    head = norms.draw((16,), torch.float32, device, seed=2)
    (gradient,) = torch.autograd.grad((norm(x) @ head).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.square().sum().backward()


def test_a_mean_that_is_missing_makes_no_rmsnorm(device):
    x, rstd = torch.ones(2, 8, device=device), torch.ones(2, device=device)
    with pytest.raises(TypeError, match="without one, the gradient would be RMSNorm"):
        layernorm.layernorm_bwd(x, x, None, None, None, rstd, EPS)
    with pytest.raises(TypeError, match="not NoneType"):
        add_layernorm.add_layernorm_fwd(x, None, None, None, EPS)


def test_sizes_of_numpy_are_sizes(norms, device):
    x = norms.draw((4, 24), torch.float32, device, seed=3)
    want = functional.layer_norm(x, (24,))
    for size in (np.int64(24), 24, (np.int32(24),), [24]):
        module = layernorm.LayerNorm(size, device=device)
        assert torch.allclose(module(x), want, atol=1e-5)
        assert torch.equal(layernorm.layernorm_fwd(x, None, None, EPS, size)[0], module(x))
    for wrong in ((24.0,), 24.0, [[24]], "24"):
        with pytest.raises(TypeError, match="normalized_shape must be an integer or a tuple of them, not"):
            layernorm.layernorm_fwd(x, None, None, EPS, wrong)
    assert torch.equal(layernorm.layernorm_fwd(x, None, None, EPS, (24,))[0], module(x))
    groups = groupnorm.GroupNorm(np.int64(4), 24, device=device)
    assert torch.allclose(groups(x), functional.group_norm(x, 4), atol=1e-5)


def test_nothing_to_normalize_is_no_error(device):
    x = torch.empty(4, 0, device=device)
    y, mean, rstd = layernorm.layernorm_fwd(x, None, None, EPS)
    assert (y.shape, mean.isnan().all(), rstd.isnan().all()) == ((4, 0), True, True)
    assert layernorm.layernorm_bwd(x, x, x[0], x[0], mean, rstd, EPS)[1].shape == (0,)
    assert rmsnorm.rmsnorm_fwd(x, None, EPS)[0].shape == (4, 0)
    assert quantized.rmsnorm_fwd_e5m2(x, None, torch.ones(1, device=device), EPS)[1].tolist() == [0.0]
    empty = torch.empty(2, 0, 5, device=device)
    y, mean, rstd = groupnorm.groupnorm_fwd(empty, None, None, 1, EPS)
    assert (y.shape, mean.shape) == ((2, 0, 5), (2, 1))
    assert groupnorm.groupnorm_bwd(empty, empty, None, None, mean, rstd, 1, EPS)[0].shape == (2, 0, 5)


def test_8_bits_are_no_end_of_a_graph(device):
    x, scale = torch.ones(2, 8, device=device, requires_grad=True), torch.ones(1, device=device)
    with pytest.raises(ValueError, match="has no gradient here"):
        quantized.rmsnorm_fwd_e4m3fn(x, None, scale, EPS)
    with torch.no_grad():
        quantized.rmsnorm_fwd_e4m3fn(x, None, scale, EPS)
    quantized.rmsnorm_fwd_e4m3fn(x.detach(), torch.ones(8, device=device, requires_grad=True), scale, EPS)


@pytest.mark.slow
def test_compiled_functions_have_no_gradient_either(norms, device):
    x, w = norms.draw((4, 8), torch.float32, device, seed=1), torch.nn.Parameter(torch.ones(8, device=device))
    for call in (
        lambda x, w: layernorm.layernorm_fwd(x, w, w, EPS)[0],
        lambda x, w: groupnorm.groupnorm_fwd(x, w, None, 2, EPS)[0],
        lambda x, w: quantized.rmsnorm_fwd_e4m3fn(x, w, torch.ones(1, device=x.device), EPS)[0].float(),
    ):
        torch._dynamo.reset()
        got, want = torch.compile(call, backend="aot_eager", fullgraph=True)(x, w), call(x, w)
        assert torch.equal(got, want)
        assert not got.requires_grad
        assert not want.requires_grad


def test_strides_that_a_compiler_is_told(norms, device):
    """An expanded axis beside one of a single element, whose stride means nothing."""
    x = norms.draw((60,), torch.float32, device, seed=1).as_strided((2, 4, 5, 1), (20, 5, 0, 16))
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: groupnorm.groupnorm_fwd(t, None, None, 2, EPS)[0] * 2, backend="aot_eager")
    assert torch.equal(compiled(x), groupnorm.groupnorm_fwd(x, None, None, 2, EPS)[0] * 2)
    from verify_norm.kernels.groups import operators

    for shape, stride in (
        ((2, 4, 5, 1), (20, 5, 0, 16)),
        ((2, 4, 3, 5), (60, 1, 20, 4)),
        ((1, 4, 1, 6), (7, 6, 99, 1)),
    ):
        t = norms.draw((200,), torch.float32, device, seed=1).as_strided(shape, stride)
        assert operators.like(t).stride() == groupnorm.groupnorm_fwd(t, None, None, 2, EPS)[0].stride()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: quantized.rmsnorm_fwd_e4m3fn(x, None, 2.0, EPS), TypeError, "scale must be a torch.Tensor of one"),
        (lambda x: quantized.rmsnorm_fwd_e4m3fn([1.0], None, x, EPS), TypeError, "x must be a torch.Tensor, not list"),
        (lambda x: add_layernorm.add_layernorm_fwd([1.0], x, None, None, EPS), TypeError, "x must be a torch.Tensor"),
        (lambda x: layernorm.layernorm_fwd(x, [1.0], None, EPS), TypeError, "weight must be a torch.Tensor or None"),
        (lambda x: rmsnorm.rmsnorm_bwd(None, x, None, x[:, 0], EPS), TypeError, "dy must be a torch.Tensor"),
        (
            lambda x: groupnorm.groupnorm_fwd(x, None, None, 4.0, EPS),
            TypeError,
            "num_groups must be an integer, not 4.0",
        ),
        (lambda x: groupnorm.GroupNorm(4, 8, activation="relu"), ValueError, "activation must be None or one of silu"),
    ],
)
def test_a_callers_mistake_is_told(device, call, error, words):
    with pytest.raises(error, match=words):
        call(torch.ones(2, 8, device=device))
