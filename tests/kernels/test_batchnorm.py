"""BatchNorm against torch's float64 of the same rounded inputs, in plans as shipped and in those of shared groups."""

import pytest
import torch
from torch.nn import functional

from verify_norm.kernels import batchnorm
from verify_norm.kernels.batchnorm import batchnorm_bwd, batchnorm_fwd
from verify_norm.kernels.groups import launch
from verify_norm.kernels.groups import plan as group_plan

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
EPS, MOMENTUM = 1e-5, 0.3
SMALL = {"WHOLE": 64, "BLOCK": 128, "HELD": 256, "BOTH": 256, "FEW": 16, "SUMMED": 512, "COMPUTED": 2, "BATCH": 2000}
HELD = {"FEW": 64, "WHOLE": 128}
NAMES = ("y", "running_mean", "running_var", "dx", "dweight", "dbias", "mean", "rstd")
CASES = [  # a shape, the layouts of x and dy, the types of x and weight, and constants of the plans
    ((5, 3), ("contiguous", "contiguous"), (F32, F32), {}),
    ((4, 6, 5, 7), ("contiguous", "contiguous"), (F16, F16), {}),
    ((4, 6, 5, 7), ("channels_last", "channels_last"), (BF16, F32), {}),
    ((4, 6, 5, 7), ("channels_last", "contiguous"), (F32, F32), SMALL),
    ((4, 6, 5, 7), ("transposed", "every_other"), (F32, F32), {}),
    ((2, 3, 2, 2, 5), ("every_other", "row_strided"), (F32, F32), {}),
    ((1, 3, 70), ("contiguous", "contiguous"), (F32, F32), SMALL),
    ((3, 34, 9), ("contiguous", "contiguous"), (F32, F32), SMALL),
    ((4, 34, 3, 5), ("channels_last", "channels_last"), (F32, F32), SMALL),  # units of several channels
    ((300, 2), ("contiguous", "contiguous"), (BF16, BF16), SMALL),
    ((2, 4, 16, 32), ("contiguous", "contiguous"), (F32, F32), SMALL),  # even blocks
    ((40, 3, 7), ("contiguous", "contiguous"), (F32, F32), SMALL | {"TOGETHER": 2}),  # a launch merges the sums
    ((40, 24, 7, 7), ("contiguous", "contiguous"), (BF16, F32), SMALL),  # columns of several channels are a unit
    ((6, 9, 7, 7), ("contiguous", "contiguous"), (F32, F32), {}),
    ((4, 6, 5, 5), ("contiguous", "transposed"), (F32, F32), SMALL),
    ((3, 2, 17, 13), ("contiguous", "contiguous"), (F16, F32), HELD),
    ((5, 4, 40), ("contiguous", "contiguous"), (F32, F32), HELD),
]


@pytest.fixture
def planned(monkeypatch):
    """Sets constants of the plans, those of each device alike."""

    def by(constants):
        for name, value in constants.items():
            shipped = getattr(group_plan, name)
            monkeypatch.setattr(group_plan, name, dict.fromkeys(shipped, value) if type(shipped) is dict else value)
        for kept in (group_plan.plan, launch.forward_chain, launch.backward_chain):
            kept.cache_clear()

    yield by
    by({})


def arguments(norms, device, shape, layouts=("contiguous", "contiguous"), types=(F32, F32)):
    """x, dy, weight, bias, running mean and variance."""
    x = norms.draw(shape, types[0], device, seed=1, mean=3.0, layout=layouts[0])
    dy = norms.draw(shape, types[0], device, seed=2, layout=layouts[1])
    w, b, mean, var = (norms.draw(shape[1:2], types[1], device, seed=s, mean=0.5) for s in (3, 4, 5, 6))
    return x, dy, w, b, mean, var.abs() + 0.5


def ours(given, training):
    x, dy, w, b, *running = given
    before = [t.clone() for t in running]
    y, mean, rstd = batchnorm_fwd(x, w, b, *running, training, MOMENTUM, EPS)
    return y, *running, *batchnorm_bwd(dy, x, w, b, mean, rstd, *before, training, EPS), mean, rstd


def exact(given, training):
    x, dy, w, b, *running = (t.double().detach().clone() for t in given)
    flat = x.transpose(0, 1).flatten(1)
    mean, var = (flat.mean(1), flat.var(1, correction=0)) if training else (t.clone() for t in running)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    y = functional.batch_norm(x, *running, w, b, training, MOMENTUM, EPS)
    return y.detach(), *running, *torch.autograd.grad(y, leaves, dy), mean, (var + EPS).rsqrt()


def agree(norms, got, want, terms):
    for name, a, b in zip(NAMES, got, want, strict=True):
        # a sum of so many terms, each with a few roundings, of the size of the largest result
        norms.close(name, a, b, 16 * norms.bounds.__globals__["height"](terms) * 2.0**-24 * b.abs().max())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("shape", "layouts", "types", "constants"), CASES)
def test_against_float64(norms, device, planned, shape, layouts, types, constants, training):
    planned(constants)
    given = arguments(norms, device, shape, layouts, types)
    want = exact(given, training)
    got = ours(given, training)
    agree(norms, got, want, given[0].numel())
    assert [t.dtype for t in got] == [types[0], types[1], types[1], types[0], types[1], types[1], F32, F32]
    if layouts[0] == "channels_last":
        assert got[0].is_contiguous(memory_format=torch.channels_last)


def test_without_running_statistics_weight_or_bias(norms, device):
    x, dy, w, _, _, _ = arguments(norms, device, (4, 3, 5))
    y, mean, rstd = batchnorm_fwd(x, None, None, None, None, True, MOMENTUM, EPS)
    norms.close("y", y, functional.batch_norm(x.double(), None, None, training=True, eps=EPS), 2.0**-18)
    dx, dw, db = batchnorm_bwd(dy, x, w, None, mean, rstd, None, None, True, EPS)
    assert db is None
    assert (dx.shape, dw.shape) == (x.shape, w.shape)


def test_strided_running_statistics_move_in_place_and_evaluation_moves_none(norms, device):
    x, _, w, b, mean, var = arguments(norms, device, (4, 3, 5))
    home = torch.zeros(3, 2, device=device)
    home[:, 0], home[:, 1] = mean, var
    batchnorm_fwd(x, w, b, mean, var, True, MOMENTUM, EPS)
    batchnorm_fwd(x, w, b, home[:, 0], home[:, 1], True, MOMENTUM, EPS)
    assert torch.equal(home, torch.stack([mean, var], 1))
    batchnorm_fwd(x, w, b, home[:, 0], home[:, 1], False, MOMENTUM, EPS)
    assert torch.equal(home, torch.stack([mean, var], 1))


@pytest.mark.parametrize("training", [True, False])
def test_without_elements_nothing_moves(norms, device, training):
    x, dy, w, b, mean, var = arguments(norms, device, (0, 3, 4))
    before = mean.clone(), var.clone()
    y, *statistics = batchnorm_fwd(x, w, b, mean, var, training, MOMENTUM, EPS)
    assert y.shape == x.shape
    assert all(t.isnan().all() == training for t in statistics)
    dx, dw, db = batchnorm_bwd(dy, x, w, b, *statistics, mean, var, training, EPS)
    assert (dx.shape, dw.tolist(), db.tolist()) == (x.shape, [0] * 3, [0] * 3)
    assert torch.equal(mean, before[0])
    assert torch.equal(var, before[1])


def test_in_evaluation_x_does_not_reach_dx(norms, device):
    x, dy, w, b, mean, var = arguments(norms, device, (4, 3, 5))
    want = batchnorm_bwd(dy, x, w, b, None, None, mean, var, False, EPS)[0]
    x[1, 2] = torch.inf
    assert torch.equal(batchnorm_bwd(dy, x, w, b, None, None, mean, var, False, EPS)[0], want)


def test_a_channel_never_sees_the_others(norms, device):
    x, _, w, b, mean, var = arguments(norms, device, (3, 4, 5))
    clean = batchnorm_fwd(x, w, b, None, None, True, MOMENTUM, EPS)[0]
    x[1, 2] = torch.nan
    y = batchnorm_fwd(x, w, b, mean, var, True, MOMENTUM, EPS)[0]
    assert (
        y.isnan().any(2).any(0).tolist() == mean.isnan().tolist() == var.isnan().tolist() == [False, False, True, False]
    )
    assert torch.equal(y[:, [0, 1, 3]], clean[:, [0, 1, 3]])


def test_an_operator_for_torch_compile(norms, device, compiled):
    compiler, names = compiled
    given = arguments(norms, device, (4, 3, 5))
    want = ours(tuple(t.clone() for t in given), True)
    got = compiler(lambda *given: ours(given, True))(*given)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    own = {name for name in names if "batch_norm" in name or "auto_functionalized" in name}  # of what moves in place
    assert own == {"auto_functionalized_v2", f"{batchnorm.NAMESPACE}.batch_norm_backward.default"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(1, 3)}, ValueError, "more than one value a channel"),
        ({"x": torch.zeros(4)}, ValueError, "dimensions"),
        ({"x": torch.zeros(4, 0)}, ValueError, "channels"),
        ({"x": torch.zeros(4, 3).double()}, TypeError, "float64"),
        ({"weight": torch.ones(2)}, ValueError, "weight must have shape"),
        ({"running_mean": torch.ones(2)}, ValueError, "running_mean must have shape"),
        ({"running_var": torch.ones(3, dtype=torch.int32)}, TypeError, "running_var must have a floating type"),
        ({"training": False, "running_var": None}, ValueError, "evaluation needs running_var"),
    ],
)
def test_refusals(change, error, message):
    given = {"x": torch.zeros(4, 3), "weight": None, "bias": None, "training": True, "momentum": 0.1, "eps": EPS}
    given |= {"running_mean": torch.zeros(3), "running_var": torch.ones(3)} | change
    with pytest.raises(error, match=message):
        batchnorm_fwd(**given)
