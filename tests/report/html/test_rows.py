"""The map of errors over the rows of a case."""

from documents import HEAT

from verify_norm.report.html.rows import heat, spans, spoken


def test_a_map_marks_errors_that_are_not_finite():
    grid, lost = heat(HEAT[0])["data"]
    assert grid["z"] == [[-3, -2.0, 1.58], [19.93, None, None]]
    assert lost["z"] == [[None, None, None], [None, 1, 1]]
    assert "not finite" in spoken(HEAT[0])
    assert spans(130, 3) == ["0–42", "43–85", "86–129"]
