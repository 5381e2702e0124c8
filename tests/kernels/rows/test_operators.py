"""The row normalizations under torch.compile: one operator in the graph for each direction, and the same bits."""

import pytest
import torch

from verify_norm.kernels import add_layernorm, add_rmsnorm, layernorm, modulate_layernorm, quantized, rmsnorm
from verify_norm.kernels.rows import operators

# Dynamo makes an instance of an autograd function, of which torch itself warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
EPS = 1e-5
NAMES = {"verify_norm.row_norm_forward.default", "verify_norm.row_norm_backward.default"}


def functions(norms, device):
    """name -> (a function of tensors alone, which of x, residual, weight and bias it takes)"""
    x, r = (norms.draw((3, 4, 20), torch.float32, device, seed=s, mean=1.0) for s in (1, 2))
    w, b = (norms.draw((20,), torch.float32, device, seed=s) for s in (3, 4))
    return {
        "layernorm": (lambda *t: layernorm.LayerNormFunction.apply(*t, EPS, None), (x, w, b)),
        "rmsnorm": (lambda *t: rmsnorm.RMSNormFunction.apply(*t, EPS, 1.0, None), (x, w)),
        "add_layernorm": (lambda *t: add_layernorm.AddLayerNormFunction.apply(*t, EPS, None), (x, r, w, b)),
        "add_rmsnorm": (lambda *t: add_rmsnorm.AddRMSNormFunction.apply(*t, EPS, 0.0, None), (x, r, w)),
    }


def results(function, leaves):
    leaves = [t.clone().requires_grad_() for t in leaves]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = torch.autograd.grad(sum(y.square().sum() for y in outputs), leaves)
    return [*outputs, *grads]


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"])
def test_whole_in_the_graph_and_the_same_bits(norms, device, compiled, name):
    compiler, names = compiled
    function, leaves = functions(norms, device)[name]
    got = results(compiler(function), leaves)
    for a, b in zip(got, results(function, leaves), strict=True):
        assert torch.equal(a, b)
    assert set(names) >= NAMES
    assert not any("triton" in n for n in names)


def test_the_functions_without_gradients_and_the_modules(norms, device, compiled):
    compiler, names = compiled
    module = layernorm.LayerNorm(20, device=device)
    x = norms.draw((5, 20), torch.bfloat16, device, seed=5)
    assert torch.equal(compiler(module)(x), module(x))
    outputs = compiler(lambda x: layernorm.layernorm_fwd(x, None, None, EPS))(x)
    assert all(torch.equal(a, b) for a, b in zip(outputs, layernorm.layernorm_fwd(x, None, None, EPS), strict=True))
    assert names.count("verify_norm.row_norm_forward.default") == 2


@pytest.mark.slow
def test_another_number_of_rows_is_not_compiled_anew(norms, device, compiled):
    compiler, names = compiled
    function = compiler(lambda x: rmsnorm.rmsnorm_fwd(x, None, EPS), dynamic=True)
    differentiable = compiler(lambda x: rmsnorm.RMSNormFunction.apply(x, None, EPS, 0.0, None), dynamic=True)
    for rows in (4, 5, 9):
        x = norms.draw((rows, 20), torch.float32, device, seed=rows)
        assert all(torch.equal(a, b) for a, b in zip(function(x), rmsnorm.rmsnorm_fwd(x, None, EPS), strict=True))
        eager = results(lambda x: rmsnorm.RMSNormFunction.apply(x, None, EPS, 0.0, None), [x])
        assert all(torch.equal(a, b) for a, b in zip(results(differentiable, [x]), eager, strict=True))
    assert names.count("verify_norm.row_norm_forward.default") == 2
    assert names.count("verify_norm.row_norm_backward.default") == 1


def test_operators_keep_the_rules_of_torch(norms, device):
    x, r, dy = (norms.draw((3, 20), torch.bfloat16, device, seed=s) for s in (1, 2, 3))
    x = x.t().contiguous().t()  # what comes out is contiguous nevertheless
    w = norms.draw((20,), torch.float32, device, seed=4)
    torch.library.opcheck(operators._forward, (x, r, w, None, EPS, 1.0, [20], False))
    torch.library.opcheck(operators._forward, (x, None, None, w, EPS, 0.0, [20], True))
    one = torch.ones(3, device=device)
    torch.library.opcheck(operators._backward, (dy, r, x, w, None, one, 0.0, [3, 20, 1], True, w, None))
    torch.library.opcheck(operators._backward, (dy, None, x, w, one, one, 0.0, [3, 20, 1], False, w, w))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"])
def test_gradients_of_gradients_are_refused(norms, device, name):
    function, leaves = functions(norms, device)[name]
    leaves = [t.clone().requires_grad_() for t in leaves]
    outputs = function(*leaves)
    y = outputs[0] if isinstance(outputs, tuple) else outputs
    dx = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_an_offset_is_added_to_the_weight_of_a_layernorm(norms, device):
    """The sum is that of float32: the bits are those of a weight that holds it."""
    x, dy, r = (norms.draw((3, 4, 20), torch.float32, device, seed=s, mean=1.0) for s in (1, 2, 3))
    w, b, t = (norms.draw(shape, torch.float32, device, seed=s) for s, shape in enumerate(((20,), (20,), (3, 20)), 4))
    mean, rstd = layernorm.layernorm_fwd(x, w, b, EPS)[1:]
    scale = torch.ones(1, device=device)
    calls = {
        "forward": lambda w, *o: layernorm.layernorm_fwd(x, w, b, EPS, None, *o),
        "backward": lambda w, *o: layernorm.layernorm_bwd(dy, x, w, b, mean, rstd, EPS, None, *o),
        "sum": lambda w, *o: add_layernorm.add_layernorm_fwd(x, r, w, b, EPS, None, *o),
        "of a sum": lambda w, *o: add_layernorm.add_layernorm_bwd(dy, r, x, w, b, mean, rstd, EPS, None, *o),
        "modulated": lambda w, *o: modulate_layernorm.modulate_layernorm_fwd(x, w, b, t, t, EPS, None, *o),
        "e4m3fn": lambda w, *o: quantized.layernorm_fwd_e4m3fn(x, w, b, scale, EPS, None, *o),
        "e5m2": lambda w, *o: quantized.layernorm_fwd_e5m2(x, w, b, scale, EPS, None, *o),
    }
    for name, call in calls.items():
        found, wanted = call(w, 0.5), call(w + 0.5)
        assert all(torch.equal(a.float(), c.float()) for a, c in zip(found, wanted, strict=True)), name
        assert not torch.equal(found[0].float(), call(w)[0].float()), name
