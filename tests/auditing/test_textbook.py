"""Textbook algorithms: their sums, and that the best of them is within every bound."""

import doctest

import numpy as np
import pytest

from verify_norm.auditing import textbook
from verify_norm.auditing.textbook import Algorithm, compute
from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


@pytest.mark.parametrize("how", ["sequential", "pairwise", "blocked", "compensated"])
def test_sums_are_within_their_bounds(how):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 127, 128, 129, 5000):
        t = rng.standard_normal((3, n)).astype(np.float32) + np.float32(10)
        off = np.abs(textbook.total(t, how)[:, 0] - t.astype(np.float64).sum(1))
        assert (off <= {"sequential": n, "compensated": 1}.get(how, 60) * 2.0**-24 * np.abs(t).sum(1)).all()
    if n:
        errors = {
            h: np.abs(textbook.total(t, h)[:, 0] - t.astype(np.float64).sum(1)).max() for h in ("sequential", how)
        }
        assert errors[how] <= errors["sequential"]


OPERATORS = [
    "layernorm_fwd",
    "rmsnorm_bwd",
    "groupnorm_bwd",
    "batchnorm_bwd",
    "add_layernorm_bwd",
    "add_rmsnorm_fwd",
    "instancenorm_fwd",
]


@pytest.mark.parametrize("op", OPERATORS)
def test_two_passes_in_blocks_are_within_every_bound(op):
    groups = 2 if op.startswith("group") else None
    shape = (3, 4, 5) if OPS[op].view != "rows" else (5, 40)
    for seed in range(4):
        spec = CaseSpec(shape, num_groups=groups, seed=seed, offset=3.0, bias=seed != 1, weight=seed != 2)
        case = make.case(spec, OPS[op], Contract())
        found = compute(case, Algorithm("two_pass"))
        assert found is not None
        for name, got in found.items():
            expected = case.expected[name]
            assert expected is not None
            assert (np.abs(got - expected.value) <= expected.delta + 1e-7 * np.abs(expected.value)).all(), name


def test_doctests():
    assert doctest.testmod(textbook).failed == 0
