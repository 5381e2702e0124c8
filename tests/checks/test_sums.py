"""The check `sums`: mistakes that hide in the bound of a long sum, and right kernels in several orders."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from counted import U, case_of, run_of
from matrix import layernorm_bwd as by_products
from matrix import product
from norms import layernorm, layernorm_bwd, statistics

from verify_norm.cases import make
from verify_norm.checks import CHECKS, sums
from verify_norm.checks.relations.stages import stages
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, OverProbable, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

TALL, WIDE = CaseSpec((16384, 4)), CaseSpec((2, 65536))
BOUNDED = ("signature", "accuracy", "statistics", "sums")


def convicting(function, spec, op, contract=None):
    """Return the checks among `BOUNDED` that find something, each with its output."""
    contract = contract or Contract()
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    assert run.problem is None, run.problem
    checks = [CHECKS[name] for name in BOUNDED if CHECKS[name].applies(OPS[op]) and CHECKS[name].looks(run)]
    return {(f.check, f.output) for c in checks for f in c.function(run) if isinstance(f, Finding)}


def changed(**by):
    """A right backward, whose named outputs are changed afterwards."""

    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        outputs = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        named = dict(zip(("dx", "dweight", "dbias"), outputs, strict=True))
        return tuple(by[name](t) if name in by else t for name, t in named.items())

    return run


def test_the_statistics_of_a_rounded_sum_are_right_if_the_contract_keeps_it():
    def rounded(x, residual, weight, eps, normalized_shape):
        h = (x.float() + residual.float()).to(x.dtype)
        rstd = torch.rsqrt(h.double().square().mean(-1) + eps)
        y = h.double() * rstd[..., None] * (1.0 if weight is None else weight.double())
        return y.to(x.dtype), h, rstd.float().reshape(-1)

    spec = CaseSpec((3, 512), "bfloat16")
    assert convicting(rounded, spec, "add_rmsnorm_fwd", Contract(residual="rounded")) == set()
    assert ("statistics", "rstd") in convicting(rounded, spec, "add_rmsnorm_fwd")


@pytest.mark.parametrize("name", ["dweight", "dbias"])
def test_a_relative_error_of_a_sum_over_rows(name):
    wrong = changed(**{name: lambda t: t * (1 + 2e-5)})
    assert convicting(wrong, TALL, "layernorm_bwd") == {("sums", name)}
    assert convicting(changed(), TALL, "layernorm_bwd") == set()


@pytest.mark.parametrize("how", ["float16 partial sums", "tf32 products"])
def test_a_narrow_type_inside_a_sum_over_rows(how):
    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, _, dbias = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        d, xhat = dy, (x - mean[:, None]) * rstd[:, None]
        if how == "tf32 products":
            d, xhat = ((t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in (d, xhat))
        parts = (d * xhat).split(128)
        parts = [part.sum(0).half().float() if how.startswith("float16") else part.sum(0) for part in parts]
        return dx, torch.stack(parts).sum(0), dbias

    assert ("sums", "dweight") in convicting(run, CaseSpec((65536, 4)), "layernorm_bwd")


def test_another_eps_in_long_rows():
    def run(x, weight, bias, eps, normalized_shape):
        return layernorm()(x, weight, bias, eps / 10, normalized_shape)

    assert convicting(run, WIDE, "layernorm_fwd") == {("sums", "rstd")}
    assert convicting(layernorm(), WIDE, "layernorm_fwd") == set()


@pytest.mark.parametrize("count", [-1, 1])
def test_means_over_another_count_in_long_rows(count):
    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        _, dweight, dbias = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        xhat, g, n = (x - mean[:, None]) * rstd[:, None], dy * weight, x.shape[1]
        c1, c2 = ((t.sum(1, keepdim=True) / (n + count)) for t in (g * xhat, g))
        return rstd[:, None] * (g - c2 - xhat * c1), dweight, dbias

    found = convicting(run, CaseSpec((4, 16384)), "layernorm_bwd")
    assert ("sums", "dx") in found


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "length"), [("bfloat16", 2**18), ("float32", 2**24)])
def test_long_runs_of_squares_pass(dtype, length):
    """Beside a large partial sum their roundings have no random sign."""

    def run(x, weight, eps, normalized_shape):
        sums = torch.zeros(len(x), Contract().lanes)
        for part in x.float().square().split(sums.shape[1], dim=1):
            sums += part
        rstd = torch.rsqrt(sums.double().sum(1) / length + eps)
        y = x.double() * rstd[:, None] * (1.0 if weight is None else weight.double())
        return y.to(x.dtype), rstd.float()

    assert convicting(run, CaseSpec((1, length), dtype), "rmsnorm_fwd") == set()


@pytest.mark.parametrize("lanes", [8, 128, 1024])
@pytest.mark.parametrize("spec", [TALL, CaseSpec((16384, 4), offset=100.0), CaseSpec((4096, 7), data="heavy")], ids=str)
def test_any_order_of_many_lanes_passes(lanes, spec):
    def total(t):
        padded = np.zeros((-(-len(t) // lanes) * lanes, t.shape[1]), np.float32)
        padded[: len(t)] = t.numpy()
        return torch.from_numpy(np.add.accumulate(padded.reshape(-1, lanes, t.shape[1]), 0)[-1].sum(0))

    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, _, _ = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, total(dy * ((x - mean[:, None]) * rstd[:, None])), total(dy)

    assert convicting(run, spec, "layernorm_bwd") == set()


@pytest.mark.parametrize(
    "contract", [Contract(), Contract(summation="sequential"), Contract(summation="atomic")], ids=str
)
def test_one_running_sum_passes(contract):
    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, _, _ = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        terms = (dy * ((x - mean[:, None]) * rstd[:, None])).numpy(), dy.numpy()
        return dx, *(torch.from_numpy(np.add.accumulate(t, 0)[-1]) for t in terms)

    assert convicting(run, TALL, "layernorm_bwd", contract) == set()


@pytest.mark.parametrize(
    "spec",
    [
        ("layernorm_bwd", CaseSpec((1, 3, 2, 1, 768))),
        ("layernorm_bwd", CaseSpec((2, 3, 12, 32), normalized_ndim=2, weight_dtype="float32", dtype="bfloat16")),
        ("groupnorm_bwd", CaseSpec((1, 4, 33, 33), num_groups=2)),
        ("groupnorm_silu_bwd", CaseSpec((2, 4, 20, 20), num_groups=2, bias=False)),
        ("batchnorm_bwd", CaseSpec((3, 4, 20, 20))),
        ("add_rmsnorm_bwd", CaseSpec((300, 512))),
        ("rmsnorm_bwd", CaseSpec((300, 512), weight_offset=1.0)),
    ],
    ids=str,
)
def test_every_view_of_the_data(spec):
    """A kernel that returns the truth, rounded, has no finding in any shape."""
    op, spec = spec
    case = make.case(spec, OPS[op], Contract())

    def run(**_):
        return {
            name: None if e is None else torch.from_numpy(e.value).to(getattr(torch, e.dtype))
            for name, e in case.expected.items()
        }

    right = execute(Kernel("k", op, run=run), case)
    assert CHECKS["sums"].looks(right)
    assert not [f for f in CHECKS["sums"].function(right) if isinstance(f, Finding)]


def backward_by(products, **factors):
    """Gradients by matrix products, whose named outputs are multiplied afterwards."""

    def run(dy, x, weight, bias, eps, normalized_shape):
        outputs = by_products(products)(dy, x, weight, bias, eps, normalized_shape)
        return [t * factors.get(name, 1.0) for name, t in zip(("dx", "dweight", "dbias"), outputs, strict=True)]

    return run


@pytest.mark.parametrize(("products", "e"), [("tf32", 6e-2), ("bf16", 0.5), ("bf16x3", 5e-3), ("tf32x3", 5e-4)])
def test_matrix_products_have_a_probable_error_too(products, e):
    spec, contract = CaseSpec((4096, 8)), Contract(products=products)
    assert convicting(backward_by(products), spec, "layernorm_bwd", contract) == set()
    for name, share in (("dweight", 1), ("dbias", 0.3 if products != "tf32x3" else 1)):
        wrong = backward_by(products, **{name: 1 + share * e})
        assert convicting(wrong, spec, "layernorm_bwd", contract) == {("sums", name)}


@pytest.mark.parametrize(("off", "found"), [(0.0, set()), (2e-4, {("sums", "mean")})])
def test_a_mean_by_matrix_products(off, found):
    def run(x, weight, bias, eps, normalized_shape):
        mean, rstd = product(x.T)[:, None] / x.shape[1], statistics(x, eps)[1]
        return (x - mean) * rstd * weight + bias, mean[:, 0] + off, rstd[:, 0]

    assert convicting(run, WIDE, "layernorm_fwd", Contract(products="tf32")) == found


@pytest.mark.parametrize(
    ("spec", "fields", "looks"),
    [
        (CaseSpec((512, 8), data="constant"), {}, False),
        (TALL, {"partials": "bfloat16"}, False),
        (CaseSpec((512, 8), "bfloat16"), {"xhat": "x"}, False),
        (CaseSpec((512, 8)), {"xhat": "x"}, True),  # x̂ of a float32 x is not rounded
        (CaseSpec((512, 8)), {"products": "bf16x3"}, True),
    ],
)
def test_equal_rows_and_narrow_types_are_left_to_the_bound(spec, fields, looks):
    kernel = Kernel("k", "layernorm_bwd", run=layernorm_bwd(), contract=Contract(**fields))
    assert CHECKS["sums"].looks(execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))) == looks
    reason = CHECKS["sums"].lacks(kernel, ())
    assert bool(reason) == bool({"partials", "xhat"} & fields.keys())
    assert not reason or f"the contract has {'partials=bfloat16' if 'partials' in fields else 'xhat=x'}" in reason


@pytest.mark.parametrize(
    ("op", "applies"),
    [
        ("layernorm_fwd", True),
        ("add_rmsnorm_bwd", True),
        ("gate_rmsnorm_bwd", False),  # a stage before the norm
        ("dropout_add_rmsnorm_fwd", False),
        ("partial_rmsnorm_bwd", False),  # the statistic of a part of the row
    ],
)
def test_it_applies_where_nothing_before_the_norm_rounds_all_elements_alike(op, applies):
    assert CHECKS["sums"].applies(OPS[op]) == applies


def run_with(spec, op="layernorm_bwd", **fields):
    """A run of random data that returns the truth."""
    contract = Contract(**fields)
    return run_of(make.case(spec, OPS[op], contract), contract)


@pytest.mark.parametrize(
    ("spec", "op", "looks"),
    [
        (CaseSpec((256, 8)), "layernorm_bwd", True),
        (CaseSpec((255, 8)), "layernorm_bwd", False),
        (CaseSpec((2, 256)), "layernorm_bwd", True),
        (CaseSpec((2, 255)), "layernorm_bwd", False),
        (CaseSpec((300, 1)), "layernorm_bwd", True),  # a weight of one element
        (CaseSpec((256, 8)), "layernorm_fwd", False),  # adds up no columns
        (CaseSpec((256, 8), log2_scale=20), "layernorm_bwd", True),
        (CaseSpec((256, 8), log2_scale=-20), "layernorm_bwd", True),
        (CaseSpec((256, 8), log2_scale=21), "layernorm_bwd", False),
        (CaseSpec((256, 8), dy_log2_scale=-20), "layernorm_bwd", True),
        (CaseSpec((256, 8), dy_log2_scale=-21), "layernorm_bwd", False),
    ],
    ids=str,
)
def test_long_sums_of_numbers_near_one_are_looked_at(spec, op, looks):
    assert CHECKS["sums"].looks(run_with(spec, op)) == looks


@pytest.mark.parametrize(
    ("spec", "op", "fields", "told"),
    [
        (CaseSpec((256, 8)), "layernorm_bwd", {}, True),
        (CaseSpec((255, 8)), "layernorm_bwd", {}, False),
        (CaseSpec((256, 8)), "layernorm_bwd", {"xhat": "x"}, False),
        (CaseSpec((256, 8)), "gate_rmsnorm_bwd", {}, False),
    ],
    ids=str,
)
def test_other_checks_leave_long_sums_to_it_where_it_applies_and_looks(spec, op, fields, told):
    assert sums.told(run_with(spec, op, **fields)) == told


BOTH = [("", "mean"), ("", "rstd")]


@pytest.mark.parametrize(
    ("fields", "contract", "equations"),
    [
        ({}, {}, BOTH),
        ({"shape": (2, 255)}, {}, []),
        ({"data": "heavy"}, {}, []),
        ({}, {"variance": "shifted"}, []),
        ({}, {"summation": "sequential"}, []),
        ({"dtype": "bfloat16"}, {}, BOTH),
        ({"dtype": "bfloat16", "offset": 100.0}, {}, []),
        ({"offset": 100.0}, {}, BOTH),
    ],
    ids=str,
)
def test_statistics_are_judged_where_no_addition_rounds_all_terms_to_one_side(fields, contract, equations):
    run = run_with(CaseSpec(**{"shape": (2, 256), **fields}), "layernorm_fwd", **contract)
    assert [(one.name, one.output) for one in sums.equations(run)] == equations


def test_the_sums_of_dx_allow_statistics_their_worst_case_where_it_may_come():
    """In long rows that is more than by chance."""
    run = run_with(CaseSpec((2, 16384)))
    heavy = replace(run, case=replace(run.case, spec=replace(run.case.spec, data="heavy")))
    chance, worst = ([one.tolerance for one in sums.equations(each)] for each in (run, heavy))
    assert len(chance) == len(worst) == 2
    assert np.all(np.divide(worst, chance) > 1.05)


def test_the_statistics_of_a_rounded_sum_are_allowed_to_differ_from_those_of_the_exact_one():
    run = run_with(CaseSpec((3, 512), "bfloat16"), "add_layernorm_fwd", residual="rounded")
    _, one = sums.equations(run)
    assert one.output == "rstd"
    apart = np.abs(stages(run).norm.saved_rstd.ravel() - run.case.expected["rstd"].value.ravel())
    assert (apart > 100 * U).all()
    assert (one.delta.ravel() >= apart).all()


def test_what_an_activation_loses_of_dy_is_multiplied_by_the_normalized_numbers():
    """Those of the second channel are three times as large."""
    spec = CaseSpec((64, 2, 4), num_groups=1, eps=1e-12)
    x = np.tile([[-1.0, 1.0] * 2, [-3.0, 3.0] * 2], (64, 1, 1))
    dy = np.tile([-1.0, -1.0, 1.0, 1.0], (64, 2, 1))
    run = run_of(case_of(spec, "groupnorm_silu_bwd", x=x, dy=dy, weight=np.zeros(2), bias=np.zeros(2)))
    (delta,) = (one.delta for one in sums.equations(run) if one.output == "dweight")
    assert delta[1] / delta[0] == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("op", "judged"), [("layernorm_bwd", ["Σdx", "Σdx·x̂"]), ("add_layernorm_bwd", [])])
@pytest.mark.parametrize("dresidual_out", [True, False])
def test_the_sums_that_dx_implies_are_those_of_no_fused_addition(op, judged, dresidual_out):
    spec = CaseSpec((2, 256), dresidual_out=dresidual_out) if judged == [] else CaseSpec((2, 256))
    assert [one.name for one in sums.equations(run_with(spec, op))] == judged


def long_sum(right, tolerance, delta, off=0.0):
    """The equation of a dbias that is off by so many tolerances."""
    right, tolerance, delta = (np.array(values, float) for values in (right, tolerance, delta))
    return sums.LongSum("", "dbias", right + off * np.ones_like(right), right, tolerance, delta)


def test_the_smallest_error_is_that_of_the_judged_elements_that_are_not_zero():
    """A quarter of 1 may be off, in float32: half an ulp beyond that no rounding agrees."""
    run = run_with(CaseSpec((256, 3)))
    one = long_sum([0.0, 2.0, 1.0], [1.0, np.inf, 1.0], [0.0, 0.0, 0.25])
    above, below = SmallestError("dbias", 1, 0.25 + U + U), SmallestError("dbias", -1, 0.25 + U / 2 + U)
    with np.errstate(divide="ignore"):
        assert sorted(one.smallest(run), key=lambda smallest: -smallest.sign) == [above, below]
    assert list(long_sum([0.0, 2.0], [1.0, np.inf], [0.0, 0.0]).smallest(run)) == []


@pytest.mark.parametrize(
    ("off", "wrong", "hint"),
    [
        ([0.0, 0.25], 0, False),
        ([0.0, 1.0], 0, False),
        ([], 0, False),
        ([1.0, 1.5], 1, True),
        ([3.0, 1.5, 1.0, 0.0], 2, True),
        ([0.0, 19.5], 1, True),
        ([0.0, 20.0], 1, False),  # no order of the additions explains it
    ],
)
def test_a_sum_is_found_from_its_tolerance_on(monkeypatch, off, wrong, hint):
    run = run_with(CaseSpec((256, 3)))
    ones = np.ones(len(off))
    monkeypatch.setattr(sums, "equations", lambda run: iter([long_sum(ones, ones, ones / 4, np.array(off))]))
    over, *rest = CHECKS["sums"].function(run)
    assert over == OverProbable("dbias", max(off, default=0.0))
    if not wrong:
        assert [type(one) for one in rest] == [SmallestError] * 2 * bool(off)
        return
    (found,) = rest
    index = int(np.argmax(off))
    assert (found.check, found.output, found.index) == ("sums", "dbias", (index,))
    assert f"dbias[{index}]: expected 1, got {1 + max(off):g}, {max(off):g} apart, 1 allowed" in found.message
    assert re.search(r"(\d+) of (\d+)", found.message).groups() == (str(wrong), str(len(off)))
    assert ("lanes" in found.message) == hint
