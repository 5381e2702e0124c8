"""The report of several units is that of all their cases."""

import campaigns
import norms

from verify_norm.campaign.merging import merged
from verify_norm.core.errors import Exit
from verify_norm.core.settings import Settings
from verify_norm.core.spec import Kernel
from verify_norm.report import documents, terminal
from verify_norm.search.search import search


def test_blocks_of_a_search_are_merged_to_all_their_cases(few_corners):
    few_corners(slice(12))
    kernel = Kernel("k", "layernorm_fwd", run=norms.layernorm())

    def ran(**options):
        chosen = {"checks": ("accuracy",), "isolate": False, "dtypes": ("float32",), "seconds": 600.0}
        return search(kernel, Settings(**(chosen | options)))

    tables, random = ran(examples=0), ran(examples=24, seed=3, tables=False)
    assert (tables.coverage.corners, random.coverage.corners) == (12, 0)
    assert random.coverage.planned == 24 + 24 // 8
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
