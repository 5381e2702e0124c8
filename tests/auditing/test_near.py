"""What a hunt tries near a bad case is a case of the operator."""

import numpy as np
import pytest

from verify_norm.auditing.near import LIMITS, other_data, spec_near
from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


def test_a_small_step_changes_the_seed_alone():
    spec = CaseSpec((4, 64), offset=3.0)
    near = spec_near(spec, LIMITS / 2.001, np.random.default_rng(0), 4096)
    assert near.seed != spec.seed
    assert (near.shape, near.offset, near.eps, near.log2_scale) == (spec.shape, 3.0, spec.eps, spec.log2_scale)


def test_the_largest_step_changes_all_but_the_groups():
    spec = CaseSpec((4, 6, 8), num_groups=3, offset=2.0)
    near = spec_near(spec, LIMITS, np.random.default_rng(0), 10**6)
    assert near.shape == (11, 6, 23)
    assert near.offset == pytest.approx(2.0 * 10**1.5)
    assert near.eps == pytest.approx(spec.eps * 100)
    assert spec_near(spec, LIMITS, np.random.default_rng(0), 100).shape == spec.shape  # it would be too large


def test_other_data_change_one_input_and_stay_in_its_dtype():
    spec, op = CaseSpec((4, 32), "bfloat16", offset=1.0), OPS["layernorm_bwd"]
    exact = make.exact_inputs(spec, op)
    seen = set()
    for seed in range(20):
        changed = other_data(spec, exact, np.random.default_rng(seed))
        seen |= {name for name in exact if changed[name] is not exact[name]}
        make.build(spec, op, Contract(), "cpu", changed, truth=True)
    assert seen == {"x", "dy"}
