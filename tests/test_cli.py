"""The command line as a user meets it: exit statuses, messages, JSON."""

import json
import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from verify_norm import registry
from verify_norm.cli import app
from verify_norm.report import json as json_form

FEW = ["--examples", "3", "--dtype", "fp16"]
WRONG = """
import torch
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True))  # no eps
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_right_kernel_passes(tmp_path):
    path = tmp_path / "report.json"
    result = run("--kernel", "layernorm_bwd", *FEW, "--json", path)
    assert result.exit_code == 0, result.output
    assert "pass layernorm_bwd" in result.stdout
    assert "not checked: check statistics: does not apply to layernorm_bwd" in result.stdout
    report = json_form.load(path.read_text())
    assert report.ok
    assert {tally.output for tally in report.tallies} == {"dx", "dweight", "dbias"}
    assert {tally.dtype for tally in report.tallies} == {"float16", "float32"}  # fp32 weights have fp32 gradients
    assert json_form.dump(report) == path.read_text()


def test_a_wrong_kernel_fails_with_a_line_that_replays(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(WRONG)
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--examples", 20, "--json", tmp_path / "r.json")
    assert result.exit_code == 1
    report = json_form.load((tmp_path / "r.json").read_text())
    assert {f.output for f in report.findings} == {"y"}
    finding = report.findings[0]
    assert finding.check == "accuracy"
    assert finding.ulp > finding.allowed
    assert "ULP" in result.stdout
    assert "got" in result.stdout
    line = json_form.spec_text(report.kernel, finding.spec, "rmsnorm_fwd")
    assert line in result.stdout
    again = run("replay", line)
    assert again.exit_code == 1
    assert f"y[{', '.join(map(str, finding.index))}] is " in again.stdout


def test_json_on_standard_output_is_all_there_is():
    result = run("--kernel", "rmsnorm_fwd", *FEW, "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["kernel"] == "rmsnorm_fwd"


def test_only_the_checks_and_dtypes_asked_for(tmp_path):
    result = run("--kernel", "rmsnorm_fwd", "--examples", 0, "--dtype", "bf16", "--checks", "statistics", "--json", "-")
    report = json_form.load(result.stdout)
    assert [check.name for check in report.checks] == ["statistics"]
    assert {tally.dtype for tally in report.tallies if tally.output == "y"} == {"bfloat16"}


def test_the_same_seed_is_the_same_run():
    def cases(seed):
        report = json_form.load(run("--kernel", "rmsnorm_fwd", *FEW, "--seed", seed, "--json", "-").stdout)
        return report.tallies

    assert cases(3) == cases(3)
    assert cases(3) != cases(4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "layernrm_bwd"], "did you mean layernorm_bwd?"),
        (["--kernel", "layernorm_bwd", "--dtype", "fp8"], "unknown dtype 'fp8'; there are: float32, float16, bfloat16"),
        (["--kernel", "layernorm_bwd", "--dtype", ","], "no dtype is named, as in fp32,bf16; there are: float32, "),
        (["audit", "--kernel", "layernorm_bwd", "--dtype", ""], "no dtype is named, as in fp32,bf16"),
        (["hunt", "--kernel", "layernorm_bwd", "--dtype", ","], "no dtype is named, as in fp32,bf16"),
        (
            ["--kernel", "layernorm_bwd", "--corpus", "/no/such/c.jsonl"],
            "/no/such/c.jsonl: there is no folder /no/such",
        ),
        (["--kernel", "layernorm_bwd", "--checks", "acuracy"], "unknown check 'acuracy' (did you mean accuracy?)"),
        (["--kernel", "layernorm_bwd", "--op", "rmsnorm_fwd"], "layernorm_bwd is a kernel for layernorm_bwd, not for"),
        (["--kernel", "layernorm_bwd", "--device", "tpu"], "unknown device 'tpu'; there are: cpu, cuda, cuda:N"),
        (["--kernel", "layernorm_bwd", "--device", "cuda:99"], "no device cuda:99"),
        (["--kernel", "layernorm_bwd", "--shapes", "large"], "unknown set of shapes 'large'"),
        (["--kernel", "layernorm_bwd", "--json", "/no/such/folder/r.json"], "no writable folder /no/such/folder"),
        (["--kernel", "rmsnorm_fwd", "--json", "/"], "cannot write /: it is a folder"),
        (["show", "layernorm_bw"], "unknown kernel, check or operator 'layernorm_bw' (did you mean layernorm_bwd"),
        (["replay", "{"], "the spec is not JSON"),
        (["replay", "[1]"], "the spec is a list"),
        (["replay", '{"shape": [1]}'], "the spec has no 'kernel'"),
        (["replay", '{"kernel": "layernorm_bwd"}'], "the spec has no 'shape'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2, "a"]}'], "the spec is malformed: shape.1"),
        (
            ["replay", '{"kernel": "layernorm_bwd", "shape": [2], "dtyp": "x"}'],
            "unknown field of the spec 'dtyp' (did you",
        ),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2], "dtype": "int8"}'], "unknown dtype 'int8'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2], "x_layout": "odd"}'], "unknown x_layout 'odd'"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [-2]}'], "none negative"),
        (["replay", '{"kernel": "layernorm_bwd", "shape": [2], "normalized_ndim": 2}'], "normalized_ndim 2 is to be"),
        (["replay", '{"kernel": "groupnorm_bwd", "shape": [2, 3], "num_groups": 2}'], "3 channels cannot be divided"),
        (["replay", '{"kernel": "groupnorm_bwd", "shape": [2, 3]}'], "groupnorm_bwd needs num_groups"),
        (
            ["replay", '{"kernel": "layernorm_fwd", "shape": [2, 3], "num_groups": 2}'],
            "of layernorm_fwd: it has no num_groups",
        ),
        (["replay", '{"kernel": "groupnorm_fwd", "shape": [2, 4], "num_groups": 0}'], "num_groups is to be a whole"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "eps": -1}'], "eps is to be a finite number, 0 or more"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "eps": Infinity}'], "eps is to be a finite number"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "offset": NaN}'], "offset is to be a finite number"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "log2_scale": 5000}'], "number from -1074 to 1024, not"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "weight": "yes"}'], "weight: Input should be a valid"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [2], "weight_data": "x"}'], "unknown weight_data 'x'"),
        (
            ["replay", '{"kernel": "layernorm_fwd", "shape": [true]}'],
            "shape.0: Input should be a valid integer, not true",
        ),
        (["replay", '{"kernel": 3, "shape": [2]}'], "the spec's kernel is to be a name, not 3"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [1000000, 1000000]}'], "has 1e+12 elements; 2**36 are the"),
        (["replay", '{"kernel": "layernorm_fwd", "shape": [0, 1000000000000]}'], "too large for this machine: Unable"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "layernorm_bwd", "--examples", "many"], "valid integer"),
        (["--kernel", "layernorm_bwd", "--seconds", "-1"], "equal to 0.1"),
        (["--seed", "1"], "name a kernel: --kernel layernorm_bwd"),
        (["--kernal", "x"], "--kernal"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_too(arguments, said):
    result = subprocess.run([sys.executable, "-m", "verify_norm", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_nothing_checked_is_no_pass(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from verify_norm import Kernel\n"
        "def rmsnorm_fwd(x, eps): return x\n"
        'rmsnorm_fwd.__verify_norm__ = Kernel("k", "rmsnorm_fwd", dtypes=("float16",))\n'
    )
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--dtype", "fp32")
    assert result.exit_code == 2
    assert "nothing was checked" in " ".join(result.stderr.split())
    result = run("--kernel", f"{path}:rmsnorm_fwd", "--dtype", "fp16", "--checks", "statistics")
    assert result.exit_code == 2, "a kernel that returns no statistics has none that pass"


@pytest.mark.parametrize("name", ["layernorm_bwd", "rmsnorm_fwd", "accuracy", "groupnorm_bwd"])
def test_show(name):
    result = run("show", name)
    assert result.exit_code == 0
    assert name in result.stdout


def test_list_names_everything():
    result = run("list")
    assert result.exit_code == 0
    for name in [*registry.BUILTIN, "accuracy", "statistics", "signature", "nonfinite", "groupnorm_bwd"]:
        assert name in result.stdout


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


def test_the_first_line_comes_at_once():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    started = time.perf_counter()
    command = [sys.executable, "-m", "verify_norm", "--kernel", "layernorm_bwd", "--seconds", "1"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        line = process.stderr.readline()
        seconds = time.perf_counter() - started
        process.communicate()
    assert line.startswith("verify-norm")
    assert seconds < 4


def test_the_time_limit_is_kept():
    started = time.perf_counter()
    result = run("--kernel", "layernorm_bwd", "--seconds", "1", "--examples", "100000")
    assert result.exit_code == 0
    assert time.perf_counter() - started < 6
    assert "the 1 s were over" in result.stdout


def test_certify_proves_one_operator(tmp_path):
    path = tmp_path / "certificate.json"
    result = run("certify", "rmsnorm", "--json", path)
    assert result.exit_code == 0, result.output
    assert "dx" in result.stdout
    assert json.loads(path.read_text())["results"]
    unknown = run("certify", "rmsnrm")
    assert unknown.exit_code == 2
    assert "did you mean rmsnorm?" in " ".join(unknown.stderr.split())


SOFT = """
import torch
def right(x): return torch.nn.functional.softplus(x)
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * x
    @staticmethod
    def backward(ctx, dy): return dy
def wrong(x): return Halved.apply(x)
"""


def test_gradcheck_of_a_function_without_a_reference(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOFT)
    assert run("gradcheck", f"{path}:right").exit_code == 0
    result = run("gradcheck", f"{path}:wrong", "--dtype", "fp32", "--json", "-")
    assert result.exit_code == 1
    assert {finding["output"] for finding in json.loads(result.stdout)["findings"]} == {"x"}
    for arguments, said in (([f"{path}:none"], "has no 'none'"), (["mine.py"], "names no attribute")):
        result = run("gradcheck", *arguments)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())


def test_gradcheck_with_an_operator_looks_at_second_order(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "from verify_norm.kernels.layernorm import LayerNormFunction\n"
        "def norm(x, weight, bias, eps=1e-5):\n"
        "    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)\n"
        "def ours(x, weight, bias, eps=1e-5):\n"
        "    return LayerNormFunction.apply(x, weight, bias, eps, weight.shape)\n"
    )
    result = run("gradcheck", f"{path}:norm", "--op", "layernorm")
    assert result.exit_code == 0, result.output
    assert "double backward x: agrees" in result.stdout
    assert "jvp: agrees" in result.stdout
    result = run("gradcheck", f"{path}:ours", "--op", "layernorm")
    assert result.exit_code == 0, result.output
    assert "not offered" in result.stdout
    assert run("gradcheck", f"{path}:norm", "--op", "layernrm").exit_code == 2
