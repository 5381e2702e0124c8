"""The figures of ladders: what is infinite, what has no bound, labels, and lines that look different."""

from dataclasses import replace

from documents import LADDERS, RUNGS

from verify_norm.report.html.ladders import figure, style


def test_a_ladder_shows_what_is_infinite_at_its_upper_edge():
    drawn = figure(LADDERS[0])
    dots = drawn["dots"]
    assert [dot["shape"] for dot in dots] == ["circle"] * 3 + ["up"] * 2 + ["down", "circle"]
    assert [dot["kind"] for dot in dots] == ["kept", *["over"] * 4, "kept", "unjudged"]
    heights = [dot["place"][1] for dot in dots]
    assert heights[3] == heights[4] == min(heights) < heights[2] < heights[1] < heights[0] < heights[5] <= 100
    assert drawn["line"].startswith(f"M{dots[0]['place'][0]:g} {heights[0]:g}L")
    assert [len(thin["lost"]) for thin in drawn["thin"]] == [0, 2, 0]  # one-pass has two errors that are not finite
    assert len({(thin["colour"], thin["dashes"]) for thin in drawn["thin"]}) == 3


def test_a_label_has_all_errors_of_a_step():
    stops = figure(LADDERS[0])["stops"]
    assert stops[1]["words"].splitlines() == [
        "offset/scale 10",
        "kernel: 152.40 ULP, error/bound 1.44",
        "two-pass: 0.90 ULP",
        "one-pass: 152.40 ULP",
        "Welford: 1.50 ULP",
    ]
    assert "not finite" in stops[3]["words"]
    assert "no bound applies" in stops[6]["words"]
    edges = [edge for stop in stops for edge in stop["band"]]
    assert edges[1:-1:2] == edges[2::2]  # a place belongs to one step
    assert (edges[0], edges[-1]) == (0, 100)


def test_a_ladder_of_one_step_and_one_that_keeps_its_bound_have_no_limit():
    assert figure(LADDERS[0])["over"]["words"] == "over its bound from 10"
    (dot,) = (drawn := figure(LADDERS[1]))["dots"]
    assert 0 < dot["place"][0] < 100
    assert drawn["over"] is None
    assert figure(replace(LADDERS[0], rungs=RUNGS[:2], first_over=None))["over"] is None


def test_the_algorithms_of_a_ladder_look_different():
    sums = ("sequential sums", "pairwise sums", "blocked sums", "compensated sums")
    partials = ("partials in float32", "partials in float16", "partials in bfloat16")
    for group in (("two_pass", "welford", "one_pass", "shifted_one_pass"), (*sums, *partials)):
        assert len({style(name) for name in group}) == len(group)
