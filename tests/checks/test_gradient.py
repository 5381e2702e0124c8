"""The check `gradient`: wrong backwards that it convicts against their own forward, and right ones that it passes."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from norms import layernorm, layernorm_bwd

from verify_norm.cases import make, strategies
from verify_norm.checks import CHECKS, gradient
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.running.execute import execute

DTYPES = ("float32", "float16", "bfloat16")
SPEC = CaseSpec(shape=(16, 64))
FORWARD, RIGHT = layernorm(), layernorm_bwd()
OF_DX = ("no c2", "no weight", "rstd of another row", "a row of zeros", "nan")
WRONG = [*((how, "dx") for how in OF_DX), ("one column", "dweight"), ("bias", "dbias")]


def accused(run):
    """The findings alone; the check yields its power too."""
    return [finding for finding in gradient.gradient(run) if isinstance(finding, Finding)]


def run_of(run=RIGHT, forward_run=FORWARD, spec=SPEC, **fields):
    kernel = Kernel("k", "layernorm_bwd", run=run, forward_run=forward_run, **fields)
    return execute(kernel, make.case(spec, OPS["layernorm_bwd"], kernel.contract))


def findings(run=RIGHT, forward_run=FORWARD, spec=SPEC, **fields):
    result = run_of(run, forward_run, spec, **fields)
    assert CHECKS["gradient"].looks(result)
    found = list(accused(result))
    assert all(f.message and f.spec == spec and f.check == "gradient" for f in found)
    return {f.output for f in found}


def some(how, dtype):
    """What is found on any of a few cases."""
    specs = [replace(SPEC, dtype=dtype, seed=number, variant=number) for number in range(4)]
    return set().union(*(findings(layernorm_bwd(how), spec=spec) for spec in specs))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("how", "output"), WRONG)
def test_a_wrong_gradient_is_convicted_in_every_type(how, output, dtype):
    assert output in some(how, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_gradient_passes(dtype):
    assert some("", dtype) == set()


@pytest.mark.parametrize(
    "spec",
    [
        CaseSpec(
            (1, 181), "bfloat16", eps=3e-8, data="constant", log2_scale=-70, bias_layout="scalar", variant=60, seed=147
        ),
        CaseSpec((97, 15), "float16", eps=1e-6, data="alternating", offset=100.0, weight_dtype="float32", variant=94),
    ],
    ids=["of a row", "of a column"],
)
def test_roundings_that_do_not_cancel_where_dy_has_one_sign(spec):
    """Elements of a row, or all rows, are alike, so their roundings are too; found by benchmarks/gradcheck.py."""
    for seed in (spec.seed, *range(20)):
        assert findings(spec=replace(spec, dy_data="one", weight=spec.offset != 0, seed=seed)) == set()


def test_a_forward_that_overflows_its_type_tells_nothing():
    """Its y is infinite at both ends of a step, which changes by no number."""
    op, spec = OPS["layernorm_bwd"], replace(SPEC, shape=(6, 40), dtype="float16")
    exact = make.exact_inputs(spec, op, "cpu")
    exact["weight"] = np.copysign(61440.0, exact["weight"])
    case = make.build(spec, op, Contract(), "cpu", exact, truth=True)
    result = execute(Kernel("k", "layernorm_bwd", run=RIGHT, forward_run=FORWARD), case)
    assert np.isinf(result.outputs["dx"].got).any()
    assert accused(result) == []


@pytest.mark.slow
def test_right_kernels_pass_on_random_cases():
    op, seen = OPS["layernorm_bwd"], []

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.specs(op, DTYPES, gradient.ELEMENTS))
    def one(spec):
        spec = replace(spec, further=("gradient",), weight_dtype=None)
        result = run_of(spec=spec)
        if CHECKS["gradient"].looks(result):
            assert not list(accused(result))
            seen.append(spec)

    one()
    assert len(seen) > 100


def test_a_forward_that_is_not_the_backwards_own_shows():
    def scaled(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = FORWARD(x, weight, bias, eps, normalized_shape)
        return 1.01 * y, mean, rstd

    assert "dx" in findings(forward_run=scaled)


def test_a_constant_error_of_the_forward_is_no_error_of_the_gradient():
    def shifted(x, weight, bias, eps, normalized_shape):
        return FORWARD(x, weight, bias, eps, normalized_shape)[0] + 0.5

    assert findings(forward_run=shifted) == set()


def test_the_finding_says_which_unit_and_what_would_have_shown():
    (found,) = accused(run_of(layernorm_bwd("a row of zeros"), spec=SPEC))
    assert found.index == (len(range(SPEC.shape[0])) // 2,)
    assert "row 8" in found.message
    assert "shows here" in found.message
    assert found.got == 0


@pytest.mark.parametrize(
    "options",
    [
        {"weight": False},
        {"bias": False},
        {"weight": False, "bias": False},
        {"offset": 1e4},
        {"data": "constant"},
        {"dy_layout": "scalar"},
        {"dy_layout": "expanded"},
        {"x_layout": "expanded"},
        {"x_layout": "transposed"},
        {"eps": 1e-12, "log2_scale": -60},
        {"data": "heavy", "log2_scale": 60},
        {"dy_log2_scale": -20},
        {"shape": (1, 1)},
        {"shape": (3, 2)},
        {"shape": (9,)},
        {"shape": (2, 3, 4, 5), "normalized_ndim": 2},
    ],
)
def test_unusual_cases_are_no_error(options):
    assert findings(spec=replace(SPEC, **options)) == set()


def test_it_says_what_it_cannot_look_at():
    check = CHECKS["gradient"]
    assert not check.looks(run_of(forward_run=None))
    assert not check.looks(run_of(spec=replace(SPEC, special="nan")))
    assert not check.looks(run_of(spec=replace(SPEC, shape=(0, 4))))
    assert not check.looks(run_of(spec=replace(SPEC, further=())))
    assert not check.looks(run_of(spec=replace(SPEC, shape=(100, 100))))
    assert not check.applies(OPS["layernorm_fwd"])


def test_a_forward_that_fails_is_told():
    def failing(x, weight, bias, eps, normalized_shape):
        raise RuntimeError("no such kernel")

    result = run_of(forward_run=failing)
    (found,) = accused(result)
    assert found.status == "error"
    assert "no such kernel" in found.message


@pytest.mark.parametrize(("dtype", "power"), [("float32", 1e-3), ("float16", 0.1), ("bfloat16", 0.5)])
def test_the_resolving_power_is_worth_having(dtype, power):
    for c in gradient.comparisons(run_of(spec=replace(SPEC, dtype=dtype))):
        assert c.power < power
        assert c.judged == c.left.size


def test_a_looser_contract_allows_more():
    strict, loose = (
        next(c.power for c in gradient.comparisons(run_of(contract=contract)) if c.output == "dx")
        for contract in (Contract(), Contract(xhat="bfloat16", stats="bfloat16"))
    )
    assert strict < loose / 10
