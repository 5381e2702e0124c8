"""Histograms of errors: which values are rounded correctly, and which errors are not finite."""

from documents import ULPS

from verify_norm.report.html.errors import bars, histograms


def test_a_histogram_marks_what_is_correct_and_what_is_not_finite():
    assert bars(ULPS[2]) == [(33.0, 1.0, "4.29 × 10⁹ ULP or more, or not finite")]
    assert bars(ULPS[0])[0] == (-2.0, 300 / 1041, "0.125 to 0.25 ULP")
    far, near = ([bar["far"] for bar in drawn["bars"]] for drawn in histograms(ULPS[:2]))
    assert far == [False] * 2 + [True] * 3
    assert near == [False] * 3  # the largest error is ½, a tie: it is rounded correctly


def test_bars_are_as_high_as_their_share():
    bars = histograms(ULPS[:1])[0]["bars"]
    small, large, none, *_ = [bar["top"] for bar in bars]
    assert 0 < large < small < none == 100
    assert bars[0]["words"] == "float32, 0.125 to 0.25 ULP: 28.82 %"
    assert all(bar["octave"][0] < bar["sides"][0] < bar["sides"][1] < bar["octave"][1] for bar in bars)
