"""Drawn specs fit their operator; a seed draws the same ones, and large values are sought."""

import random
import threading
from dataclasses import replace

import pytest
from choices import fits
from hypothesis import given, settings
from hypothesis.internal.conjecture import providers

from verify_norm.cases import strategies
from verify_norm.cases.strategies import explore
from verify_norm.core import geometry
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

DTYPES = ("float32", "float16", "bfloat16")


LARGE = ("layernorm_bwd", "groupnorm_bwd", "batchnorm_bwd")  # one of each kind of shape


@pytest.mark.slow
@pytest.mark.parametrize("op", LARGE)
def test_large_specs_fit_their_operator(op):
    """Those of usual size, and what all of them reach, are in test_drawn."""

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(OPS[op], DTYPES, 2**19))
    def drawn(spec):
        assert fits(spec, OPS[op], 2**19)

    with strategies.whatever_is_imported:
        drawn()


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "said"), [(True, None), (False, "no input needs a gradient")])
def test_a_case_has_something_to_differentiate(weight, said):
    op, spec = OPS["rmsnorm_bwd"], CaseSpec((2, 3), weight=weight, frozen=("x",))
    assert geometry.refusal(spec, op) == said
    assert geometry.refusal(replace(spec, frozen=()), op) is None

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(op, DTYPES, 2**10, frozen=True))
    def drawn(spec):
        assert geometry.refusal(spec, op) is None

    drawn()


def explored(seed, value=lambda spec: 0.0, examples=60):
    seen = []

    def one(spec):
        seen.append(spec)
        return {"value": value(spec)}

    explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=examples, seed=seed)
    return seen


def test_a_seed_draws_the_same_specs():
    assert explored(1) == explored(1) != explored(2)


@pytest.mark.slow
def test_threads_draw_what_one_draws_and_change_no_generator():
    """The first to begin ends first, as Hypothesis restores the generators only of threads that are nested."""
    alone = [explored(seed, examples=20) for seed in (1, 2)]
    inside, begun, ended, drawn = threading.Event(), threading.Event(), threading.Event(), {}

    def first(spec):
        inside.set()
        begun.wait(10)
        return 0.0

    def second(spec):
        begun.set()
        ended.wait(10)
        return 0.0

    def run(seed, value):
        drawn[seed] = explored(seed, value, examples=20)

    before = random.getstate(), providers._get_local_constants
    threads = [threading.Thread(target=run, args=arguments) for arguments in ((1, first), (2, second))]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    threads[0].join()
    ended.set()
    threads[1].join()
    assert [drawn[1], drawn[2]] == alone
    assert (random.getstate(), providers._get_local_constants) == before


@pytest.mark.slow
def test_large_values_are_sought():
    aimed, blind = (explored(3, value, 300) for value in (lambda spec: float(spec.seed), lambda spec: 0.0))
    assert sum(spec.seed for spec in aimed) > 1.2 * sum(spec.seed for spec in blind)


def test_what_ends_the_run_is_raised():
    class Over(BaseException):
        pass

    def one(spec):
        raise Over

    with pytest.raises(Over):
        explore(strategies.specs(OPS["rmsnorm_fwd"], ("float32",), 2**10), one, examples=5, seed=0)
