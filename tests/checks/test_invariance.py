"""The check `batch_invariance`: kernels whose rows depend on how many there are, or where, and kernels that promise."""

from dataclasses import replace

import numpy as np
import pytest
from norms import layernorm

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.checks.relations.rerun import taken
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Finding, Kernel, Observed
from verify_norm.kernels import KERNELS
from verify_norm.loading.registry import load
from verify_norm.running.execute import execute

SPEC = CaseSpec(shape=(5, 300), seed=3, further=("batch_invariance",))
PROMISED = Contract(batch_invariant=True)
OURS = [kernel.name for kernel in KERNELS if kernel.contract.batch_invariant and kernel.backend == "triton"]


def said(function, spec=SPEC, op="layernorm_fwd", contract=PROMISED):
    """All that every check says, and whether this one looked."""
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    checks = [c for c in CHECKS.values() if c.applies(OPS[op]) and c.looks(run)]
    return [item for c in checks for item in c.function(run) if isinstance(item, (Finding, Observed))]


@pytest.mark.parametrize("how", ["by count", "by place"])
def test_a_row_that_depends_on_the_others_is_seen_by_no_other_check(how):
    found = [item for item in said(layernorm(how)) if isinstance(item, Finding)]
    assert {f.check for f in found} == {"batch_invariance"}
    assert "mean" in {f.output for f in found}
    assert all(f.got != f.want and "other bits" in f.message for f in found)


@pytest.mark.parametrize(("how", "held"), [("by count", False), ("by place", False), ("", True)])
def test_what_is_not_promised_is_observed(how, held):
    assert said(layernorm(how), contract=Contract()) == [Observed(held)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shape": (2, 3, 40)},
        {"x_layout": "row_strided"},
        {"dtype": "bfloat16", "x_layout": "offset"},
        {"special": "nan"},
    ],
)
def test_rows_on_their_own_pass(options):
    assert said(layernorm(), replace(SPEC, **options)) == []


def test_rows_are_taken_with_what_was_saved_of_them():
    spec = CaseSpec(shape=(3, 4, 5), num_groups=2)
    case = make.case(spec, OPS["groupnorm_bwd"], Contract())
    two = taken(case, np.array([2, 0]))
    assert two["x"].shape == (2, 4, 5)
    assert (two["mean"] == case.exact["mean"][[2, 0]]).all()
    assert two["weight"] is case.exact["weight"]
    leading = make.case(replace(spec, num_groups=None), OPS["layernorm_bwd"], Contract())
    assert (taken(leading, np.array([1]))["rstd"] == leading.exact["rstd"][4:8]).all()


def test_a_kernel_that_fails_on_one_row_is_told():
    def choosy(x, weight, bias, eps, normalized_shape):
        assert len(x) > 1, "no single rows"
        return layernorm()(x, weight, bias, eps, normalized_shape)

    (found,) = said(choosy)
    assert (found.check, found.status) == ("batch_invariance", "error")
    assert "no single rows" in found.message


def test_it_says_what_it_cannot_look_at():
    check = CHECKS["batch_invariance"]
    for options in (
        {"further": ()},
        {"shape": (1, 9)},
        {"shape": (9,)},
        {"x_layout": "transposed"},
        {"shape": (64, 65)},
    ):
        case = make.case(replace(SPEC, **options), OPS["layernorm_fwd"], PROMISED)
        assert not check.looks(execute(Kernel("k", "layernorm_fwd", run=layernorm()), case))
    assert not check.applies(OPS["batchnorm_fwd"])


@pytest.mark.parametrize("name", OURS)
def test_our_kernels_keep_their_promise(name, device):
    kernel, (rows, groups) = load(name), ((9, 70), (3, 6, 11))
    by_group = OPS[kernel.op].view == "groups"
    spec = CaseSpec(shape=groups if by_group else rows, num_groups=3 if by_group else None, seed=1, dtype="float32")
    run = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract, device))
    assert CHECKS["batch_invariance"].looks(run)
    assert list(CHECKS["batch_invariance"].function(run)) == []


def test_all_triton_kernels_promise_it():
    assert set(OURS) == {kernel.name for kernel in KERNELS if kernel.backend == "triton"}
