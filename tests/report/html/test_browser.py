"""The page in a real browser, headless: it is drawn, used by mouse and keyboard, copied from, printed, and attacked."""

import json
import shutil
import subprocess
import tempfile
from itertools import pairwise

import pytest
from browser import CHROMIUM, Chromium
from documents import AUDIT, DOCUMENTS, FINDING, HOSTILE, PASSING, REPORT, SCRIPT

from verify_norm.core.files import write
from verify_norm.report.html import page as html

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
PARTS = ("Errors", "Ladders", "Fingerprint", "Rows", "Checks", "Environment")
OPEN = "[...document.querySelectorAll('.panel:not([hidden])')].map(p => p.id)"
CHOSEN = "document.querySelector('[role=tab][aria-selected=true]').textContent"


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests, warm: the first page that a process opens waits for the process."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        chromium = Chromium(profile)
        try:
            yield chromium
        finally:
            chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of all documents' pages, by name."""
    folder = tmp_path_factory.mktemp("pages")
    documents = {name: (one,) for name, one in DOCUMENTS.items()} | {"two": (PASSING, REPORT)}
    for name, several in documents.items():
        write(html.pages(*several), str(folder / f"{name}.html"))
    return {name: folder / f"{name}.html" for name in documents}


# Whether each line, bar, mark and cell has its place within the plot that it stands in, and each plot has an area.
DRAWN = """[...document.querySelectorAll('#PANEL .plot')].map(plot => {
  const box = plot.getBoundingClientRect(), drawn = [...plot.querySelectorAll('path, circle, .stop, .near, .far')];
  return drawn.length > 0 && box.width > 100 && box.height > 40 && drawn.every(one => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return left > box.left - 9 && right < box.right + 9 && top > box.top - 9 && bottom < box.bottom + 9;
  });
})"""


def open_all(browser):
    """Open every part of every kernel in turn. Yields for each whether its figures are drawn."""
    for panel in browser.js("[...document.querySelectorAll('.panel')].map(p => p.id)"):
        browser.js(f"document.getElementById('{panel}-tab').click()")
        yield panel, browser.js(DRAWN.replace("PANEL", panel))


@pytest.mark.parametrize("name", [*DOCUMENTS, "two"])
def test_it_is_drawn_without_complaint_and_asks_for_nothing(browser, files, name):
    browser.open(files[name])
    drawn = [one for _, figures in open_all(browser) for one in figures]
    assert all(drawn)
    assert len(drawn) == browser.js("document.querySelectorAll('.plot').length")
    assert bool(drawn) == (name not in ("nothing", "empty"))
    assert browser.complaints() == []
    assert browser.requests() == [f"file://{files[name]}"]


def test_a_complaint_would_be_heard(browser, files, tmp_path):
    """The page's policy stops what an unescaped name would do, and the browser reports it."""
    wrong = tmp_path / "wrong.html"
    attack = "<main><img src=x onerror='window.hacked = 1'><script>window.hacked = 2</script>"
    wrong.write_text(files["audit"].read_text().replace("<main>", attack, 1))
    browser.open(wrong)
    assert browser.js("window.hacked") is None
    complaints = browser.complaints()
    assert len(complaints) >= 2
    assert all("Content Security Policy" in one for one in complaints)
    browser.js("console.error('seen'); setTimeout(() => { throw new Error('heard'); })")
    browser.js("new Promise(done => setTimeout(done, 20))")
    assert any("seen" in one for one in browser.complaints())
    assert any("heard" in one for one in browser.complaints())


def test_tabs_by_mouse(browser, files):
    browser.open(files["audit"])
    assert browser.js(OPEN) == ["run-1-errors"]
    for part in ("Fingerprint", "Environment", "Errors"):
        browser.click(f"#run-1-{part.lower()}-tab")
        assert browser.js(OPEN) == [f"run-1-{part.lower()}"]
        assert browser.js(CHOSEN) == part
        assert browser.js("location.hash") == f"#run-1-{part.lower()}"


def test_tabs_by_keyboard(browser, files):
    browser.open(files["audit"])
    browser.js("document.querySelector('[role=tab]').focus()")
    for key, part in (
        ("ArrowRight", "Ladders"),
        ("ArrowRight", "Fingerprint"),
        ("End", "Environment"),
        ("ArrowRight", "Errors"),
        ("ArrowLeft", "Environment"),
        ("Home", "Errors"),
    ):
        browser.key(key)
        assert browser.js(CHOSEN) == part
        assert browser.js(OPEN) == [f"run-1-{part.lower()}"]
        assert browser.js("document.activeElement.textContent") == part
    browser.key("Tab")
    assert browser.js("document.activeElement.id") == "run-1-errors"
    assert browser.js("document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1


def test_tabs_of_two_kernels_are_apart(browser, files):
    browser.open(files["two"])
    browser.click("#run-2-checks-tab")
    assert browser.js(OPEN) == ["run-1-errors", "run-2-checks"]
    browser.js("location.hash = '#run-1-ladders'")
    browser.until(f"{OPEN}[0] == 'run-1-ladders'")
    browser.open(files["nothing"])
    browser.open(f"{files['two']}#run-1-rows")
    assert browser.js(OPEN) == ["run-1-rows", "run-2-errors"]


def test_a_screen_reader_finds_roles_and_names(browser, files):
    browser.open(files["audit"])
    browser("Accessibility.enable")
    tree = browser("Accessibility.getFullAXTree")["nodes"]
    browser("Accessibility.disable")
    spoken = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
    assert [name for role, name in spoken if role == "tab"] == list(PARTS)
    assert ("tablist", "Parts of the report on onepass") in spoken
    assert ("tabpanel", "Errors") in spoken
    assert ("columnheader", "error/bound") in spoken
    assert ("rowheader", "rstd") in spoken
    assert any(
        role == "image" and name.startswith("Histogram of the errors of y: float32, 44.8 %") for role, name in spoken
    )
    assert ("button", "Copy the replay line") in spoken
    levels = browser.js("[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(h => Number(h.tagName[1]))")
    assert levels[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in pairwise(levels))


LABEL = "(e => e.hidden ? '' : e.textContent)(document.querySelector('.over-figure'))"


@pytest.mark.parametrize("width", [1280, 400])
def test_a_figure_shows_labels_under_the_mouse(browser, files, width):
    browser.open(files["audit"], width=width)
    for part, words in (
        ("ladders", "offset/scale 10\nkernel: 152.40 ULP, error/bound 1.44\ntwo-pass: 0.90 ULP"),
        ("errors", "float32, 0.25 to 0.5 ULP: 67.24 %"),
        ("rows", "row 0–1, place 43–85: 0.25 ULP"),
    ):
        browser.click(f"#run-1-{part}-tab")
        stop = f"#run-1-{part} :nth-child(2 of .stop)"
        browser.move(*browser.box(stop))
        assert browser.until(LABEL).startswith(words), part
        over = browser.js(
            f"""(() => {{
              const a = document.querySelector('{stop}').getBoundingClientRect();
              const b = document.querySelector('.over-figure').getBoundingClientRect();
              const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top;
              return [b.left >= 0 && b.right <= innerWidth, apart];
            }})()"""
        )
        assert over == [True, True], part  # it is seen as a whole, and hides nothing that it speaks of
        browser.move(2, 2)
        browser.until(f"!{LABEL}")


def test_a_figure_shows_labels_by_keyboard(browser, files):
    browser.open(files["audit"])
    browser.click("#run-1-rows-tab")
    browser.js("document.querySelector('#run-1-rows .plot').focus()")
    for key, words in (
        ("ArrowLeft", ""),
        ("ArrowRight", "row 0–1, place 0–42: 0 ULP"),
        ("ArrowDown", "row 2–4, place 0–42: 1.0 × 10⁶ ULP"),
        ("ArrowRight", "row 2–4, place 43–85: not finite"),
        ("ArrowUp", "row 0–1, place 43–85: 0.25 ULP"),
        ("ArrowUp", "row 0–1, place 43–85: 0.25 ULP"),
        ("Escape", ""),
    ):
        browser.key(key)
        assert browser.js(LABEL) == browser.js("document.querySelector('.live').textContent") == words, key
    browser.key("ArrowRight")
    browser.key("Tab")
    assert browser.js(LABEL) == ""


def test_the_replay_line_is_copied(browser, files):
    browser.open(files["audit"])
    browser("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    line = browser.js("document.querySelector('.replay code').textContent")
    assert json.loads(line.split("'")[1])["shape"] == [4, 256]
    for broken in ("", "navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'));"):
        browser.js(f"navigator.clipboard.writeText('nothing yet').then(() => {{ {broken} }})")
        browser.click(".replay button")
        browser.until("document.querySelector('.live').textContent == 'The replay line is copied.'")
        assert browser.js("navigator.clipboard.readText()") == line
        assert browser.js("document.querySelector('.replay button').textContent") == "Copied"
        browser.js("document.querySelector('.live').textContent = ''")
    browser.js("document.execCommand = () => false")
    browser.click(".replay button")
    browser.until("document.querySelector('.replay button').textContent == 'Selected'")
    assert browser.js("getSelection().toString()") == line


@pytest.mark.parametrize("name", ["audit", "two", "hostile"])
def test_it_prints(browser, files, name, tmp_path):
    browser.open(files[name])
    browser.pdf(tmp_path / "page.pdf")
    assert browser.complaints() == []
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here: apt-get install poppler-utils")
    command = ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("\f") >= 2
    for part in PARTS[:1] + PARTS[4:] if name == "two" else PARTS:
        assert part in text
    assert "Copy" not in text
    message = HOSTILE.split("</script>")[0] if name == "hostile" else FINDING.message
    assert "".join(message.split()) in "".join(text.split())
    assert "verify-norm replay" in text


def test_what_is_hostile_does_nothing_and_is_shown_as_it_is(browser, files):
    browser.open(files["hostile"])
    assert len(list(open_all(browser))) == len(PARTS)
    browser.click("#run-1-ladders-tab")
    browser.move(*browser.box("#run-1-ladders .stop"))
    assert SCRIPT in browser.until(LABEL)
    assert browser.js("window.hacked") is None
    assert browser.js("document.images.length") == 0
    literal = HOSTILE.replace("\x00", "␀").replace("\x1b", "␛")
    assert browser.js("document.querySelector('h2 span').textContent") == literal
    assert literal in browser.js("document.querySelector('.message').textContent")
    assert literal in browser.js("document.title")
    assert browser.js("document.querySelector('#run-1-ladders .across').textContent") == literal
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["audit", "hostile", "two"])
def test_it_fits_a_narrow_screen(browser, files, name):
    browser.open(files[name], width=360)
    for panel, drawn in open_all(browser):
        assert all(drawn), panel
        assert browser.js("document.documentElement.scrollWidth") <= 360, panel


def test_it_follows_light_and_dark(browser, files):
    seen = """[document.body, document.querySelector('.axes text'), document.querySelector('.far')].map(one => {
      const style = getComputedStyle(one);
      return one === document.body ? style.backgroundColor : style.fill;
    })"""
    browser.open(files["audit"])
    assert browser.js(seen) == ["rgb(255, 255, 255)", "rgb(90, 98, 112)", "rgb(194, 117, 26)"]
    browser.media(dark=True)
    assert browser.js(seen) == ["rgb(20, 22, 26)", "rgb(162, 170, 183)", "rgb(227, 154, 74)"]
    assert browser.complaints() == []


def test_without_javascript_all_text_is_there(browser, files):
    browser("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(files["audit"])
        text = browser("DOMSnapshot.captureSnapshot", computedStyles=["display"])
        strings, document = text["strings"], text["documents"][0]
        shown = "".join(strings[i] for i in document["layout"]["text"] if i >= 0)
        classes = [
            {strings[a]: strings[b] for a, b in zip(n[::2], n[1::2], strict=True)}.get("class")
            for n in document["nodes"]["attributes"]
        ]
    finally:
        browser("Emulation.setScriptExecutionDisabled", value=False)
    shown_classes = [classes[node] for node in document["layout"]["nodeIndex"]]
    assert shown_classes.count("plot") == classes.count("plot") > 0  # figures need no script
    for part in (*PARTS, FINDING.message, "folded in halves", "mine.py:onepass", "Like one-pass.", "JavaScript"):
        assert part in shown, part
    assert AUDIT.disagreements[0] in shown
