"""benchmarks/mutation.py makes mistakes in a package, and lists those that its tests do not see."""

import ast
import functools
import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import libcst
import pytest
import torch
from forked import forked

from verify_norm.search.config import tomllib

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
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
SEEN = """def absolute(a):
    return -a if a < 0 else a


@property
def unseen(a):
    return a + 3


def twice(a):
    return 2 * a


def halved(a):
    return a / 2


HALF = halved(1)  # computed while this module is imported; no test looks at it
"""
CONFTEST = """
import os
import sys

from verify_norm.tiny import numbers

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.getcwd()]  # as in tests/conftest.py
"""
TEST = """
from verify_norm.tiny.numbers import absolute, twice

TABLE = [twice(a) for a in (1, 2)]  # computed while the module is imported

def test_it():
    assert [absolute(a) for a in (-2, 0, 2)] == [2, 0, 2]

def test_a_table():
    assert TABLE == [2, 4]
"""


@pytest.fixture
def mutation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutation")


def test_decorators_called_below_mean_the_same(mutation):
    code = libcst.parse_module(DECORATED).visit(mutation.Mutable()).code
    assert "@functools.cache" not in code
    assert "    @functools.wraps(function)" in code
    names = {}
    exec(compile(code, "decorated.py", "exec"), names)
    assert [names["plus"](1, 2), names["plus"](1, 2)] == [6, 6]
    assert names["plus"].cache_info().hits == 1


def test_a_kernel_of_triton_stays_decorated_so_that_no_mistakes_are_made_in_it(mutation):
    code = "@triton.jit\ndef copy(X): ...\n"
    assert libcst.parse_module(code).visit(mutation.Mutable()).code == code


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ('f("two words")', 'f("""two words""")'),
        (r"f(b'\n two: words')", r"f(b'''\n two: words''')"),
        ('f("one", ", ", "a, ")', 'f("one", ", ", "a, ")'),  # a name, and what stands between names
        (r"""f('it is "so"', "say \"so\"")""", r"""f('''it is "so"''', "say \"so\"")"""),
        ("zip(a, *b, strict=True)", "zip(a, *b, )"),
        ("f(a, strict=True)", "f(a, strict=True)"),
    ],
)
def test_texts_stand_in_three_quotes_and_mean_the_same(mutation, source, written):
    """mutmut makes no mistakes in what looks like a docstring."""
    code = libcst.parse_module(source).visit(mutation.Mutable()).code
    assert code == written
    arguments = {"a": (1, 2), "b": ((3, 4),), "f": lambda *given, **named: given, "zip": lambda *given, **named: given}
    assert eval(code, arguments) == eval(source, arguments)


@pytest.mark.parametrize(
    ("test", "function", "tried"),
    [
        ("tests/core/test_ulp.py::test_a[1]", "verify_norm.core.judge.x_ratio", True),
        ("tests/checks/test_sums.py::test_a", "verify_norm.core.judge.x_ratio", False),
        ("tests/core/test_nearest.py::test_a", "verify_norm.core.judge.x_ratio", False),  # it takes long
        ("tests/core/test_nearest.py::test_a", "verify_norm.core.nearest.x_fit", True),
        ("tests/checks/test_sums.py::test_a", "verify_norm.checks.sums.x_sums", True),
        ("tests/checks/test_power.py::test_a", "verify_norm.checks.sums.x_sums", False),
        ("tests/checks/test_tolerances_of_sums.py::test_a", "verify_norm.checks.sums.x_sums", True),
        ("tests/search/test_counts.py::test_a", "verify_norm.search.collector.xǁCollectorǁenter", True),
        ("tests/checks/relations/test_moments.py::test_a", "verify_norm.checks.relations.moments.x_a", True),
        ("tests/test_examples.py::test_examples_in_docstrings[core.ulp]", "verify_norm.core.ulp.x_distance", True),
        ("tests/test_examples.py::test_examples_in_docstrings[core.ulp]", "verify_norm.core.judge.x_ratio", False),
    ],
)
def test_the_tests_of_a_module_are_those_that_mirror_it(mutation, test, function, tried):
    assert importlib.import_module("mirrored").tries(test, function) is tried


@pytest.mark.parametrize(("called", "first"), [("verify_norm.core.a.x_f", "copy"), ("verify_norm.core.a.x_g", "else")])
def test_what_is_imported_anew_is_the_copy_and_not_the_installed_package(
    mutation, monkeypatch, tmp_path, called, first
):
    mirrored, (copy, other) = importlib.import_module("mirrored"), (tmp_path / "copy", tmp_path / "else")
    copy.mkdir()
    monkeypatch.chdir(copy)
    monkeypatch.setattr(mirrored.hypothesis, "settings", Mock())  # the profile of these tests stays
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", [str(other)])  # without the copy, as tests/conftest.py leaves it
    monkeypatch.setenv("MUTANT_UNDER_TEST", f"{called}__mutmut_1")
    monkeypatch.setitem(mirrored.while_imported, "", {"verify_norm.core.a.x_f"})
    monkeypatch.setattr(mirrored, "triton", [(SimpleNamespace(), {})])
    mirrored.prepare(mirrored.tried())
    assert sys.path[0] == str(tmp_path / first)


def test_what_a_fork_of_a_tests_process_calls_is_that_tests(mutation):
    calls = importlib.import_module("mirrored").Calls()
    for called in ({"core.f", "core.g"}, {"core.f", "core.h"}):
        calls.add("core.f")
        for name in called:
            forked(calls.add, name)
        calls.gather()
        assert calls == called
        calls.clear()


def test_threads_of_openmp_end_before_a_fork_which_would_wait_for_them(mutation):
    importlib.import_module("mirrored")
    x, before = torch.zeros(2**18), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.exp(x)
        assert forked(lambda: torch.exp(x).mean().item()) == (1.0, 0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("test", "calls"), [("core/test_a.py::test_b", 2), ("checks/test_a.py::test_b", 1)])
def test_a_cache_that_another_test_has_filled_hides_no_call(mutation, monkeypatch, test, calls):
    mirrored, called, made = importlib.import_module("mirrored"), [], ModuleType("verify_norm.core.made")
    made.function = functools.cache(called.append)
    monkeypatch.setattr(sys, "modules", {made.__name__: made})
    monkeypatch.setenv("MUTANT_UNDER_TEST", "stats")
    for _ in range(2):
        mirrored.pytest_runtest_setup(SimpleNamespace(nodeid=f"tests/{test}"))
        made.function(1)
    assert len(called) == calls


@pytest.mark.parametrize(("called", "restored"), [("running.interpreter.patch.x_f", True), ("core.a.x_f", False)])
def test_what_patches_triton_gets_one_that_is_not_patched(mutation, monkeypatch, called, restored):
    mirrored, rewritten = importlib.import_module("mirrored"), {"kernel": "rewritten"}
    owner, submodule = SimpleNamespace(kept="patched", added=1, imported=json), SimpleNamespace()
    submodule.InterpretedFunction = SimpleNamespace(rewritten_fn=rewritten)
    monkeypatch.setattr(sys, "modules", {"triton.runtime.interpreter": submodule})
    monkeypatch.setattr(mirrored, "triton", [(owner, {"kept": "own", "gone": 2})])
    mirrored.prepare(f"verify_norm.{called}")
    if restored:
        assert vars(owner) == {"kept": "own", "gone": 2, "imported": json}, "submodules that are imported since stay"
        assert not rewritten
    else:
        assert owner.kept == "patched"


def test_what_ran_out_of_time_counts_on_neither_side(mutation):
    """A busy machine kills what no test sees."""
    counts = Counter({"killed": 8, "survived": 1, "no tests": 1, "equivalent": 5, "not checked": 7, "timeout": 9})
    assert mutation.score(counts) == 0.8
    assert mutation.score(Counter({"timeout": 9, "equivalent": 1})) is None


def test_results_that_were_lost_as_a_run_was_stopped_are_told_and_made_anew(mutation, monkeypatch, tmp_path, capsys):
    """mutmut opens the file of a module's results, and writes it then."""
    lost = tmp_path / "mutants/verify_norm/core/lost.py.meta"
    lost.parent.mkdir(parents=True)
    lost.touch()
    monkeypatch.chdir(tmp_path)
    assert mutation.judged("core", tmp_path)["counts"] == {}
    assert "core/lost.py" in capsys.readouterr().err
    mutation.again(tmp_path)
    assert not lost.exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_survivors_are_listed_with_their_lines_and_equivalent_ones_are_left_out(
    mutation, monkeypatch, tmp_path, capsys
):
    for folder in ("verify/tiny", "tests/tiny", "reference", "kernels", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("verify", "verify/tiny"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "verify/tiny/numbers.py").write_text(SEEN)
    (tmp_path / "tests/tiny/test_numbers.py").write_text(TEST)
    (tmp_path / "tests/conftest.py").write_text(CONFTEST)
    (tmp_path / "benchmarks/mirrored.py").write_text((BENCHMARKS / "mirrored.py").read_text())
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
    assert {at for at, after in lines} == {f"verify/tiny/numbers.py:{line}" for line in (2, 7, 15)}
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


def test_equivalent_mutants_are_of_lines_that_there_are(mutation):
    """A function that was renamed, or a line that was changed, leaves its entries behind."""
    entries = tomllib.loads(mutation.EQUIVALENT.read_text())["equivalent"]
    stale = [one for one in entries if one["before"].strip() not in source_of(one["function"])]
    assert [(one["function"], one["before"]) for one in stale] == []


def source_of(function):
    """The lines of all functions of a module, or of a package's, that have this name."""
    module, _, name = function.rpartition(".")
    path = ROOT / ("" if module.startswith(("reference.", "kernels.")) else "verify") / module.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name]
    lines = text.splitlines()
    return "\n".join("\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions)
