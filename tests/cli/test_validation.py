"""The commands that show how far the tool can be trusted."""

import json

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.nightly
@pytest.mark.slow
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
def hidden(x): return (1000 + 1e-3 * x).sum()
"""


@pytest.mark.slow
def test_gradcheck_of_a_function_without_a_reference(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOFT)
    assert run("gradcheck", f"{path}:right").exit_code == 0
    result = run("gradcheck", f"{path}:wrong", "--dtype", "fp32", "--json", "-")
    assert result.exit_code == 1
    assert {finding["output"] for finding in json.loads(result.stdout)["findings"]} == {"x"}
    hidden = run("gradcheck", f"{path}:hidden", "--dtype", "bf16")
    assert hidden.exit_code == 2
    assert "inconclusive" in hidden.stdout
    for arguments, said in (([f"{path}:none"], "has no 'none'"), (["mine.py"], "names no attribute")):
        result = run("gradcheck", *arguments)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())


NORMS = """
import torch
def norm(x, weight, bias, eps=1e-5):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return norm(*inputs)
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(norm(*inputs), inputs, dy)
def once(x, weight, bias): return Once.apply(x, weight, bias)
"""


@pytest.mark.slow
def test_gradcheck_with_an_operator_looks_at_second_order(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(NORMS)
    result = run("gradcheck", f"{path}:norm", "--op", "layernorm")
    assert result.exit_code == 0, result.output
    assert "double backward x: agrees" in result.stdout
    assert "jvp: agrees" in result.stdout
    result = run("gradcheck", f"{path}:once", "--op", "layernorm")
    assert result.exit_code == 0, result.output
    assert "not offered" in result.stdout
    assert run("gradcheck", f"{path}:norm", "--op", "layernrm").exit_code == 2
