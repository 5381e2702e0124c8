"""The report of several units is that of all their cases."""

from dataclasses import replace

import campaigns
import norms
import pytest

from verify_norm.campaign.merging import merged
from verify_norm.core.errors import Exit
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.tally import CheckResult, Detectable, Skip
from verify_norm.report import documents, terminal
from verify_norm.search.drawing import LARGE_SHARE
from verify_norm.search.search import search


def test_blocks_of_a_search_are_merged_to_all_their_cases(few_corners):
    few_corners(slice(12))
    kernel = Kernel("k", "layernorm_fwd", run=norms.layernorm())

    def ran(**options):
        chosen = {"checks": ("accuracy",), "isolate": False, "dtypes": ("float32",), "seconds": 600.0}
        return search(kernel, Settings(**(chosen | options)))

    tables, random = ran(examples=0), ran(examples=24, seed=3, tables=False)
    assert (tables.coverage.corners, random.coverage.corners) == (12, 0)
    assert random.coverage.planned == 24 + 24 // (2 * LARGE_SHARE)
    found = merged([tables, random])
    assert found.cases == tables.cases + random.cases
    assert (found.coverage.corners_done, found.verdict) == (12, Exit.PASS)
    assert found.settings.examples == 24
    assert found.seen == tables.seen.merge(random.seen)
    for one in found.tallies:
        parts = [t for report in (tables, random) for t in report.tallies if t.output == one.output]
        assert one == parts[0].merge(parts[1])
        assert sum(one.ulp.histogram) == one.elements - one.unjudged
    for one in found.detectable:
        assert one.everything == min(
            d.everything for r in (tables, random) for d in r.detectable if d.output == one.output
        )
    assert documents.load(documents.dump(found)) == found
    assert "PASS k" in terminal.text(found)
    assert merged([tables]) == tables


def test_findings_are_counted_and_a_right_unit_hides_none():
    right, wrong, other = (campaigns.report(seed=seed, wrong=seed > 0) for seed in (0, 1, 2))
    found = merged([right, wrong, other])
    assert found.verdict is Exit.FINDINGS
    (finding,) = found.findings
    assert (finding.spec, finding.cases) == (wrong.findings[0].spec, 2)
    assert {check.name: (check.cases, check.failed) for check in found.checks}["accuracy"] == (3, 2)


def test_types_stay_apart():
    found = merged([campaigns.report("float32"), campaigns.report("bfloat16")])
    assert {(tally.output, tally.dtype) for tally in found.tallies} >= {("y", "float32"), ("y", "bfloat16")}
    assert found.settings.dtypes[-1] == "bfloat16" or len(found.settings.dtypes) > 1


def one(wrong=False, **fields):
    """A report with these fields."""
    return replace(campaigns.report(wrong=wrong), **fields)


def detects(cases, everything, **errors):
    return (Detectable("sums", "y", "float32", cases, everything, **errors),)


def skips(what, cases):
    return (Skip(what, "why", cases),)


@pytest.mark.parametrize(
    ("field", "its", "other", "both"),
    [
        ("interrupted", False, True, True),
        ("detectable", detects(1, 0.5, row=0.25), detects(3, 0.75, row=0.125), detects(4, 0.5, row=0.125)),
        ("detectable", detects(1, 2.0, dropped=1.0), detects(3, 2.0, dropped=0.0), detects(4, 2.0, dropped=0.25)),
        ("detectable", detects(1, 2.0, dropped=1.0), detects(3, 2.0), detects(4, 2.0, dropped=1.0)),
        ("detectable", detects(1, 2.0, element=0.5), detects(3, 2.0), detects(4, 2.0, element=0.5)),
        ("skipped", skips("check gradient", 1), skips("check gradient", 1), skips("check gradient", 1)),
        ("skipped", skips("output rstd", 9), skips("output rstd", 1), skips("output rstd", 10)),
        ("skipped", skips("cases", 1), skips("cases", 1), skips("cases", 2)),
        (
            "checks",
            (CheckResult("sums", "s", 0, 0, no_data="no sums"),),
            (CheckResult("sums", "s", 2, 1, 1, 2),),
            (CheckResult("sums", "s", 2, 1, 1, 2),),
        ),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_two_reports_say_together(field, its, other, both, turned):
    pair = [one(**{field: value}) for value in (its, other)]
    assert getattr(merged(pair[::-1] if turned else pair), field) == both


@pytest.mark.parametrize("field", ["seen", "coverage"])
def test_what_an_older_verify_norm_has_not_counted_is_not_known(field):
    for pair in ((one(), one(**{field: None})), (one(**{field: None}), one())):
        assert getattr(merged(pair), field) is None


def test_coverage_is_that_of_all_but_pairs_are_those_of_one():
    usual = campaigns.report().coverage
    early, late = (replace(usual, planned=n, ended="late" * (n == 2), pairs=9 * n, possible=99) for n in (1, 2))
    for pair in ((early, late), (late, early)):
        found = merged([one(coverage=each) for each in pair]).coverage
        assert (found.planned, found.ended, found.pairs, found.possible) == (3, "late", 18, 99)
        assert found.outputs == {name: 2 * cases for name, cases in usual.outputs.items()}


@pytest.mark.parametrize(
    ("outside", "said"), [(("ndim=2", "ndim=2"), "ndim=2"), (("ndim=2", "ndim=3"), ""), (("ndim=2", ""), "")]
)
def test_what_no_failure_is_outside_of_is_said_where_all_units_agree(outside, said):
    wrong = [one(wrong=True, outside=each) for each in outside]
    assert merged(wrong).outside == said
    assert merged([one(outside="ndim=4"), *wrong]).outside == said
