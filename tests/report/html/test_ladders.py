"""The figures of ladders: what plotly accepts, what is infinite, and lines that look different."""

import pytest
from documents import LADDERS

from verify_norm.report.html.ladders import figure, style


def test_plotly_would_refuse_a_wrong_figure():
    graph_objects = pytest.importorskip("plotly.graph_objects")
    wrong = figure(LADDERS[0])
    wrong["data"][0]["line"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        graph_objects.Figure(wrong)


def test_a_ladder_shows_what_is_infinite_at_its_upper_edge():
    line, *thin, dots = figure(LADDERS[0])["data"]
    top = max(line["y"])
    assert line["y"][3] == line["y"][4] == top > 7250.9
    assert dots["marker"]["symbol"] == ["circle"] * 3 + ["triangle-up"] * 2 + ["triangle-down", "circle"]
    bad, ink, page = "var(--bad)", "var(--ink)", "var(--page)"
    assert dots["marker"]["color"] == [ink, bad, bad, bad, bad, ink, page]
    assert "not finite" in line["hovertext"][3]
    assert "no bound applies" in line["hovertext"][6]
    assert line["name"] == "kernel"
    assert line["line"]["width"] > 2 * thin[0]["line"]["width"]
    assert [one["name"] for one in thin] == ["two-pass", "one-pass", "Welford"]
    assert thin[1]["marker"]["size"][3] > 0 == thin[1]["marker"]["size"][0]
    assert len({(one["line"]["color"], one["line"]["dash"]) for one in thin}) == 3


def test_the_algorithms_of_a_ladder_look_different():
    sums = ("sequential sums", "pairwise sums", "blocked sums", "compensated sums")
    partials = ("partials in float32", "partials in float16", "partials in bfloat16")
    for group in (("two_pass", "welford", "one_pass", "shifted_one_pass"), (*sums, *partials)):
        assert len({style(name) for name in group}) == len(group)
