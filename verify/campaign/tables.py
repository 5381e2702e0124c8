"""The tables of a store, which one's own questions are about, and their rows from a report.

`outcomes` has the whole report, as compressed JSON. The other tables hold what questions are about: the errors of each
output with their histogram, the findings with replay lines, the cases of each check, and what the cases had in them.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from verify_norm.core.report_text import replay_line
from verify_norm.core.results import Report
from verify_norm.core.serial import jsonable
from verify_norm.core.tally import Tally

VERSION = 2
MAGIC = 0x766E636D  # in the header: it is ours
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE units (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL, kernel TEXT NOT NULL, op TEXT NOT NULL, bind TEXT NOT NULL,
    contract TEXT NOT NULL, "only" TEXT NOT NULL, dtype TEXT NOT NULL, block INTEGER NOT NULL, seed INTEGER NOT NULL,
    examples INTEGER NOT NULL, source TEXT NOT NULL, accelerator TEXT NOT NULL
);
CREATE TABLE losses (unit TEXT NOT NULL REFERENCES units, worker TEXT NOT NULL, ended TEXT NOT NULL);
CREATE TABLE outcomes (
    unit TEXT PRIMARY KEY REFERENCES units, verdict TEXT NOT NULL, worker TEXT NOT NULL, started REAL NOT NULL,
    finished REAL NOT NULL, problem TEXT NOT NULL, device TEXT NOT NULL, cases INTEGER NOT NULL,
    corners INTEGER NOT NULL, corners_done INTEGER NOT NULL, refused INTEGER NOT NULL, compared INTEGER NOT NULL,
    kernel_seconds REAL NOT NULL, report BLOB
);
CREATE TABLE errors (
    unit TEXT NOT NULL REFERENCES units, output TEXT NOT NULL, dtype TEXT NOT NULL, cases INTEGER NOT NULL,
    elements INTEGER NOT NULL, unjudged INTEGER NOT NULL, ratio REAL NOT NULL, max_ulp REAL NOT NULL,
    mean_ulp REAL NOT NULL, p50 REAL NOT NULL, p99 REAL NOT NULL, p999 REAL NOT NULL, correct INTEGER NOT NULL,
    histogram TEXT NOT NULL
);
CREATE TABLE findings (
    unit TEXT NOT NULL REFERENCES units, "check" TEXT NOT NULL, output TEXT, cases INTEGER NOT NULL,
    message TEXT NOT NULL, replay TEXT NOT NULL
);
CREATE TABLE checks (
    unit TEXT NOT NULL REFERENCES units, "check" TEXT NOT NULL, cases INTEGER NOT NULL, failed INTEGER NOT NULL
);
CREATE TABLE coverage (
    unit TEXT NOT NULL REFERENCES units, what TEXT NOT NULL, name TEXT NOT NULL, cases INTEGER NOT NULL
);
CREATE TABLE traits (unit TEXT NOT NULL REFERENCES units, name TEXT NOT NULL, said TEXT NOT NULL);
CREATE INDEX errors_unit ON errors (unit);
CREATE INDEX findings_unit ON findings (unit);
"""
OF_OUTCOME = ("errors", "findings", "checks", "coverage", "traits", "outcomes")  # where an outcome has rows, it last
_REPORT = TypeAdapter(Report)


def packed(report: Report) -> bytes:
    """Return a report as compressed JSON."""
    return zlib.compress(json.dumps(jsonable(report), ensure_ascii=False).encode())


def unpacked(data: bytes) -> Report:
    """Return the report that `packed` made."""
    return _REPORT.validate_python(json.loads(zlib.decompress(data)))


def counts(report: Report | None) -> tuple[Any, ...]:
    """Return the columns of an outcome that come from its report."""
    if report is None or report.coverage is None:
        return ("", 0, 0, 0, 0, 0, 0.0, None)
    done = report.coverage
    corners = (done.corners, done.corners_done, done.refused, done.compared)
    return (report.environment["device"], report.cases, *corners, report.seconds_in_kernel, packed(report))


def rows(report: Report) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of a report by their table, without the unit."""
    contents: dict[str, Mapping[str, int]] = {}
    if report.seen is not None:
        seen = report.seen
        contents = {"type": seen.types, "weight type": seen.weights, "type of other inputs": seen.others}
        contents |= {"layout": seen.layouts}
        contents |= {f"way of {check}": ways for check, ways in seen.ways.items()}
    return {
        "errors": [_errors(tally) for tally in report.tallies],
        "findings": [(f.check, f.output, f.cases, f.message, replay_line(report, f.spec)) for f in report.findings],
        "checks": [(check.name, check.cases, check.failed) for check in report.checks],
        "coverage": [(what, name, cases) for what, found in contents.items() for name, cases in found.items()],
    }


def _errors(tally: Tally) -> tuple[Any, ...]:
    """Return the errors of one output: the histogram of `verify_norm.core.ulp` can be added up."""
    ulp = tally.ulp
    sizes = (tally.output, tally.dtype, tally.cases, tally.elements, tally.unjudged, tally.ratio)
    quantiles = map(ulp.quantile, (0.5, 0.99, 0.999))
    return (*sizes, ulp.maximum, ulp.mean, *quantiles, ulp.correct, json.dumps(ulp.histogram))
