"""The autograd functions and the modules that stand in for torch's."""

import inspect
import itertools

import pytest
import torch
from torch.autograd import forward_ad

from verify_norm.kernels import groupnorm, layernorm, rmsnorm

F32, BF16 = torch.float32, torch.bfloat16
MODULES = {
    "LayerNorm": (
        layernorm.LayerNorm,
        torch.nn.LayerNorm,
        [((5,), {}), (([3, 5],), {"eps": 0.1, "bias": False}), ((5,), {"elementwise_affine": False})],
    ),
    "RMSNorm": (
        rmsnorm.RMSNorm,
        torch.nn.RMSNorm,
        [((5,), {}), (([3, 5],), {"eps": 0.1}), ((5,), {"elementwise_affine": False})],
    ),
    "GroupNorm": (
        groupnorm.GroupNorm,
        torch.nn.GroupNorm,
        [((2, 4), {}), ((4, 4), {"eps": 0.1}), ((1, 4), {"affine": False})],
    ),
}
CASES = [(name, *case) for name, (_, _, cases) in MODULES.items() for case in cases]


@pytest.mark.parametrize(("name", "arguments", "options"), CASES)
def test_drop_in(norms, device, name, arguments, options):
    ours, theirs, _ = MODULES[name]
    reference = theirs(*arguments, **options, device=device, dtype=torch.float64)
    for i, p in enumerate(reference.parameters()):
        p.data.copy_(norms.draw(p.shape, F32, device, seed=i))
    module = ours(*arguments, **options, device=device)
    module.load_state_dict(reference.state_dict())
    assert repr(module) == repr(reference)
    assert {k: v.shape for k, v in module.state_dict().items()} == {
        k: v.shape for k, v in reference.state_dict().items()
    }

    x = norms.draw((2, 4, 3, 5), F32, device, seed=8, mean=2.0).requires_grad_()
    dy = norms.draw((2, 4, 3, 5), F32, device, seed=9)
    x64 = x.detach().double().requires_grad_()
    y, y64 = module(x), reference(x64)
    got = torch.autograd.grad(y, [x, *module.parameters()], dy)
    want = torch.autograd.grad(y64, [x64, *reference.parameters()], dy.double())
    eps = torch.finfo(F32).eps
    for a, b in zip((y, *got), (y64, *want), strict=True):
        # at most 60 terms a sum, each with its few roundings, of the size of the largest
        norms.close(name, a.detach(), b.detach(), 60 * eps * b.detach().abs().max())

    module.reset_parameters()
    fresh = ours(*arguments, **options, device=device)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize(("name", "arguments", "options"), CASES)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_autograd_is_told_nothing_where_it_records_nothing(norms, device, monkeypatch, name, arguments, options, off):
    module = MODULES[name][0](*arguments, **options, device=device)
    x = norms.draw((2, 4, 3, 5), F32, device, seed=8, mean=2.0)
    want, function = module(x), getattr(inspect.getmodule(MODULES[name][0]), f"{name}Function")
    monkeypatch.setattr(function, "forward", lambda *_: pytest.fail("autograd was asked"))
    with off():
        assert torch.equal(module(x), want.detach())
        with pytest.raises(ValueError, match="x "):  # as checked as elsewhere
            module(x[..., :2, :2].flatten())
    with pytest.raises(pytest.fail.Exception):
        module(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # which torch itself uses
@pytest.mark.parametrize("name", MODULES)
def test_no_tangent_is_dropped_in_silence(norms, device, name):
    ours, _, ((arguments, options), *_) = MODULES[name]
    module = ours(*arguments, **options, device=device)
    x = norms.draw((2, 4, 3, 5), F32, device, seed=8)
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        module(forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rmsnorm_default_eps_is_that_of_float32(norms, device, dtype):
    x = torch.full((1, 4), 2.0**-11, dtype=dtype, device=device)  # x² is of the size of float32's eps
    y = rmsnorm.RMSNorm(4, device=device, dtype=dtype)(x)
    want = 2.0**-11 / (2.0**-22 + torch.finfo(F32).eps) ** 0.5
    norms.close("y", y.detach(), torch.full_like(x, want, dtype=torch.float64), 8 * 2.0**-24)
    torch_y = torch.nn.RMSNorm(4, device=device, dtype=F32)(x.float())
    norms.close("torch", torch_y.detach(), torch.full_like(x, want, dtype=torch.float64), 8 * 2.0**-24)


def alike(norms, got, want):
    """Equal up to float32's rounding: variants of a kernel, one for each layout, may contract different products."""
    for a, b in zip(got, want, strict=True):
        norms.close("gradient", a, b.double(), 60 * torch.finfo(F32).eps * b.double().abs().max())  # as above


def calls(device, norms):
    """name -> (the function of its leaves alone, leaves)"""
    x = norms.draw((3, 4, 5), F32, device, seed=1)
    w5, b5 = (norms.draw((5,), F32, device, seed=s) for s in (2, 3))
    w4, b4 = (norms.draw((4,), F32, device, seed=s) for s in (2, 3))
    return {
        "layernorm": (lambda x, w, b: layernorm.LayerNormFunction.apply(x, w, b, 1e-5, None), (x, w5, b5)),
        "rmsnorm": (lambda x, w: rmsnorm.RMSNormFunction.apply(x, w, 1e-5, 1.0, None), (x, w5)),
        "groupnorm": (lambda x, w, b: groupnorm.GroupNormFunction.apply(x, w, b, 2, 1e-5), (x, w4, b4)),
    }


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "groupnorm"])
def test_only_the_gradients_asked_for(norms, device, name):
    function, leaves = calls(device, norms)[name]
    full = [t.clone().requires_grad_() for t in leaves]
    dy = norms.draw((3, 4, 5), F32, device, seed=5)
    whole = torch.autograd.grad(function(*full), full, dy)
    for flags in itertools.product([False, True], repeat=len(leaves)):
        if not any(flags):
            continue
        some = [t.clone().requires_grad_(f) for t, f in zip(leaves, flags, strict=True)]
        function(*some).backward(dy)
        assert [t.grad is not None for t in some] == list(flags)
        alike(norms, [t.grad for t in some if t.grad is not None], itertools.compress(whole, flags))


@pytest.mark.parametrize("shape", [(3, 16), (1, 8), (2, 16400), (2, 33000)])
def test_mean_and_rstd_in_one_tensor_are_those_of_two(norms, device, shape):
    """Of rows that registers hold in both directions, in the forward alone, and in none."""
    x, dy = (norms.draw(shape, F32, device, seed=s, mean=2.0) for s in (1, 2))
    w, b = (norms.draw(shape[-1:], F32, device, seed=s) for s in (3, 4))
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = layernorm.LayerNormFunction.apply(*leaves, 1e-5, None)
    got = torch.autograd.grad(y, leaves, dy)
    want, mean, rstd = layernorm.layernorm_fwd(x, w, b, 1e-5)
    alike(norms, (y.detach(), *got), (want, *layernorm.layernorm_bwd(dy, x, w, b, mean, rstd, 1e-5)))
    module = layernorm.LayerNorm(shape[-1], device=device)
    with torch.no_grad():
        assert torch.equal(module(x), layernorm.layernorm_fwd(x, module.weight, module.bias, 1e-5)[0])


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "groupnorm"])
def test_gradients_that_are_views(norms, device, name):
    function, leaves = calls(device, norms)[name]
    full = [t.clone().requires_grad_() for t in leaves]
    wide = norms.draw((5, 4, 3), F32, device, seed=6)
    for dy in (wide.permute(2, 1, 0), torch.ones((), device=device).expand(3, 4, 5)):
        got = torch.autograd.grad(function(*full), full, dy)
        want = torch.autograd.grad(function(*full), full, dy.contiguous())
        alike(norms, got, want)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "groupnorm"])
def test_differentiable_once(norms, device, name):
    function, leaves = calls(device, norms)[name]
    full = [t.clone().requires_grad_() for t in leaves]
    (dx,) = torch.autograd.grad(function(*full).square().sum(), full[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
