"""The words of the ways that checks take: each has a function, and says which operators and cases it fits."""

import doctest
from dataclasses import replace

import pytest

from verify_norm.checks import autograd, calls, modes
from verify_norm.core import ways
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec

PLAIN = CaseSpec((2, 300))


def test_the_examples_in_its_documentation():
    found = doctest.testmod(ways)
    assert not found.failed
    assert found.attempted >= 3


def test_each_way_has_a_function_and_each_field_a_check():
    assert set(modes.MODES) == set(ways.WAYS["mode"])
    assert set(calls.CALLS) == set(ways.WAYS["call"])
    assert set(autograd.WAYS) == set(ways.WAYS["autograd"])
    assert {mode.words for mode in modes.BARE} == set(ways.DEAR) & set(ways.WAYS["mode"])
    assert set(ways.DEAR) <= {*ways.WAYS["mode"], *ways.WAYS["effect"]}
    assert f"with {modes.THREADS} threads of torch" == ways.THREADED
    assert set(ways.CHECKS.values()) <= set(FURTHER)
    assert list(ways.CHECKS) == list(ways.WAYS)


@pytest.mark.parametrize("name", OPS)
def test_an_operator_has_the_modes_of_its_direction_and_device(name):
    op = OPS[name]
    for gpu in (False, True):
        own, made = (set(ways.offered(op, autograd=autograd, gpu=gpu)["mode"]) for autograd in (False, True))
        assert (ways.REPLAYED in own, ways.THREADED in own) == (gpu, not gpu)
        assert not made & {ways.NO_GRAD, ways.INFERENCE, ways.REPLAYED}
        assert (ways.COPIED in own) == (op.forward is None)
        assert (ways.EVALUATING in made) == (op.view != "channels")
        sets = [way for way in own if way in ways.sets_of_leaves()]
        assert bool(sets) == (op.forward is None)
        assert len(sets) < 16
        assert (own | made) <= set(ways.known("mode"))
        assert own <= set(ways.every(op)["mode"])


def test_a_case_is_given_ways_that_fit_it_where_it_makes_the_run():
    offered = ways.offered(OPS["add_layernorm_fwd"])
    seen = {}
    ways.named(
        replace(PLAIN, dtype="float16", bias=False), offered, lambda field, some: seen.setdefault(field, some)[0]
    )
    assert seen.keys() == {"mode", "call", "called", "effect", "series"}  # a forward kernel has no way of autograd
    assert not set(seen["mode"]) & {ways.AUTOCAST, ways.BATCHED, ways.ALL_BATCHED}
    assert ways.leaves(("x", "weight")) in seen["mode"]
    assert not [way for way in seen["mode"] if "bias" in way]
    assert ways.named(replace(PLAIN, further=("memory",)), offered, lambda field, some: "?").mode == ""
    assert ways.named(replace(PLAIN, shape=(2, 4)), offered, lambda field, some: some[0]).mode == ways.QUICK
    assert ways.named(replace(PLAIN, shape=(0, 4)), offered, lambda field, some: some[0]).mode == ways.NO_GRAD


def test_turns_are_even_beside_dear_ways():
    values = (*("abcdefg"), *ways.DEAR)
    drawn = [ways.turn(values, number) for number in range(5 * 12 * 7 * 4)]
    assert drawn.count(ways.COMPILED) == len(drawn) // ways.DEAR[ways.COMPILED]
    assert drawn.count(ways.REPLAYED) == (len(drawn) - drawn.count(ways.COMPILED)) // ways.DEAR[ways.REPLAYED]
    rest = [drawn.count(way) for way in "abcdefg"]
    assert max(rest) - min(rest) <= 1
