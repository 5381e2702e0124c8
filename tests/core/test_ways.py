"""The words of the ways that checks take: each has a function, and says which operators and cases it fits."""

import doctest
from dataclasses import replace

import pytest

from verify_norm.checks import autograd, calls
from verify_norm.checks.relations import mode_table
from verify_norm.core import ways
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec

PLAIN = CaseSpec((2, 300))


def test_the_examples_in_its_documentation():
    found = doctest.testmod(ways)
    assert not found.failed
    assert found.attempted >= 3


def test_each_way_has_a_function_and_each_field_a_check():
    assert set(mode_table.MODES) == set(ways.WAYS["mode"])
    assert set(calls.CALLS) == set(ways.WAYS["call"])
    assert set(autograd.WAYS) == set(ways.WAYS["autograd"])
    assert {mode.words for mode in mode_table.BARE} == set(ways.EXPENSIVE) & set(ways.WAYS["mode"])
    assert set(ways.EXPENSIVE) <= {*ways.WAYS["mode"], *ways.WAYS["effect"]}
    assert not set(ways.OLD_NAMES) & set(mode_table.MODES)
    assert set(ways.OLD_NAMES.values()) <= set(mode_table.MODES)
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


def test_a_line_of_an_earlier_version_may_name_a_way_by_its_former_name():
    for former, way in ways.OLD_NAMES.items():
        assert former in ways.known("mode")
        assert ways.meant(former, ways.WAYS["mode"]) == (way,)


def test_turns_are_even_beside_expensive_ways():
    values = (*("abcdefg"), *ways.EXPENSIVE)
    drawn = [ways.pick(values, number) for number in range(5 * 12 * 7 * 4)]
    assert drawn.count(ways.COMPILED) == len(drawn) // ways.EXPENSIVE[ways.COMPILED]
    assert drawn.count(ways.REPLAYED) == (len(drawn) - drawn.count(ways.COMPILED)) // ways.EXPENSIVE[ways.REPLAYED]
    rest = [drawn.count(way) for way in "abcdefg"]
    assert max(rest) - min(rest) <= 1


def test_the_modes_of_inputs_that_alone_require_gradients_are_all_sets_of_them():
    ways.sets_of_leaves.cache_clear()
    sets = ways.sets_of_leaves()
    assert len(sets) == len(set(sets.values())) == 2 ** len(ways.LEAVES) - 1
    assert [ways.leaves(names) for names in sets.values()] == list(sets)
    largest, *_, smallest = sets.values()
    assert (largest, smallest) == (ways.LEAVES, ("shift",))
    assert ways.leaves(("x",)) == "where x alone requires a gradient"


def test_what_a_field_may_say():
    assert ways.known("call") == ways.WAYS["call"]
    assert ways.known("autograd") == (*ways.WAYS["autograd"], ways.QUICK)
    assert set(ways.known("mode")) == {*ways.WAYS["mode"], *ways.sets_of_leaves(), *ways.OLD_NAMES, ways.QUICK}


DOORS = {  # an operator, and whether torch makes its gradients
    "add forward": ("add_layernorm_fwd", False),
    "batch forward": ("batchnorm_fwd", False),
    "add backward": ("add_rmsnorm_bwd", False),
    "add of torch": ("add_rmsnorm_bwd", True),
    "rows of torch": ("rmsnorm_bwd", True),
    "dropout of torch": ("dropout_add_rmsnorm_bwd", True),
    "batch backward": ("batchnorm_bwd", False),
    "batch of torch": ("batchnorm_bwd", True),
}
FORWARDS = {"add forward", "batch forward"}


@pytest.mark.parametrize(
    ("field", "way", "doors"),
    [
        ("mode", ways.BATCHED, DOORS.keys() - {"batch forward"}),  # it changes running statistics in place
        ("mode", ways.ALL_BATCHED, DOORS.keys() - {"batch forward"}),
        ("mode", ways.PARAMETERS_BATCHED, DOORS.keys() - {"batch forward"}),
        ("mode", ways.UNTRACKED, {"batch forward", "batch of torch"}),
        ("called", ways.AS_USUAL, FORWARDS),
        ("called", ways.AS_IN_INFERENCE, FORWARDS),
        ("autograd", ways.SPLIT, {"add of torch"}),  # a dropout parts x and residual anyway
        ("autograd", ways.AGAIN, {door for door in DOORS if door.endswith("of torch")}),
        ("effect", ways.COUNTED, {"batch forward"}),
        ("effect", ways.GROWTH, set(DOORS)),
    ],
)
def test_which_operators_have_a_way(field, way, doors):
    offered = {door: ways.offered(OPS[op], autograd=autograd)[field] for door, (op, autograd) in DOORS.items()}
    assert {door for door, some in offered.items() if way in some} == doors


def test_all_kernels_of_an_operator_have_the_ways_of_both_doors_and_devices():
    op = OPS["add_rmsnorm_bwd"]
    both = ways.every(op)
    assert both["autograd"] == ways.WAYS["autograd"]
    assert {ways.REPLAYED, ways.THREADED, ways.COPIED} <= set(both["mode"])
    assert ways.offered(op) == ways.offered(op, autograd=False, gpu=False)


@pytest.mark.parametrize(
    ("op", "number", "some"),
    [
        ("rmsnorm_fwd", 3, ("x", "weight")),
        ("gated_rmsnorm_fwd", 7, ("x", "gate")),
        ("add_layernorm_fwd", 15, ("residual", "bias")),
        ("modulate_layernorm_fwd", 11, ("x", "weight", "bias", "shift")),  # of 5: all, all but one, one
    ],
)
def test_sets_of_inputs_alone_require_gradients(op, number, some):
    sets = [way for way in ways.offered(OPS[op])["mode"] if way in ways.sets_of_leaves()]
    assert len(sets) == number
    assert ways.leaves(some) in sets


@pytest.mark.parametrize(
    ("way", "fitting", "others"),
    [
        (ways.UNTRACKED, [{"running": False}], [{}]),
        (ways.BATCHED, [{}, {"weight_dtype": "float32"}], [{"weight_dtype": "float16"}, {"dtype": "bfloat16"}]),
        (ways.UNTRAINED, [{}, {"weight": False}, {"bias": False}], [{"weight": False, "bias": False}]),
        (ways.leaves(("x", "weight")), [{}, {"bias": False}], [{"weight": False}]),
        (ways.leaves(("x", "bias")), [{}, {"weight": False}], [{"bias": False}]),
        (ways.NO_GRAD, [{}, {"weight": False, "bias": False}], []),
    ],
)
def test_which_cases_a_way_fits(way, fitting, others):
    assert all(ways.fits(way, replace(PLAIN, **changes)) for changes in fitting)
    assert not any(ways.fits(way, replace(PLAIN, **changes)) for changes in others)


def test_what_a_field_means():
    some = (ways.NO_GRAD, ways.COMPILED, ways.AUTOCAST)
    assert ways.meant("", some) == some
    assert ways.meant(ways.QUICK, some) == (ways.NO_GRAD, ways.AUTOCAST)
    assert ways.meant(ways.COMPILED, some) == (ways.COMPILED,)


def test_a_case_of_few_elements_takes_all_quick_ways_at_once():
    offered = {"mode": (ways.NO_GRAD, ways.COMPILED), "call": (ways.VALUES, ways.MANY)}
    for shape, expected in (
        ((1, 1), (ways.QUICK, ways.COMPILED)),
        ((1, ways.AT_ONCE["mode"]), (ways.QUICK, ways.COMPILED)),
        ((1, ways.AT_ONCE["mode"] + 1), offered["mode"]),
    ):
        seen = {}
        ways.named(replace(PLAIN, shape=shape), offered, lambda field, some: seen.setdefault(field, some)[0])  # noqa: B023
        assert seen == {"mode": expected, "call": offered["call"]}


@pytest.mark.parametrize("expensive", [(ways.COMPILED,), (ways.REPLAYED,), tuple(ways.EXPENSIVE)])
def test_between_expensive_ways_the_others_go_on_in_turn(expensive):
    drawn = [ways.pick((*"abcdefg", *expensive), number) for number in range(420)]
    usual = [way for way in drawn if way not in expensive]
    assert usual == [*"abcdefg" * 60][: len(usual)]
