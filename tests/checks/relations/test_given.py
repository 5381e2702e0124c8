"""A backward is judged by the given mean and rstd if it uses them, and by statistics of its own if it computes them."""

from dataclasses import replace

import counted
import numpy as np
import pytest
import torch
from norms import layernorm_bwd, rows, statistics

from verify_norm.cases import make
from verify_norm.checks.relations import given
from verify_norm.checks.relations.stages import view_of
from verify_norm.checks.values import accuracy
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.reference import layernorm, rmsnorm
from verify_norm.running.execute import execute

SPEC = CaseSpec((16, 64), offset=1000.0)
BACKWARD = "layernorm_bwd"


class Counted:
    """A kernel that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, **arguments):
        self.calls += 1
        return self.function(**arguments)


def run_of(function, spec=SPEC, op=BACKWARD, **fields):
    kernel = Kernel("k", op, run=function, **fields)
    run = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    assert run.problem is None
    assert all(output is None or output.ratio.max(initial=0.0) <= 1 for output in run.outputs.values())
    return run


def with_statistics(change, how=""):
    """A right backward with another mean and rstd: what `change` makes of the given ones and of x."""

    def run(dy, x, weight, bias, mean, rstd, eps, weight_offset, normalized_shape):
        return layernorm_bwd(how)(dy, x, weight, bias, *change(x, mean, rstd), eps, normalized_shape, weight_offset)

    return run


def own(x, mean, rstd):
    mean, rstd = statistics(rows(x, x.shape[-1:]), 1e-5)
    return mean[:, 0], rstd[:, 0]


def own_mean(x, mean, rstd):
    return torch.nextafter(own(x, mean, rstd)[0], torch.tensor(0.0)), rstd


def toward_zero(x, mean, rstd):
    return torch.nextafter(mean, torch.tensor(0.0)), rstd


def twenty_bits(x, mean, rstd):
    return (mean.contiguous().view(torch.int32) + 8 & ~15).view(torch.float32), rstd


def grown(x, mean, rstd):
    return mean, rstd * (1 + 1e-6)


def found(run):
    """The findings of `accuracy` in a run."""
    return [item for item in accuracy(run) if isinstance(item, Finding)]


def expanded(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    m, r = mean[:, None], rstd[:, None]
    xhat, g = x * r - m * r, dy * weight
    dx = r * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
    return dx, (dy * xhat).sum(0), dy.sum(0)


@pytest.mark.parametrize(
    ("wrong", "offset"),
    [
        *((expanded, 1000.0), (with_statistics(toward_zero), 100.0), (with_statistics(twenty_bits), 10.0)),
        (with_statistics(grown), 0.0),
    ],
    ids=["x·rstd − mean·rstd", "mean toward 0", "mean in 20 bits", "rstd too large"],
)
def test_what_hides_behind_statistics_of_its_own_shows_in_given_ones(wrong, offset):
    said = found(run_of(wrong, replace(SPEC, offset=offset)))
    assert said
    assert all("uses the given mean and rstd, which leaves one rounding of each" in f.message for f in said)
    assert all(f.ulp > f.allowed for f in said)


def test_the_expanded_form_passes_where_it_is_declared():
    assert found(run_of(expanded, contract=Contract(expanded=True))) == []


@pytest.mark.parametrize("change", [own, own_mean], ids=lambda f: f.__name__)
def test_statistics_of_its_own_keep_the_wide_bound(change):
    assert found(run_of(with_statistics(change))) == []


def test_outputs_that_do_not_follow_the_given_statistics_keep_the_wide_bound():
    """As where an output does not show the statistics: here it is one of a first call, whatever the arguments."""
    first = []

    def run(**arguments):
        first.append(with_statistics(toward_zero)(**arguments))
        return first[0]

    assert found(run_of(run)) == []


def test_a_path_with_statistics_of_its_own_beside_one_that_uses_the_given():
    """Each case is judged by what the kernel does in it, of either kind."""

    def change(x, mean, rstd):
        return toward_zero(x, *(own(x, mean, rstd) if x.shape[1] > 64 else (mean, rstd)))

    assert found(run_of(with_statistics(change), replace(SPEC, shape=(16, 65)))) == []
    assert found(run_of(with_statistics(change)))


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (1, 3), (3,), (2, 1)], ids=str)
def test_the_smallest_rows_with_a_mean_of_their_own(shape):
    """So few terms that an output may not show which statistics it is made of."""
    for seed in range(6):
        for dtype, data in (("float32", "normal"), ("bfloat16", "integers")):
            spec = CaseSpec(shape, dtype, offset=(0.0, 100.0)[seed % 2], data=data, weight_dtype="float32", seed=seed)
            for change in (own, own_mean):
                run = execute(
                    Kernel("k", BACKWARD, run=with_statistics(change)), make.case(spec, OPS[BACKWARD], Contract())
                )
                assert given.stricter(run) == {}


def relies(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    """c1 from g without its mean, and x̂ without its mean, which is 0 of exact statistics."""
    xhat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    g, centred = g - g.mean(1, keepdim=True), xhat - xhat.mean(1, keepdim=True)
    return rstd[:, None] * (g - centred * (g * xhat).mean(1, keepdim=True)), (dy * xhat).sum(0), dy.sum(0)


RIGHT = (layernorm_bwd(), layernorm_bwd("sums"), relies)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("right", RIGHT, ids=["plain", "sums", "relies"])
def test_right_kernels_far_from_zero(right, offset):
    for data in ("normal", "heavy", "ramp", "constant"):
        for shape in ((16, 64), (3, 1000)):
            assert given.stricter(run_of(right, CaseSpec(shape, offset=offset, data=data))) == {}


def test_narrower_statistics_are_declared():
    """They are given in float32, and a kernel may round them to the type of its contract."""

    def change(x, mean, rstd):
        return mean.bfloat16().float(), rstd.bfloat16().float()

    assert found(run_of(with_statistics(change), contract=Contract(stats="bfloat16"))) == []


def test_what_cannot_be_told_is_not_judged():
    """One element a row, elements that share memory, an eps that hides x, rows of zeros, sums in a random order."""
    wrong = with_statistics(grown)
    shared = replace(SPEC, dy_layout="scalar")
    for spec in (shared, replace(SPEC, data="zero", offset=0.0), replace(SPEC, eps=1e12), replace(SPEC, shape=(4, 1))):
        assert given.stricter(run_of(wrong, spec)) == {}
    loose = Contract(deterministic=False, summation="atomic")
    found = given.stricter(run_of(with_statistics(grown, "atomic"), contract=loose))
    assert set(found) <= {"dx"}


def by_reference(op, spec, grow, recompute):
    """A backward of any operator in float64, whose mean, or in RMSNorm rstd, is off: the given one, or its own."""

    def run(**arguments):
        values = {n: t.double().numpy() for n, t in arguments.items() if isinstance(t, torch.Tensor)}
        x = values.get("residual_out", values.get("x"))
        view = view_of(make.build(spec, OPS[op], Contract(), "cpu", make.exact_inputs(spec, OPS[op])), x)
        w, b = values.get("weight"), values.get("bias")
        n = layernorm.norm(view, x, w, b, spec.eps) if OPS[op].centred else rmsnorm.norm(view, x, w, spec.eps, 0.0)
        chain = OPS[op].chain
        if chain is not None:
            n = chain.base.norm(chain.given(x, values), {**values, "eps": spec.eps, "num_groups": spec.num_groups})
        mean, rstd = n.mean, n.rstd
        if not recompute:
            rstd = values["rstd"].reshape(rstd.shape) / n.rstd_scale
            mean = values["mean"].reshape(mean.shape) if OPS[op].centred else mean
        mean, rstd = mean * (1 + grow), rstd if OPS[op].centred else rstd * (1 + grow)
        n = replace(n, mean=mean, xc=n.x - mean, rstd=rstd, xhat=(n.x - mean) * rstd)
        dy = values["dy"].reshape(view.shape)
        for stage in OPS[op].stages:
            dy, _ = stage.pull(dy, n.y, values)
        gradients = n.gradients(dy)
        found = dict(zip(("dx", "dweight", "dbias"), gradients, strict=True))
        found["dx"] = found["dx"] + values.get("dresidual_out", 0.0)
        if OPS[op].before is not None:
            found["dx"], _ = OPS[op].before.pull(found["dx"], x, values)
        if OPS[op].dropout is not None:
            found |= {"dresidual": found["dx"], "dx": OPS[op].dropout.value(found["dx"], {**arguments, **values})}
        return {
            n: None if v is None else torch.from_numpy(v).float()
            for n, v in found.items()
            if n in {tensor.name for tensor in OPS[op].outputs} and (n != "dbias" or b is not None)
        }

    return run


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if name.endswith("_bwd") and op.lawful])
def test_every_operator(op):
    rows = OPS[op].view == "rows"
    centred, groups = OPS[op].centred, 2 if "num_groups" in OPS[op].attrs else None
    spec = CaseSpec((16, 64) if rows else (4, 6, 32), num_groups=groups, offset=1000.0 if centred else 0.0)
    plain = OPS[op].linear and OPS[op].before is None
    grow = 5e-7 if centred else 1e-6 if plain else 1.4e-6  # an activation's own error may hide less
    assert given.stricter(run_of(by_reference(op, spec, 0.0, False), spec, op)) == {}
    assert given.stricter(run_of(by_reference(op, spec, grow, True), spec, op)) == {}
    assert given.stricter(run_of(by_reference(op, spec, grow, False), spec, op))


def test_running_statistics_are_given_exactly():
    spec = CaseSpec((4, 6, 32), training=False)
    case = make.case(spec, OPS["batchnorm_bwd"], Contract())

    def run(dy, x, rstd, running_mean, **_):
        r = rstd.reshape(1, -1, 1) * (1 + 2.0**-22)
        xhat = (x - running_mean.reshape(1, -1, 1)) * r
        return dy * r * case.arguments["weight"].reshape(1, -1, 1), (dy * xhat).sum((0, 2)), dy.sum((0, 2))

    assert given.stricter(run_of(run, spec, "batchnorm_bwd")) == {}


def test_only_a_backward_that_is_called_with_statistics():
    assert given.names(OPS[BACKWARD]) == "mean and rstd"
    assert given.names(OPS["rmsnorm_bwd"]) == "rstd"
    assert given.names(OPS["layernorm_fwd"]) == ""
    run = run_of(with_statistics(grown))
    assert given.stricter(run)
    assert given.stricter(replace(run, kernel=replace(run.kernel, autograd=True))) == {}


def test_cases_of_many_elements_are_judged_too():
    assert given.stricter(run_of(with_statistics(grown), CaseSpec((16, 300))))


def test_only_outputs_within_the_wide_bound_and_beyond_the_other_are_judged_again(monkeypatch):
    """Each is looked at on its own; the bound itself is within."""
    case = counted.case_of(counted.SPEC, "layernorm_bwd")
    tie = {name: replace(one, value=one.value * 0 + 1 + 2.0**-24) for name, one in case.expected.items()}
    run = counted.run_of(replace(case, expected=tie))
    deltas = [np.zeros(one.value.shape) for one in tie.values()]
    monkeypatch.setattr(make, "errors", lambda *_, **__: deltas)
    monkeypatch.setattr(given, "_using", lambda _: set(tie))

    def judged(**outputs):
        """Of each output what it is, and how far that is from its truth by the wide bound."""
        made = {
            name: replace(run.outputs[name], got=np.full(tie[name].value.shape, got), ratio=np.full(1, ratio))
            for name, (got, ratio) in outputs.items()
        }
        return set(given.stricter(replace(run, outputs=made)))

    off = 1 + 2.0**-22
    assert judged(dx=(off, 1.5), dweight=(off, 1.0), dbias=(1.0, 0.5)) == {"dweight"}
    assert judged(dx=(off, 3.0), dweight=(1.0, 0.0), dbias=(off, 0.0)) == {"dbias"}


def test_a_kernel_whose_outputs_all_fit_is_not_called_again():
    kernel = Counted(layernorm_bwd())
    run = run_of(kernel, CaseSpec((16, 64)))
    calls = kernel.calls
    assert given.stricter(run) == {}
    assert kernel.calls == calls


def using(function, spec=SPEC, **fields):
    """The outputs that use the given statistics, and how often the kernel runs to tell."""
    kernel = Counted(function)
    run = execute(Kernel("k", BACKWARD, run=kernel, **fields), make.case(spec, OPS[BACKWARD], Contract()))
    calls = kernel.calls
    return given._using(run), kernel.calls - calls


def test_the_kernel_runs_as_often_as_it_takes_to_tell():
    """The second run shows what is made of x; dbias alone needs the third, which shows that it uses no statistic."""
    assert using(layernorm_bwd()) == ({"dx", "dweight"}, 3)
    assert using(with_statistics(own)) == (set(), 3)
    assert using(lambda x, **_: (x + x.sum(), x.sum(0), x.sum(0))) == (set(), 2)


@pytest.mark.parametrize("fields", [{"dy_layout": "scalar"}, {"x_layout": "scalar"}])
def test_elements_that_share_memory_are_not_changed(fields):
    assert using(layernorm_bwd(), replace(SPEC, **fields)) == (set(), 0)


def test_a_gradient_that_follows_statistics_where_dy_is_0_alone_does_not_use_them():
    def run(dy, x, weight, bias, mean, rstd, eps, weight_offset, normalized_shape):
        dx, *others = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape, weight_offset)
        return torch.where(torch.arange(x.shape[1]) % 2 == 1, dx, dy), *others

    assert using(run) == ({"dweight"}, 3)


@pytest.mark.parametrize(
    ("mean", "rstd", "calls"),
    [
        (8 + 0.25, 0.5 + 0.0625, 3),  # an eighth of 1/rstd = 2, and of rstd
        (8 + 0.2499, 1.0, 0),
        (8 - 0.25, 0.25, 3),
        (0.0, 0.5624, 0),
    ],
)
def test_statistics_of_the_changed_x_must_be_far_from_the_given_ones(monkeypatch, mean, rstd, calls):
    kernel = Counted(layernorm_bwd())
    case = counted.case_of(replace(counted.SPEC, eps=0.0), BACKWARD, x=8 + 2 * counted.X)
    assert (set(case.exact["mean"]), set(case.exact["rstd"])) == ({8.0}, {0.5})
    run = execute(Kernel("k", BACKWARD, run=kernel), case)
    before = kernel.calls
    others = {"mean": np.full(4, mean), "rstd": np.full(4, rstd)}
    monkeypatch.setattr(make, "saved", lambda *_: others)
    given._using(run)
    assert kernel.calls - before == calls


def changed(x, op="layernorm_fwd", **fields):
    x = np.array(x)
    return given._changed(counted.run_of(make.case(CaseSpec(x.shape, **fields), OPS[op], Contract())), x)


def test_every_other_element_of_a_row_is_changed_to_4_times_the_largest_against_their_mean():
    rows = [[1.0, 2.0, -3.0, 4.0], [0.0, -1.0, 5.0, 0.0], [1.0, -2.0, 1.0, 1.0], [0.0] * 4]
    x, where = changed(rows)
    assert x.tolist() == [[1, -16, -3, -16], [0, 20, 5, 20], [1, 8, 1, 8], [0, 0, 0, 0]]
    assert where.tolist() == [[False, True] * 2] * 4
    x, where = changed([[3.0, 1.0]])
    assert x.tolist() == [[3, -12]]
    x, where = changed([[3.0], [1.0]])
    assert x.tolist() == [[3], [1]]
    assert not where.any()


def test_of_a_group_the_last_axis_with_more_than_one_element_alternates():
    x, where = changed([[1.0, 2.0, 3.0, -4.0]], "groupnorm_fwd", num_groups=2)
    assert x.tolist() == [[1, -8, 3, 16]]
    x, where = changed([[[1.0, 2.0], [3.0, 4.0]]], "groupnorm_fwd", num_groups=1)
    assert x.tolist() == [[[1, -16], [3, -16]]]
    assert where.tolist() == [[[False, True]] * 2]


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "one", "two", "same"),
    [
        ("dx", [1.0, 2.0], [1.0, 3.0], True),  # the second is not kept
        ("dresidual", [1.0, 2.0], [1.0, 3.0], True),
        ("dx", [1.0, 2.0], [0.0, 2.0], False),
        ("dweight", [1.0, 2.0], [1.0, 3.0], False),
        ("dweight", [NAN, 2.0], [NAN, 2.0], True),
        ("dweight", [NAN, 2.0], [1.0, 2.0], False),
        ("dweight", [1.0, 2.0], [NAN, 2.0], False),
        ("dweight", [1.0], [1.0, 1.0], False),
        ("dweight", None, [1.0], False),
        ("dweight", [1.0], None, False),
    ],
)
def test_which_outputs_have_the_same_bits(name, one, two, same):
    run = counted.run_of(counted.case_of(counted.PLAIN, "layernorm_bwd"))
    outputs = (v and replace(run.outputs["dx"], got=np.array(v)) for v in (one, two))
    runs = [replace(run, outputs={name: output}) for output in outputs]
    assert given._same(*runs, name, np.array([True, False])) == same
    assert not given._same(runs[0], replace(run, outputs={}), name, np.array([True, False]))
