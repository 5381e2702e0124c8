"""A case in words: its documentation's examples, and every field of a spec that is not at its default is told once."""

import doctest
from dataclasses import fields, replace

import pytest

from verify_norm.core import case_words, ways
from verify_norm.core.case_words import case, count
from verify_norm.core.spec import CaseSpec

PLAIN = CaseSpec((2, 3))
# Told otherwise, or of no interest to a reader: the data of a seed, how memory was filled, which checks looked, how.
BESIDE = {"shape", "dtype", "seed", "poison", "further", "variant", "special", "special_in", "special_at", "frozen"}
BESIDE |= ways.WAYS.keys()  # a finding's message names its way
OTHER = {bool: lambda value: not value, float: lambda value: value + 2.0, int: lambda value: value + 1}


def test_the_examples_in_its_documentation():
    found = doctest.testmod(case_words)
    assert not found.failed
    assert found.attempted >= 2


@pytest.mark.parametrize("name", [f.name for f in fields(CaseSpec) if f.name not in BESIDE])
def test_a_field_is_told_where_it_differs(name):
    value = getattr(PLAIN, name)
    other = OTHER.get(type(value), lambda value: "offset")(value)
    told = case(replace(PLAIN, **{name: other})).removeprefix(case(PLAIN))
    assert told.startswith(", ")
    assert "{}" not in told


@pytest.mark.parametrize(("number", "said"), [(0, "0 cases"), (1, "1 case"), (2, "2 cases"), (12345, "12,345 cases")])
def test_how_many(number, said):
    assert count(number, "case") == said


def test_a_family_of_data_and_a_field_of_several_words():
    assert case(replace(PLAIN, data="heavy", weight_offset=1.0)) == "2×3 float32, heavy, weight offset 1.0"
    assert case(replace(PLAIN, frozen=("x", "weight"))) == "2×3 float32, x and weight frozen"
