"""The page as text: all of it is there, escaped, small, and its figures stand beside their numbers."""

import re
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from documents import AUDIT, DOCUMENTS, EMPTY, HOSTILE, PASSING, REPORT

from verify_norm.core import packages
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import UsageError
from verify_norm.report import documents
from verify_norm.report.glossary import GLOSSARY
from verify_norm.report.html import page as html

CHARTS = [name for name in DOCUMENTS if name not in ("nothing", "empty")]


def test_a_missing_package_is_named_in_one_line(monkeypatch):
    assert html.missing() is None
    monkeypatch.setattr(packages, "present", lambda name: name != "jinja2")
    assert html.missing() == "an HTML page needs jinja2: pip install 'verify-norm[html]'"
    with pytest.raises(UsageError, match="needs jinja2"):
        html.pages(REPORT)


def test_a_page_of_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="got none"):
        html.pages()


@pytest.mark.slow
def test_the_page_says_what_was_found(pages):
    text = pages["audit"].text
    for part in (
        "accuracy · y · float32",
        "y[1] is 1.14e+04 ULP from float64",
        "got1.5",
        "expected1.25",
        "error11,433 ULP",
        "allowed813.35 ULP",
        "allowed1.3 × 10⁻⁴s",
        "seen in13 cases",
        "first incase 28",
        'verify-norm replay \'{"kernel"',
        "the contract says variance=centered",
        "44.80 %",
        "50,627",
        "−6.10",
        "1.2 × 10⁻⁴",
        "Like one-pass.",
        "Over its bound first at offset/scale 10.",
        "No bound applies at 1 step, first at 10⁶.",
        "Like all of these",
        "It ends early: the rung at 1 would take about 9 s.",
        "float32, bfloat16",
        "undecided",
        "row order and dbias order",
        "in row 2–4 at place 43–85",
        "✗ failed",
        "– no data",
        "– not promised",
        "It held in 38 of 39.",
        "output rstd (9 cases): onepass does not return it",
        "hunt: not asked for",
        "would have detected a factor of 1 ± e, before the last rounding, on all of any output: e = 5.0e-07",
        "dataΣ|t|/|Σt| 1.14e+03, |μ|/σ 100, var/(var + eps) 0.99",
        "What the data do in the worst cases of the checks",
        "transposed",
        "mine.py:onepass",
        "strict: float32 throughout",
    ):
        assert part in text, part
    assert "Nothing to show: the kernel was lost: it hung." in pages["empty"].text
    assert "Nothing to show: this part was not done." in pages["empty"].text
    assert "1 of 54" not in pages["report"].text
    assert "92.59 %" in pages["report"].text  # of a report without an audit, the errors of its checks' cases


def test_the_page_says_what_explains_a_finding(read):
    explained = replace(REPORT, diagnoses=(Diagnosis("y", "lanes=8", "<b>few</b>", ""),))
    text = " ".join("".join(read(html.pages(explained)).text).split())
    assert "explained by lanes=8, <b>few</b>: --contract lanes=8 declares it." in text
    assert (
        "A weaker contract explains all findings: "
        "if the kernel is meant to do so, --contract lanes=8 declares it." in text
    )
    assert documents.load(documents.dump(explained)).diagnoses == explained.diagnoses


def test_a_page_is_made_of_what_json_keeps():
    again = documents.load_all(documents.dump(PASSING, REPORT))
    assert html.pages(*again) == html.pages(PASSING, REPORT)


def foreign(page):
    """Return the elements and attributes of a page of hostile documents that its templates do not write."""
    wrong = [tag for tag, _ in page.elements if tag in ("img", "b-")]
    wrong += [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    return wrong + ["script"] * (sum(tag == "script" for tag, _ in page.elements) - 2)


def test_hostile_names_and_messages_are_escaped(pages):
    page = pages["hostile"]
    assert foreign(page) == []
    usual = {(tag, *sorted(attributes)) for tag, attributes in pages["audit"].elements}
    assert {(tag, *sorted(attributes)) for tag, attributes in page.elements} <= usual
    for part in (
        "<script>window.hacked = 1</script>",
        '"><img src=x onerror="window.hacked = 2">',
        "␀␛",
        "&lt;b&gt;",
        "?",
    ):
        assert part in page.text
    assert any(HOSTILE.split("\x00")[0] in a.get("aria-label", "") for tag, a in page.elements if tag == "svg")
    html.pages(DOCUMENTS["hostile"]).encode()


def test_autoescape_is_what_escapes_them(monkeypatch, read):
    environment = html.environment()
    environment.autoescape = False
    monkeypatch.setattr(html, "environment", lambda: environment)
    assert {"img", "onerror"} & set(foreign(read(html.pages(DOCUMENTS["hostile"]))))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_asks_for_nothing(name, pages):
    assert not [
        v
        for _, a in pages[name].elements
        for k, v in a.items()
        if k in ("src", "href") and v[:1] != "#" and v != "data:,"
    ]
    assert "url(" not in pages[name].scripts["style"]
    policy = next(a["content"] for tag, a in pages[name].elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def plot(element):
    """Return whether an element is a figure with numbers."""
    tag, attributes = element
    return tag == "svg" and attributes.get("class") == "plot"


def test_a_real_page_is_under_one_and_a_half_megabytes():
    """A forward and a backward as an H200 ran them, in all types, with the largest maps that there are."""
    folder = Path(__file__).parents[3] / "benchmarks" / "results" / "audit" / "h200"
    stored = [documents.read(str(folder / f"groupnorm_{way}.json"))[0] for way in ("fwd", "bwd")]
    assert [max(len(one.cells) * len(one.cells[0]) for one in audit.heat) for audit in stored] == [32 * 64] * 2
    assert 0.5e6 < len(html.pages(*stored).encode()) < 1.5e6


@pytest.mark.parametrize("name", CHARTS)
def test_each_figure_has_a_sentence_and_its_numbers(name, pages):
    """Every plot says what it shows, and the figure that it stands in has a table."""
    figures = []
    for tag, attributes in pages[name].elements:
        if tag in ("figure", "section"):
            figures.append([])
        elif plot((tag, attributes)):
            assert attributes["role"] == "img"
            assert attributes["tabindex"] == "0"
            assert len(attributes["aria-label"].split()) > 6
            figures[-1].append("plot")
        elif tag == "table" and figures:
            figures[-1].append(tag)
    drawn = [figure for figure in figures if "plot" in figure]
    assert drawn
    assert all(figure[-1] == "table" for figure in drawn)


@pytest.mark.parametrize("name", CHARTS)
def test_places_are_numbers_and_classes_have_a_style(name, pages):
    """A place that is not a number, or a class that the style sheet does not know, would draw nothing."""
    svg = [(tag, a) for tag, a in pages[name].elements if tag in ("svg", "rect", "line", "path", "circle", "text", "g")]
    for _, a in svg:
        for key in ("x", "y", "x1", "x2", "y2", "cx", "cy", "width", "height", "fill-opacity"):
            assert isfinite(float(a.get(key, "0").rstrip("%")))
        assert not re.search("nan|inf|e", a.get("d", ""))
    used = {one for _, a in svg for one in a.get("class", "").split()}
    assert used - {"kept"} <= set(re.findall(r"\.([\w-]+)", html.resource("page.css")))


def test_several_documents_are_one_page(pages, read):
    page = read(html.pages(PASSING, AUDIT, title="both"))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"run-1-ladders", "run-2-ladders"} <= set(ids)
    assert {a["href"][1:] for tag, a in page.elements if tag == "a"} <= set(ids)
    assert page.text.index("twopass") < page.text.index("onepass")
    assert sum(plot(one) for one in page.elements) == 2 * sum(plot(one) for one in pages["audit"].elements) > 0


def test_each_word_of_the_glossary_stands_there_once(pages, read):
    """Also on a page of two kernels; a word that the page does not have would explain nothing."""
    text = read(html.pages(REPORT, PASSING)).text
    words = text[text.index("Glossary: the words of this page") :]
    assert all(words.count(meaning) == 1 and term in words for term, meaning in GLOSSARY.items())
    assert "Glossary" in pages["empty"].text


TEXT = ("--soft", "--good", "--bad", "--none", "--link")
CONTRASTS = (  # WCAG 2.2 AA: 4.5 for text, 3 for what a figure consists of; the text most read has more
    {("--ink", "--page"): 7, ("--ink", "--tint"): 7}
    | {(name, "--page"): 4.5 for name in TEXT}
    | {("--soft", "--tint"): 4.5}  # a stop of a figure, under its lines
    | {(f"--line{i}", where): 3 for i in range(1, 7) for where in ("--page", "--tint")}
    | {(name, "--page"): 3 for name in ("--bar", "--far", "--heat")}
)


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return sum(
        w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_figures_can_be_seen(theme):
    parts = html.resource("page.css").split("@media", 2)[:2]
    light, dark = (dict(re.findall(r"(--\w+): (#\w+)", part)) for part in parts)
    colours = light if theme == "light" else dark
    assert light.keys() == dark.keys() == {name for pair in CONTRASTS for name in pair} | {"--rule", "--grid"}
    for (front, back), least in CONTRASTS.items():
        low, high = sorted((luminance(colours[front]), luminance(colours[back])))
        assert (high + 0.05) / (low + 0.05) >= least, (front, back)


def test_an_empty_audit_has_all_its_parts(pages):
    headings = [a["id"] for tag, a in pages["empty"].elements if tag == "section" and "id" in a]
    assert headings == [
        f"run-1-{part}" for part in ("errors", "ladders", "fingerprint", "rows", "checks", "environment")
    ]
    assert EMPTY.ulps == ()
