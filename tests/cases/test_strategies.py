"""Drawn specs fit their operator and reach every setting; a seed draws the same ones, and large values are sought."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from verify_norm.cases import strategies
from verify_norm.cases.strategies import explore
from verify_norm.core import geometry
from verify_norm.core.ops import OPS
from verify_norm.core.spec import COTANGENTS, FAMILIES, LAYOUTS, WEIGHTS, CaseSpec

DTYPES = ("float32", "float16", "bfloat16")


LARGE = ("layernorm_bwd", "groupnorm_bwd", "batchnorm_bwd")  # one of each kind of shape


@pytest.mark.slow
@pytest.mark.parametrize(("op", "elements"), [*((op, 2**14) for op in OPS), *((op, 2**19) for op in LARGE)])
def test_drawn_specs_fit_their_operator(op, elements):
    seen = Counter()
    source = "x" if op.endswith("_fwd") or not op.startswith("add_") else "residual_out"

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(OPS[op], DTYPES, elements))
    def drawn(spec):
        assert all(n >= 0 for n in spec.shape)
        assert torch.Size(spec.shape).numel() <= 4 * elements
        assert geometry.refusal(spec, OPS[op]) is None
        if "num_groups" in OPS[op].attrs:
            assert spec.shape[1] % spec.num_groups == 0
        elif OPS[op].view != "rows":
            assert len(spec.shape) >= 2
            assert spec.shape[1] > 0
            assert spec.num_groups is None
        else:
            assert 1 <= spec.normalized_ndim <= len(spec.shape) <= 5
            assert min(spec.shape[len(spec.shape) - spec.normalized_ndim :]) > 0
        seen.update((spec.dtype, getattr(spec, f"{source}_layout"), spec.data, len(spec.shape), spec.weight_data))
        seen["alike"] += spec.dy_layout == getattr(spec, f"{source}_layout") != "contiguous"
        seen.update((spec.dy_data, spec.special, spec.special_at, spec.special_in))
        seen.update((("training", spec.training), ("running", spec.running), ("momentum", spec.momentum)))

    with strategies.whatever_is_imported():
        drawn()
    assert set(DTYPES) <= set(seen)
    assert len(set(LAYOUTS) & set(seen)) >= 5  # all of them are in the corner table
    assert set(FAMILIES) | set(WEIGHTS) <= set(seen)
    assert len({"nan", "inf", "-inf", "middle", "last", "rows", "weight"} & set(seen)) >= 4
    assert op.endswith("_fwd") or len(set(COTANGENTS) & set(seen)) >= 5
    modes = {("training", False), ("running", False), ("momentum", 1.0), ("momentum", 0.0)}
    assert op.endswith("_fwd") or seen["alike"] > 20  # of 200
    assert modes & set(seen) == (modes if op.startswith("batchnorm") else set())


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
