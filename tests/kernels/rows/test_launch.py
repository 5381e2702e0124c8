"""LayerNorm and RMSNorm against torch's float64 autograd of the same rounded inputs."""

import math

import pytest
import torch

from verify_norm.kernels import layernorm, rmsnorm
from verify_norm.kernels.launch import Plan
from verify_norm.kernels.rows import launch as rows_launch
from verify_norm.kernels.rows import norm
from verify_norm.kernels.variants import layernorm_locked

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPES = [
    (1,),
    (7,),
    (1, 1),
    (5, 1),
    (0, 5),
    (3, 64),
    (4, 65),
    (5, 96),  # one block and one more; three quarters
    (65, 3),
    (257, 2),
    (150, 65),  # more rows than a tile, more tiles than programs that share them
    (2, 3, 100),
    (2, 1, 3, 17),
    (2, 2, 1, 2, 5),
    (18, 1023),
    (2, 1025),
    (3, 5000),
    (1, 20000),
    (5, 2048),
    (3, 3072),
    (3, 6152),
    (2, 12352),
    (2, 33000),  # in chunks, whole and not; loaded again; walked in tiles
]
TYPES = [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
LAYOUTS = ["contiguous", "row_strided", "transposed", "every_other", "offset"]
KINDS = ["layernorm", "layernorm_locked", "rmsnorm"]
EPS = 1e-5


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
):
    layouts = {"x": "contiguous", "dy": "contiguous", "weight": "contiguous", "bias": "contiguous"} | dict(layouts)
    normalized = shape[len(shape) - tail :]
    x = norms.draw(shape, dtype, device, seed=1, mean=mean, layout=layouts["x"])
    dy = norms.draw(shape, dtype, device, seed=2, layout=layouts["dy"])
    w = norms.draw(normalized, weight_dtype, device, seed=3, mean=0.5, layout=layouts["weight"]) if weight else None
    b = norms.draw(normalized, weight_dtype, device, seed=4, layout=layouts["bias"]) if bias else None
    if kind == "rmsnorm":
        b = None
        y, rstd = rmsnorm.rmsnorm_fwd(x, w, EPS, offset, normalized)
        dx, dw = rmsnorm.rmsnorm_bwd(dy, x, w, rstd, EPS, offset, normalized)
        mu = db = None
    else:
        backward = {"layernorm": layernorm.layernorm_bwd, "layernorm_locked": layernorm_locked.layernorm_bwd_locked}
        y, mu, rstd = layernorm.layernorm_fwd(x, w, b, EPS, normalized)
        dx, dw, db = backward[kind](dy, x, w, b, mu, rstd, EPS, normalized)
    assert (dw is None, db is None) == (w is None, b is None)
    assert (y.dtype, dx.dtype, rstd.dtype) == (dtype, dtype, F32)
    assert all(d.dtype == weight_dtype for d in (dw, db) if d is not None)

    leaves = [None if t is None else t.double().detach().contiguous().requires_grad_() for t in (x, w, b)]
    x64, w64, b64 = leaves
    if kind == "rmsnorm":
        scale = None if w64 is None else w64 + offset
        y64 = torch.nn.functional.rms_norm(x64, normalized, scale, EPS)
    else:
        y64 = torch.nn.functional.layer_norm(x64, normalized, w64, b64, EPS)
    given = [t for t in leaves if t is not None]
    grads = iter(torch.autograd.grad(y64, given, dy.double()))
    want = [None if t is None else next(grads) for t in leaves]

    n = math.prod(normalized)
    m = x.numel() // n
    one, none = torch.ones(n, device=device).double(), torch.zeros(n, device=device).double()
    wide = one if w64 is None else w64.detach().reshape(-1) + offset
    bound = norms.bounds(
        x64.detach().reshape(m, n),
        dy.double().reshape(m, n),
        wide,
        none if b64 is None else b64.detach().reshape(-1),
        EPS,
        m,
        centered=kind != "rmsnorm",
    )
    norms.close("y", y, y64.detach(), bound.y.reshape(shape))
    norms.close("dx", dx, want[0], bound.dx.reshape(shape))
    if dw is not None:
        norms.close("dweight", dw, want[1], bound.dweight.sum(0).reshape(normalized))
    if db is not None:
        norms.close("dbias", db, want[2], bound.dbias.sum(0).reshape(normalized))
    rows = x64.detach().reshape(m, n)
    centre = rows.mean(1) if mu is not None else torch.zeros(m, device=device).double()
    if mu is not None:
        norms.close("mean", mu, centre, bound.mean)
    norms.close("rstd", rstd, 1 / ((rows - centre[:, None]).square().mean(1) + EPS).sqrt(), bound.rstd)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(norms, device, kind, shape):
    verify(norms, device, kind, shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "weight_dtype"), TYPES)
def test_types(norms, device, kind, dtype, weight_dtype):
    verify(norms, device, kind, (9, 130), dtype, weight_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tensor", ["x", "dy", "weight", "bias"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "expanded"])
def test_layout_of_each_tensor(norms, device, kind, tensor, layout):
    verify(norms, device, kind, (3, 2, 70), layouts={tensor: layout})


@pytest.mark.parametrize("kind", KINDS)
def test_all_layouts_at_once_in_tiles(norms, device, kind):
    layouts = {"x": "transposed", "dy": "every_other", "weight": "every_other", "bias": "offset"}
    verify(norms, device, kind, (3, 4100), BF16, F32, layouts=layouts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True), (False, False)])
def test_without_weight_or_bias(norms, device, kind, weight, bias):
    verify(norms, device, kind, (5, 33), weight=weight, bias=bias, offset=1.0 if kind == "rmsnorm" else 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_normalized_shape_of_many_dimensions(norms, device, kind, layout):
    verify(norms, device, kind, (3, 2, 4, 5), tail=3, layouts={"x": layout, "weight": layout})


@pytest.mark.parametrize("kind", KINDS)
def test_large_offset(norms, device, kind):
    verify(norms, device, kind, (4, 700), mean=1000.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("n", [1, 3, 65, 5000])
def test_lanes_beyond_a_row_of_huge_values(norms, device, kind, dtype, n):
    """(0 − mean)·rstd overflows there, and must meet no gradient, not even as infinity times 0."""
    x = torch.full((5, n), 2.0**125, dtype=dtype, device=device)
    dy, w = (norms.draw(shape, dtype, device, seed=s) for s, shape in ((1, (5, n)), (2, (n,))))
    b = None if kind == "rmsnorm" else norms.draw((n,), dtype, device, seed=3)
    # Saved statistics rather than the forward's: its sums of so large values may overflow, these are in range.
    rstd = torch.full((5,), 2.0**-125 if kind == "rmsnorm" else 316.25, device=device)
    mean = None if kind == "rmsnorm" else torch.full((5,), 2.0**125, device=device)
    if kind == "rmsnorm":
        dx, dw = rmsnorm.rmsnorm_bwd(dy, x, w, rstd, EPS)
        db = None
    else:
        backward = {"layernorm": layernorm.layernorm_bwd, "layernorm_locked": layernorm_locked.layernorm_bwd_locked}
        dx, dw, db = backward[kind](dy, x, w, b, mean, rstd, EPS)
    g = dy.double() * w.double()
    flat = dy.double().sum(0)
    scale = 64 * 2.0**-24  # sums of at most 5000 terms, each with a few roundings
    # x̂ is 1 in RMSNorm and 0 in LayerNorm, so that dx is rstd·(g − mean g) in both
    size = g.abs().mean(1, keepdim=True) + g.abs()
    norms.close("dx", dx, rstd.double()[:, None] * (g - g.mean(1, keepdim=True)), scale * rstd[:, None] * size)
    norms.close("dweight", dw, flat * (kind == "rmsnorm"), scale * dy.double().abs().sum(0))
    if db is not None:
        norms.close("dbias", db, flat, scale * dy.double().abs().sum(0))


def test_few_locks_for_many_rows(norms, device, monkeypatch):
    monkeypatch.setattr(layernorm_locked, "group_size", lambda n: 2)
    verify(norms, device, "layernorm_locked", (90, 300))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_gemma_offset(norms, device, dtype):
    verify(norms, device, "rmsnorm", (6, 77), dtype, dtype, offset=1.0)


@pytest.mark.parametrize("module", [layernorm, layernorm_locked, rmsnorm])
def test_a_row_never_sees_the_others(norms, device, module):
    x, dy = (norms.draw((600, 48), F32, device, seed=s, mean=1.0) for s in (1, 2))
    w = norms.draw((48,), F32, device, seed=3)

    def results(x, dy):
        if module is rmsnorm:
            y, rstd = rmsnorm.rmsnorm_fwd(x, w, EPS)
            return y, rmsnorm.rmsnorm_bwd(dy, x, w, rstd, EPS)[0]
        y, mu, rstd = layernorm.layernorm_fwd(x, w, None, EPS)
        name = "layernorm_bwd" if module is layernorm else "layernorm_bwd_locked"
        return y, getattr(module, name)(dy, x, w, None, mu, rstd, EPS)[0]

    whole = results(x, dy)
    poisoned = x.clone()
    poisoned[1] = math.nan
    for i in (0, 255, 599):
        assert all(
            torch.equal(a[i : i + 1], b) for a, b in zip(whole, results(x[i : i + 1], dy[i : i + 1]), strict=True)
        )
    assert all(torch.equal(a[2:], b[2:]) for a, b in zip(whole, results(poisoned, dy), strict=True))


def test_inputs_stay_and_runs_agree(norms, device):
    x, dy = (norms.draw((300, 20), BF16, device, seed=s) for s in (1, 2))
    w, b = (norms.draw((20,), BF16, device, seed=s) for s in (3, 4))
    before = [t.clone() for t in (x, dy, w, b)]
    _, mu, rstd = layernorm.layernorm_fwd(x, w, b, EPS)
    first, second = (layernorm.layernorm_bwd(dy, x, w, b, mu, rstd, EPS) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(before, (x, dy, w, b), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(2, 4, dtype=torch.float64)}, TypeError, "float64"),
        ({"x": torch.zeros(2, 4, dtype=torch.int32)}, TypeError, "int32"),
        ({"x": [1.0]}, TypeError, "list"),
        ({"weight": torch.ones(5)}, ValueError, "does not end in"),
        ({"weight": torch.ones(4, dtype=torch.float16)}, TypeError, "weight"),
        ({"bias": torch.ones(2, 4)}, ValueError, "bias"),
        ({"normalized_shape": 5}, ValueError, "normalized_shape"),
        ({"normalized_shape": ()}, ValueError, "normalized_shape"),
    ],
)
def test_refusals(change, error, message):
    arguments = {"x": torch.zeros(2, 4), "weight": torch.ones(4), "bias": None, "eps": EPS} | change
    with pytest.raises(error, match=message):
        layernorm.layernorm_fwd(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dy": torch.zeros(4, 2)}, ValueError, "dy"),
        ({"dy": torch.zeros(2, 4).half()}, TypeError, "dy"),
        ({"mean": torch.zeros(3)}, ValueError, "mean"),
        ({"rstd": torch.zeros(2).half()}, TypeError, "rstd"),
    ],
)
def test_refusals_of_the_backward(change, error, message):
    x, one = torch.zeros(2, 4), torch.ones(2)
    arguments = {"dy": x, "x": x, "weight": None, "bias": None, "mean": one, "rstd": one, "eps": EPS} | change
    with pytest.raises(error, match=message):
        layernorm.layernorm_bwd(**arguments)


@pytest.mark.parametrize(("rows", "launches"), [(0, 1), (3, 1), (40, 2)])
def test_the_sums_of_few_rows_take_one_launch(norms, device, monkeypatch, rows, launches):
    """Of parameters of each type; without rows they are zeros."""
    seen, run = [], Plan.launch
    monkeypatch.setattr(Plan, "launch", lambda plan, *given: seen.append(plan) or run(plan, *given))
    for bias, kind in ((F32, "layernorm"), (BF16, "rmsnorm")):
        x, dy = (norms.draw((rows, 1024), BF16, device, seed=s) for s in (1, 2))
        w, b = norms.draw((1024,), BF16, device, seed=3), norms.draw((1024,), bias, device, seed=4)
        centered = kind == "layernorm"
        mean = x.float().mean(-1) if centered else torch.zeros(rows, device=device)
        rstd = ((x.float() - mean[:, None]).square().mean(-1) + EPS).rsqrt()
        seen.clear()
        if centered:
            _, dw, db = layernorm.layernorm_bwd(dy, x, w, b, mean, rstd, EPS)
            norms.close("dbias", db, dy.double().sum(0), rows * 2.0**-24 * dy.double().abs().sum(0))
        else:
            _, dw = rmsnorm.rmsnorm_bwd(dy, x, w, rstd, EPS)
        assert len(seen) == launches
        xhat = (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
        limit = (rows + 4) * 2.0**-24 * (dy.double() * xhat).abs().sum(0)
        norms.close("dweight", dw, (dy.double() * xhat).sum(0), limit)


def moved(t, way):
    """The same values elsewhere in memory; `way` says how they lie there."""
    if way == "negative":  # torch keeps the sign in a flag
        return torch._neg_view(-t)  # as z.conj().imag is, but with the strides of t
    if way == "unaligned":
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
    if way == "every_other":
        return torch.stack([t, t], -1)[..., 0]
    return t.mT.contiguous().mT if way == "transposed" else t.clone()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_launch_that_is_kept_serves_no_other_layout(norms, device, monkeypatch, kind):
    """Of x, dy, weight, or what hooks return for x or the weight; nor vectors where addresses do not allow them."""
    ways = {"plain": {}, "signs": {"dy": "negative"}, "turned": {"dy": "transposed"}, "odd": {"dy": "unaligned"}}
    ways |= {"x turned": {"x": "transposed"}, "x odd": {"x": "unaligned"}, "x signs": {"x": "negative"}}
    ways |= {"weight apart": {"w": "every_other"}, "weight signs": {"w": "negative"}, "weight odd": {"w": "unaligned"}}
    ways |= {f"kept {way}": {"saved x": way} for way in ("transposed", "unaligned", "negative")}
    ways |= {f"kept weight {way}": {"saved w": way} for way in ("every_other", "unaligned", "negative")}
    given = {"x": (4, 8), "dy": (4, 8), "w": (8,)}
    drawn = {name: norms.draw(shape, F32, device, seed=i, mean=1.0) for i, (name, shape) in enumerate(given.items())}

    wide, launched = [], Plan.launch
    monkeypatch.setattr(Plan, "launch", lambda plan, *all: (wide.append(plan.vec), launched(plan, *all)))

    def results(way, eps=EPS):
        wide.clear()
        t = {name: moved(value, ways[way].get(name, "")) for name, value in drawn.items()}
        leaves = [t["x"].requires_grad_(), t["w"].requires_grad_()]

        def unpack(kept):
            found = ways[way].get({(4, 8): "saved x", (8,): "saved w"}.get(tuple(kept.shape)))
            return kept if found is None else moved(kept.detach(), found)

        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.clone(), unpack):
            if kind == "rmsnorm":
                y = rmsnorm.apply(*leaves, eps, 0.0, None)
            else:
                y = layernorm.apply(*leaves, None, eps, None)
        found = y.detach(), *torch.autograd.grad(y, leaves, t["dy"])
        return *found, torch.tensor(wide)

    want = {}
    for way in ways:
        norm._known.clear()
        want[way] = results(way)
        for got, plain in zip(want[way][:-1], want["plain"][:-1], strict=True):
            norms.close(way, got, plain.double(), 32 * 2.0**-24 * plain.double().abs().max())
    for way in ways:
        norm._known.clear()
        for each in ("plain", way, "plain", way):
            for got, alone in zip(results(each), want[each], strict=True):
                assert torch.equal(got, alone), (each, way)
    assert not torch.equal(results("plain", 1.0)[0], want["plain"][0])  # nor another eps


def test_the_second_launch_of_a_form_is_kept(norms, device, monkeypatch):
    """It plans nothing: neither a forward nor a backward, of contiguous rows or of strided ones."""
    x, w = norms.draw((4, 16), F32, device, seed=1), norms.draw((8,), F32, device, seed=2)
    for rows in (x[:, :8].contiguous(), x[:, :8]):
        want = layernorm.layernorm_fwd(rows, w, None, EPS)
        dx = layernorm.layernorm_bwd(rows, rows, w, None, *want[1:], EPS)[0]
        with monkeypatch.context() as patch:
            patch.setattr(rows_launch, "_rows", lambda *_: pytest.fail("planned again"))
            assert torch.equal(layernorm.layernorm_fwd(rows, w, None, EPS)[0], want[0])
            assert torch.equal(layernorm.layernorm_bwd(rows, rows, w, None, *want[1:], EPS)[0], dx)
