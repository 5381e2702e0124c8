"""From nothing to a verdict on other people's kernels: one command each, and one line where it cannot be."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verify_norm import kernel, replay
from verify_norm.cli.app import app
from verify_norm.core import serial
from verify_norm.core.spec import CaseSpec
from verify_norm.report import documents

STRANGERS = Path(__file__).parents[1] / "support" / "strangers"
FEW = ("--examples", "0", "--device", "cpu", "--checks", "crash,signature,accuracy,statistics,memory,gradient")


def run(target, *arguments):
    return CliRunner().invoke(app, ["--kernel", f"{STRANGERS}/{target}", *arguments, *FEW])


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("liger_style.py:RMSNormFunction", ("--bind", "in_place=False")),
        ("hf_style.py:LlamaRMSNorm", ("--dtype", "fp32")),
        ("hf_style.py:final_norm", ("--dtype", "fp32", "--op", "rmsnorm")),  # an instance: 48 features, its own eps
        ("hf_style.py:GemmaRMSNorm", ("--bind", "eps=1e-6,weight_offset=1.0")),
        ("hf_style.py:LayerNorm", ("--op", "layernorm_fwd", "--bind", "eps=1e-5")),
        ("tutorial_style.py:layer_norm_fwd", ()),
        ("out_style.py:rms_norm", ()),
        ("out_style.py:fused_add_rms_norm_fwd", ()),
        ("llm_c_style.py:ln_forward", ("--op", "layernorm_fwd", "--bind", "eps=1e-5 -> y, rstd, mean, _")),
        ("llm_c_style.py:layernorm_backward", ()),
        ("refusing.py:rms_norm_vectorized_fwd", ()),
        ("fla_style.py:rms_norm", ()),
        ("fla_style.py:rms_norm_gemma", ("--bind", "weight_offset=1")),
    ],
)
def test_a_right_kernel_passes(target, arguments, few_corners):
    few_corners(slice(0, 75, 6))
    result = run(target, *arguments)
    assert result.exit_code == 0, result.output
    assert f"PASS {STRANGERS}/{target}" in " ".join(result.stdout.split())


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "arguments", "found"),
    [
        ("liger_style.py:RMSNormFunction", (), {("rmsnorm_bwd", "memory", None), ("rmsnorm_bwd", "memory", "dx")}),
        ("liger_style.py:RMSNormFunction", ("--bind", 'in_place=False,casting_mode="llama"', "--dtype", "bf16"),
         {("rmsnorm_fwd", "accuracy", "y"), ("rmsnorm_bwd", "gradient", "dweight")}),
        ("out_style.py:rms_norm_but_its_last_row", (), {("rmsnorm_fwd", "accuracy", "y")}),
        ("refusing.py:rms_norm_of_matrices_but_wrong_fwd", (), {("rmsnorm_fwd", "accuracy", "y")}),
        ("refusing.py:rms_norm_fails_where_long_fwd", (), {("rmsnorm_fwd", "signature", None)}),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_declared_is_found(target, arguments, found, few_corners):
    few_corners(slice(16))
    result = run(target, *arguments, "--json", "-")
    assert result.exit_code == 1
    reports = json.loads(result.stdout)
    reports = reports if isinstance(reports, list) else [reports]
    said = {(report["op"], f["check"], f["output"]) for report in reports for f in report["findings"]}
    assert found & said, said
    assert all(documents.load(json.dumps(report)).bind == dict(zip(arguments[::2], arguments[1::2], strict=True)).get(
        "--bind", "") for report in reports)  # fmt: skip


DECLARED = [
    ("hf_style.py:LlamaRMSNorm", "rmsnorm", "llama,output=promoted"),
    ("contracts_style.py:fused_add_rms_norm", "add_rmsnorm_fwd", "vllm"),
    ("contracts_style.py:rounded_sum_fwd", "add_rmsnorm_fwd", "residual=rounded"),
    ("contracts_style.py:CastingRMSNorm", "rmsnorm", "liger"),
]


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize(("target", "op", "contract"), DECLARED)
def test_a_failure_names_the_contract_and_with_it_the_kernel_passes(target, op, contract, few_corners):
    """It passes too by the printed commands, one a direction that fails; a run with both directions prints both."""
    few_corners(slice(0, 75, 6))
    failed = run(target, *(("--op", op) if op.endswith("fwd") else ()))
    assert failed.exit_code == 1
    lines = [line for line in failed.stdout.splitlines() if line.startswith("  verify-norm --kernel ")]
    commands = [line.strip() for line in lines if " --contract " in line]
    explained = " ".join(failed.stdout.split()).count(
        "A weaker contract explains all findings: if the kernel is meant to do so, --contract "
    )
    assert len(commands) == explained >= 1, failed.stdout
    for command in commands:
        again = CliRunner().invoke(app, [*shlex.split(command)[1:], "--examples", "0", "--device", "cpu"])
        assert again.exit_code == 0, again.output
    declared = run(target, "--op", op, "--contract", contract)
    assert declared.exit_code == 0, declared.output


@pytest.mark.slow
def test_a_replay_line_with_a_contract_reproduces():
    target = f"{STRANGERS}/contracts_style.py:rounded_sum_fwd"
    spec = serial.spec_text(target, CaseSpec((3, 40), "bfloat16"), "add_rmsnorm_fwd")
    assert CliRunner().invoke(app, ["replay", spec, "--device", "cpu"]).exit_code == 1
    declared = ["--contract", "residual=rounded"]
    assert CliRunner().invoke(app, ["replay", spec, *declared, "--device", "cpu"]).exit_code == 0
    wrong = CliRunner().invoke(app, ["replay", spec, "--contract", "residual=sums", "--device", "cpu"])
    assert wrong.exit_code == 2
    assert "contract: residual: expected sum or rounded, got 'sums'" in wrong.stderr


COMPILED = CaseSpec((2, 6, 3), num_groups=3, further=("memory", "determinism"))  # others compile it some twenty times


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_compiled_is_compiled_and_passes():
    reports = replay(f"{STRANGERS}/compiled_style.py:group_norm", COMPILED, device="cpu")
    assert reports.ok
    assert [report.op for report in reports] == ["groupnorm_fwd", "groupnorm_bwd"]


@pytest.mark.slow
def test_an_instance_meets_cases_of_its_own_size():
    result = run("hf_style.py:final_norm", "--op", "rmsnorm_bwd", "--dtype", "fp32", "--json", "-")
    report = documents.load(result.stdout)
    worst = [tally.worst for tally in report.tallies]
    assert report.cases > 60
    assert all(spec.shape[-1] == 48 and spec.eps == 1e-3 for spec in worst)


NAMES = 'rmsnorm_fwd has 2: y, rstd; name what it returns in order, with _ for the rest, such as --bind "-> y, rstd, _"'
BAD = """
import torch
from torch import nn
number = 3
def rmsnorm_fwd(x, weight, eps, rotary):
    return x
def rms_norm_forward(x, weight, eps):
    return x, x, x
def rms_norm_gpu_forward(x, weight, eps):
    assert x.is_cuda
    return x
class RMSNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("broken.py:rmsnorm_fwd", (), "broken.py cannot be imported: NameError: name 'nothing' is not defined"),
        ("none.py:rmsnorm_fwd", (), "no file"),
        (
            "bad.py:layernorm_fwd",
            (),
            "bad.py has no 'layernorm_fwd'; its callables are: rmsnorm_fwd, rms_norm_forward,",
        ),
        ("bad.py:number", ("--op", "rmsnorm_fwd"), "bad.py:number: expected a callable, got "),
        ("bad.py:rmsnorm_fwd", (), "unknown argument rotary; rmsnorm_fwd offers x, weight, eps, weight_offset,"),
        ("bad.py:rmsnorm_fwd", ("--bind", "x=rotory"), "--bind x=rotory: unknown argument rotory; rmsnorm_fwd offers"),
        (
            "bad.py:RMSNorm",
            (),
            "bad.py:RMSNorm: unknown argument config; rmsnorm_fwd offers * or name an instance of it, such as path/",
        ),
        (
            "bad.py:rms_norm_gpu_forward",
            (),
            "nothing was checked. cases: * it does not take CPU tensors (AssertionError: ",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, name, arguments, said, few_corners):
    few_corners(slice(4))
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "broken.py").write_text("nothing\n")
    result = CliRunner().invoke(app, ["--kernel", f"{tmp_path}/{name}", *arguments, *FEW])
    assert result.exit_code == 2, result.output
    told = [line for line in result.stderr.splitlines() if not line.startswith("verify-norm 0")]
    assert len(told) == 1
    assert all(part in told[0] for part in said.split(" * ")), told[0]
    assert "Traceback" not in result.output


def test_a_wrong_number_of_outputs_is_a_finding(tmp_path, few_corners):
    few_corners(slice(8))
    (tmp_path / "bad.py").write_text(BAD)
    result = CliRunner().invoke(app, ["--kernel", f"{tmp_path}/bad.py:rms_norm_forward", *FEW, "--json", "-"])
    assert result.exit_code == 1
    (finding,) = documents.load(result.stdout).findings
    assert (finding.check, finding.message) == ("signature", f"it returned 3 values; {NAMES}")


@pytest.mark.slow
def test_a_forward_alone_passes_where_nobody_asked_for_gradients(tmp_path, few_corners):
    few_corners(slice(0, 75, 6))
    (tmp_path / "alone.py").write_text(
        "import torch\n@torch.no_grad()\ndef rms_norm(x, weight, eps):\n"
        "    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)\n"
        "    return (y if weight is None else y * weight.double()).to(x.dtype)\n"
    )
    target = ["--kernel", f"{tmp_path}/alone.py:rms_norm", *FEW]
    inferred, asked = (CliRunner().invoke(app, [*target, *more]) for more in ((), ("--op", "rmsnorm")))
    assert (inferred.exit_code, asked.exit_code) == (0, 2)
    assert "rms_norm is checked forward only, since autograd does not know how its y is made; --op" in inferred.stderr
    assert "nothing was checked of rmsnorm_bwd" in asked.stderr


@pytest.mark.slow
def test_replay_takes_the_binding():
    spec = serial.spec_text(f"{STRANGERS}/llm_c_style.py:ln_forward", CaseSpec((2, 3)), "layernorm_fwd")
    result = CliRunner().invoke(app, ["replay", spec, "--bind", "eps=1e-5 -> y, rstd, mean, _", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(app, ["replay", spec, "--device", "cpu"]).exit_code == 2


def test_the_decorator_is_a_mark_alone():
    def function(x):
        return x

    assert kernel(op="rmsnorm_fwd")(function) is function
