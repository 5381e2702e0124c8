"""A backward is judged by the given mean and rstd if it uses them, and by statistics of its own if it computes them."""

from dataclasses import replace

import pytest
import torch
from norms import layernorm_bwd, rows, statistics

from verify_norm.cases import make
from verify_norm.checks.relations import given
from verify_norm.checks.relations.stages import view_of
from verify_norm.checks.values import accuracy
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.reference import layernorm, rmsnorm
from verify_norm.running.execute import execute

SPEC = CaseSpec((16, 64), offset=1000.0)
BACKWARD = "layernorm_bwd"


def run_of(function, spec=SPEC, op=BACKWARD, **fields):
    kernel = Kernel("k", op, run=function, **fields)
    run = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    assert run.problem is None
    assert all(output is None or output.ratio.max(initial=0.0) <= 1 for output in run.outputs.values())
    return run


def with_statistics(change, how=""):
    """A right backward with another mean and rstd: what `change` makes of the given ones and of x."""

    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        return layernorm_bwd(how)(dy, x, weight, bias, *change(x, mean, rstd), eps, normalized_shape)

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

    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        first.append(with_statistics(toward_zero)(dy, x, weight, bias, mean, rstd, eps, normalized_shape))
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
    grow = 5e-7 if centred else 1e-6 if OPS[op].linear else 1.4e-6  # an activation's own error may hide less
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
