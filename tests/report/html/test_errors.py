"""Histograms of errors: which values are rounded correctly, and which errors are not finite."""

from documents import ULPS

from verify_norm.report.html.errors import bars, histograms


def test_a_histogram_marks_what_is_correct_and_what_is_not_finite():
    assert bars(ULPS[2]) == [(33.0, 1.0, "4.29 × 10⁹ ULP or more, or not finite")]
    assert bars(ULPS[0])[0] == (-2.0, 300 / 1041, "0.125 to 0.25 ULP")
    far, near = (trace["marker"]["color"] for trace in histograms(ULPS[:2])["data"])
    assert far == ["var(--bar)"] * 2 + ["var(--far)"] * 3
    assert near == ["var(--bar)"] * 3  # the largest error is ½, a tie: it is rounded correctly
