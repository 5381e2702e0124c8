"""Names to kernels, and what is said of names that are none."""

import inspect
import sys

import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.loading import builtin, targets
from verify_norm.loading.builtin import infer
from verify_norm.loading.registry import load, load_directions
from verify_norm.loading.targets import target_of

GOOD = "import torch\ndef layernorm_fwd(x, eps, weight=None, bias=None):\n    return x\n"


@pytest.mark.parametrize("name", builtin.BUILTIN)
def test_every_kernel_of_the_table_is_there_and_takes_what_its_op_offers(name):
    kernel = load(name)
    offered = [t.name for t in OPS[kernel.op].inputs] + list(OPS[kernel.op].attrs)
    assert set(inspect.signature(kernel.run).parameters) <= set(offered)
    assert kernel.summary
    assert kernel.run is targets.attribute(kernel.target)  # ours speak the operators' language: nothing is between


def test_a_kernel_in_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    kernel = load(f"{path}:layernorm_fwd")
    assert kernel.op == "layernorm_fwd"
    assert kernel.run(1, 2) == 1


def test_a_kernel_in_a_module(tmp_path, monkeypatch):
    (tmp_path / "some_norms.py").write_text(
        GOOD.replace("layernorm_fwd", "fused") + "class Norms:\n    inner = fused\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load("some_norms:fused", "layernorm_fwd").op == "layernorm_fwd"
    assert load("some_norms:Norms.inner", "layernorm_fwd").run(1, 2) == 1
    with pytest.raises(UsageError, match=r"some_norms:Norms has no 'outer'; its callables are: inner"):
        load("some_norms:Norms.outer", "layernorm_fwd")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("layernorm", "layernorm"),
        ("layernorm_bwd", "layernorm_bwd"),
        ("LayerNorm", "layernorm"),
        ("FusedLayerNorm", "layernorm"),
        ("layer_norm_fwd_kernel", "layernorm_fwd"),
        ("LlamaRMSNorm", "rmsnorm"),
        ("Qwen2RMSNorm.forward", "rmsnorm"),
        ("rms_norm", "rmsnorm"),
        ("rmsnorm_backward", "rmsnorm_bwd"),
        ("T5LayerNorm", "rmsnorm"),
        ("LigerFusedAddRMSNormFunction.apply", "add_rmsnorm"),
        ("add_layernorm_fwd", "add_layernorm_fwd"),
        ("GroupNorm32", "groupnorm"),
        ("BatchNorm2d", "batchnorm"),
        ("InstanceNorm3d", "instancenorm"),
        ("fwd_bwd_layer_norm", "layernorm"),
        ("softmax", None),
        ("norm", None),
    ],
)
def test_names_that_tell_the_operator(name, op):
    assert infer(name) == op


@pytest.mark.parametrize(
    ("name", "op", "said"),
    [
        (
            "layernrm_bwd",
            None,
            "unknown kernel 'layernrm_bwd' (did you mean layernorm_bwd?); there are: layernorm_fwd,",
        ),
        ("layernorm_fwd", "layernorm_bwd", "layernorm_fwd is a kernel for layernorm_fwd, not for layernorm_bwd"),
        ("{}:asks_more", None, "cannot infer the op from the name 'asks_more': use --op layernorm_fwd|"),
        ("{}:layernorm_fwd", "layernrm", "unknown op 'layernrm' (did you mean layernorm?)"),
        ("{}:layernorm_fwd", "layernorm", "has two directions: choose --op layernorm_fwd or --op layernorm_bwd"),
        ("{}:layernorm_bwd", None, "has no 'layernorm_bwd'; its callables are: layernorm_fwd"),
        ("{}:number", "layernorm_fwd", "number: expected a callable, got a int"),
        ("{}:asks_more", "layernorm_fwd", "needs gate, up; layernorm_fwd offers x, weight, bias, eps,"),
        ("/no/such/file.py:layernorm_fwd", None, "no file /no/such/file.py"),
        ("no_such_module:layernorm_fwd", None, "no_such_module cannot be imported: ModuleNotFoundError"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, name, op, said):
    path = tmp_path / "mine.py"
    path.write_text(GOOD + "number = 3\ndef asks_more(x, gate, up, eps):\n    return x\n")
    with pytest.raises(UsageError) as caught:
        load(name.format(path), op)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError: "),
        ("import sys\nsys.exit('no GPU')\n", "SystemExit: no GPU"),
        ("raise ValueError('first\\nsecond')\n", "ValueError: first"),
    ],
)
def test_a_file_that_does_not_import(tmp_path, text, said):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(f"{path}:layernorm_fwd")
    assert str(caught.value).startswith(f"{path} cannot be imported: {said}")
    assert "\n" not in str(caught.value)


def test_a_backward_knows_its_forward(tmp_path):
    assert load("layernorm_bwd_locked").forward_run is load("layernorm_fwd").run
    assert load("layernorm_fwd").forward_run is None
    path = tmp_path / "both.py"
    path.write_text("def rmsnorm_fwd(x, eps):\n    return 1\ndef rmsnorm_bwd(dy, X, rstd):\n    return 2\n")
    kernel = load(f"{path}:rmsnorm_bwd")
    assert kernel.run(dy=0, x=0, rstd=0, normalized_shape=()) == 2
    assert kernel.forward_run(0, 0.0) == 1


def test_what_is_differentiable_is_two_kernels_and_each_knows_its_own():
    forward, backward = load_directions(torch.nn.functional.layer_norm)
    assert (forward.op, backward.op) == ("layernorm_fwd", "layernorm_bwd")
    assert (forward.autograd, backward.autograd) == (False, True)
    assert backward.forward_run is not None
    assert load_directions(torch.nn.functional.layer_norm, "layernorm_bwd")[0].autograd


def test_what_writes_into_its_arguments_has_no_gradients_nobody_asked_for(tmp_path):
    path = tmp_path / "writes.py"
    path.write_text("def rms_norm(out, x, weight, eps):\n    out.copy_(x)\n")
    assert [kernel.op for kernel in load_directions(f"{path}:rms_norm")] == ["rmsnorm_fwd"]
    with pytest.raises(UsageError, match="which has no gradient"):
        load_directions(f"{path}:rms_norm", "rmsnorm")


def test_where_a_callable_is_found_again(tmp_path, monkeypatch):
    assert target_of(torch.nn.LayerNorm) == "torch.nn.modules.normalization:LayerNorm"
    assert target_of(test_where_a_callable_is_found_again) == f"{__file__}:test_where_a_callable_is_found_again"
    assert target_of(lambda x: x) == ""
    assert target_of(torch.nn.LayerNorm(3)) == ""
    (tmp_path / "shadowed_norms.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    import shadowed_norms

    assert target_of(shadowed_norms.layernorm_fwd) == "shadowed_norms:layernorm_fwd"
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert target_of(shadowed_norms.layernorm_fwd) == f"{tmp_path}/shadowed_norms.py:layernorm_fwd"
