"""Hypothesis draws the same specs for the same seed, and steers towards large values."""

import pytest

from verify_norm.cases import strategies
from verify_norm.cases.strategies import explore
from verify_norm.core.ops import OPS


def drawn(seed, value=lambda spec: 0.0, examples=60):
    seen = []

    def one(spec):
        seen.append(spec)
        return {"value": value(spec)}

    explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=examples, seed=seed)
    return seen


def test_a_seed_draws_the_same_specs():
    assert drawn(1) == drawn(1) != drawn(2)


def test_large_values_are_sought():
    aimed, blind = (drawn(3, value, 300) for value in (lambda spec: float(spec.seed), lambda spec: 0.0))
    assert sum(spec.seed for spec in aimed) > 1.2 * sum(spec.seed for spec in blind)


def test_what_ends_the_run_is_raised():
    class Over(BaseException):
        pass

    def one(spec):
        raise Over

    with pytest.raises(Over):
        explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=5, seed=0)
