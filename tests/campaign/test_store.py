"""A store has each outcome whole or not at all, whenever the process is killed, and takes nobody else's file."""

import os
import signal
import sqlite3

import campaigns
import pytest
from campaigns import FACTS, contents, outcome

from verify_norm.campaign.store import Store
from verify_norm.core.errors import UsageError

UNITS = campaigns.units(6, kernels=("a", "b"))


def entered(path, *wanted, stop=lambda number: None):
    """The store of these units, with the wrong kernel b."""
    with Store.writing(str(path), UNITS, FACTS) as store:
        for number, unit in enumerate(u for u in store.pending() if not wanted or u in wanted):
            store.enter(unit, outcome(unit, wrong=unit.kernel == "b"))
            stop(number)
    return path


def enter_all(store):
    for unit in store.pending():
        store.enter(unit, outcome(unit, wrong=unit.kernel == "b"))


def read(path):
    with Store.reading(str(path)) as store:
        return contents(store)


def killed(action):
    """Whether a child that does this is killed by SIGKILL."""
    pid = os.fork()
    if not pid:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_after_any_commit_it_goes_on_and_has_each_unit_once(tmp_path):
    expected = read(entered(tmp_path / "whole"))  # and torch has run here, before the forks
    path = tmp_path / "killed"
    for times in range(5):
        assert killed(lambda last=times: entered(path, stop=lambda number: die() if number == last % 3 else None))
        with Store.reading(str(path)) as store:
            assert store.query("SELECT count(*) FROM outcomes")[0][0] == sum(n % 3 + 1 for n in range(times + 1))
    entered(path)
    assert read(path) == expected
    assert len(expected["outcomes"]) == len(UNITS)


@pytest.mark.parametrize("statement", [0, 3, 9, 15, 30])  # the tables, the plan, an outcome
def test_killed_within_a_transaction_it_has_nothing_of_it(tmp_path, statement, monkeypatch):
    expected, path = read(entered(tmp_path / "whole")), tmp_path / "killed"
    insert, met = Store._insert, []

    def counted(store, table, rows):
        for row in rows:
            met.append(table)
            if len(met) > statement:
                die()
            insert(store, table, [row])

    def cut():
        Store._insert = counted
        entered(path)

    assert killed(cut)
    entered(path)
    assert read(path) == expected


def test_another_process_reads_while_one_writes_and_no_two_write(tmp_path):
    path = str(tmp_path / "s")
    with Store.writing(path, UNITS, FACTS) as store:
        store.enter(UNITS[0], outcome(UNITS[0]))
        assert not killed(lambda: os._exit(Store.reading(path).query("SELECT count(*) FROM outcomes")[0][0] - 1))
        with store.transaction(), Store.reading(path) as other:
            store.database.execute("DELETE FROM outcomes")
            assert len(other.query("SELECT * FROM outcomes")) == 1
        with pytest.raises(UsageError, match="in use: another campaign writes into it"):
            Store.writing(path, UNITS, FACTS)
    assert os.listdir(tmp_path) == ["s"]


def test_an_outcome_is_entered_once_and_takes_the_place_of_a_problem(tmp_path):
    path, unit = tmp_path / "s", UNITS[0]
    with Store.writing(str(path), UNITS, FACTS) as store:
        store.enter(unit, outcome(unit, problem="no such package"))
        assert unit in store.pending()
        store.enter(unit, outcome(unit))
        store.enter(unit, outcome(unit, wrong=True))
        assert unit not in store.pending()
        assert store.query("SELECT verdict, problem FROM outcomes") == [("PASS", "")]
        assert store.reports(unit.kernel, unit.op) == [outcome(unit).report]


def foreign(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")


def of_version(number):
    def make(path):
        entered(path)
        with sqlite3.connect(path) as database:
            database.execute(f"PRAGMA user_version = {number}")

    return make


BAD = [
    (lambda path: path.write_text("import torch\n"), {}, "it is a file of something else|is no store"),
    (foreign, {}, "is no store of a campaign"),
    (of_version(99), {}, "has tables of version 99; this verify-norm has version 2; a newer verify-norm wrote it"),
    (of_version(1), {}, "has tables of version 1; this verify-norm has version 2; an older verify-norm wrote it"),
    (entered, {"plan": {"examples": 11, "seed": 0}}, "of another campaign: it has examples = 10, here it is 11"),
    (entered, {"versions": {"torch": "3"}}, "of another campaign: it has torch = 2, here it is 3"),
    (entered, {"units": "abd"}, "has other units: a kernel or its file has changed since"),
    (lambda path: path.mkdir(), {}, "it is a folder"),
]


@pytest.mark.parametrize(("make", "facts", "said"), BAD, ids=[row[2][:30] for row in BAD])
def test_a_file_that_does_not_fit_is_refused_and_kept(tmp_path, make, facts, said):
    path = tmp_path / "s"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UsageError, match=said):
        Store.writing(str(path), UNITS, FACTS | facts)
    assert before == (path.read_bytes() if path.is_file() else b"")
    assert not (tmp_path / "s.lock").exists()


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path):
    path = entered(tmp_path / "s", UNITS[0])
    before = read(path)
    with Store.writing(str(path), UNITS, FACTS) as store:
        store.database.execute("PRAGMA max_page_count = 1")  # the size that it has
        with pytest.raises(UsageError, match="database or disk is full; what was entered before is kept"):
            enter_all(store)
    assert len(read(path)["outcomes"]) >= len(before["outcomes"])
    assert read(entered(path)) == read(entered(tmp_path / "whole"))


@pytest.mark.parametrize(("question", "said"), [("DROP TABLE units", "readonly"), ("SELECT it", "no such column: it")])
def test_a_question_changes_nothing(tmp_path, question, said):
    with Store.reading(str(entered(tmp_path / "s", UNITS[0]))) as store, pytest.raises(UsageError, match=said):
        store.query(question)
