"""Where reports go, and the exit status of what they say."""

from dataclasses import replace

import pytest
from documents import PLAIN

from verify_norm.cli import outputs
from verify_norm.cli.outputs import Destinations, deliver
from verify_norm.core.coverage import Coverage
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec

FINDING = Finding("k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))


def report(**changes):
    return replace(PLAIN, **changes)


NOTHING = report(checks=())


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ((report(),), 0),
        ((report(findings=(FINDING,)),), 1),
        ((report(interrupted=True),), 3),
        ((report(interrupted=True), NOTHING), 2),
        ((report(interrupted=True, settings=Settings(allow_incomplete=True)),), 0),
        ((report(interrupted=True, findings=(FINDING,)),), 1),
        ((NOTHING,), 2),
        ((report(), NOTHING), 2),
    ],
)
def test_the_status_is_the_worst_of_all(reports, status):
    assert deliver(*reports, to=Destinations()) == status


def test_what_was_interrupted_can_be_resumed_and_what_lacked_time_needs_more(capsys):
    deliver(report(interrupted=True), to=Destinations(), resumable=True)
    assert "run it again with --resume, which continues it, or accept it" in capsys.readouterr().err
    deliver(report(interrupted=True), to=Destinations())
    assert "cases; run it again, or accept it" in capsys.readouterr().err
    late = Coverage(9, 9, 3, 0, 3, {"y": 3}, ended="the time limit of 5 s was reached")
    deliver(report(coverage=late), to=Destinations())
    assert "run it again with more --seconds, or accept it" in capsys.readouterr().err


def test_one_direction_that_cannot_be_checked_is_no_error_where_it_was_not_asked_for():
    assert deliver(report(), NOTHING, to=Destinations(), all_of_them=False) == 0
    assert deliver(NOTHING, NOTHING, to=Destinations(), all_of_them=False) == 2


def test_files_are_looked_at_before_the_run(tmp_path):
    with pytest.raises(UsageError, match="no writable folder"):
        Destinations(json_path=str(tmp_path / "none" / "r.json"))
    with pytest.raises(UsageError, match="--json and --html are both"):
        Destinations(json_path="-", html_path="-")
    with pytest.raises(UsageError, match="there is no baseline"):
        Destinations(baseline=str(tmp_path / "base.json"))


def test_a_run_is_compared_with_its_baseline(tmp_path, capsys):
    path = str(tmp_path / "base.json")
    assert deliver(report(), to=Destinations(json_path=path)) == 0
    assert deliver(report(), to=Destinations(baseline=path)) == 0
    assert "nothing got worse" in capsys.readouterr().out
    assert deliver(report(kernel="other", op="rmsnorm_bwd"), to=Destinations(baseline=path)) == 0
    assert "has no other" in capsys.readouterr().err


def test_the_summary_of_a_ci_step_is_appended(tmp_path, monkeypatch, capsys):
    path = tmp_path / "summary.md"
    monkeypatch.setenv(outputs.SUMMARY, str(path))
    deliver(report(), to=Destinations())
    outputs.summarize("and this")
    assert path.read_text().endswith("and this\n")
    monkeypatch.setenv(outputs.SUMMARY, str(tmp_path))
    assert deliver(report(), to=Destinations()) == 0
    assert "cannot write the summary" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "status"), [((), 2), ((FINDING,), 1)])
def test_a_file_that_cannot_be_written_loses_no_other_and_no_finding(tmp_path, capsys, found, status):
    """As where the disk is full, or the folder is gone by the end of the run."""
    to = Destinations(json_path="/dev/full", junit_path=str(tmp_path / "r.xml"))
    assert deliver(report(findings=found), to=to) == status
    assert (tmp_path / "r.xml").read_text().startswith("<?xml")
    said = capsys.readouterr()
    assert said.err.count("cannot write /dev/full: No space left on device") == 1
    assert report().kernel in said.out
