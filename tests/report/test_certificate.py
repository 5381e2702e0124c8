"""A Certificate for people: the worst of each quantity and method, what failed and where, and a verdict."""

import io
from dataclasses import replace

from rich.console import Console

from verify_norm.report.certificate import show_certificate
from verify_norm.validation.certify import Certificate, Result

GOOD = Result("layernorm", "dx", "offset 0", "50 digits", 2.0, 8.0, "ulp (2⁻⁵²) of the largest term", "8 at most", True)
BAD = replace(GOOD, error=300.0, ok=False)


def shown(*results, **other):
    console = Console(width=110, record=True, file=io.StringIO())
    show_certificate(Certificate(results, **other), console)
    return console.export_text()


def test_a_failure_names_all_its_families_and_the_largest_error():
    text = shown(GOOD, replace(BAD, family="offset 1"), replace(BAD, family="offset 100", error=700.0))
    line = "layernorm dx, by 50 digits: off by 700 ulp (2⁻⁵²) of the largest term, allowed 8 (8 at most); in offset 1, "
    assert f"✗ {line}offset 100" in " ".join(text.split())
    assert "FAIL: 2 of 3 results" in text
    assert "certified" not in text


def test_a_cell_holds_the_worst_of_all_families_by_its_allowance():
    """1 of 2 is worse than 3 of 8, and what failed is worse than either."""
    near = replace(GOOD, family="offset 1", error=1.0, allowed=2.0)
    assert "1 / 2" in shown(replace(GOOD, error=3.0), near)
    assert "3e+02 / 8" in shown(BAD, near)
    assert "1e-14 / 1e-13" in shown(replace(GOOD, method="complex step", error=1e-14, allowed=1e-13))


def test_what_is_only_shown_certifies_nothing():
    published = replace(GOOD, method="as published", allowed=None)
    assert "nothing was certified" in shown(published)
    text = shown(GOOD, published, skipped=(("batchnorm", "no [fifty] digits"),))
    assert "certified layernorm: 1 results" in text
    assert "not certified: batchnorm: no [fifty] digits" in text


def test_a_reference_that_raises_is_told_by_its_error_alone():
    why = "it raised ZeroDivisionError: division by zero"
    text = shown(Result("layernorm", "every quantity", "offset 0", "call", float("inf"), 0.0, "", why, False))
    assert f"every quantity, by call: {why}; in offset 0" in " ".join(text.split())
