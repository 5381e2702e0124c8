"""A report as people and programs read it: each method calls its renderer, and writes what that returns."""

import pytest
from documents import PLAIN

from verify_norm.core import rendering
from verify_norm.core.errors import UsageError

RENDERERS = {  # a method: the function of verify_norm.report that makes its text
    "__str__": ("terminal", "text"),
    "_repr_html_": ("notebook", "table"),
    "to_json": ("documents", "dump"),
    "to_markdown": ("markdown", "of"),
    "to_html": ("html.page", "pages"),
    "findings_frame": ("notebook", "frame"),
}


@pytest.mark.parametrize("method", RENDERERS)
def test_each_method_has_its_renderer_and_gives_it_the_report(method, monkeypatch, tmp_path):
    monkeypatch.setattr(rendering, "_render", lambda *arguments: f"{arguments}")
    monkeypatch.chdir(tmp_path)
    text = f"{(*RENDERERS[method], PLAIN)}"
    assert getattr(PLAIN, method)() == text
    assert not list(tmp_path.iterdir())
    if method.startswith("to_"):
        assert getattr(PLAIN, method)(str(tmp_path / "out")) == text
        assert (tmp_path / "out").read_text() == text
        with pytest.raises(UsageError, match="something else"):
            getattr(PLAIN, method)(str(tmp_path / "out"))


def test_a_renderer_is_found_by_its_name():
    assert rendering._render("words", "count", 2, "row") == "2 rows"


@pytest.mark.parametrize(
    ("missing", "error", "said"),
    [
        ("jinja2", UsageError, r"^this form of a report needs jinja2: pip install 'verify-norm\[html\]'$"),
        ("verify_norm.report.words", ModuleNotFoundError, "words"),
    ],
)
def test_a_renderer_whose_package_is_missing_says_how_to_install_it(missing, error, said, monkeypatch):
    def lacking(name):
        raise ModuleNotFoundError(missing, name=missing)

    monkeypatch.setattr(rendering.importlib, "import_module", lacking)
    monkeypatch.setattr(rendering.packages, "present", lambda package: False)
    with pytest.raises(error, match=said):
        rendering._render("words", "count", 2, "row")
