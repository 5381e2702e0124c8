"""[tool.verify-norm] in pyproject.toml: found, obeyed, overruled by the command line, and refused in words."""

import json

import pytest
from typer.testing import CliRunner

from verify_norm import config
from verify_norm.bind import UsageError
from verify_norm.cli import app
from verify_norm.report.comparison import Limits

SOURCE = """
import torch
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder to work in, below that of the pyproject.toml that the test writes."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def write(text, where=tmp_path):
        (where / "pyproject.toml").write_text(text, encoding="utf-8")
        return where / "pyproject.toml"

    return write


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def settings(*arguments):
    result = run("--kernel", "../mine.py:rmsnorm_fwd", "--json", "-", "--in-process", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["settings"], result.stderr


def test_the_table_gives_the_defaults(project):
    path = project(
        '[tool.verify-norm]\ndtypes = ["fp16"]\nchecks = "accuracy"\nexamples = 2\nseed = 5\ndevice = "cpu"\n'
        "seconds = 7\ntimeout = 3\n"
    )
    found, said = settings()
    wanted = {"dtypes": ["float16"], "checks": ["accuracy"], "examples": 2, "seed": 5, "seconds": 7.0, "timeout": 3.0}
    assert {key: found[key] for key in wanted} == wanted
    assert f"are from {path}" in said
    for option in ("--dtype", "--checks", "--examples", "--seed", "--device", "--seconds", "--timeout"):
        assert option in said


def test_the_command_line_wins(project):
    project('[tool.verify-norm]\ndtypes = ["fp16"]\nexamples = 2\nchecks = ["accuracy"]\n')
    found, said = settings("--dtype", "bf16", "--examples", 1, "--checks", "signature")
    assert (found["dtypes"], found["examples"], found["checks"]) == (["bfloat16"], 1, ["signature"])
    assert "defaults" not in said, "none was used"


def test_the_nearest_table_counts_and_no_other_file(project, tmp_path):
    project("[tool.verify-norm]\nexamples = 2\nchecks = ['accuracy']\n")
    near = project("[tool.other]\nx = 1\n", tmp_path / "work")
    assert config.find()[0] == tmp_path / "pyproject.toml", "without our table it is not asked"
    near.write_text("[tool.verify-norm]\nexamples = 3\nchecks = ['accuracy']\n")
    assert config.find()[0] == near
    assert settings()[0]["examples"] == 3
    near.write_text("not TOML at all [")
    assert config.find()[0] == tmp_path / "pyproject.toml", "what does not speak of us is none of our business"
    near.write_bytes(b"\xff\xfe")
    assert config.find()[0] == tmp_path / "pyproject.toml"


def test_without_a_table_nothing_changes(project, tmp_path):
    assert config.find() is None or config.find()[0].parent not in (tmp_path, tmp_path / "work")
    found, said = settings("--examples", 1, "--checks", "accuracy", "--dtype", "fp16")
    assert found["seconds"] == 55.0
    assert "defaults" not in said
    assert config.limits() == Limits()


def test_paths_are_beside_the_file(project, tmp_path):
    project(
        "[tool.verify-norm]\nchecks = ['accuracy']\nexamples = 0\ndtypes = ['fp16']\nbaseline = 'norms/base.json'\n"
    )
    result = run("--kernel", "../mine.py:rmsnorm_fwd", "--in-process")
    assert result.exit_code == 2
    assert f"there is no baseline {tmp_path / 'norms' / 'base.json'}" in result.stderr
    (tmp_path / "norms").mkdir()
    first = run("--kernel", "../mine.py:rmsnorm_fwd", "--in-process", "--baseline", "", "--json", "../norms/base.json")
    assert first.exit_code == 0, first.output
    again = run("--kernel", "../mine.py:rmsnorm_fwd", "--in-process")
    assert again.exit_code == 0, again.output
    assert "nothing got worse" in again.stdout


def test_a_command_may_have_a_table_of_its_own(project, tmp_path):
    path = project(
        "[tool.verify-norm]\nseed = 4\nseconds = 30\n[tool.verify-norm.hunt]\nseconds = 60\ndevice = 'cpu'\n"
    )
    said = config.defaults(path, config.find()[1])
    assert said["hunt"] == {"--seed": 4, "--seconds": 60, "--device": "cpu"}
    assert said[""] == {"--seed": 4, "--seconds": 30}
    assert said["audit"] == {"--seed": 4}, "its seconds are others"
    assert said["replay"] == {}


def test_a_subcommand_has_its_defaults_and_says_so(project):
    project("[tool.verify-norm]\ntimeout = 9\ndevice = 'cpu'\n")
    spec = '{"kernel": "../mine.py:rmsnorm_fwd", "shape": [2]}'
    result = run("replay", spec, "--json", "-", "--in-process", "--checks", "accuracy")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["settings"]["timeout"] == 9.0
    assert "defaults of --device, --timeout are from" in result.stderr
    assert "defaults" not in run("list").stderr


def test_limits_of_a_comparison(project):
    project("[tool.verify-norm.compare]\nshare = 0.2\nratio = 3\n")
    assert config.limits() == Limits(share=0.2, ratio=3)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("exampels = 3", "unknown key in [tool.verify-norm] 'exampels' (did you mean examples?); there are: dtypes, "),
        ("examples = 'many'", "examples in [tool.verify-norm] is to be a whole number, 0 or more, not 'many'"),
        ("examples = true", "a whole number, 0 or more, not True"),
        ("examples = 2.5", "a whole number, 0 or more, not 2.5"),
        ("examples = -1", "a whole number, 0 or more, not -1"),
        ("seed = -1", "seed in [tool.verify-norm] is to be a whole number"),
        ("seconds = 0", "a number, 0.1 or more, not 0"),
        ("seconds = inf", "a number, 0.1 or more, not inf"),
        ("timeout = nan", "a number, 0.1 or more, not nan"),
        ("dtypes = ['fp8']", "dtypes in [tool.verify-norm] is to be a list of fp32, fp16, bf16, not ['fp8']"),
        ("dtypes = [16]", "is to be a list of fp32, fp16, bf16, not [16]"),
        ("checks = 3", "a list of checks"),
        ("shapes = 'large'", "shapes in [tool.verify-norm] is to be one of fuzz, models, all, not 'large'"),
        ("device = 1", "device in [tool.verify-norm] is to be"),
        ("baseline = []", "the path of a file"),
        ("hunt = 3", "tool.verify-norm.hunt is to be a table, [tool.verify-norm.hunt]"),
        ("hunt = {shapes = 'all'}", "unknown key in [tool.verify-norm.hunt] 'shapes'"),
        ("hunt = {seconds = 'long'}", "seconds in [tool.verify-norm.hunt] is to be a number"),
        ("kernel = 'x'", "unknown key in [tool.verify-norm] 'kernel'"),
    ],
)
def test_what_is_wrong_in_the_table_is_one_line(project, table, said):
    path = project(f"[tool.verify-norm]\n{table}\n")
    for command in (["--kernel", "../mine.py:rmsnorm_fwd"], ["list"]):
        result = run(*command)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith(f"verify-norm: {path}: "), result.stderr
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.verify-norm", "is not TOML"),
        ("[tool]\nverify-norm = 3\n", "tool.verify-norm is to be a table, [tool.verify-norm]"),
        ("[[tool.verify-norm]]\nexamples = 3\n", "is to be a table"),
    ],
)
def test_a_file_that_is_no_table_is_refused(project, text, said):
    path = project(text)
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as caught:
        config.find()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("sahre = 3", "unknown key in [tool.verify-norm.compare] 'sahre' (did you mean share?)"),
        ("ratio = 0.5", "ratio in [tool.verify-norm.compare] is to be a number, 1 or more, not 0.5"),
        ("share = 'x'", "share in [tool.verify-norm.compare] is to be a number, 0 or more, not 'x'"),
    ],
)
def test_wrong_limits_are_refused(project, table, said):
    path = project(f"[tool.verify-norm.compare]\n{table}\n")
    with pytest.raises(UsageError) as caught:
        config.limits()
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_value_that_the_run_alone_can_refuse_is_one_line(project):
    project("[tool.verify-norm]\nchecks = ['acuracy']\n")
    result = run("--kernel", "../mine.py:rmsnorm_fwd")
    assert result.exit_code == 2
    assert "defaults of --checks are from" in result.stderr
    assert "unknown check 'acuracy' (did you mean accuracy?)" in result.stderr
