"""JUnit files that CI services read, and that agree with the exit status."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from documents import FINDING, HOSTILE, PLAIN, REPORT

from verify_norm.cli.outputs import Destinations, deliver
from verify_norm.core.settings import Settings
from verify_norm.core.tally import CheckResult
from verify_norm.report import junit

NOTHING = replace(PLAIN, checks=())
CUT = replace(PLAIN, interrupted=True)
WRONG = replace(PLAIN, findings=(replace(FINDING, kernel="k"),))


def read(text):
    return ElementTree.fromstring(text.removeprefix(junit.START))


def ended(root):
    """The tests that did not pass: how each ended."""
    return {(test.get("classname"), test.get("name")): child.tag for test in root.iter("testcase") for child in test}


@pytest.mark.parametrize(
    ("reports", "every"),
    [
        ((PLAIN,), True),
        ((WRONG,), True),
        ((REPORT, PLAIN), True),
        ((CUT,), True),
        ((replace(CUT, settings=Settings(allow_incomplete=True)),), True),
        ((NOTHING,), True),
        ((PLAIN, NOTHING), True),
        ((PLAIN, NOTHING), False),
        ((NOTHING, NOTHING), False),
        ((PLAIN, replace(NOTHING, kernel="other")), False),
    ],
)
def test_a_test_fails_or_has_an_error_where_the_status_is_not_0(reports, every, tmp_path):
    path = tmp_path / "r.xml"
    status = deliver(*reports, to=Destinations(junit_path=str(path)), all_of_them=every)
    root = read(path.read_text(encoding="utf-8"))
    bad = set(ended(root).values()) & {"failure", "error"}
    assert bool(bad) == bool(status)
    assert ("failure" in bad) == any(report.findings for report in reports)
    for suite in root:
        for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(name)) == len(suite.findall(f"testcase/{kind}"))
        assert int(suite.get("tests")) == len(suite) > 0


def test_a_check_fails_with_its_findings_and_one_without_data_is_skipped():
    root = read(junit.of([REPORT]))
    name = "onepass (layernorm_fwd)"
    assert ended(root) == {
        (name, "accuracy"): "failure",
        (name, "gradient"): "skipped",
        (name, "identities"): "failure",
    }
    failure = root.find(".//testcase[@name='accuracy']/failure")
    assert failure.get("message") == FINDING.message
    assert "\n  got       1.5\n  expected  1.25" in failure.text
    assert "verify-norm replay" in failure.text
    assert root.find("testsuite").get("time") == "9.500"


def test_a_baseline_is_a_suite_with_what_got_worse(tmp_path):
    old, new = str(tmp_path / "old.json"), str(tmp_path / "r.xml")
    deliver(PLAIN, to=Destinations(json_path=old))
    assert deliver(PLAIN, to=Destinations(baseline=old, junit_path=new)) == 0
    assert ended(read((tmp_path / "r.xml").read_text())) == {}
    assert deliver(WRONG, to=Destinations(baseline=old, junit_path=new)) == 1
    root = read((tmp_path / "r.xml").read_text())
    assert ("baseline", "k") in ended(root)
    assert root.find("testsuite[@name='baseline']").get("failures") == "1"
    other = replace(PLAIN, settings=Settings(seed=1))
    assert deliver(other, to=Destinations(baseline=old, junit_path=new)) == 2
    assert ended(read((tmp_path / "r.xml").read_text())) == {("baseline", "comparison"): "error"}


def test_whatever_a_kernel_says_stays_text():
    for words in (HOSTILE, "a\ud800b", "\x00]]>", '"\n<x/>'):
        made = replace(REPORT, kernel=words, findings=(replace(FINDING, message=words),), checks=())
        root = read(junit.of([replace(made, checks=(CheckResult("accuracy", words, 3, 1),))]))
        (failure,) = root.iter("failure")
        assert {element.tag for element in root.iter()} == {"testsuites", "testsuite", "testcase", "failure"}
        assert failure.text.startswith(junit._clean(words).partition("\r")[0])
