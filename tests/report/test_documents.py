"""Reports and specs as JSON: they read back, and what cannot be read is one line that says why."""

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
from documents import INFINITE_ERROR, NEGATIVE, PASSING, SHORT

from verify_norm.core import files, serial
from verify_norm.core.errors import UsageError
from verify_norm.core.results import SCHEMA
from verify_norm.report import documents
from verify_norm.report.compare.compare import compare


def test_json_reads_back_to_the_same_report():
    written = documents.dump(SHORT)
    read = documents.load(written)
    assert documents.dump(read) == written
    assert isnan(read.findings[0].got)
    assert replace(read, findings=()) == replace(SHORT, findings=())
    assert replace(read.findings[0], got=0.0) == replace(INFINITE_ERROR, got=0.0)


def test_json_is_strict_json():
    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(documents.dump(SHORT), parse_constant=refuse)["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("{", "not a complete JSON file"),
        ("[]", "not a report of verify-norm"),
        ('{"a": 1}', "it has no kernel and schema"),
        (documents.dump(SHORT).replace(f'"schema": {SCHEMA}', '"schema": 99'), "schema 99; this version reads schema"),
        (documents.dump(SHORT).replace('"cases": 9', '"cases": "many"'), "cases: expected a valid integer"),
    ],
)
def test_what_is_no_report_is_refused_in_words(broken, words):
    with pytest.raises(UsageError, match=words) as caught:
        documents.load(broken)
    assert "\n" not in str(caught.value)


def test_the_report_in_an_audit_has_a_schema_too():
    data = json.loads(documents.dump(PASSING))
    (read,) = documents.load_all(json.dumps(data))
    assert read.report.kernel == PASSING.report.kernel
    data["report"]["schema"] = 99
    with pytest.raises(UsageError, match="schema 99; this version reads schema"):
        documents.load_all(json.dumps(data))


def test_a_replay_line_holds_what_differs_and_reads_back():
    line = serial.spec_text("k", NEGATIVE)
    assert json.loads(line) == {
        "kernel": "k",
        "shape": [2, 3],
        "dtype": "bfloat16",
        "x_layout": "transposed",
        "offset": -10.0,
    }
    assert serial.read_spec(line) == ("k", None, NEGATIVE)


def test_writing_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.json"
    files.write(documents.dump(SHORT), str(path))
    assert documents.load(path.read_text()).kernel == "k"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    with pytest.raises(UsageError, match="cannot write"):
        files.write(documents.dump(SHORT), str(tmp_path / "none" / "report.json"))


def test_a_report_of_an_earlier_version_is_read():
    (report,) = documents.read(str(Path(__file__).parent / "data" / "schema1.json"))
    assert report.ok
    assert report.tallies
    pair = compare([report], [report]).pairs[0]
    assert pair.same_cases
    assert pair.changes == ()
