"""GroupNorm against torch's float64 autograd of the same rounded inputs."""

import math

import pytest
import torch

from verify_norm.kernels import groupnorm
from verify_norm.kernels.variants import groupnorm_welford

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPES = [
    ((2, 6), 3),
    ((3, 5), 5),
    ((2, 4, 1), 1),
    ((1, 1, 1), 1),
    ((0, 6, 2), 3),
    ((2, 6, 5), 2),
    ((2, 9, 3, 4), 3),
    ((1, 12, 2, 3, 4), 4),  # C/G = 3, not a power of two
    ((3, 130, 1), 2),
    ((1, 2, 67, 31), 2),
    ((1, 10, 30, 20), 2),
    ((70, 3, 2), 1),  # many channels, tiles, samples
]
TYPES = [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
FORWARD = {"two_pass": groupnorm.groupnorm_fwd, "welford": groupnorm_welford.groupnorm_fwd_welford}
EPS = 1e-5


def verify(
    norms,
    device,
    shape,
    groups,
    dtype=F32,
    weight_dtype=F32,
    *,
    forward="two_pass",
    layouts=(),
    weight=True,
    bias=True,
    mean=3.0,
):
    layouts = {"x": "contiguous", "dy": "contiguous", "weight": "contiguous", "bias": "contiguous"} | dict(layouts)
    channels, s = shape[1], math.prod(shape[2:])
    x = norms.draw(shape, dtype, device, seed=1, mean=mean, layout=layouts["x"])
    dy = norms.draw(shape, dtype, device, seed=2, layout=layouts["dy"])
    w = norms.draw((channels,), weight_dtype, device, seed=3, mean=0.5, layout=layouts["weight"]) if weight else None
    b = norms.draw((channels,), weight_dtype, device, seed=4, layout=layouts["bias"]) if bias else None
    y, mu, rstd = FORWARD[forward](x, w, b, groups, EPS)
    assert (y.dtype, mu.dtype, rstd.dtype, mu.shape) == (dtype, F32, F32, (shape[0], groups))

    leaves = [None if t is None else t.double().detach().contiguous().requires_grad_() for t in (x, w, b)]
    x64, w64, b64 = leaves
    rows = x64.reshape(shape[0] * groups, channels // groups * s)  # torch refuses a group of one value
    y64 = torch.nn.functional.layer_norm(rows, rows.shape[1:], None, None, EPS).reshape(shape)
    column = (channels, *[1] * (len(shape) - 2))
    y64 = y64 if w64 is None else y64 * w64.reshape(column)
    y64 = y64 if b64 is None else y64 + b64.reshape(column)

    def spread(t, default):
        t = torch.full((channels,), default, device=device).double() if t is None else t.detach()
        return t.reshape(column).expand(shape).reshape(rows.shape)

    bound = norms.bounds(
        rows.detach(),
        dy.double().reshape(rows.shape),
        spread(w64, 1.0),
        spread(b64, 0.0),
        EPS,
        shape[0] * s,
        centered=True,
        merged=forward == "welford",
    )
    norms.close("y", y, y64.detach(), bound.y.reshape(shape))
    centre = rows.detach().mean(1)
    var = (rows.detach() - centre[:, None]).square().mean(1)
    norms.close("mean", mu.reshape(-1), centre, bound.mean)
    norms.close("rstd", rstd.reshape(-1), 1 / (var + EPS).sqrt(), bound.rstd)
    if forward != "two_pass":
        return

    dx, dw, db = groupnorm.groupnorm_bwd(dy, x, w, b, mu, rstd, groups, EPS)
    assert (dw is None, db is None, dx.dtype) == (w is None, b is None, dtype)
    given = [t for t in leaves if t is not None]
    grads = iter(torch.autograd.grad(y64, given, dy.double()))
    want = [None if t is None else next(grads) for t in leaves]
    norms.close("dx", dx, want[0], bound.dx.reshape(shape))
    for name, got, exact in (("dweight", dw, want[1]), ("dbias", db, want[2])):
        if got is not None:
            assert got.dtype == weight_dtype
            total = getattr(bound, name).reshape(shape[0], channels, s).sum((0, 2))
            norms.close(name, got, exact, total)


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_shapes(norms, device, forward, shape, groups):
    verify(norms, device, shape, groups, forward=forward)


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize(("dtype", "weight_dtype"), TYPES)
def test_types(norms, device, forward, dtype, weight_dtype):
    verify(norms, device, (2, 6, 5, 3), 2, dtype, weight_dtype, forward=forward)


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize("tensor", ["x", "dy"])
@pytest.mark.parametrize("layout", ["row_strided", "transposed", "every_other", "offset", "expanded", "channels_last"])
def test_layout_of_data(norms, device, forward, tensor, layout):
    verify(norms, device, (2, 6, 4, 3), 2, forward=forward, layouts={tensor: layout})


@pytest.mark.parametrize("forward", FORWARD)
def test_layout_of_weight_and_bias(norms, device, forward):
    layouts = {"weight": "every_other", "bias": "expanded", "x": "channels_last"}
    verify(norms, device, (1, 6, 2, 2, 3), 3, BF16, F32, forward=forward, layouts=layouts)


def test_channels_last_comes_back(norms, device):
    x = norms.draw((2, 6, 4, 3), F32, device, layout="channels_last")
    assert groupnorm.groupnorm_fwd(x, None, None, 2, EPS)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True), (False, False)])
def test_without_weight_or_bias(norms, device, forward, weight, bias):
    verify(norms, device, (2, 6, 5), 3, forward=forward, weight=weight, bias=bias)


@pytest.mark.parametrize("forward", FORWARD)
def test_large_offset(norms, device, forward):
    verify(norms, device, (2, 6, 50), 2, forward=forward, mean=1000.0)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 1), 1), ((3, 4), 4), ((2, 3), 1), ((2, 6, 5), 2), ((2, 2, 5000), 2)]
)
def test_lanes_beyond_a_group_of_huge_values(norms, device, dtype, shape, groups):
    """(0 − mean)·rstd overflows there, and must meet no gradient, not even as infinity times 0."""
    x = torch.full(shape, 2.0**125, dtype=dtype, device=device)
    dy, w, b = (norms.draw(s, dtype, device, seed=i) for i, s in enumerate((shape, shape[1:2], shape[1:2])))
    # Saved statistics rather than the forward's: its sums of so large values may overflow, these are in range.
    mean, rstd = (torch.full((shape[0], groups), v, device=device) for v in (2.0**125, 316.25))
    dx, dw, db = groupnorm.groupnorm_bwd(dy, x, w, b, mean, rstd, groups, EPS)
    dy3 = dy.double().reshape(*shape[:2], -1)
    g = (dy3 * w.double()[:, None]).reshape(shape[0] * groups, -1)
    scale = 64 * 2.0**-24  # sums of at most 10000 terms, each with a few roundings
    want = 316.25 * (g - g.mean(1, keepdim=True))
    bound = scale * 316.25 * (g.abs() + g.abs().mean(1, keepdim=True))
    norms.close("dx", dx, want.reshape(shape), bound.reshape(shape))
    norms.close("dweight", dw, torch.zeros_like(w, dtype=torch.float64), torch.zeros_like(w, dtype=torch.float64))
    norms.close("dbias", db, dy3.sum((0, 2)), scale * dy3.abs().sum((0, 2)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 2, 500), (1, 3, 700)])
def test_merging_lanes_without_an_element(norms, device, dtype, shape):
    """Beyond 1.8e19 a square overflows; the variance does not, since all of a group's values are one."""
    x = torch.full(shape, 2.0**66, dtype=dtype, device=device)
    y, mean, rstd = groupnorm_welford.groupnorm_fwd_welford(x, None, None, 1, EPS)
    assert torch.equal(mean, torch.full((shape[0], 1), 2.0**66, device=device))
    norms.close("rstd", rstd, torch.full_like(mean, EPS**-0.5, dtype=torch.float64), 4 * 2.0**-24 * EPS**-0.5)
    assert torch.equal(y, torch.zeros_like(x))


def test_many_samples_fold_in_stages(norms, device):
    verify(norms, device, (1100, 2, 1), 1)


@pytest.mark.parametrize("forward", FORWARD)
def test_a_group_never_sees_the_others(norms, device, forward):
    x = norms.draw((3, 4, 5), F32, device)
    clean = FORWARD[forward](x, None, None, 2, EPS)[0]
    x[1, 2:] = math.nan
    y = FORWARD[forward](x, None, None, 2, EPS)[0]
    assert torch.equal(y.isnan(), x.isnan())
    assert torch.equal(y[~y.isnan()], clean[~y.isnan()])


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_groups": 3}, ValueError, "divide"),
        ({"num_groups": 0}, ValueError, "divide"),
        ({"x": torch.zeros(4)}, ValueError, "dimensions"),
        ({"weight": torch.ones(3)}, ValueError, "weight"),
        ({"x": torch.zeros(2, 4).double()}, TypeError, "float64"),
    ],
)
def test_refusals(forward, change, error, message):
    arguments = {"x": torch.zeros(2, 4), "weight": None, "bias": None, "num_groups": 2, "eps": EPS} | change
    with pytest.raises(error, match=message):
        FORWARD[forward](**arguments)
