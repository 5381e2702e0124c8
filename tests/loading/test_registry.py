"""Names to kernels, and what is said of names that are none."""

import inspect

import pytest
import torch

from verify_norm import Contract, kernel
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.loading import builtin, targets
from verify_norm.loading.registry import load, load_directions

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


@pytest.mark.parametrize(
    ("name", "op", "said"),
    [
        (
            "layernrm_bwd",
            None,
            "unknown kernel 'layernrm_bwd' (did you mean layernorm_bwd or layernorm_fwd?); verify-norm list shows all ",
        ),
        ("layernorm_fwd", "layernorm_bwd", "layernorm_fwd is a kernel for layernorm_fwd, not for layernorm_bwd"),
        ("{}:asks_more", None, "cannot infer the op from the name 'asks_more': say it with --op layernorm_fwd, or"),
        ("{}:layernorm_fwd", "layernrm", "unknown op 'layernrm' (did you mean layernorm?)"),
        ("{}:layernorm_fwd", "layernorm", "has two directions: choose one as its op, layernorm_fwd or layernorm_bwd"),
        ("{}:layernorm_bwd", None, "has no 'layernorm_bwd'; its callables are: layernorm_fwd"),
        ("{}:number", "layernorm_fwd", "number: expected a callable, got "),
        ("{}:asks_more", "layernorm_fwd", "unknown arguments gate, up; layernorm_fwd offers x, weight, bias, eps,"),
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


def test_a_wrong_contract_is_told_in_one_line():
    declared = kernel(op="rmsnorm_fwd", contract=Contract(products="tf16"))(lambda x, eps: x)
    for given in ({}, {"contract": Contract(summation="pairwise")}):
        with pytest.raises(UsageError, match=r"^contract: (products|summation): expected .*, got '(tf16|pairwise)'$"):
            load_directions(declared, **given)
    (right,) = load_directions(declared, contract=Contract(products="tf32"))
    assert right.contract.products == "tf32"
