"""The check `sums`: mistakes that hide in the bound of a long sum, and right kernels in several orders."""

import numpy as np
import pytest
import torch
from matrix import layernorm_bwd as by_products
from matrix import product
from norms import layernorm, layernorm_bwd, statistics

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
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
    assert ("sums", "rstd") in convicting(rounded, spec, "add_rmsnorm_fwd")


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
