"""Gradients of some outputs alone: what is asked for, what is right then, and which statistics take part."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verify_norm.cases import make
from verify_norm.checks.relations import cotangents
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec

SPEC = CaseSpec((4, 6), dtype="float32")
SPACING = 2.0**-23  # of float32 at 1


def of(value, delta, dtype="float32", saturate="either"):
    return Expected(np.array(value, float), np.array(delta, float), dtype, saturate)


@pytest.mark.parametrize(
    ("others", "value", "delta"),
    [
        ((), [1.0, -2.0], [0.25, 0.5]),
        ((of([0, 0], [0.125, 0.25]),), [1, -2], [0.375, 0.75]),  # a zero is no summand, its bound counts
        (
            (of([-4, 1], [0, 0.5], "bfloat16", "saturate"),),
            [-3, -1],
            [0.25 + (1 + 4) * SPACING / 2, 1 + (2 + 1) * SPACING / 2],
        ),
        (  # one sum of two of them too, which is no larger than the sum of all magnitudes
            (of([-4, 1], [0, 0]), of([8, 1], [0, 0])),
            [5, 0],
            [0.25 + (1 + 4 + 8 + 8) * SPACING / 2, 0.5 + (2 + 1 + 1 + 4) * SPACING / 2],
        ),
        (
            (of([-4, 1], [0, 0]), of([8, 1], [0, 0]), of([1, 1], [0, 0])),
            [6, 1],
            [0.25 + (1 + 4 + 8 + 1 + 2 * 8) * SPACING / 2, 0.5 + (2 + 1 + 1 + 1 + 2 * 4) * SPACING / 2],
        ),
    ],
)
def test_each_of_several_gradients_and_each_sum_before_the_last_may_be_rounded(others, value, delta):
    added = cotangents._added(of([1, -2], [0.25, 0.5]), *others)
    assert added.value.tolist() == value
    assert added.delta.tolist() == delta
    assert (added.dtype, added.saturate) == ("float32", "either")


def with_stages(monkeypatch, rstd, delta=0.0):
    """Let stages be of 4 rows of 2 elements with these numbers; return a run whose x has three axes."""
    column = np.ones((4, 1))
    view = SimpleNamespace(axes=(1,), shape=(4, 2), count=2)
    xhat = np.array([[3.0, -3.0]] * 4)
    norm = SimpleNamespace(view=view, rstd=rstd * column, rstd_scale=0.5 * column, xhat=xhat, x=np.full((4, 2), -7.0))
    arithmetic = SimpleNamespace(gamma=lambda k: k / 12, tiny=1 / 8)
    z = SimpleNamespace(shift=1.0, factor=0.5, unit=2.0, magnitude=3.0, floor=4.0)
    monkeypatch.setattr(cotangents, "stages", lambda run: SimpleNamespace(norm=norm, arithmetic=arithmetic, z=z))
    expected = {"dx": of(np.zeros((2, 2, 2)), np.full((2, 2, 2), delta), "bfloat16", "saturate")}
    return SimpleNamespace(case=SimpleNamespace(expected=expected, spec=CaseSpec((2, 2, 2))))


def test_the_gradient_of_a_statistic_and_its_bound(monkeypatch):
    run, u = with_stages(monkeypatch, 4.0), np.array([5.0, -5.0, 5.0, 5.0])
    mean = cotangents._of_statistic(run, "mean", u)
    assert mean.value.tolist() == [[[2.5, 2.5], [-2.5, -2.5]], [[2.5, 2.5], [2.5, 2.5]]]
    tiny = 4 * 1 / 8 * (1 + 7)  # what subnormal numbers may cost
    assert mean.delta.tolist() == np.full((2, 2, 2), 0.5 * 2.5 + tiny).tolist()
    rstd = cotangents._of_statistic(run, "rstd", u)  # −u·scale·r²·x̂/n
    assert rstd.value.tolist() == [[[-60, 60], [60, -60]], [[-60, 60], [-60, 60]]]
    off = 1.0 + 0.5 * 3 + 2 * 3 + 4
    unit = 2.5 * 4**2 / 2
    assert rstd.delta.tolist() == np.full((2, 2, 2), unit * (1.5 * 1.5**2 * (3 + 2 * off) - 3) + tiny).tolist()
    assert {(one.dtype, one.saturate) for one in (mean, rstd)} == {("bfloat16", "saturate")}


@pytest.mark.parametrize(
    ("rstd", "delta", "judged"),
    [
        (2.0**-40, 0.0, False),
        (2.0**-40 * (1 + 2**-20), 0.0, True),
        (2.0**40 * (1 - 2**-20), 0.0, True),
        (2.0**40, 0.0, False),
        (1.0, np.inf, False),
    ],
)
def test_a_gradient_is_judged_where_dx_is_and_rstd_is_no_extreme(monkeypatch, rstd, delta, judged):
    given = with_stages(monkeypatch, rstd, delta)
    assert bool(np.isfinite(cotangents._of_statistic(given, "rstd", np.ones(4)).delta).all()) is judged
    assert bool(np.isfinite(cotangents._of_statistic(given, "mean", np.ones(4)).delta).any()) is judged


@pytest.mark.parametrize(
    ("op", "changes", "size", "known"),
    [
        ("rmsnorm_bwd", {}, 4, True),
        ("rmsnorm_bwd", {}, 24, False),
        ("rmsnorm_bwd", {"frozen": ("x",)}, 4, False),
        ("rmsnorm_bwd", {"frozen": ("weight",)}, 4, True),
        ("partial_rmsnorm_bwd", {}, 4, False),  # its statistic is that of a part of a row
        ("gate_rmsnorm_bwd", {}, 4, False),  # the gate comes before
        ("dropout_add_rmsnorm_bwd", {}, 4, False),
        ("batchnorm_bwd", {}, 6, True),
        ("batchnorm_bwd", {"training": False}, 6, False),
    ],
)
def test_which_outputs_are_statistics_with_a_known_gradient(op, changes, size, known):
    run = SimpleNamespace(
        case=make.case(replace(SPEC, **changes), OPS[op], Contract()), kernel=SimpleNamespace(contract=Contract())
    )
    assert cotangents._known(run, torch.ones(size)) is known


class Asked:
    """Stands for a further run: it keeps what was asked, and its outputs are hand-made."""

    def __init__(self, monkeypatch, outputs=(), expected=(), problem=None, shape=(64, 6)):
        self.outputs, self.case, self.problem = dict(outputs), SimpleNamespace(expected=dict(expected)), problem
        self.graph = SimpleNamespace(outputs={"rstd": torch.ones(shape[0], 1), "mean": torch.ones(shape[0])})
        self.graph.gradients = lambda asks, **options: self.asks.append((asks, options))
        self.asks, self.changed, self.devices = [], {}, []
        self.run = SimpleNamespace(
            case=make.case(replace(SPEC, shape=shape, dresidual_out=True), OPS["add_rmsnorm_bwd"], Contract()),
            kernel=SimpleNamespace(contract=Contract()),
        )
        exact_inputs = make.exact_inputs
        monkeypatch.setattr(cotangents, "asked", self.asked)
        monkeypatch.setattr(
            make, "exact_inputs", lambda spec, op, device: self.devices.append(device) or exact_inputs(spec, op, device)
        )

    def asked(self, run, ask, **changed):
        assert run is self.run
        self.changed = changed
        ask(self.graph, {"dy": "dy", "dresidual_out": "dresidual_out"})
        return self


@pytest.mark.parametrize("names", [("residual_out",), ("y", "rstd"), ("mean", "rstd"), ("y", "residual_out", "rstd")])
def test_the_outputs_that_are_named_have_cotangents_and_no_others(monkeypatch, names):
    one = Asked(monkeypatch)
    assert list(cotangents._chosen(one.run, names)) == []
    ((asks, options),) = one.asks
    assert options == {"materialize_grads": True}
    assert tuple(asks) == names
    for name in {"rstd", "mean"} & {*names}:
        assert (asks[name].dtype, asks[name].shape) == (torch.float32, one.graph.outputs[name].shape)
        assert set(asks[name].flatten().tolist()) == {-2.0, -1.0, 1.0, 2.0}
    assert [asks[name] for name in names if name in ("y", "residual_out")] == [
        {"y": "dy", "residual_out": "dresidual_out"}[name] for name in names if name in ("y", "residual_out")
    ]
    spec, exact = one.changed["spec"], one.changed["exact"]
    assert spec == replace(one.run.case.spec, dresidual_out="residual_out" in names)
    assert (exact["dresidual_out"] is not None) == ("residual_out" in names)
    assert exact["dy"].shape == spec.shape
    assert bool(exact["dy"].any()) == ("y" in names)
    assert one.devices == [one.run.case.device]


def test_the_same_case_asks_for_the_same_gradients(monkeypatch):
    one = Asked(monkeypatch)
    for _ in range(2):
        list(cotangents._chosen(one.run, ("rstd",)))
    assert torch.equal(one.asks[0][0]["rstd"], one.asks[1][0]["rstd"])


def output(got, ratio=0.0):
    return SimpleNamespace(got=np.array(got, float), ratio=ratio)


def test_the_elements_of_each_gradient_that_are_wrong_are_counted_and_the_worst_one_is_told(monkeypatch):
    want = 1 + SPACING
    right, bound = of([[want] * 4], [[SPACING / 2] * 4]), 1 + 2 * SPACING  # half a spacing more: it is rounded
    got = output([[bound, bound + SPACING, 3, want]])
    outputs = {"dx": None, "dgate": output([1.0], ratio=None), "dbias": output([5.0]), "dweight": got}
    expected = {"dx": of([1], [0]), "dgate": of([[1, 1]], [[0, 0]]), "dbias": None, "dweight": right}
    (found,) = cotangents._chosen(Asked(monkeypatch, outputs, expected).run, ("residual_out",))
    assert (found.output, found.index, found.count) == ("dweight", (0, 2), 2)
    assert "dweight[0, 2] is 3, expected 1.00000012" in found.words
    assert "residual_out alone" in found.words
    outputs["dweight"] = output([[bound, 1, want, want]])
    assert list(cotangents._chosen(Asked(monkeypatch, outputs, expected).run, ("residual_out",))) == []
    outputs["dweight"] = output([[bound + SPACING, 1, want, want]])
    (found,) = cotangents._chosen(Asked(monkeypatch, outputs, expected).run, ("mean", "rstd"))
    assert (found.index, found.count) == ((0, 0), 1)
    assert (
        "of mean and rstd alone; mean and rstd not differentiated: ctx.mark_non_differentiable(mean, rstd)"
        in found.words
    )
    empty = {"dweight": SimpleNamespace(got=np.zeros((0, 3)), ratio=0.0)}
    none = {"dweight": of(np.zeros((0, 3)), np.zeros((0, 3)))}
    assert list(cotangents._chosen(Asked(monkeypatch, empty, none).run, ("y",))) == []


@pytest.mark.parametrize(("names", "told"), [(("residual_out",), True), (("rstd",), False), (("y", "rstd"), False)])
def test_a_failure_is_told_where_no_statistic_has_a_cotangent(monkeypatch, names, told):
    found = list(cotangents._chosen(Asked(monkeypatch, problem="no").run, names))
    assert [one.output for one in found] == [None] * told
    assert all("of residual_out alone" in one.words and "no" in one.words for one in found)
