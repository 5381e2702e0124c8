"""The columns of a store are the fields of a report that their names say."""

from dataclasses import replace

import campaigns
import runs
from campaigns import FACTS, outcome

from verify_norm.campaign.store import Store

(UNIT,) = campaigns.units(1)
ERRORS = runs.tally([0.1] * 985 + [2.0] * 12 + [9.0] * 3, ratio=0.75, cases=3)
COUNTS = {"corners": 7, "corners_done": 6, "refused": 5, "compared": 4}


def test_columns_have_the_fields_of_their_names(tmp_path):
    report = campaigns.report(wrong=True)
    coverage = replace(report.coverage, **COUNTS)
    report = replace(report, cases=9, seconds_in_kernel=0.5, coverage=coverage, tallies=(ERRORS,))
    with Store.writing(str(tmp_path / "s"), (UNIT,), FACTS) as store:
        store.enter(UNIT, replace(outcome(UNIT), report=report))
        (counts,) = store.query(f"SELECT cases, kernel_seconds, {', '.join(COUNTS)} FROM outcomes")
        assert counts == (9, 0.5, *COUNTS.values())
        sizes = "cases, elements, unjudged, ratio, max_ulp, mean_ulp, p50, p99, p999, correct"
        quantiles = [ERRORS.ulp.quantile(share) for share in (0.5, 0.99, 0.999)]
        assert len(set(quantiles)) == 3
        counted = (ERRORS.cases, ERRORS.elements, ERRORS.unjudged, ERRORS.ratio)
        errors = (ERRORS.ulp.maximum, ERRORS.ulp.mean, *quantiles, ERRORS.ulp.correct)
        assert store.query(f"SELECT {sizes} FROM errors") == [(*counted, *errors)]
        assert store.query('SELECT "check", cases, failed FROM checks') == [
            (one.name, one.cases, one.failed) for one in report.checks
        ]
        assert store.query("SELECT name, cases FROM coverage WHERE what = 'type'") == [*report.seen.types.items()]
