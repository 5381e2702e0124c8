"""GroupNorm under torch.compile: one operator in the graph for each direction, and the same bits."""

import pytest
import torch

from verify_norm.kernels import groupnorm
from verify_norm.kernels.groups import operators

# Dynamo makes an instance of an autograd function, of which torch itself warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
NAMES = {"verify_norm.group_norm_forward.default", "verify_norm.group_norm_backward.default"}


@pytest.mark.slow
@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_whole_in_the_graph_and_the_same_bits(norms, device, compiled, activation, layout):
    compiler, names = compiled
    x = norms.draw((2, 6, 5, 4), torch.float32, device, seed=1, mean=1.0, layout=layout)
    w, b = (norms.draw((6,), torch.float32, device, seed=s) for s in (2, 3))

    def call(x, w, b):
        return groupnorm.GroupNormFunction.apply(x, w, b, 3, 1e-5, activation)

    def results(function):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = function(*leaves)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    for got, want in zip(results(compiler(call)), results(call), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert set(names) >= NAMES
    assert not any("triton" in name for name in names)


def test_the_module_and_the_functions_without_gradients(norms, device, compiled):
    compiler, _ = compiled
    module = groupnorm.GroupNorm(2, 4, device=device, activation="silu")
    x = norms.draw((3, 4, 7), torch.bfloat16, device, seed=5)
    assert torch.equal(compiler(module)(x), module(x))
    outputs = compiler(lambda x: groupnorm.groupnorm_fwd(x, None, None, 2, 1e-5))(x)
    assert all(torch.equal(a, b) for a, b in zip(outputs, groupnorm.groupnorm_fwd(x, None, None, 2, 1e-5), strict=True))


def test_operators_keep_the_rules_of_torch(norms, device):
    x, dy = (norms.draw((2, 4, 9), torch.bfloat16, device, seed=s) for s in (1, 2))
    w = norms.draw((4,), torch.float32, device, seed=4)
    torch.library.opcheck(operators._forward, (x, w, None, 2, 1e-5, "silu"))
    _, mean, rstd = operators.forward(x, w, None, 2, 1e-5, None)
    torch.library.opcheck(operators._backward, (dy, x, w, None, mean, rstd, 2, None, [True, True, False]))
    torch.library.opcheck(operators._backward, (dy, x, w, w, mean, rstd, 2, "gelu", [False, True, True]))
