"""[tool.verify-norm] in pyproject.toml: found, obeyed, overruled by the command line, and refused in words."""

import json

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.core.regression import RegressionLimits
from verify_norm.search import config

SOURCE = """
import torch
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""


@pytest.fixture
def project(tmp_path, monkeypatch, few_corners):
    """A folder to work in, below that of the pyproject.toml that the test writes; a run has two corner cases."""
    few_corners(slice(2))
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_command_line_wins(project):
    project('[tool.verify-norm]\ndtypes = ["fp16"]\nexamples = 2\nchecks = ["accuracy"]\n')
    found, said = settings("--dtype", "bf16", "--examples", 1, "--checks", "signature")
    assert (found["dtypes"], found["examples"], found["checks"]) == (["bfloat16"], 1, ["signature"])
    assert "defaults" not in said, "none was used"


@pytest.mark.slow
def test_the_nearest_table_counts_and_no_other_file(project, tmp_path):
    project("[tool.verify-norm]\nexamples = 2\nchecks = ['accuracy']\n")
    near = project("[tool.other]\nx = 1\n", tmp_path / "work")
    assert config.nearest().path == tmp_path / "pyproject.toml", "without our table it does not count"
    near.write_text("[tool.verify-norm]\nexamples = 3\nchecks = ['accuracy']\n")
    assert config.nearest().path == near
    assert settings()[0]["examples"] == 3
    near.write_text("not TOML at all [")
    assert config.nearest().path == tmp_path / "pyproject.toml", "it does not mention us"
    near.write_bytes(b"\xff\xfe")
    assert config.nearest().path == tmp_path / "pyproject.toml"


@pytest.mark.slow
def test_without_a_table_nothing_changes(project, tmp_path):
    nearest = config.nearest()
    assert nearest is None or nearest.path.parent not in (tmp_path, tmp_path / "work")
    found, said = settings("--examples", 1, "--checks", "accuracy", "--dtype", "fp16")
    assert found["seconds"] == 55.0
    assert "defaults" not in said


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
    project("[tool.verify-norm]\nseed = 4\nseconds = 30\n[tool.verify-norm.hunt]\nseconds = 60\ndevice = 'cpu'\n")
    defaults = config.nearest().defaults
    assert defaults["hunt"] == {"seed": 4, "seconds": 60, "device": "cpu"}
    assert {name: value for name, value in defaults.items() if name not in config.COMMANDS} == {
        "seed": 4,
        "seconds": 30,
    }
    assert defaults["audit"] == {"seed": 4}, "it takes another time"
    assert defaults["replay"] == {}


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
    assert config.nearest().limits == RegressionLimits(share=0.2, ratio=3)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("exampels = 3", "] unknown key 'exampels' (did you mean examples?); there are: dtypes, "),
        ("examples = 'many'", "] examples: expected a whole number, 0 or more, got 'many'"),
        ("examples = true", "a whole number, 0 or more, got True"),
        ("examples = 2.5", "a whole number, 0 or more, got 2.5"),
        ("examples = -1", "a whole number, 0 or more, got -1"),
        ("seed = -1", "[tool.verify-norm] seed: expected a whole number"),
        ("seconds = 0", "a number, 0.1 or more, got 0"),
        ("seconds = inf", "a number, 0.1 or more, got inf"),
        ("timeout = nan", "a number, 0.1 or more, got nan"),
        ("dtypes = ['fp8']", "[tool.verify-norm] dtypes: unknown dtype 'fp8'; there are: float32, float16, bfloat16"),
        ("dtypes = [16]", 'dtypes: expected a list of dtypes, such as ["fp32", "bf16"], got [16]'),
        ("dtypes = []", "dtypes: expected at least one dtype of fp32, "),
        ("checks = 3", "a list of checks"),
        ("checks = ['acuracy']", "checks: unknown check 'acuracy' (did you mean accuracy?)"),
        ("shapes = 'large'", "[tool.verify-norm] shapes: expected one of fuzz, models, all, got 'large'"),
        ("contract = 3", '[tool.verify-norm] contract: expected a contract, such as "llama,inplace=y:x", got 3'),
        ("contract = ['llama']", "contract: expected a contract, such as"),
        ("contract = 'lama'", "[tool.verify-norm] contract: unknown contract 'lama' (did you mean llama?)"),
        ("hunt = {contract = 'xhat=y'}", "[tool.verify-norm.hunt] contract: xhat: expected none, float64, "),
        ("replay = {contract = 'llama'}", "[tool.verify-norm.replay] unknown key 'contract'"),  # its line says it
        ("device = 1", '[tool.verify-norm] device: expected "auto", '),
        ("baseline = []", "the path of a file"),
        ("hunt = 3", "[tool.verify-norm] hunt: expected a table, [tool.verify-norm.hunt], got 3"),
        ("hunt = {shapes = 'all'}", "[tool.verify-norm.hunt] unknown key 'shapes'"),
        ("hunt = {seconds = 'long'}", "[tool.verify-norm.hunt] seconds: expected a number"),
        ("kernel = 'x'", "[tool.verify-norm] unknown key 'kernel'"),
    ],
)
def test_what_is_wrong_in_the_table_is_one_line(project, table, said):
    path = project(f"[tool.verify-norm]\n{table}\n")
    for command in (["--kernel", "../mine.py:rmsnorm_fwd"], ["schema"]):
        result = run(*command)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith(f"verify-norm: {path}: "), result.stderr
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.verify-norm", "cannot parse TOML"),
        ("[tool]\nverify-norm = 3\n", "tool.verify-norm: expected a table, [tool.verify-norm], got 3"),
        ("[[tool.verify-norm]]\nexamples = 3\n", "expected a table"),
    ],
)
def test_a_file_that_is_no_table_is_refused(project, text, said):
    path = project(text)
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as caught:
        config.nearest()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("sahre = 3", "[tool.verify-norm.compare] unknown key 'sahre' (did you mean share?)"),
        ("ratio = 0.5", "[tool.verify-norm.compare] ratio: expected a number, 1 or more, got 0.5"),
        ("share = 'x'", "[tool.verify-norm.compare] share: expected a number, 0 or more, got 'x'"),
    ],
)
def test_wrong_limits_are_refused(project, table, said):
    path = project(f"[tool.verify-norm.compare]\n{table}\n")
    with pytest.raises(UsageError) as caught:
        config.nearest()
    assert str(caught.value).startswith(f"{path}: {said}")


def test_no_config_ignores_the_table(project):
    project("[tool.verify-norm]\nexampels = 3\n")
    assert run("schema").exit_code == 2
    assert run("--no-config", "schema").exit_code == 0


def test_a_value_that_the_run_alone_can_refuse_is_one_line(project):
    project("[tool.verify-norm]\ndevice = 'tpu'\n")
    result = run("--kernel", "../mine.py:rmsnorm_fwd")
    assert result.exit_code == 2
    assert "defaults of --device are from" in result.stderr
    assert "unknown device 'tpu'; there are: cpu, cuda, cuda:N" in result.stderr
