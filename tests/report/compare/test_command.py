"""`verify-norm compare` and --baseline: what they print and write, and their exit status."""

import json
from dataclasses import asdict, replace

import pytest
from runs import EARLY, ran
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.report import documents


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


@pytest.fixture
def files(tmp_path, good):
    def write(**contents):
        for name, text in contents.items():
            (tmp_path / f"{name}.json").write_text(text if isinstance(text, str) else documents.dump(text))
        return [tmp_path / f"{name}.json" for name in contents]

    return write


@pytest.mark.slow
def test_the_command_exits_with_what_it_says(files, good, tmp_path):
    old, new, page = *files(old=good, new=ran(EARLY)), tmp_path / "page.md"
    result = run("compare", old, new, "--json", tmp_path / "c.json", "--markdown", page)
    assert result.exit_code == 1, result.output
    assert "worse y float16 correctly rounded" in result.stdout
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["worse"] is True
    assert found["pairs"][0]["same_cases"] is True
    assert page.read_text().startswith("### ❌ 6 got worse")
    assert run("compare", new, old).exit_code == 0
    assert json.loads(run("compare", old, new, "--json", "-").stdout) == found
    assert run("compare", old, new, "--markdown", "-").stdout == page.read_text()


def test_unequal_cases_are_one_line_that_says_what_to_run(files, good):
    old, new = files(old=good, new=replace(good, settings=replace(good.settings, examples=50)))
    result = run("compare", old, new)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "--examples 0 → 50; make the new run again with --examples 0" in result.stderr


def test_two_runs_that_checked_nothing_are_not_equal(files, good):
    nothing = replace(good, checks=tuple(replace(check, cases=0) for check in good.checks), tallies=())
    result = run("compare", *files(old=nothing, new=nothing))
    assert result.exit_code == 2
    assert "neither run checked anything" in result.stderr
    assert run("compare", *files(fine=good, nothing=nothing)).exit_code == 1


def test_bad_files_are_one_line_with_their_name(files, good, tmp_path):
    text = documents.dump(good)
    newer = json.dumps(asdict(good) | {"schema": 2}, default=str)
    nested = '{"schema": 1, "report": {"schema": 9}}'
    bad = {
        "half": text[: len(text) // 2],
        "empty": "",
        "foreign": '{"name": "x"}',
        "list": "[]",
        "numbers": "[1, 2]",
        "newer": newer,
        "older": newer.replace('"schema": 2', '"schema": 0'),
        "nested": nested,
        "word": newer.replace('"schema": 2', '"schema": "1"'),
        "deep": "[" * 10**5,
        "digits": "1" * 5000,
        "typed": text.replace('"cases": ', '"cases": "x', 1).replace(',\n"seconds"', '",\n"seconds"', 1),
    }
    (fine,) = files(fine=good)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00report")
    paths = [*files(**bad), tmp_path / "binary.json", tmp_path / "none.json", tmp_path]
    for path in paths:
        for arguments in ((path, fine), (fine, path)):
            result = run("compare", *arguments)
            assert result.exit_code == 2, path
            assert result.stdout == ""
            assert len(result.stderr.splitlines()) == 1, result.stderr
            assert str(path) in result.stderr
            assert "Traceback" not in result.stderr
    assert "newer verify-norm wrote it" in run("compare", fine, tmp_path / "newer.json").stderr
    assert "write it again" in run("compare", tmp_path / "older.json", fine).stderr


def test_nothing_in_common_is_a_mistake(files, good):
    old, new = files(old=good, new=replace(good, op="rmsnorm_fwd", kernel="other"))
    result = run("compare", old, new)
    assert result.exit_code == 2
    assert "nothing to compare: " in result.stderr
    assert "plain (layernorm_fwd)" in result.stderr
    assert run("compare", old, old, "--json", "x", "--markdown", "x").exit_code == 2
    assert run("compare", old, old, "--json", "/no/such/folder/x").exit_code == 2


SOURCE = """
import torch
from verify_norm import Contract, kernel
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
@kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
def llama(x, weight, eps):
    y = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else (y.float() * weight.float()).to(x.dtype)
"""
QUICK = ("--dtype", "fp16", "--examples", 0, "--checks", "accuracy", "--in-process", "--device", "cpu")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.slow
def test_a_run_is_compared_with_its_baseline(source, tmp_path):
    base, page = tmp_path / "base.json", tmp_path / "summary.md"
    run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--json", base)
    page.write_text("before")
    environment = {"GITHUB_STEP_SUMMARY": str(page)}
    again = ("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", base, "--json", base)
    result = run(*again, env=environment)
    assert result.exit_code == 0, result.output
    assert "nothing got worse; 1 kernel compared" in result.stdout
    assert page.read_text().startswith("before### ✅ PASS")
    worse = run("--kernel", f"{source}:llama", *QUICK, "--baseline", base, "--json", "-")
    assert worse.exit_code == 1
    assert json.loads(worse.stdout)["kernel"].endswith(":llama"), "standard output is the JSON's alone"
    assert "worse y float16 correctly rounded" in worse.stderr
    unwritable = run(*again, env={"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "folder")})
    assert unwritable.exit_code == 0
    assert "cannot write the summary" in unwritable.stderr


@pytest.mark.slow
def test_a_baseline_is_read_before_the_run(source, tmp_path, files, good):
    half = tmp_path / "half.json"
    half.write_text('{"kernel": ')
    for path, said in ((half, "half.json: not a complete JSON file"), (tmp_path / "none.json", "there is no baseline")):
        result = run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", path, "--json", tmp_path / "new.json")
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stdout == ""
        assert not (tmp_path / "new.json").exists()
    (other,) = files(other=good)
    result = run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", other)
    assert result.exit_code == 0
    assert "has no " in result.stderr
    assert "to compare with" in result.stderr


@pytest.mark.slow
def test_a_baseline_of_other_cases_leaves_the_run_s_verdict(source, tmp_path):
    base = tmp_path / "base.json"
    command = ("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", base)
    assert run(*command[:-2], "--json", base).exit_code == 0
    result = run(*command, "--examples", 3)
    assert result.exit_code == 2
    assert f"baseline {base}: cannot compare " in result.stderr
    assert "with --examples 0" in result.stderr
    assert "PASS" in result.stdout


@pytest.mark.slow
def test_a_page_and_a_corpus(source, tmp_path):
    page, corpus, base = tmp_path / "page.html", tmp_path / "corpus.jsonl", tmp_path / "base.json"
    command = ("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--json", base)
    without = run(*command)
    assert without.exit_code == 0, without.output
    cases = documents.read(str(base))[0].cases
    line = {"kernel": f"{source}:rmsnorm_fwd", "op": "rmsnorm_fwd", "shape": [3, 19], "dtype": "float16", "seed": 77}
    corpus.write_text(json.dumps(line) + "\n")
    assert run(*command, "--corpus", corpus, "--html", page).exit_code == 0
    assert documents.read(str(base))[0].cases == cases + 1
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    corpus.write_text("{")
    for options, said in (
        (("--corpus", corpus), "line 1 of the corpus"),
        (("--html", base), "--json and --html are both"),
        (("--html", "/no/such/folder/x.html"), "no writable folder"),
    ):
        result = run(*command, *options)
        assert result.exit_code == 2, options
        assert said in result.stderr
