"""The errors that a run would have detected, in words."""

import doctest
from dataclasses import replace

from documents import REPORT, SHORT

from verify_norm.core.tally import Detectable
from verify_norm.report import detected as module
from verify_norm.report.detected import detected, detected_by_all

BOTH = replace(
    REPORT,
    detectable=(
        Detectable("accuracy", "dx", "float32", 9, 2e-6, 3e-6, 4e-6),
        Detectable("accuracy", "dweight", "float32", 9, 9e-6),
        Detectable("accuracy", "dx", "bfloat16", 9, 5e-5, 6e-5, 7e-5),
        Detectable("sums", "dweight", "float32", 9, 1e-6),
    ),
)


def test_each_type_has_the_error_of_its_least_sensitive_output():
    assert detected(BOTH, "accuracy") == "9.0e-06 (float32 dweight), 5.0e-05 (bfloat16 dx)"
    assert detected(BOTH, "sums") == "1.0e-06 (float32 dweight)"
    assert detected(BOTH, "gradient") == ""


def test_the_run_detects_by_its_best_check():
    said = dict(detected_by_all(BOTH))
    assert said["all of any output"] == "2.0e-06 (float32 dx), 5.0e-05 (bfloat16 dx)"
    assert said["one row of it in every case"] == "3.0e-06 (float32 dx), 6.0e-05 (bfloat16 dx)"
    assert detected_by_all(SHORT) == []


def test_doctests():
    assert doctest.testmod(module).failed == 0
