"""The page as text: what it says, that all of it is escaped, and that plotly takes its figures."""

import importlib.util
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan

import pytest

from verify_norm.bind import UsageError
from verify_norm.report import json as json_form
from verify_norm.report.html import checks as html_checks
from verify_norm.report.html import errors as html_errors
from verify_norm.report.html import ladders as html_ladders
from verify_norm.report.html import markup, summation, words
from verify_norm.report.html import page as html

from .documents import AUDIT, DOCUMENTS, EMPTY, HEAT, LADDERS, NOTHING, PASSING, REPORT, ULPS, halves, sequential

CHARTS = [name for name in DOCUMENTS if name not in ("nothing", "empty")]


class Read(HTMLParser):
    """What a browser would read: elements and their attributes, and the text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.scripts, self._inside = [], "", {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id", tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.text += data
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


@pytest.fixture(scope="module")
def read():
    """The pages of all documents, read."""
    return {name: Read(html.page(document)) for name, document in DOCUMENTS.items()}


def test_where_plotly_is_missing_one_line_says_how_to_get_it(monkeypatch):
    assert html.missing() is None
    monkeypatch.setattr(html, "find_spec", lambda name: None if name == "plotly" else importlib.util.find_spec(name))
    assert "pip install 'verify-norm[html]'" in html.missing()
    assert "\n" not in html.missing()
    with pytest.raises(UsageError, match="needs plotly"):
        html.page(REPORT)


def test_a_page_of_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="no report"):
        html.pages()


@pytest.mark.parametrize(
    ("document", "word", "line"),
    [
        (AUDIT, "FAIL", "2 findings in 99 cases in 9.5 s, and the fingerprint disagrees with the contract in 1 point."),
        (REPORT, "FAIL", "2 findings in 99 cases in 9.5 s."),
        (replace(PASSING, disagreements=("a", "b")), "FAIL", "disagrees with the contract in 2 points."),
        (PASSING, "Pass", "No finding by 3 checks in 99 cases"),
        (NOTHING, "Nothing checked", "This is no pass. output rstd (9 cases): onepass does not return it."),
        (replace(REPORT, findings=(), interrupted=True), "Interrupted", "This is no pass."),
        (replace(REPORT, interrupted=True), "FAIL", "the run was interrupted"),
    ],
)
def test_the_verdict_comes_first_in_words(document, word, line):
    said = words.verdict(document)
    assert said.word == word
    assert line in said.line
    assert (said.kind == "pass") == document.ok
    text = Read(html.page(document)).text
    assert text.index(word) < text.index(line) < text.index("Errors")


def test_what_ran_without_a_gpu_is_labelled():
    assert "interpreter: this is no evidence about a GPU" in words.evidence(REPORT)
    assert words.evidence(replace(REPORT, backend="torch")) == "It ran on the CPU: this is no evidence about a GPU."
    on_gpu = replace(REPORT, settings=replace(REPORT.settings, device="cuda"), environment={"device": "H200"})
    assert words.evidence(on_gpu) == ""
    assert "no evidence" not in Read(html.page(on_gpu)).text


def test_the_page_says_what_was_found(read):
    text = read["audit"].text
    for part in (
        "accuracy · y · float32", "y[1] is 1.14e+04 ULP from float64", "got1.5", "want1.25", "error11,433 ULP",
        "allowed813.35 ULP", "allowed1.3 × 10⁻⁴s", "seen in13 cases", "first incase 28",
        "verify-norm replay '{\"kernel\"",
        "the contract says variance=centered", "44.80 %", "50,627", "−6.10", "1.2 × 10⁻⁴", "Like one-pass.",
        "Over its bound first at offset/scale 10.", "No bound applies at 1 rung, first at 10⁶.", "Like all of these",
        "Not every rung was climbed: the rung at 1 would take about 9 s.", "float32, bfloat16", "undecided",
        "row order and dbias order", "in row 2–4 at place 43–85", "✗ found", "– nothing to look at", "– not promised",
        "It held in 38 of 39.", "output rstd (9 cases): onepass does not return it", "hunt: not asked for",
        "One element off by 1.2 times its bound", "transposed", "mine.py:onepass", "strict: float32 throughout",
    ):  # fmt: skip
        assert part in text, part
    assert "Nothing to show: the kernel was lost: it hung." in read["empty"].text
    assert "Nothing to show: this part was not done." in read["empty"].text
    assert "1 of 54" not in read["report"].text
    assert "2⁻⁸" not in read["report"].text
    assert "92.59 %" in read["report"].text  # of a report without an audit, the errors of its checks' cases


def test_a_page_is_made_of_what_json_keeps():
    again = json_form.load_all(json_form.dump(PASSING, REPORT))
    assert html.pages(*again) == html.pages(PASSING, REPORT)


def test_nothing_that_comes_from_outside_is_markup(read):
    page = read["hostile"]
    assert {tag for tag, _ in page.elements}.isdisjoint({"img", "b-"}), "an element of theirs"
    assert sum(tag == "script" for tag, _ in page.elements) == 4
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    usual = {(tag, *sorted(attributes)) for tag, attributes in read["audit"].elements}
    assert {(tag, *sorted(attributes)) for tag, attributes in page.elements} <= usual
    for part in (
        "<script>window.hacked = 1</script>",
        '"><img src=x onerror="window.hacked = 2">',
        "␀␛",
        "&lt;b&gt;",
        "?",
    ):
        assert part in page.text
    figures = json.loads(page.scripts["figures"])
    labels = json.dumps(figures, ensure_ascii=False)
    assert "&lt;script&gt;" in labels
    assert "<script" not in labels
    assert "<img" not in labels
    html.page(DOCUMENTS["hostile"]).encode()


def test_markup_of_another_is_escaped_and_ours_is_not():
    assert markup.tag("p", "<b>", markup.tag("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert markup.data(["</script>", "<!--", "\u2028"]) == '["\\u003c/script\\u003e","\\u003c!--","\\u2028"]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        markup.data(inf)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_small_and_asks_for_nothing(name, read):
    page = html.page(DOCUMENTS[name])
    assert len(page.encode()) < 6e6
    assert not [
        v
        for _, a in read[name].elements
        for k, v in a.items()
        if k in ("src", "href") and v[:1] != "#" and v != "data:,"
    ]
    assert "url(" not in read[name].scripts["style"]
    policy = next(a["content"] for tag, a in read[name].elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.split("style-src")[0]


@pytest.mark.parametrize("name", CHARTS)
def test_plotly_takes_every_figure(name, read):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figures = json.loads(read[name].scripts["figures"], parse_constant=pytest.fail)
    assert len(figures) == sum(a.get("class") == "figure" for _, a in read[name].elements)
    for figure in figures.values():
        graph_objects.Figure(figure)  # which refuses a property that there is not
        variables = set(re.findall(r"var\((--\w+)\)", json.dumps(figure)))
        assert variables <= set(re.findall(r"(--\w+):", read[name].scripts["style"]))


def test_plotly_would_refuse_a_wrong_figure():
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = html_ladders.figure(LADDERS[0])
    figure["data"][0]["line"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        graph_objects.Figure(figure)


def test_a_ladder_shows_what_is_infinite_at_its_upper_edge():
    line, *thin, dots = html_ladders.figure(LADDERS[0])["data"]
    top = max(line["y"])
    assert line["y"][3] == line["y"][4] == top > 7250.9
    assert dots["marker"]["symbol"] == ["circle"] * 3 + ["triangle-up"] * 2 + ["triangle-down", "circle"]
    bad, ink, page = "var(--bad)", "var(--ink)", "var(--page)"
    assert dots["marker"]["color"] == [ink, bad, bad, bad, bad, ink, page]
    assert "no number" in line["hovertext"][3]
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
        assert len({html_ladders.style(name) for name in group}) == len(group)


def test_a_histogram_says_what_is_correct_and_what_no_number():
    assert html_errors.bars(ULPS[2]) == [(33.0, 1.0, "4.29 × 10⁹ ULP or more, or no number")]
    assert html_errors.bars(ULPS[0])[0] == (-2.0, 300 / 1041, "0.125 to 0.25 ULP")
    far, near = (trace["marker"]["color"] for trace in html_errors.histograms(ULPS[:2])["data"])
    assert far == ["var(--bar)"] * 2 + ["var(--far)"] * 3
    assert near == ["var(--bar)"] * 3  # the largest error is ½, a tie: it is rounded correctly


def test_a_map_keeps_what_is_no_number():
    grid, lost = html_checks.heat(HEAT[0])["data"]
    assert grid["z"] == [[-3, -2.0, 1.58], [19.93, None, None]]
    assert lost["z"] == [[None, None, None], [None, 1, 1]]
    assert "no number" in html_checks.spoken(HEAT[0])
    assert html_checks.spans(130, 3) == ["0–42", "43–85", "86–129"]


def test_a_sum_of_many_is_folded_and_keeps_count():
    for tree, count in (
        (halves(0, 64), 64),
        (halves(0, 1024), 1024),
        (sequential(5000), 5000),
        (tuple(range(900)), 900),
    ):
        root, _ = summation.fold(tree)
        leaves = [node for node in summation._upwards(root) if not node.kids]
        assert len(leaves) <= summation.MOST
        assert sum(leaf.count for leaf in leaves) == root.count == count
        assert (root.first, root.last) == (0, count - 1)
        drawing = summation.draw(tree, "row order")
        assert drawing.count('class="folded"') == sum(leaf.folded for leaf in leaves)
        assert (count > 64) == ("folded" in drawing)
    assert summation.draw(7, "one").count("<text") == 1
    assert [n.first for n in summation._upwards(summation.fold(((0, 2), (1, 3)))[0]) if not n.kids] == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.5, "0.50"), (999.99, "999.99"), (999.999, "1,000"), (1e6, "1.0 × 10⁶"), (-3.2e-5, "−3.2 × 10⁻⁵"),
     (nan, "NaN"), (-inf, "−∞"), (-6.1, "−6.10")],
)  # fmt: skip
def test_numbers_are_short_and_right(value, said):
    assert words.number(value) == said


def test_several_documents_are_one_page(read):
    page = Read(html.pages(PASSING, AUDIT, title="both"))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"run-1-ladders", "run-2-ladders"} <= set(ids)
    assert {a["href"][1:] for tag, a in page.elements if tag == "a"} <= set(ids)
    assert page.text.index("twopass") < page.text.index("onepass")
    assert len(json.loads(page.scripts["figures"])) == 2 * len(json.loads(read["audit"].scripts["figures"]))


def test_text_can_be_read_in_light_and_dark():
    """WCAG 2: a contrast of 4.5 for text, 3 for lines."""
    light, dark = (dict(re.findall(r"(--\w+): (#\w+)", part)) for part in html._file("page.css").split("@media", 2)[:2])

    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
        parts = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
        return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
                   for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))  # fmt: skip

    for theme in (light, dark):
        for name, least in {"--ink": 7, "--soft": 4.5, "--good": 4.5, "--bad": 4.5, "--none": 4.5, "--link": 4.5,
                            **{f"--line{i}": 3 for i in range(1, 7)}}.items():  # fmt: skip
            low, high = sorted((luminance(theme[name]), luminance(theme["--page"])))
            assert (high + 0.05) / (low + 0.05) >= least, (name, theme[name])


def test_an_empty_audit_has_all_its_parts(read):
    headings = [a["id"] for tag, a in read["empty"].elements if tag == "section" and "id" in a]
    assert headings == [
        f"run-1-{part}" for part in ("errors", "ladders", "fingerprint", "rows", "checks", "environment")
    ]
    assert EMPTY.ulps == ()
