"""`verify-norm campaign` and `verify-norm merge` as commands."""

import json
import re

import campaigns
import pytest
from campaigns import Canned, outcome
from typer.testing import CliRunner

import verify_norm
from verify_norm.campaign import local
from verify_norm.campaign.store import Store
from verify_norm.cli.app import app
from verify_norm.core.errors import FindingsError, UsageError

OPS = """
import torch


def right(x, weight, bias, eps, normalized_shape):
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def wrong(x, weight, bias, eps, normalized_shape):
    return right(x, weight, bias, eps, normalized_shape)
"""
PLAN = """
kernels = [
    {kernel = "ops.py:right", op = "layernorm_fwd"},
    {kernel = "ops.py:wrong", op = "layernorm_fwd"},
]
dtypes = ["fp32", "bf16"]
examples = 6
block = 3
device = "cpu"
checks = ["signature"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a plan and its kernels; workers return the outcome of one case, wrong if its kernel says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "p.toml").write_text(PLAN)
    with_wrong(monkeypatch)
    return tmp_path


def with_wrong(monkeypatch, **how):
    def of(unit, times):
        return outcome(unit, **(how or {"wrong": True})) if "wrong" in unit.kernel else outcome(unit)

    monkeypatch.setattr(local, "Local", lambda plan, jobs: Canned(of))


def run(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert "Traceback" not in result.output
    return result, " ".join(result.output.split())


def test_a_plan_runs_into_a_store_beside_it_and_the_same_command_goes_on(folder):
    result, text = run("campaign", "p.toml")
    assert result.exit_code == 1, text
    assert "8 units; store p.campaign" in text
    assert re.search(r"ops\.py:right layernorm_fwd PASS 4 0 4 \d\.\d+ ", text)
    assert re.search(r"ops\.py:wrong layernorm_fwd FAIL 4 1 4 ", text)
    assert "FAIL accuracy ops.py:wrong (layernorm_fwd): y" in text
    assert "FAIL p.campaign: 1 finding; 2 kernels, 8 units, 8 cases" in text
    before = (folder / "p.campaign").stat().st_mtime_ns, (folder / "p.campaign").read_bytes()
    assert run("campaign", "run", "p.toml")[0].exit_code == 1
    assert len(before[1]) == len((folder / "p.campaign").read_bytes())


def test_options_stand_for_a_plan_and_win_over_its_keys(folder):
    result, text = run("campaign", "-k", "ops.py:right", "--op", "layernorm_fwd", "--device", "cpu", "--store", "s")
    assert result.exit_code == 0, text
    assert "PASS s: 1 kernel, 9 units" in text, "three types, 1500 cases in blocks of 500"
    assert "8 units" in run("campaign", "p.toml", "--dtype", "fp32", "--block", 2, "--examples", 7)[1]
    with Store.reading("p.campaign") as store:
        assert set(store.query("SELECT dtype, examples FROM units")) == {("float32", 2), ("float32", 1)}


def test_status_and_report_and_a_question(folder):
    run("campaign", "p.toml", "--shard", "1/2", "--store", "s")
    result, text = run("campaign", "status", "s")
    assert result.exit_code == 0
    assert "s: not running; 4 of 8 units, 4 cases, 0.5 a second, 1 finding, 8 s left" in text
    assert "here 4 4 0.5" in text
    result, text = run("campaign", "report", "s")
    assert result.exit_code == 1
    assert "4 of 8 units are missing: ops.py:right (layernorm_fwd), bfloat16, block 0; " in text
    result, text = run(
        "campaign", "report", "s", "--sql", "SELECT dtype, sum(cases) FROM units JOIN outcomes ON id = unit"
    )
    assert (result.exit_code, result.stdout) == (0, "float32\t4\n")
    assert len(run("campaign", "report", "s", "--sql", "SELECT histogram FROM errors")[0].stdout.split("\n")[0]) > 400


def test_a_report_in_every_form(folder):
    run("campaign", "p.toml", "--store", "s")
    result, text = run("campaign", "report", "s", "--json", "r.json", "--html", "r.html", "--markdown", "r.md")
    assert result.exit_code == 1, text
    reports = json.loads((folder / "r.json").read_text())
    assert [(one["kernel"], one["cases"], len(one["findings"])) for one in reports] == [
        ("ops.py:right", 4, 0),
        ("ops.py:wrong", 4, 1),
    ]
    page = (folder / "r.html").read_text()
    assert page.count("<tr>") == 3, "the head, and a row for each kernel"
    assert "ops.py:wrong" in page
    assert "wrong" in (folder / "r.md").read_text()
    result, text = run("compare", "r.json", "r.json")
    assert result.exit_code == 0, text
    result, text = run("campaign", "report", "s", "--kernel", "ops.py:right", "--html", "one.html")
    assert "PASS ops.py:right: 4 cases" in text
    assert "plot.addEventListener" in (folder / "one.html").read_text()


def test_shards_are_merged_to_the_whole(folder):
    for part in (1, 2, 3):
        assert run("campaign", "p.toml", "--shard", f"{part}/3")[0].exit_code == 1
    stores = sorted(path.name for path in folder.glob("*.campaign"))
    assert stores == ["p.1-of-3.campaign", "p.2-of-3.campaign", "p.3-of-3.campaign"]
    result, text = run("merge", *stores[:2], "--into", "all")
    assert "3 of 8 units are missing" in text or "2 of 8 units are missing" in text
    result, text = run("merge", *stores, "--into", "all")
    assert (result.exit_code, "missing" in text) == (1, False)
    run("campaign", "p.toml", "--store", "whole")
    with Store.reading("all") as merged, Store.reading("whole") as whole:
        assert campaigns.contents(merged) == campaigns.contents(whole)


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ({"ended": "it ended its process by SIGSEGV"}, 1, "the unit has ended the process of 3 workers"),
        ({"problem": "it needs triton"}, 2, "nothing checked ops.py:wrong (layernorm_fwd), float32, block 0: it needs"),
    ],
)
def test_a_unit_without_a_report_is_no_pass(monkeypatch, how, status, said):
    with_wrong(monkeypatch, **how)
    result, text = run("campaign", "p.toml")
    assert (result.exit_code, said in text) == (status, True), text
    assert run("campaign", "report", "p.campaign", "--kernel", "ops.py:wrong")[0].exit_code == 2


def test_what_is_not_done_is_no_pass(folder):
    (folder / "p.toml").write_text(PLAN.replace("wrong", "right"))
    run("campaign", "p.toml", "--shard", "1/2", "--store", "t")
    assert run("campaign", "report", "t")[0].exit_code == 3


def test_ctrl_c_shows_what_is_done_and_the_same_command_goes_on(monkeypatch):
    def of(unit, times):
        if unit.number == 3:
            raise KeyboardInterrupt
        return outcome(unit)

    monkeypatch.setattr(local, "Local", lambda plan, jobs: Canned(of, number=1))
    result, text = run("campaign", "p.toml")
    assert result.exit_code == 3, text
    assert "interrupted; the same command resumes from p.campaign" in text
    assert "INCOMPLETE p.campaign: 2 kernels, 3 of 8 units, 3 cases" in text
    monkeypatch.setattr(local, "Local", lambda plan, jobs: Canned())
    assert run("campaign", "p.toml")[0].exit_code == 0


BAD = [
    (("campaign",), "expected a plan, such as verify-norm campaign plan.toml, or --kernel"),
    (("campaign", "none.toml"), "plan none.toml: No such file"),
    (("campaign", "ops.py"), "plan ops.py: not a plan in TOML"),
    (("campaign", "p.toml", "--op", "rmsnorm"), "--op belongs to --kernel"),
    (("campaign", "-k", "ops.py:right"), "--store: expected a file for the outcomes"),
    (("campaign", "p.toml", "--shard", "3/2"), "--shard: expected I/N"),
    (("campaign", "p.toml", "--store", "ops.py"), "it is a file of something else"),
    (("campaign", "p.toml", "--store", "/nowhere/s"), "no writable folder /nowhere"),
    (("campaign", "p.toml", "--device", "cuda:9"), "no device cuda:9"),
    (("campaign", "p.toml", "--on", "rya"), "--on: expected local, ray or ray=ADDRESS, got rya"),
    (("campaign", "p.toml", "--on", "ray="), "--on: expected local, ray or ray=ADDRESS, got ray="),
    (("campaign", "p.toml", "--on", "local=2"), "--on: expected local, ray or ray=ADDRESS, got local=2"),
    (
        ("campaign", "p.toml", "--on", "ray=127.0.0.1:1"),
        "--on ray: there is no cluster at 127.0.0.1:1: Connection refused",
    ),
    (("campaign", "p.toml", "--configs", "every"), "plan p.toml: configs: expected one of tuned, all, got 'every'"),
    (("campaign", "p.toml", "--accelerators", " ,"), "plan p.toml: accelerators: expected a list of accelerators"),
    (("campaign", "status", "none"), "there is no store none"),
    (("campaign", "report", "ops.py"), "ops.py is no store of a campaign"),
    (("merge", "none", "--into", "all"), "there is no store none"),
    (("merge", "ops.py", "--into", "ops.py"), "ops.py is no store of a campaign"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(map(str, row[0])) for row in BAD])
def test_a_mistake_is_one_line(arguments, said):
    result, text = run(*arguments)
    assert (result.exit_code, said in text) == (2, True), text
    assert len(result.stderr.strip().splitlines()) == 1


OF_STORE = [
    (("report", "s", "--kernel", "ops.py:rihgt"), "unknown kernel of the campaign 'ops.py:rihgt' (did you mean"),
    (("report", "s", "--sql", "SELEC 1"), "syntax error"),
    (("report", "s", "--json", "s"), "cannot write s: the command reads it"),
    (("p.toml", "--store", "s", "--seed", 3), "s is of another campaign: it has seed = 0, here it is 3"),
]


@pytest.mark.parametrize(("arguments", "said"), OF_STORE, ids=[" ".join(map(str, row[0])) for row in OF_STORE])
def test_a_mistake_about_a_store_is_one_line(arguments, said):
    run("campaign", "p.toml", "--store", "s")
    result, text = run("campaign", *arguments)
    assert (result.exit_code, said in text) == (2, True), text


def test_it_is_one_call_in_python(folder):
    found = verify_norm.run_campaign("p.toml", "s")
    assert [(row.kernel, row.findings) for row in found.rows] == [("ops.py:right", 0), ("ops.py:wrong", 1)]
    with pytest.raises(FindingsError, match="accuracy"):
        found.raise_for_findings()
    right = {"kernels": [{"kernel": "ops.py:right", "op": "layernorm_fwd"}], "device": "cpu", "dtypes": "fp32"}
    assert verify_norm.run_campaign(right, "t", shard="1/2").ok
    with pytest.raises(UsageError, match="unknown key 'kernel'"):
        verify_norm.run_campaign(right | {"kernel": ""}, "t")
