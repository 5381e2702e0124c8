"""What a summary says: no kernel passes that has a finding, a type that checked nothing, or a unit that is not done."""

from dataclasses import replace

import campaigns
import pytest
from campaigns import FACTS, outcome

from verify_norm.campaign import summary as module
from verify_norm.campaign.model import Outcome
from verify_norm.campaign.shard import WHOLE, Shard
from verify_norm.campaign.store import Store
from verify_norm.campaign.summary import lacking, summarize
from verify_norm.core.errors import Exit, FindingsError

UNITS = campaigns.units(4)  # two types, two blocks


def summary(tmp_path, of, shard=WHOLE):
    """The summary of a store in which each unit has the outcome that `of` says, or none."""
    with Store.writing(str(tmp_path / "s"), UNITS, FACTS) as store:
        for unit, how in zip(UNITS, of, strict=True):
            if how is not None:
                store.enter(unit, outcome(unit, **how))
    with Store.reading(str(tmp_path / "s")) as store:
        return summarize(store, shard)


FINE, WRONG = {}, {"wrong": True}
PROBLEM, ENDED = {"problem": "no triton"}, {"ended": "it ended"}
VERDICTS = [
    ((FINE, FINE, FINE, FINE), Exit.PASS, 0),
    ((FINE, FINE, FINE, WRONG), Exit.FINDINGS, 1),
    ((FINE, WRONG, FINE, WRONG), Exit.FINDINGS, 1),
    ((FINE, FINE, FINE, ENDED), Exit.FINDINGS, 1),
    ((FINE, FINE, FINE, PROBLEM), Exit.NOTHING, 0),
    ((WRONG, FINE, FINE, PROBLEM), Exit.FINDINGS, 1),
    ((FINE, FINE, FINE, None), Exit.INCOMPLETE, 0),
    ((FINE, None, PROBLEM, None), Exit.NOTHING, 0),
    ((None, None, None, None), Exit.INCOMPLETE, 0),
]


@pytest.mark.parametrize(("of", "verdict", "findings"), VERDICTS)
def test_the_verdict_is_that_of_the_worst_unit(tmp_path, of, verdict, findings):
    found = summary(tmp_path, of)
    assert (found.verdict, len(found.findings)) == (verdict, findings)
    assert found.done == sum(how is not None and how is not PROBLEM for how in of)
    assert len(found.missing) == of.count(None)
    assert found.ok == (verdict is Exit.PASS)
    if not found.ok:
        with pytest.raises(FindingsError, match=r"layernorm_fwd"):
            found.raise_for_findings()


@pytest.mark.parametrize(("without", "verdict"), [(UNITS[2:3], Exit.PASS), (UNITS[::2], Exit.NOTHING)])
def test_a_block_may_check_nothing_but_no_type(tmp_path, monkeypatch, without, verdict):
    ids = {unit.id for unit in without}
    said = property(lambda found: Exit.NOTHING if found.unit in ids else Exit.PASS)
    monkeypatch.setattr(Outcome, "verdict", said)
    assert summary(tmp_path, (FINE,) * 4).verdict is verdict


def test_a_shard_is_judged_by_its_own_units(tmp_path):
    found = summary(tmp_path, (FINE, None, FINE, None), Shard(1, 2))
    assert (found.verdict, found.units, found.cases) == (Exit.PASS, 2, 2)


def test_a_row_has_the_errors_of_its_own_shard(tmp_path):
    (row,) = summary(tmp_path, (FINE, WRONG, FINE, WRONG), Shard(1, 2)).rows
    assert row.ratio <= 1
    assert row.findings == 0


def test_the_last_units_tell_the_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RECENT", 2)
    with Store.writing(str(tmp_path / "s"), UNITS, FACTS) as store:
        for unit, seconds in zip(UNITS, (90.0, 2.0, 6.0), strict=False):
            store.enter(unit, replace(outcome(unit), started=200.0 + unit.number, finished=200.0 + seconds))
    with Store.reading(str(tmp_path / "s")) as store:
        found = summarize(store)
    assert {one.seconds for one in found.workers} == {95.0}
    assert found.rate == 2 / (90 + 4)


def test_rows_workers_and_speed(tmp_path):
    found = summary(tmp_path, (FINE, WRONG, FINE, None))
    (row,) = found.rows
    assert (row.units, row.done, row.cases, row.findings, row.seconds) == (4, 3, 3, 1, 6.0)
    assert row.ratio > 1
    (worker,) = found.workers
    assert (worker.name, worker.units, worker.seconds, worker.last) == ("here", 3, 6.0, 102.0)
    assert (found.rate, found.left) == (0.5, 2.0)
    assert lacking(found) == ["1 of 4 units are missing: k (layernorm_fwd), bfloat16, block 1"]
    assert "verify-norm replay" in found.findings[0].replay or "verify_norm.replay" in found.findings[0].replay
