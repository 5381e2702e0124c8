"""GroupNorm's groups that many programs share, made small; what a plan may depend on; and that all loops compile."""

import itertools

import pytest
import torch
from torch.nn import functional

from verify_norm.kernels.groupnorm import GroupNorm, GroupNormFunction
from verify_norm.kernels.groups import held_backward, launch
from verify_norm.kernels.groups import plan as group_plan
from verify_norm.kernels.launch import H200

PLAN = group_plan.plan
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPES = [  # each with several blocks, and with the last one short
    ((2, 6, 7, 11), 2),
    ((1, 4, 8, 16), 1),
    ((2, 9, 5, 5), 1),
    ((3, 8, 70), 4),
    ((2, 130, 1), 1),
    ((2, 300), 1),  # more channels than a block, and no space: several tiles of channels
    ((2, 4, 16, 32), 2),
    ((1, 32, 8, 16), 2),  # even blocks
    ((2, 34, 3, 5), 17),
    ((2, 34, 8, 8), 17),  # channels_last: units of 8 groups and of one
    ((2, 80, 4, 8), 8),
    ((2, 80, 3, 5), 2),
    ((1, 216, 3, 5), 3),  # and of several tiles, one of them short of a group
    ((2, 6, 12, 16), 2),
    ((2, 10, 8, 8), 2),  # whole blocks that lack channels, and positions that lack blocks
]
HELD = [((3, 40, 96), "contiguous")]  # in which groups are held as several blocks
HELD += itertools.product([(2, 20, 17, 13), (2, 40, 16, 16)], ("contiguous", "channels_last"))
FORMS = [(F32, None), (F16, "silu"), (BF16, None), (F32, "silu")]  # each shape of gradients takes two that alternate
LAYOUTS = [
    ("contiguous", "contiguous"),
    ("channels_last", "channels_last"),
    ("channels_last", "contiguous"),
    ("transposed", "expanded"),
    ("offset", "every_other"),
]


def forget():
    """What follows from the constants."""
    for kept in (PLAN, launch.forward_chain, launch.backward_chain):
        kept.cache_clear()


@pytest.fixture
def planned(monkeypatch):
    """Sets constants of the plans, those of each device alike."""

    def by(**constants):
        for name, value in constants.items():
            shipped = getattr(group_plan, name)
            monkeypatch.setattr(group_plan, name, dict.fromkeys(shipped, value) if type(shipped) is dict else value)
        forget()

    yield by
    forget()


@pytest.fixture
def small(planned, monkeypatch):
    """A group is shared from 64 values on, in blocks of 128, and a batch has a unit or two."""
    planned(WHOLE=64, BLOCK=128, HELD=256, BOTH=256, FEW=16, SUMMED=512, COMPUTED=2, BATCH=2000)
    return monkeypatch


@pytest.fixture
def several(planned):
    """Groups of some hundred values are held as several blocks."""
    planned(FEW=64)


@pytest.fixture
def holding(planned):
    """Those of x and dy too."""
    planned(FEW=64, WHOLE=128)


def draw(norms, shape, groups, dtype, device, layouts=("contiguous", "contiguous")):
    x = norms.draw(shape, dtype, device, seed=1, mean=3.0, layout=layouts[0] if len(shape) > 3 else "contiguous")
    dy = norms.draw(shape, dtype, device, seed=2, layout=layouts[1] if len(shape) > 3 else "contiguous")
    w, b = (norms.draw(shape[1:2], F32, device, seed=s, mean=0.5) for s in (3, 4))
    return dy, x, w, b, groups, 1e-5


def ours(dy, x, w, b, groups, eps, activation=None):
    y, mean, rstd = launch.forward(x, w, b, groups, eps, activation)
    return y, *launch.backward(dy, x, w, b, (mean, rstd), groups, activation, (True, True, True))


def exact(dy, x, w, b, groups, eps, activation=None):
    leaves = [t.double().detach().clone().requires_grad_() for t in (x, w, b)]
    y = functional.group_norm(leaves[0], groups, leaves[1], leaves[2], eps)
    y = y if activation is None else getattr(functional, activation)(y)
    return y.detach(), *torch.autograd.grad(y, leaves, dy.double())


def agree(norms, got, want, terms, names=("y", "dx", "dweight", "dbias")):
    for name, a, b in zip(names, got, want, strict=True):
        # a sum of so many terms, each with a few roundings, of the size of the largest result
        norms.close(name, a, b, 4 * norms.bounds.__globals__["height"](terms) * 2.0**-24 * b.abs().max() * 4)


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "groups", "layouts"),
    [(*case, layouts) for case in SHAPES for layouts in (LAYOUTS[:2] if len(case[0]) == 4 else LAYOUTS[:1])]
    + [(*case, LAYOUTS[2]) for case in SHAPES[::2] if len(case[0]) == 4]
    + [(*case, layouts) for case in (SHAPES[0], SHAPES[2], SHAPES[9]) for layouts in LAYOUTS[3:]],
)
def test_shared_groups(norms, device, small, shape, groups, layouts):
    case = draw(norms, shape, groups, F32, device, layouts)
    agree(norms, ours(*case), exact(*case), case[1].numel())


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("together", [0, 2048], ids=["merged apart", "merged by the results"])
@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_either_way_of_merging(norms, device, small, together, activation, layout):
    small.setattr(group_plan, "TOGETHER", max(together, 512))
    forget()
    if not together:
        own = group_plan.plan
        small.setattr(group_plan, "plan", lambda *arguments: own(*arguments)._replace(itself=False))
    case = draw(norms, (2, 6, 7, 11), 2, F32, device, (layout, layout))
    agree(norms, ours(*case, activation), exact(*case, activation), case[1].numel())


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 6, 7, 11), 2), ((1, 80, 5, 13), 2), ((1, 80, 8, 7), 8), ((1, 216, 8, 5), 3), ((1, 300, 3, 1), 1)],
)
def test_more_sums_than_are_merged_at_once(norms, device, small, shape, groups, layout):
    small.setattr(group_plan, "TOGETHER", 2)
    small.setattr(group_plan, "SUMMED", 1)
    forget()
    case = draw(norms, shape, groups, F32, device, (layout, layout))
    agree(norms, ours(*case), exact(*case), case[1].numel())


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(2, 6, 7, 11), (2, 4, 16, 32)])
def test_units_that_no_cache_keeps(norms, device, small, shape, layout, activation):
    small.setattr(group_plan, "LARGE", 0)
    case = draw(norms, shape, 2, F32, device, (layout, layout))
    agree(norms, ours(*case, activation), exact(*case, activation), case[1].numel())


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "layout"), HELD)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_groups_held_as_several_blocks(norms, device, several, shape, dtype, layout):
    x = norms.draw(shape, dtype, device, seed=1, mean=3.0, layout=layout)
    w, b = (norms.draw(shape[1:2], F32, device, seed=s, mean=0.5) for s in (3, 4))
    y, _, _ = launch.forward(x, w, b, 2, 1e-5, "silu")
    want = functional.silu(functional.group_norm(x.double(), 2, w.double(), b.double(), 1e-5))
    norms.close("y", y, want, 64 * 2.0**-24 * want.abs().max())


def chain_of(dy, x, groups, activation=None):
    strides = (t.stride() for t in (x, dy, x))
    return launch.backward_chain(
        x.device, x.dtype, F32, F32, x.shape, groups, *strides, 16, activation, (True, True, True)
    )


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "activation"),
    [
        (shape, layout, *form)
        for number, shape in enumerate([(3, 40, 96), (2, 24, 17, 16), (2, 40, 16, 16), (1, 8, 40, 40)])
        for layout in (("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",))
        for form in FORMS[number % 2 :: 2]
    ],
)
def test_gradients_of_groups_held_as_several_blocks(norms, device, holding, shape, dtype, layout, activation):
    case = draw(norms, shape, 2, dtype, device, (layout, layout))
    dy, x, w, b, groups, eps = case
    assert chain_of(dy, x, groups, activation).whole.kernel.kernel is held_backward.backward_held
    agree(norms, ours(*case, activation), exact(*case, activation), x.numel())
    _, mean, rstd = launch.forward(x, None, b, groups, eps, activation)
    dx, dw, db = launch.backward(dy, x, None, b, (mean, rstd), groups, activation, (False, True, True))
    assert dx is dw is None
    want = exact(dy, x, torch.ones_like(w), b, groups, eps, activation)
    agree(norms, [db], want[3:], x.numel(), names=["dbias"])


def test_what_registers_would_not_hold_is_shared(norms, device, holding):
    """GELU's derivative, loads of no vectors, and more bytes than `BOTH`: ptxas reports spills of all three."""
    dy, x, *_ = draw(norms, (2, 40, 16, 16), 2, BF16, device)
    assert chain_of(dy, x, 2).room == 0
    assert chain_of(dy, x, 2, "gelu").room > 0
    odd = torch.ones((2, 40, 15, 15), dtype=BF16, device=device)
    assert chain_of(odd, odd, 2).room > 0
    assert group_plan.plan((640, 1024, 32), "positions", 8, 2, 2, H200).members == 0
    assert group_plan.plan((960, 1024, 32), "positions", 8, 2, 2, H200).members > 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_a_sample_is_the_same_alone_and_among_others(norms, device, small, layout):
    dy, x, w, b, groups, eps = draw(norms, (5, 6, 7, 11), 2, BF16, device, (layout, layout))
    y, dx, _, _ = ours(dy, x, w, b, groups, eps)
    for number in range(5):
        one = slice(number, number + 1)
        alone = ours(dy[one], x[one], w, b, groups, eps)
        assert torch.equal(alone[0], y[one])
        assert torch.equal(alone[1], dx[one])


def test_the_shapes_above_take_every_way(norms, device, small):
    """Each kind of lack, both layouts, forward and backward; and a last unit with fewer groups."""
    seen = set()

    def kept(*form):
        p = PLAN(*form)
        if p.merging is not None:
            seen.update((form[4], form[1], what) for what in (p.constants["SHORT"], G % p.groups and "fewer groups"))
        return p

    small.setattr(group_plan, "plan", kept)
    for (shape, G), layout in itertools.product(SHAPES, ("contiguous", "channels_last")):
        dy, x, *_ = draw(norms, shape, G, F32, device, (layout, layout))
        launch.forward_chain(x.device, F32, F32, F32, x.shape, G, x.stride(), x.stride(), 16, 1e-5, None)
        chain_of(dy, x, G)
    assert seen >= set(itertools.product((1, 2), ("positions", "channels"), ("", "channels", "positions")))
    assert seen >= {(1, "channels", "fewer groups"), (2, "channels", "fewer groups")}


@pytest.mark.parametrize("shape", [(2, 3, 0), (2, 40000, 0), (0, 6, 8), (2, 0, 4, 4)])
def test_no_elements(device, shape):
    """No mean, and sums of nothing: also of so many channels that a group of one position each would be shared."""
    x, w = torch.ones(shape, device=device), torch.ones(shape[1], device=device)
    y, mean, rstd = launch.forward(x, w, w, 1, 1e-5, None)
    assert (y.shape, mean.isnan().all(), rstd.isnan().all()) == (x.shape, True, True)
    dx, dw, db = launch.backward(x, x, w, w, (mean, rstd), 1, "silu", (True, True, True))
    assert dx.shape == x.shape
    assert (dw.tolist(), db.tolist()) == ([0.0] * shape[1], [0.0] * shape[1])


@pytest.mark.parametrize("large", [100.0, 1e4])
def test_shared_statistics_do_not_cancel(norms, device, small, large):
    x = norms.draw((2, 4, 300), F32, device, seed=5, mean=large)
    _, mean, rstd = launch.forward(x, None, None, 2, 1e-5, None)
    rows = x.double().reshape(4, -1)
    var = (rows - rows.mean(1, keepdim=True)).square().mean(1)
    norms.close("mean", mean.reshape(-1), rows.mean(1), 8 * 2.0**-24 * large)
    # merging means of parts: their rounding meets the deviations once
    norms.close("rstd", rstd.reshape(-1), (var + 1e-5).rsqrt(), 20 * 2.0**-24 * (1 + large) * torch.ones(4).to(device))


def test_one_sample_has_the_kernel_of_several(device):
    """Its sums of channels are float32 as theirs: stores of another type could change the bits of dx."""
    dev = torch.empty(0, device=device).device
    form = {
        "device": dev,
        "dtype": BF16,
        "weight": BF16,
        "bias": None,
        "num_groups": 2,
        "aligned": 16,
        "activation": None,
        "wanted": (True, True, False),
    }
    kernels = [
        launch.backward_chain(shape=(n, 4, 8), dx=(32, 8, 1), dy=(32, 8, 1), x=(32, 8, 1), **form).whole.kernel
        for n in (1, 2, 3)
    ]
    assert kernels[0] is kernels[1] is kernels[2]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(1, 2, 500), (1, 3, 700), (2, 4, 130), (1, 130, 1)])
def test_merging_lanes_without_an_element(norms, device, small, dtype, shape):
    """Beyond 1.8e19 a square overflows; the variance does not, since all of a group's values are one."""
    x = torch.full(shape, 2.0**66, dtype=dtype, device=device)
    y, mean, rstd = launch.forward(x, None, None, 1, 1e-5, None)
    assert torch.equal(mean, torch.full((shape[0], 1), 2.0**66, device=device))
    norms.close("rstd", rstd, torch.full_like(mean, 1e-5**-0.5, dtype=torch.float64), 4 * 2.0**-24 * 1e-5**-0.5)
    assert torch.equal(y, torch.zeros_like(x))


def test_autograd_and_module_take_an_activation(norms, device):
    module = GroupNorm(2, 4, activation="silu", device=device)
    assert repr(module).endswith(", activation=silu)")
    assert "activation" not in repr(GroupNorm(2, 4))
    x = norms.draw((2, 4, 5), F32, device, seed=1).requires_grad_()
    (got,) = torch.autograd.grad(module(x).sum(), x)
    want = exact(torch.ones_like(x), x, module.weight, module.bias, 2, 1e-5, "silu")[1]
    norms.close("dx", got, want, 64 * 2.0**-24 * torch.ones_like(want))
    with pytest.raises(ValueError, match="activation must be None or one of silu, gelu, not 'relu'"):
        GroupNormFunction.apply(x, None, None, 2, 1e-5, "relu")
