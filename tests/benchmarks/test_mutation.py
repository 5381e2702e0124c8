"""benchmarks/mutation.py makes mistakes in a package, and lists those that its tests do not see."""

import importlib
import json
import sys
from pathlib import Path

import libcst
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DECORATED = """
import functools

def doubled(function):
    @functools.wraps(function)
    def run(*args):
        return 2 * function(*args)
    return run

@functools.cache
@doubled
def plus(a, b):
    return a + b
"""
SEEN = "def absolute(a):\n    return -a if a < 0 else a\n\n\n@property\ndef unseen(a):\n    return a + 3\n"
TEST = """
from verify_norm.tiny.numbers import absolute

def test_it():
    assert [absolute(a) for a in (-2, 0, 2)] == [2, 0, 2]
"""


@pytest.fixture
def mutation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutation")


def test_decorators_called_below_mean_the_same(mutation):
    code = libcst.parse_module(DECORATED).visit(mutation.Undecorated()).code
    assert "@functools.cache" not in code
    assert "    @functools.wraps(function)" in code
    names = {}
    exec(compile(code, "decorated.py", "exec"), names)
    assert [names["plus"](1, 2), names["plus"](1, 2)] == [6, 6]
    assert names["plus"].cache_info().hits == 1


@pytest.mark.slow
def test_survivors_are_listed_with_their_lines_and_equivalent_ones_are_left_out(
    mutation, monkeypatch, tmp_path, capsys
):
    for folder in ("verify/tiny", "tests/tiny", "reference", "kernels", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("verify", "verify/tiny"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "verify/tiny/numbers.py").write_text(SEEN)
    (tmp_path / "tests/tiny/test_numbers.py").write_text(TEST)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib", "-p", "no:verify_norm"]\n'
    )
    for name in mutation.FILES:
        (tmp_path / name).touch()
    known = tmp_path / "equivalent_mutants.toml"
    known.touch()
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "EQUIVALENT", known)
    monkeypatch.setattr(mutation, "PACKAGES", ("tiny",))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutation.py", "tiny", "--jobs", "1", "--out", str(tmp_path / "found.json")])

    assert mutation.main() == 0
    found = json.loads((tmp_path / "found.json").read_text())["tiny"]
    lines = {(row["at"], row["after"]) for row in found["survivors"]}
    assert ("verify/tiny/numbers.py:2", "return -a if a <= 0 else a") in lines
    assert {at for at, after in lines} == {"verify/tiny/numbers.py:2", "verify/tiny/numbers.py:7"}
    assert found["counts"]["killed"] >= 2
    entry = next(row for row in found["survivors"] if "<=" in row["after"])
    keys = ("function", "before", "after")
    entries = [{key: entry[key] for key in keys}, {"function": "tiny.numbers.gone", "before": "a", "after": "b"}]
    text = ["[[equivalent]]\n" + "".join(f"{key} = {json.dumps(one[key])}\n" for key in keys) for one in entries]
    known.write_text("\n".join(text) + 'reason = "-0 is 0"\n')

    assert mutation.main() == 0
    again = json.loads((tmp_path / "found.json").read_text())["tiny"]
    assert again["counts"]["equivalent"] == 1
    assert again["score"] > found["score"]
    assert "delete it" in capsys.readouterr().out
