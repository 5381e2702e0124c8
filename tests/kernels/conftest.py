"""What the kernel tests share: layouts, poisoned memory, and a bound on the error in units of roundoff."""

import math
from types import SimpleNamespace

import pytest
import torch

U = 2.0**-24  # unit roundoff of float32, in which all kernels compute


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty holds NaN, so that whatever a kernel forgets to write shows."""
    state = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(state[0])
    torch.utils.deterministic.fill_uninitialized_memory = state[1]


def lay(t, layout):
    """The same values in another place: every gap of the storage holds NaN."""
    if layout == "contiguous" or t.dim() == 0:
        return t.contiguous()
    if layout == "channels_last":
        return t.contiguous(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[t.dim()])
    if layout == "transposed":
        order = list(range(t.dim()))[::-1]
        return t.permute(order).contiguous().permute(order)
    if layout == "offset":
        home = t.new_full((t.numel() + 3,), math.nan)[3:].view(t.shape)
    elif layout == "every_other":
        home = t.new_full((*t.shape[:-1], 2 * t.shape[-1]), math.nan)[..., ::2]
    elif layout == "row_strided":
        home = t.new_full((*t.shape[:-1], t.shape[-1] + 5), math.nan)[..., : t.shape[-1]]
    else:
        raise ValueError(layout)
    return home.copy_(t)


def draw(shape, dtype, device, *, seed=0, mean=0.0, layout="contiguous"):
    generator = torch.Generator().manual_seed(seed)
    t = (torch.randn(shape, generator=generator) + mean).to(dtype)
    if layout == "expanded":
        return t.flatten()[:1].clone().to(device).reshape([1] * len(shape)).expand(shape) if t.numel() else t.to(device)
    return lay(t.to(device), layout)


def height(n):
    """Roundings that a blocked sum of n terms puts on any one of them, and a few for the terms themselves."""
    return math.log2(max(n, 1)) + n / 1024 + 8


def bounds(x, dy, w, b, eps, terms, *, centered, merged=False):
    """First-order error bounds of a float32 norm over the rows of float64 x; w and b broadcast against x.

    y and dx: per element. dweight and dbias: (per element, to be summed as dweight is; factor of the sum's own error).
    Each line is the derivative of the line it bounds, with magnitudes for values and U for every rounding. Where
    running means are merged (Welford), their differences carry the means' own rounding into the variance.
    """
    n = x.shape[1]
    h = height(n) * U
    mu = x.mean(1, keepdim=True) if centered else torch.zeros_like(x[:, :1])
    xc = x - mu
    var = xc.square().mean(1, keepdim=True)
    r = 1 / (var + eps).sqrt()
    xh = xc * r
    d_mu = h * x.abs().mean(1, keepdim=True) if centered else 0 * mu
    d_r = (d_mu.square() + h * var) / (var + eps) / 2 + 4 * U
    if merged:
        d_r = d_r + h * x.abs().mean(1, keepdim=True) * var.sqrt() / (var + eps)
    d_xh = r * (d_mu + U * xc.abs()) + xh.abs() * (d_r + 2 * U)
    g = w * dy
    d_g = 2 * U * g.abs()
    c1 = (g * xh).mean(1, keepdim=True)
    c2 = g.mean(1, keepdim=True) if centered else 0 * mu
    d_c1 = (g.abs() * d_xh + d_g * xh.abs() + h * (g * xh).abs()).mean(1, keepdim=True)
    d_c2 = (d_g + h * g.abs()).mean(1, keepdim=True) if centered else 0 * mu
    inner = d_g + d_c2 + xh.abs() * d_c1 + d_xh * (c1.abs() + d_c1) + 4 * U * (g.abs() + c2.abs() + (xh * c1).abs())
    dx = r * (g - c2 - xh * c1)
    s = height(terms) * U
    return SimpleNamespace(
        y=w.abs() * d_xh + 3 * U * ((w * xh).abs() + b.abs()),
        dx=r * inner + dx.abs() * (d_r + 2 * U),
        dweight=dy.abs() * d_xh + s * (dy * xh).abs(),
        dbias=s * dy.abs(),
        mean=d_mu[:, 0],
        rstd=(r * (d_r + 2 * U))[:, 0],
    )


def close(name, got, want, bound):
    """|got − want| within the bound and half an ulp of got's own type (half its eps times |want|, or a subnormal)."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    info = torch.finfo(got.dtype)
    allowed = bound + info.eps / 2 * (want.abs() + bound) + info.smallest_normal * info.eps
    error = (got.double() - want).abs()
    bad = ~(error <= allowed)
    assert not bad.any(), (
        f"{name}: {int(bad.sum())} of {bad.numel()} wrong, worst {float((error / allowed).max()):.3g}x"
    )


@pytest.fixture(scope="session")
def norms():
    return SimpleNamespace(lay=lay, draw=draw, bounds=bounds, close=close)


@pytest.fixture
def compiled():
    """A compiler that keeps what it compiles: the names of all operators of all graphs, forward and backward."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    names = []

    def keep(module, inputs):
        names.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module)

    def compiler(function, **options):
        return torch.compile(function, backend=aot_autograd(fw_compiler=keep), fullgraph=True, **options)

    torch._dynamo.reset()
    yield compiler, names
    torch._dynamo.reset()
