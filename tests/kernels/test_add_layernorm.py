"""add_layernorm and add_rmsnorm against torch's float64 autograd of the same rounded inputs."""

import math

import pytest
import torch

from verify_norm.kernels import add_layernorm, add_rmsnorm

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
U = 2.0**-24
EPS = 1e-5
KINDS = ["layernorm", "rmsnorm"]
SHAPES = [
    (1,),
    (5, 1),
    (0, 5),
    (3, 64),
    (4, 65),
    (150, 65),
    (5, 96),  # a block and one more; more tiles than programs; 3/4
    (2, 1, 3, 17),
    (18, 1023),
    (2, 1025),
    (3, 5000),
    (2, 12352),
    (2, 33000),  # loaded again; walked in tiles
]
TYPES = [(F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
DATA = ("x", "residual", "dy", "dresidual_out")
LAYOUTS = ["row_strided", "transposed", "every_other", "offset", "expanded"]


def norm64(kind, h, shape, w, b, offset):
    if kind == "layernorm":
        return torch.nn.functional.layer_norm(h, shape, w, b, EPS)
    return torch.nn.functional.rms_norm(h, shape, None if w is None else w + offset, EPS)


def statistics64(kind, rows):
    mean = rows.mean(1) if kind == "layernorm" else torch.zeros(len(rows), device=rows.device).double()
    return mean, 1 / ((rows - mean[:, None]).square().mean(1) + EPS).sqrt()


def verify(
    norms,
    device,
    kind,
    shape,
    dtype=F32,
    weight_dtype=F32,
    *,
    tail=1,
    layouts=(),
    weight=True,
    bias=True,
    offset=0.0,
    mean=3.0,
    d=True,
):
    layouts = dict.fromkeys((*DATA, "weight", "bias"), "contiguous") | dict(layouts)
    normalized = shape[len(shape) - tail :]
    x, residual, dy, dh = (
        norms.draw(shape, dtype, device, seed=i, mean=m, layout=layouts[name])
        for i, (name, m) in enumerate(zip(DATA, (mean, 0.3, 0.0, 0.0), strict=True))
    )
    dh = dh if d else None
    w = norms.draw(normalized, weight_dtype, device, seed=5, mean=0.5, layout=layouts["weight"]) if weight else None
    b = norms.draw(normalized, weight_dtype, device, seed=6, layout=layouts["bias"]) if bias else None
    if kind == "layernorm":
        y, h, mu, rstd = add_layernorm.add_layernorm_fwd(x, residual, w, b, EPS, normalized)
    else:
        b = mu = None
        y, h, rstd = add_rmsnorm.add_rmsnorm_fwd(x, residual, w, EPS, offset, normalized)
    assert (y.dtype, h.dtype, rstd.dtype) == (dtype, dtype, F32)
    kept = x.float() + residual.float()  # one operation, so every kernel has these bits
    assert torch.equal(h, kept.to(dtype))

    n = math.prod(normalized)
    m = x.numel() // n
    w64, b64 = (None if t is None else t.double().detach().contiguous().requires_grad_() for t in (w, b))
    wide = torch.ones(n, device=device).double() if w64 is None else w64.detach().reshape(-1) + offset
    low = torch.zeros(n, device=device).double() if b64 is None else b64.detach().reshape(-1)
    dy64 = dy.double().reshape(m, n)
    centered = kind == "layernorm"
    rows = kept.double().reshape(m, n)
    bound = norms.bounds(rows, dy64, wide, low, EPS, m, centered=centered)
    norms.close("y", y, norm64(kind, kept.double(), normalized, w64, b64, offset).detach(), bound.y.reshape(shape))
    mean64, rstd64 = statistics64(kind, rows)
    norms.close("rstd", rstd, rstd64, bound.rstd)
    if mu is not None:
        norms.close("mean", mu, mean64, bound.mean)

    rows = h.double().reshape(m, n)  # what was saved of the sum: the gradients are those there
    mean64, rstd64 = statistics64(kind, rows)
    if kind == "layernorm":
        got = add_layernorm.add_layernorm_bwd(dy, dh, h, w, b, mean64.float(), rstd64.float(), EPS, normalized)
    else:
        got = (*add_rmsnorm.add_rmsnorm_bwd(dy, dh, h, w, rstd64.float(), EPS, offset, normalized), None)
    h64 = h.double().detach().contiguous().requires_grad_()
    leaves = [h64, w64, b64]
    given = [t for t in leaves if t is not None]
    grads = iter(torch.autograd.grad(norm64(kind, h64, normalized, w64, b64, offset), given, dy.double()))
    want = [None if t is None else next(grads) for t in leaves]
    if dh is not None:
        want[0] = want[0] + dh.double()
    bound = norms.bounds(rows, dy64, wide, low, EPS, m, centered=centered)
    added = 0 if dh is None else U * (want[0].abs() + dh.double().abs())
    norms.close("dx", got[0], want[0], bound.dx.reshape(shape) + added)
    assert [t is None for t in got] == [t is None for t in leaves]
    assert [t.dtype for t in got if t is not None] == [dtype] + [weight_dtype] * (len(given) - 1)
    for name, g, v in zip(("dweight", "dbias"), got[1:], want[1:], strict=True):
        if g is not None:
            norms.close(name, g, v, getattr(bound, name).sum(0).reshape(normalized))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(norms, device, kind, shape):
    verify(norms, device, kind, shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "weight_dtype"), TYPES)
def test_types(norms, device, kind, dtype, weight_dtype):
    verify(norms, device, kind, (9, 130), dtype, weight_dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tensor", DATA)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_data(norms, device, kind, tensor, layout):
    verify(norms, device, kind, (3, 2, 70), layouts={tensor: layout})


@pytest.mark.parametrize("kind", KINDS)
def test_all_layouts_at_once_in_tiles(norms, device, kind):
    layouts = {"x": "transposed", "residual": "every_other", "dy": "row_strided", "dresidual_out": "expanded"}
    verify(norms, device, kind, (3, 4100), BF16, F32, layouts=layouts | {"weight": "every_other", "bias": "offset"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weight", "bias", "d"), [(True, False, True), (False, True, False), (False, False, True)])
def test_without_weight_bias_or_a_gradient_of_the_sum(norms, device, kind, weight, bias, d):
    verify(norms, device, kind, (5, 33), weight=weight, bias=bias, d=d, offset=1.0 if kind == "rmsnorm" else 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_normalized_shape_of_many_dimensions(norms, device, kind):
    verify(norms, device, kind, (3, 2, 4, 5), tail=3, layouts={"residual": "transposed"})


def test_large_offset(norms, device):
    verify(norms, device, "layernorm", (4, 700), mean=1000.0)


def test_gemma_offset(norms, device):
    verify(norms, device, "rmsnorm", (6, 77), BF16, BF16, offset=1.0)


def test_lanes_beyond_the_row_stay_out_of_it(device):
    """Where (0 − mean)·rstd overflows, and with it every masked lane's x̂, a row of 3 is still finite."""
    h = torch.full((1, 3), 1e20, device=device)
    one = torch.ones(1, device=device)
    dx = add_layernorm.add_layernorm_bwd(torch.ones_like(h), None, h, None, None, h[:, 0], 1e19 * one, EPS)[0]
    assert dx.isfinite().all()


def functions(device, norms):
    x, residual = (norms.draw((3, 4, 5), F32, device, seed=s) for s in (1, 2))
    w, b = (norms.draw((5,), F32, device, seed=s) for s in (3, 4))
    return {
        "layernorm": (lambda *t: add_layernorm.AddLayerNormFunction.apply(*t, EPS, None), (x, residual, w, b)),
        "rmsnorm": (lambda *t: add_rmsnorm.AddRMSNormFunction.apply(*t, EPS, 0.5, None), (x, residual, w)),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("used", ["both", "y", "residual_out"])
def test_autograd_from_either_output(norms, device, kind, used):
    function, leaves = functions(device, norms)[kind]
    ours = [t.clone().requires_grad_() for t in leaves]
    theirs = [t.double().clone().requires_grad_() for t in leaves]
    dy, dh = (norms.draw((3, 4, 5), F32, device, seed=s) for s in (5, 6))
    y, h = function(*ours)
    h64 = theirs[0] + theirs[1]
    y64 = norm64(kind, h64, (5,), theirs[2], theirs[3] if kind == "layernorm" else None, 0.5)
    chosen = {"both": ((y, dy, y64), (h, dh, h64)), "y": ((y, dy, y64),), "residual_out": ((h, dh, h64),)}[used]
    torch.autograd.backward([c[0] for c in chosen], [c[1] for c in chosen])
    torch.autograd.backward([c[2] for c in chosen], [c[1].double() for c in chosen])
    assert ours[0].grad is not ours[1].grad
    for t, t64 in zip(ours, theirs, strict=True):
        assert (t.grad is None) == (t64.grad is None)
        if t.grad is not None:  # at most 12 terms a sum, each with its few roundings, of the size of the largest
            norms.close(used, t.grad, t64.grad, 60 * U * t64.grad.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_only_the_gradients_asked_for(norms, device, kind, frozen):
    function, leaves = functions(device, norms)[kind]
    some = [t.clone().requires_grad_(i != frozen) for i, t in enumerate(leaves)]
    y, h = function(*some)
    (y.sum() + h.square().sum()).backward()
    assert [t.grad is None for t in some] == [i == frozen for i in range(len(some))]


@pytest.mark.parametrize("kind", KINDS)
def test_differentiable_once(norms, device, kind):
    function, leaves = functions(device, norms)[kind]
    full = [t.clone().requires_grad_() for t in leaves]
    (dx,) = torch.autograd.grad(function(*full)[0].square().sum(), full[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_never_sees_the_others(norms, device, kind):
    function, _ = functions(device, norms)[kind]
    x, r, dh = (norms.draw((70, 48), F32, device, seed=s, mean=1.0) for s in (1, 2, 3))
    w = norms.draw((48,), F32, device, seed=3)
    parameters = (w, None) if kind == "layernorm" else (w,)

    def results(x, r, dh):
        x = x.clone().requires_grad_()
        y, h = function(x, r, *parameters)
        return y.detach(), h.detach(), torch.autograd.grad((y, h), x, (torch.ones_like(y), dh))[0]

    whole = results(x, r, dh)
    alone = results(x[69:], r[69:], dh[69:])
    poisoned = r.clone()
    poisoned[1] = math.nan
    assert all(torch.equal(a[69:], b) for a, b in zip(whole, alone, strict=True))
    assert all(torch.equal(a[2:], b[2:]) for a, b in zip(whole, results(x, poisoned, dh), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"residual": torch.zeros(4, 2)}, ValueError, "residual must have shape"),
        ({"residual": torch.zeros(2, 4).half()}, TypeError, "residual must be"),
        ({"residual": torch.zeros(2, 4, device="meta")}, ValueError, "residual is on meta"),
        ({"weight": torch.ones(5)}, ValueError, "does not end in"),
    ],
)
def test_refusals(change, error, message):
    arguments = {"x": torch.zeros(2, 4), "residual": torch.zeros(2, 4), "weight": None, "eps": EPS} | change
    with pytest.raises(error, match=message):
        add_layernorm.add_layernorm_fwd(**arguments, bias=None)
    with pytest.raises(error, match=message):
        add_rmsnorm.add_rmsnorm_fwd(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dresidual_out": torch.zeros(4, 2)}, ValueError, "dresidual_out must have shape"),
        ({"dresidual_out": torch.zeros(2, 4).half()}, TypeError, "dresidual_out must be"),
        ({"dy": torch.zeros(2, 4).half()}, TypeError, "dy"),
        ({"rstd": torch.zeros(3)}, ValueError, "rstd"),
    ],
)
def test_refusals_of_the_backward(change, error, message):
    h = torch.zeros(2, 4)
    arguments = {
        "dy": h,
        "dresidual_out": None,
        "residual_out": h,
        "weight": None,
        "rstd": h[:, 0],
        "eps": EPS,
    } | change
    with pytest.raises(error, match=message):
        add_layernorm.add_layernorm_bwd(**arguments, bias=None, mean=h[:, 0])
    with pytest.raises(error, match=message):
        add_rmsnorm.add_rmsnorm_bwd(**arguments)
