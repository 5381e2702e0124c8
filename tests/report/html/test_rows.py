"""The map of errors over the rows of a case."""

from documents import HEAT

from verify_norm.report.html.rows import heat, spans, spoken


def test_a_map_marks_errors_that_are_not_finite():
    drawn = heat(HEAT[0])
    faint, correct, three, huge, *lost = [cell["shade"] for cell in drawn["cells"]]
    assert 0 < faint < correct < three < huge <= 1
    assert lost == [None, None]
    assert drawn["lost"]
    assert drawn["cells"][3]["words"] == "row 2–4, place 0–42: 1.0 × 10⁶ ULP"
    assert [words for words, _ in drawn["legend"]] == ["⅛", "2", "32", "512", "2¹³", "2¹⁷"]
    assert not heat(HEAT[1])["lost"]
    assert "not finite" in spoken(HEAT[0])
    assert spans(130, 3) == ["0–42", "43–85", "86–129"]
