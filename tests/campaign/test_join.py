"""Shards that are merged are the whole campaign; what does not belong together is refused."""

import campaigns
import pytest
from campaigns import FACTS, contents, outcome

from verify_norm.campaign.join import merge
from verify_norm.campaign.store import Store
from verify_norm.core.errors import UsageError

UNITS = campaigns.units(4, kernels=("a", "b"))


def store(path, which=UNITS, facts=FACTS, **other):
    with Store.writing(str(path), UNITS, facts) as made:
        for unit in which:
            made.enter(unit, outcome(unit, wrong=unit.kernel == "b" and not other, **other))
    return str(path)


def read(path):
    with Store.reading(path) as opened:
        return contents(opened), sorted(opened.facts().items()), opened.units()


@pytest.fixture
def shards(tmp_path):
    return [store(tmp_path / str(part), UNITS[part::3]) for part in range(3)]


def test_merged_shards_are_the_whole_campaign_and_a_second_merge_changes_nothing(tmp_path, shards):
    whole, into = store(tmp_path / "whole"), str(tmp_path / "into")
    assert merge(shards, into) == []
    assert read(into) == read(whole)
    before = (tmp_path / "into").read_bytes()
    assert merge([*shards, into, whole], into) == []
    assert read(into) == read(whole)
    assert len(before) == len((tmp_path / "into").read_bytes())


def test_it_says_what_is_missing_and_goes_on_with_what_comes(tmp_path, shards):
    into = str(tmp_path / "into")
    assert merge(shards[:2], into) == list(UNITS[2::3])
    assert merge(shards[2:], into) == []
    assert merge([shards[0], shards[1]], shards[0]) == list(UNITS[2::3]), "into one of them"


def test_a_unit_with_a_problem_is_taken_from_another_store(tmp_path):
    problem, right = store(tmp_path / "a", problem="no triton"), store(tmp_path / "b")
    into = str(tmp_path / "into")
    assert merge([problem], into) == list(UNITS)
    assert merge([problem, right], problem) == []
    assert read(problem) == read(right)


def test_a_problem_stays_that_no_other_store_has_solved(tmp_path):
    problem, some = store(tmp_path / "a", UNITS[:2], problem="no triton"), store(tmp_path / "b", UNITS[1:3])
    assert merge([problem, some], problem) == [UNITS[0], *UNITS[3:]]
    with Store.reading(problem) as opened:
        said = dict(opened.query("SELECT unit, problem FROM outcomes"))
    assert said == {UNITS[0].id: "no triton", UNITS[1].id: "", UNITS[2].id: ""}


OTHERS = [
    ({"versions": {"torch": "3"}}, "it has torch = 3, here it is 2"),
    ({"plan": {"examples": 11, "seed": 0}}, "it has examples = 11, here it is 10"),
    ({"units": "abd"}, "has other units"),
]


@pytest.mark.parametrize(("facts", "said"), OTHERS, ids=[row[1] for row in OTHERS])
def test_other_plans_and_versions_are_refused_and_nothing_is_written(tmp_path, shards, facts, said):
    other, into = store(tmp_path / "other", facts=FACTS | facts), tmp_path / "into"
    with pytest.raises(UsageError, match=said):
        merge([shards[0], other], str(into))
    assert not into.exists()


def test_what_is_no_store_is_refused(tmp_path, shards):
    (tmp_path / "text").write_text("x")
    for path, said in ((tmp_path / "text", "is no store of a campaign"), (tmp_path / "none", "there is no store")):
        with pytest.raises(UsageError, match=said):
            merge([*shards, str(path)], str(tmp_path / "into"))
