"""The command line as a user meets it: exit statuses, messages, JSON."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app, main
from verify_norm.core import serial
from verify_norm.report import documents

FEW = ["--examples", "0", "--dtype", "fp16", "--in-process"]
HEAVY = ("torch", "triton", "scipy", "hypothesis")
WRONG = """
import torch
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True))  # no eps
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""


@pytest.fixture(autouse=True)
def few(few_corners):
    """Half of the corner table: what is wrong here shows in it, and it has weights of other types than x."""
    few_corners(slice(0, 75, 2))


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
def test_a_right_kernel_passes(tmp_path):
    path = tmp_path / "report.json"
    result = run("--kernel", "layernorm_bwd", *FEW, "--checks", "signature,accuracy,statistics", "--json", path)
    assert result.exit_code == 0, result.output
    assert "PASS layernorm_bwd" in result.stdout
    assert "not checked: check statistics: does not apply to layernorm_bwd" in result.stdout
    report = documents.load(path.read_text())
    assert report.ok
    assert {tally.output for tally in report.tallies} == {"dx", "dweight", "dbias"}
    assert {tally.dtype for tally in report.tallies} == {"float16", "float32"}  # fp32 weights have fp32 gradients
    assert documents.dump(report) == path.read_text()


@pytest.mark.slow
def test_a_wrong_kernel_fails_with_a_line_that_replays(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(WRONG)
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--examples", 0, "--dtype", "fp32", "--json", tmp_path / "r.json")
    assert result.exit_code == 1
    report = documents.load((tmp_path / "r.json").read_text())
    assert {f.output for f in report.findings} == {"y"}
    finding = report.findings[0]
    assert finding.check == "accuracy"
    assert finding.ulp > finding.allowed
    assert "ULP" in result.stdout
    assert "got" in result.stdout
    line = serial.spec_text(report.kernel, finding.spec, "rmsnorm_fwd")
    assert line in result.stdout
    again = run("replay", line)
    assert again.exit_code == 1
    assert f"y[{', '.join(map(str, finding.index))}] is " in again.stdout


def test_json_on_standard_output_is_all_there_is():
    result = run("--kernel", "rmsnorm_fwd_torch", *FEW, "--checks", "accuracy", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["kernel"] == "rmsnorm_fwd_torch"


def test_only_the_checks_and_dtypes_asked_for(tmp_path):
    result = run(
        "--kernel",
        "rmsnorm_fwd_torch",
        "--in-process",
        "--examples",
        0,
        "--dtype",
        "bf16",
        "--checks",
        "statistics",
        "--json",
        "-",
    )
    report = documents.load(result.stdout)
    assert [check.name for check in report.checks] == ["statistics"]
    assert {tally.dtype for tally in report.tallies if tally.output == "y"} == {"bfloat16"}


@pytest.mark.nightly
@pytest.mark.slow
def test_the_same_seed_is_the_same_run():
    def cases(seed):
        few = (*FEW, "--examples", 3, "--checks", "accuracy", "--seed", seed, "--json", "-")
        return documents.load(run("--kernel", "rmsnorm_fwd_torch", *few).stdout).tallies

    assert cases(3) == cases(3)
    assert cases(3) != cases(4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "layernrm_bwd"], "did you mean layernorm_bwd or layernorm_fwd?"),
        (["--kernel", "layernorm_bwd", "--dtype", "fp8"], "unknown dtype 'fp8'; there are: float32, float16, bfloat16"),
        (["--kernel", "layernorm_bwd", "--dtype", ","], "dtypes: expected at least one dtype of fp32, "),
        (["audit", "--kernel", "layernorm_bwd", "--dtype", ""], "dtypes: expected at least one dtype"),
        (["hunt", "--kernel", "layernorm_bwd", "--dtype", ","], "dtypes: expected at least one dtype"),
        (
            ["--kernel", "layernorm_bwd", "--corpus", "/no/such/c.jsonl"],
            "there is no corpus /no/such/c.jsonl; verify-norm hunt --corpus",
        ),
        (["--kernel", "layernorm_bwd", "--checks", "acuracy"], "unknown check 'acuracy' (did you mean accuracy?)"),
        (["--kernel", "layernorm_bwd", "--op", "rmsnorm_fwd"], "layernorm_bwd is a kernel for layernorm_bwd, not for"),
        (["--kernel", "layernorm_bwd", "--device", "tpu"], "unknown device 'tpu'; there are: cpu, cuda, cuda:N"),
        (["--kernel", "layernorm_bwd", "--device", "cuda:99"], "no device cuda:99"),
        (["--kernel", "layernorm_bwd", "--shapes", "large"], "shapes: expected one of fuzz, models, all, got 'large'"),
        (["--kernel", "layernorm_bwd", "--json", "/no/such/folder/r.json"], "no writable folder /no/such/folder"),
        (["--kernel", "rmsnorm_fwd", "--json", "/"], "cannot write /: it is a folder"),
        (["gradchek"], "unknown command 'gradchek' (did you mean gradcheck?); there are: replay, list, "),
        (["--kernel", "layernorm_bwd", "rmsnorm_bwd"], "unknown command 'rmsnorm_bwd'"),
        ([], "expected a kernel, such as --kernel layernorm_bwd; see verify-norm list, and --help"),
        (["show", "layernorm_bw"], "unknown kernel, check or operator 'layernorm_bw' (did you mean layernorm_bwd"),
        (["replay", "{"], "cannot parse the spec as JSON"),
        (["replay", "[1]"], "the spec: expected an object, such as"),
        (["replay", '{"shape": [1]}'], "the spec has no 'kernel'"),
        (["replay", '{"kernel": "layernorm_bwd"}'], "the spec has no 'shape'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2, "a"]}'], "the spec: shape.1"),
        (
            ["replay", '{"kernel": "layernorm_bwd", "shape": [2], "dtyp": "x"}'],
            "unknown field of the spec 'dtyp' (did you",
        ),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2], "dtype": "int8"}'], "unknown dtype 'int8'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2], "x_layout": "odd"}'], "unknown x_layout 'odd'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [-2]}'], "none negative"),
        (
            ["replay", '{"kernel": "layernorm_bwd", "shape": [2], "normalized_ndim": 2}'],
            "normalized_ndim: expected 1 to the rank of x, 1, got 2",
        ),
        (["replay", '{"kernel": "groupnorm_bwd", "shape": [2, 3], "num_groups": 2}'], "3 channels cannot be divided"),
        (["replay", '{"kernel": "groupnorm_bwd", "shape": [2, 3]}'], "groupnorm_bwd needs num_groups"),
        (
            ["replay", '{"kernel": "layernorm_fwd", "shape": [2, 3], "num_groups": 2}'],
            "does not fit layernorm_fwd, which has no num_groups",
        ),
        (["replay", '{"kernel": "groupnorm_fwd", "shape": [2, 4], "num_groups": 0}'], "num_groups: expected a whole"),
        (
            ["replay", '{"kernel": "layernorm_fwd", "shape": [2], "eps": -1}'],
            "eps: expected a finite number of 0 or more",
        ),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "eps": Infinity}'], "eps: expected a finite number"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "offset": NaN}'], "offset: expected a finite number"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "log2_scale": 5000}'], "number from -1074 to 1024, got"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "weight": "yes"}'], "weight: expected a valid"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "weight_data": "x"}'], "unknown weight_data 'x'"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [true]}'], "shape.0: expected a valid integer, got true"),
        (["replay", '{"kernel": 3, "shape": [2]}'], "the spec's kernel: expected a name, got 3"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [1000000, 1000000]}'], "at most 2**36 elements, got 1e+12"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [0, 1000000000000]}'], "too large for this machine: Unable"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "layernorm_bwd", "--examples", "many"], "valid integer"),
        (["--kernel", "layernorm_bwd", "--seconds", "-1"], "equal to 0.1"),
        (["--seed", "1"], "expected a kernel, such as --kernel layernorm_bwd"),
        (["--kernal", "x"], "--kernal"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_too(arguments, said):
    result = subprocess.run([sys.executable, "-m", "verify_norm", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.slow
def test_nothing_checked_is_no_pass(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from verify_norm import Kernel\n"
        "def rmsnorm_fwd(x, eps): return x\n"
        'rmsnorm_fwd.__verify_norm__ = Kernel("k", "rmsnorm_fwd", dtypes=("float16",))\n'
    )
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--dtype", "fp32")
    assert result.exit_code == 2
    assert "takes float16, and the run asks for float32" in " ".join(result.stderr.split())
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--dtype", "fp16", "--checks", "statistics", "--examples", 0)
    assert result.exit_code == 2, "a kernel that returns no statistics has none that pass"


def test_help_names_every_option():
    result = run("--help")
    assert result.exit_code == 0
    for option in (
        "--kernel",
        "--op",
        "--dtype",
        "--checks",
        "--examples",
        "--seconds",
        "--seed",
        "--device",
        "--json",
    ):
        assert option in result.output


def test_the_first_line_comes_before_anything_heavy_is_loaded():
    code = f"import verify_norm.cli.app, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_status_is_what_a_command_returns(monkeypatch):
    """`python -m verify_norm` exits with it too."""
    monkeypatch.setattr(sys, "argv", ["verify-norm", "replay", "{"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


@pytest.mark.slow
def test_several_kernels_have_one_table_and_the_worst_exit_status(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(WRONG)
    few = ("--in-process", "--device", "cpu", "--examples", 0, "--dtype", "fp32", "--checks", "signature,accuracy")
    pair = ("--kernel", path, "--kernel", "rmsnorm_fwd_torch")
    result = run(*pair, *few, "--json", tmp_path / "r.json")
    assert result.exit_code == 1
    table = result.stdout.rpartition("error/bound  seconds")[2]
    assert re.findall(r"rmsnorm_fwd +(FAIL|PASS) +(\d)", table) == [("FAIL", "1"), ("PASS", "0")]
    assert len(documents.read(str(tmp_path / "r.json"))) == 2
    fast = run(*pair, *few, "--fail-fast")
    assert fast.exit_code == 1
    assert "--fail-fast: 1 of 2 runs were made" in fast.stderr
    assert run("--kernel", "rmsnorm_fwd_torch", "--kernel", "nothing", *few).exit_code == 2
