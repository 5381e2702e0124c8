"""Every command and snippet of README and of the site: it runs, and prints what the page shows."""

import json
import re
import subprocess
import sys

import pytest
import samples

from verify_norm.search.config import tomllib

PAGES = {path.relative_to(samples.ROOT).as_posix(): path.read_text(encoding="utf-8") for path in samples.pages()}
RUN = [name for name, text in PAGES.items() if any(b.language in ("console", "python") for b in samples.blocks(text))]


@pytest.mark.sampled(16)
@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_page_shows_what_its_commands_print(name):
    if lacks := samples.lacking(PAGES[name]):
        pytest.skip(f"it needs {', '.join(lacks)}")
    found = samples.differences(PAGES[name])
    assert not found, "\n".join(f"$ {one.command}\n--- shown\n{one.shown}--- printed\n{one.printed}" for one in found)


@pytest.mark.parametrize("name", PAGES)
def test_commands_that_no_test_runs_are_commands(name):
    assert samples.mistakes(PAGES[name]) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_parsed_or_a_file(name):
    """A block in another language, or with nothing but `…`, would show what no test looks at."""
    text = PAGES[name]
    found = samples.blocks(text)
    assert text.count("\n```") == 2 * len(found), "a fence with another form is not read"
    assert {block.language for block in found} <= {"console", "python", "text", "sh", "toml", "yaml"}
    assert all(block.title for block in found if block.language in ("toml", "yaml"))
    for before, block in zip([None, *found], found, strict=False):
        assert block.language != "text" or block.title or (before and before.language == "python"), (
            "text is what Python prints"
        )
        shown = [part for _, part, _, _ in samples.commands(block)] if block.language == "console" else []
        assert block.language != "console" or shown
        assert all(re.search(r"\w{3}|^\d+$", part) for part in shown), "a sample that shows nothing"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a\n", "a\nb\n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("…\nc\n", "a\nb\nc\n", True),
        ("…\nb\n", "a\nb\nc\n", False),
        ("a\n…\nc\n", "a\nc\n", True),
        ("x … z\n", "x y z\n", True),
        ("x … z\n", "x y\nz\n", False),
        ("3 cases in 4.6 s (1 % in the kernel)\n", "3 cases in 12 s (9 % in the kernel)  \n", True),
        ("3 cases in 4.6 s (1 % in the kernel)\n", "3 cases in 4.6 s (43 % in the \nkernel)\n", True),
        ("3 cases in 4.6 s (1 % in the kernel)\n", "3 cases \nin 99 s (43 % in the kernel)\nmore\n", False),
        ("3 cases in 4.6 s\n", "4 cases in 4.6 s\n", False),
        ("0.5 ULP (a+b)*\n", "0.5 ULP (a+b)*\n", True),
        ("0.5 ULP\n", "0x5 ULP\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_what_matches(shown, printed, same):
    assert samples.matches(shown, printed) is same


def test_a_wrong_page_is_seen(tmp_path):
    page = (
        '```python title="k.py"\nN = 3\n```\n\n```python\nfrom pathlib import Path\nprint(Path("k.py").read_text())\n'
        "```\n\n```text\nN = {}\n```\n\n```console\n$ python -c 'print(7)'\n{}\n$ verify-norm --kernel k.py\n…\n```\n"
    )
    right = page.format(3, 7).replace("…\n", "").replace("$ verify-norm --kernel k.py\n", "")
    assert samples.differences(right) == []
    first, second, third = samples.differences(page.format(4, 8).replace("…\n", "verify-norm: no\n"))
    assert (first.shown, first.printed) == ("N = 4\n", "N = 3\n\n")
    assert (second.command, second.shown, second.printed) == ("python -c 'print(7)'", "8\n", "7\n")
    assert third.printed.startswith("verify-norm")
    path = tmp_path / "page.md"
    path.write_text(page.format(4, 8).replace("…\n", "verify-norm: no\n"), encoding="utf-8")
    samples.write(path)
    assert samples.differences(path.read_text(encoding="utf-8")) == []
    with pytest.raises(NameError):  # a file that no command names is imported at least
        samples.differences('```python title="k.py"\nnothing\n```\n')
    with pytest.raises(ValueError, match="runs verify-norm, pytest, python"):
        samples.differences("```console\n$ rm -r .\n```\n")


@pytest.mark.parametrize(
    ("shown", "printed", "abridged"),
    [
        ("…\nPASS k: 134 cases\n", "a\nb\nPASS k: 137 cases\n", "…\nPASS k: 137 cases\n"),
        ("a 1\n…\nz 4 … 5\n", "a 2\nb\nz 4 and 5\n", "a 2\n…\nz 4 … 5\n"),
        ("a 1\n…\nz\n", "a 1\nb\n", "a 1\nb\n"),  # there is no z any more
        ("old words\n", "quite another\nline\n", "quite another\nline\n"),
        ("3 cases in 4.6 s\n…\n", "3 cases in 9 s\nFAIL\n", "3 cases in 4.6 s\n…\n"),
        ("", "a \n", "a\n"),
    ],
)
def test_what_is_written_is_abridged_as_it_was(shown, printed, abridged):
    assert samples.abridged(shown, printed) == abridged


def test_a_page_says_what_it_needs(capsys, tmp_path):
    text = "# Page\n\n<!-- needs: json no_such_package -->\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n"
    assert samples.lacking(text) == ["no_such_package"]
    assert samples.lacking(text.replace(" no_such_package", "")) == []
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    assert samples.main([str(path)]) == 0
    assert "not run, it needs no_such_package" in capsys.readouterr().out
    path.write_text(text.replace(" no_such_package", ""), encoding="utf-8")
    assert samples.main([str(path)]) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```sh\nverify-norm --kernel k --seconds 3   # words\nverify-norm list\n```\n", ""),
        ("Say `verify-norm show only`.\n", ""),
        ("```sh\nverify-norm --kernle k\n```\n", "No such option"),
        ("Say `verify-norm hunt --kernel k --examples 3`.\n", "No such option"),
        ("```yaml\n- run: verify-norm --kernel k --seconds few\n```\n", "Invalid value"),
        ("```sh\nverify-norm show\n```\n", "Missing argument"),
    ],
)
def test_what_is_parsed(text, problem):
    found = samples.mistakes(text)
    assert len(found) == bool(problem)
    assert problem in "".join(found)


@pytest.fixture(scope="module")
def made():
    """Return the pages that are made from the code: links of the site alone, which `make docs` checks; and images."""
    import generate

    images = {samples.DOCS / "images" / name for name in ("page.png", "perf.svg")}
    return images | {(samples.DOCS / page).resolve() for page in generate.pages()}


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("name", PAGES)
def test_links_and_files_exist(name, made):
    folder = (samples.ROOT / name).parent
    for link, anchor in LINK.findall(samples.FENCE.sub("", PAGES[name])):
        target = (folder / link).resolve()
        assert target in made or target.exists(), link
        if anchor and target.exists():
            heads = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]", "", head.lower().replace(" ", "-")) for head in heads}, anchor
    for path in re.findall(r"`((?:verify|reference|kernels|tests|benchmarks|docs)/[\w/.]+)`", PAGES[name]):
        assert (samples.ROOT / path).exists(), path


def test_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 120


@pytest.mark.parametrize("name", PAGES)
def test_what_is_installed_is_there(name):
    extras = tomllib.loads((samples.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [one for extra in re.findall(r"verify-norm\[([\w,-]+)\]", PAGES[name]) for one in extra.split(",")]
    assert set(named) <= set(extras["optional-dependencies"])


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_supported_versions_are_those_of_the_package(name):
    project = (samples.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    floors = {"Python": re.search(r'requires-python = ">=([\d.]+)"', project)[1]}
    for package in ("torch", "NumPy", "Triton"):
        floors[package] = re.search(rf'"{package.lower()}>=([\d.]+)', project)[1]
    assert re.findall(r"(\w+) ≥ ([\d.]*\d)", PAGES[name]) == list(floors.items())


def test_the_oldest_versions_are_those_that_were_tried():
    """`python benchmarks/floors.py` tries them; a higher or lower floor needs another run of it."""
    command = [sys.executable, str(samples.ROOT / "benchmarks" / "floors.py"), "--table"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert table in PAGES["docs/how-to/install.md"]
    found = json.loads((samples.ROOT / "benchmarks" / "results" / "floors.json").read_text(encoding="utf-8"))
    oldest, newest = found["oldest"], found["newest"]
    project = (samples.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert oldest["python"].startswith(re.search(r'requires-python = ">=([\d.]+)"', project)[1])
    for name in oldest["versions"].keys() - {"triton"}:  # the oldest torch brings an older one
        assert oldest["versions"][name].startswith(re.search(rf'"{name}>=([\d.]+)', project)[1]), name
    for one in (oldest, newest):
        lacks = "verify-norm: the command line needs typer and rich: pip install 'verify-norm[cli]'"
        assert one["without the extra cli"] == lacks
        assert set(one["trials"].values()) <= {"passes", "refused: Triton 3.2.0 is older than 3.6"}
