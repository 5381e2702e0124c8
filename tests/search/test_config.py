"""[tool.verify-norm] in pyproject.toml: which file counts, which command gets what, and what is refused."""

from pathlib import Path

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.core.regression import RegressionLimits
from verify_norm.search import config


@pytest.fixture
def project(tmp_path):
    """Write a pyproject.toml into a folder, by default one with a folder below it."""
    (tmp_path / "work").mkdir()

    def write(text, where="."):
        path = tmp_path / where / "pyproject.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def table(text, below="", **options):
    return f"[tool.verify-norm{below}]\n{text}\n"


def test_the_nearest_file_with_our_table_counts(project, tmp_path, monkeypatch):
    far = project(table("seed = 3"))
    work = tmp_path / "work"
    assert config.nearest(work).path == far
    for other in ("[tool.other]\nx = 1\n", "not TOML [", b"\xff\xfe verify-norm", "[project]\nname = 'verify-norm'\n"):
        project(other, "work")
        assert config.nearest(work).path == far
    project("tool = 3 # verify-norm\n", "work")
    assert config.nearest(work).path == far
    near = project(table("seed = 4"), "work")
    assert config.nearest(work) == config.Config(near, config.nearest(work).defaults, RegressionLimits())
    monkeypatch.chdir(work)
    assert config.nearest().path == near
    assert config.nearest(Path(".")).path == near, "a relative folder has folders above it"
    assert config.nearest(tmp_path).path == far


def test_without_a_table_there_is_none(tmp_path):
    found = config.nearest(tmp_path)
    assert found is None or tmp_path not in found.path.parents
    if found is None:
        assert config.defaults("verify", tmp_path) == ({}, "")


def test_letters_of_any_language_are_read(project, tmp_path):
    project(table("corpus = 'größe.jsonl'"))
    assert config.nearest(tmp_path).defaults["corpus"] == str(tmp_path / "größe.jsonl")


def test_lists_are_text_and_paths_hold_in_any_folder(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/somebody")
    project(
        table(
            "dtypes = ['fp16', 'bf16']\nchecks = 'accuracy'\nbaseline = 'a/base.json'\ncorpus = '~/worst.jsonl'\n"
            "html = '/page.html'\nseconds = 2\nworkers = 3"
        )
    )
    found = config.nearest(tmp_path).defaults
    assert {key: value for key, value in found.items() if key not in config.COMMANDS} == {
        "dtypes": "float16,bfloat16",
        "checks": "accuracy",
        "baseline": str(tmp_path / "a" / "base.json"),
        "corpus": "/somebody/worst.jsonl",
        "html": "/page.html",
        "seconds": 2.0,
        "workers": 3,
    }


def test_a_command_gets_what_it_takes_and_its_own_table_wins(project, tmp_path):
    project(
        table("seed = 4\nseconds = 30\ntimeout = 9\nshapes = 'all'\ncorpus = 'a.jsonl'\nhtml = 'a.html'")
        + table("seconds = 60\ncorpus = 'b.jsonl'", ".hunt")
        + table("seed = 5", ".power")
    )
    defaults = config.nearest(tmp_path).defaults
    assert defaults["hunt"] == {"seed": 4, "seconds": 60.0, "corpus": str(tmp_path / "b.jsonl")}
    assert defaults["audit"] == {
        "seed": 4,
        "timeout": 9.0,
        "corpus": str(tmp_path / "a.jsonl"),
        "html": str(tmp_path / "a.html"),
    }
    assert defaults["power"] == {"seed": 5, "seconds": 30.0}
    assert defaults["replay"] == defaults["exhaust"] == {"timeout": 9.0}
    assert defaults["same"] == {"seed": 4, "seconds": 30.0, "timeout": 9.0, "shapes": "all"}


def test_limits_of_a_comparison(project, tmp_path):
    project(table("share = 0.2\nratio = 3", ".compare"))
    found = config.nearest(tmp_path)
    assert found.limits == RegressionLimits(share=0.2, ratio=3)
    assert "compare" not in found.defaults


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            table("exampels = 3"),
            "[tool.verify-norm] unknown key 'exampels' (did you mean examples?); there are: dtypes",
        ),
        (table("examples = true"), "[tool.verify-norm] examples: expected a whole number, 0 or more, got True"),
        (table("examples = 1979-05-27"), "[tool.verify-norm] examples: expected a whole number, 0 or more, got '1979"),
        (table("dtypes = ['fp8']"), "[tool.verify-norm] dtypes: unknown dtype 'fp8'"),
        (table("html = ''"), "[tool.verify-norm] html: expected the path of a file, relative to this one, got ''"),
        (table("hunt = 3"), "[tool.verify-norm] hunt: expected a table, [tool.verify-norm.hunt], got 3"),
        (table("shapes = 'all'", ".hunt"), "[tool.verify-norm.hunt] unknown key 'shapes'"),
        (table("contract = 'llama'", ".replay"), "[tool.verify-norm.replay] unknown key 'contract'"),
        (table("html = 'a'", ".hunt"), "[tool.verify-norm.hunt] unknown key 'html'"),
        (table("share = -1", ".compare"), "[tool.verify-norm.compare] share: expected a number, 0 or more, got -1"),
        ("[tool]\nverify-norm = 3\n", "tool.verify-norm: expected a table, [tool.verify-norm], got 3"),
        (f"[tool]\nverify-norm = '{'x' * 90}'\n", f"[tool.verify-norm], got '{'x' * 59}"),
        ("[tool.verify-norm", "cannot parse TOML: "),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_place(project, tmp_path, text, said):
    path = project(text)
    with pytest.raises(UsageError) as caught:
        config.nearest(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert not str(caught.value).endswith("x" * 60)


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("verify", {"seed": 4, "seconds": 30.0, "corpus": "a.jsonl"}),
        ("pytest", {"seed": 4, "seconds": 30.0, "corpus": "a.jsonl"}),
        ("power", {"seed": 4, "seconds": 30.0}),
        ("hunt", {"seed": 4, "corpus": "a.jsonl"}),
        ("audit", {"seed": 4, "corpus": "a.jsonl"}),
        ("replay", {}),
        ("campaign", {}),
    ],
)
def test_a_run_in_python_has_the_same_defaults_and_a_line_says_so(project, tmp_path, command, given):
    path = project(table("seed = 4\nseconds = 30\ncorpus = 'a.jsonl'\nhtml = 'a.html'"))
    found, line = config.defaults(command, tmp_path)
    wanted = {key: str(tmp_path / value) if key == "corpus" else value for key, value in given.items()}
    assert found == wanted
    assert line == (f"{', '.join(found)} are from {path}" if given else "")


def test_one_default_is_singular_and_a_run_is_meant_where_no_command_is_named(project, tmp_path, monkeypatch):
    path = project(table("seed = 4"))
    assert config.defaults(start=tmp_path) == ({"seed": 4}, f"seed is from {path}")
    monkeypatch.chdir(tmp_path)
    assert config.defaults()[0] == {"seed": 4}
    assert config.defaults("exhaust") == ({}, "")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_that_is_not_utf8_is_refused(tmp_path, encoding):
    file = tmp_path / "pyproject.toml"
    file.write_bytes("# größe\n[tool.verify-norm]\nexamples = 3\n".encode(encoding))
    with pytest.raises(UsageError, match="it is not UTF-8"):
        config.nearest(tmp_path)
