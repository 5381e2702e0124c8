"""`audit` and `hunt` as commands: what they print and write, the corpus that later runs replay, and bad input."""

import json
import re

import pytest
from typer.testing import CliRunner

from verify_norm.auditing.model import Audit
from verify_norm.cli.app import app
from verify_norm.report import documents

KERNEL = """
import itertools
import signal
import torch

CALLS = itertools.count()

def rmsnorm_fwd(x, weight, eps):
    r = x.double()
    y = r * (r.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * weight.double()).to(x.dtype)

def raises(x, weight, eps):
    raise RuntimeError("not today")

def seldom(x, weight, eps):
    if next(CALLS) % 20:
        raise RuntimeError("not this time")
    return rmsnorm_fwd(x, weight, eps)

def nothing(x, weight, eps):
    pass

def interrupted(x, weight, eps):
    if next(CALLS) == 20:
        signal.raise_signal(signal.SIGINT)
    return rmsnorm_fwd(x, weight, eps)

def no_eps(x, weight, eps):
    return rmsnorm_fwd(x, weight, 0.0)
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(KERNEL)
    return file


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])


def audited(path, attribute, *more):
    quick = ("--dtype", "fp32", "--examples", "3", "--seconds", "60", "--in-process")
    return run("audit", "--kernel", f"{path}:{attribute}", "--op", "rmsnorm_fwd", *quick, *more)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_audit_is_printed_and_written(path, tmp_path, few_corners):
    few_corners(slice(12))
    result = audited(path, "rmsnorm_fwd", "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    for part in (
        "errors in typical data",
        "ladders",
        "fingerprint",
        "PASS ",
        "every check passes, and the arithmetic agrees",
    ):
        assert part in " ".join(result.output.split())
    (audit,) = documents.load_all((tmp_path / "a.json").read_text())
    assert isinstance(audit, Audit)
    assert audit.ok
    assert audit.ladders
    assert audit.ulps
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_a_kernel_that_always_raises_has_a_whole_report(path, tmp_path):
    result = audited(path, "raises", "--json", tmp_path / "a.json")
    assert result.exit_code == 1
    assert "RuntimeError: not today" in result.output
    assert "Traceback" not in result.output
    (audit,) = documents.load_all((tmp_path / "a.json").read_text())
    assert not audit.ok


def hunted(path, attribute, *more):
    return run("hunt", "--kernel", f"{path}:{attribute}", "--op", "rmsnorm_fwd", "--in-process", *more)


@pytest.mark.slow
def test_later_runs_replay_the_corpus_of_a_hunt_first(path, tmp_path):
    corpus = tmp_path / "worst.jsonl"
    found = hunted(path, "no_eps", "--output", "y", "--seconds", "2", "--corpus", corpus, "--json", tmp_path / "h.json")
    assert found.exit_code == 1, found.output
    assert "replay: verify-norm replay " in found.output
    hunt = json.loads((tmp_path / "h.json").read_text())
    assert max(float(worst["value"]) for worst in hunt["worst"] if worst["measure"] == "ratio") > 1
    assert hunt["environment"]["date"]
    first = json.loads(corpus.read_text().splitlines()[0])
    assert first["kernel"] == f"{path}:no_eps"
    one = ("--op", "rmsnorm_fwd", "--examples", "0", "--checks", "accuracy", "--in-process", "--json", "-")
    report = run("--kernel", f"{path}:no_eps", "--corpus", corpus, *one)
    (finding,) = json.loads(report.stdout)["findings"]
    assert finding["after"] == 1  # the very first case


@pytest.mark.slow
def test_a_hunt_within_all_bounds_passes(path):
    result = hunted(path, "rmsnorm_fwd", "--seconds", "1")
    assert result.exit_code == 0, result.output
    assert "y error/bound 0." in result.output


def test_a_hunt_that_is_interrupted_keeps_what_it_found(path, tmp_path):
    corpus, report = tmp_path / "worst.jsonl", tmp_path / "hunt.json"
    result = hunted(path, "interrupted", "--seconds", "60", "--corpus", corpus, "--json", report)
    assert result.exit_code == 3, result.output
    assert "incomplete: the hunt was interrupted after " in result.stderr
    assert "y error/bound 0." in result.output
    assert corpus.read_text()
    assert json.loads(report.read_text())["interrupted"]


@pytest.mark.parametrize("attribute", ["raises", "seldom"])
def test_a_hunt_that_compares_almost_nothing_is_no_pass(path, attribute):
    result = hunted(path, attribute, "--seconds", "0.5")
    assert result.exit_code == 2, result.output
    said = r"too little was checked: rmsnorm_fwd was compared in \d+ of [\d,]+ cases; "
    assert re.search(rf"{said}the first other case: RuntimeError: not ", result.stderr)


def test_a_hunt_of_a_kernel_that_returns_nothing_names_the_command_that_says_why(path):
    result = hunted(path, "nothing", "--seconds", "0.5")
    assert result.exit_code == 2, result.output
    assert f"verify-norm --kernel {path}:nothing says why" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hunt", "--output", "dz"), "unknown output 'dz'"),
        (("hunt", "--corpus", "{folder}/torn.jsonl"), "line 1 of the corpus"),
        (("hunt", "--corpus", "{folder}/no/where"), "cannot write"),
        (("audit", "--corpus", "{folder}/torn.jsonl"), "line 1 of the corpus"),
        (("audit", "--html", "{folder}/no/page.html"), "cannot write"),
        (("audit", "--html", "{folder}"), "it is a folder"),
        (("audit", "--dtype", "fp12"), "unknown dtype 'fp12'"),
    ],
)
def test_bad_input_is_one_line(path, tmp_path, arguments, said):
    (tmp_path / "torn.jsonl").write_text('{"kernel": "k", "sha')
    before = sorted(tmp_path.iterdir())
    command, *rest = (part.format(folder=tmp_path) for part in arguments)
    result = run(command, "--kernel", f"{path}:rmsnorm_fwd", "--op", "rmsnorm_fwd", "--in-process", *rest)
    assert result.exit_code == 2
    lines = [line for line in result.output.splitlines() if line.strip()]
    assert said in lines[-1]
    assert "Traceback" not in result.output
    assert sorted(p for p in tmp_path.iterdir() if p.name != "__pycache__") == before
