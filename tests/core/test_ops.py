"""The table of operators: a backward belongs to its forward."""

import pytest

from verify_norm.core import ops
from verify_norm.core.ops import OPS


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.forward is not None], ids=lambda op: op.name)
def test_a_backward_returns_the_gradients_of_its_forward(op):
    forward = OPS[op.forward]
    assert (op.view, op.stages) == (forward.view, forward.stages)
    constants = {name for name in op.stage_inputs if name not in op.trained_inputs}
    constants |= {"residual"} if op.dropout is None else set()
    assert {t.name for t in op.outputs} == {
        f"d{t.name}" for t in forward.inputs if t.name not in constants and t.role != "state"
    }
    saved = {t.name for t in op.inputs if t.role == "saved"}
    assert saved <= {t.name for t in forward.outputs}


INPUTS = {  # of each forward, and of its backward after dy
    "layernorm": ("x weight bias", "x weight bias mean rstd"),
    "rmsnorm": ("x weight", "x weight rstd"),
    "groupnorm": ("x weight bias", "x weight bias mean rstd"),
    "batchnorm": ("x weight bias running_mean running_var", "x weight bias mean rstd running_mean running_var"),
    "add_layernorm": ("x residual weight bias", "dresidual_out residual_out weight bias mean rstd"),
    "add_rmsnorm": ("x residual weight", "dresidual_out residual_out weight rstd"),
}


@pytest.mark.parametrize("base", INPUTS)
def test_what_a_direction_takes_and_returns(base):
    forward, backward = OPS[f"{base}_fwd"], OPS[f"{base}_bwd"]
    given, saved = (names.split() for names in INPUTS[base])
    assert [t.name for t in forward.inputs] == given
    assert [t.name for t in backward.inputs] == ["dy", *saved]
    assert [t.name for t in backward.outputs] == [f"d{n}" for n in ("x", "weight", "bias") if n in given]
    centred = ["mean", "rstd"] if forward.centred else ["rstd"]
    statistics = [t.name for t in forward.outputs if t.extent == "statistic"]
    assert (statistics, forward.outputs[0]) == (centred, ops.Y)
    assert (ops.forward_of(backward), ops.base(forward.name), ops.base(backward.name)) == (forward, base, base)
    with pytest.raises(KeyError):
        ops.forward_of(forward)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.forward is not None], ids=lambda op: op.name)
def test_a_backward_has_its_own_reference_and_what_else_its_forward_has(op):
    forward = OPS[op.forward]
    assert op.name == forward.name.replace("_fwd", "_bwd")
    assert op.attrs == tuple(name for name in forward.attrs if name != "momentum")  # it moves no running statistics
    assert op.summary.partition("; ")[0] == f"the gradients of {forward.name}"
    assert forward.summary.startswith(("y ", "y = ", "residual_out = "))
    shared = "add_" in op.name and op.dropout is None  # x and residual have one gradient
    assert ("; " in op.summary) == (shared or op.view == "channels")
    assert (op.quantized, op.centred, forward.forward) == (forward.quantized, forward.centred, None)
    for way, one in (("forward", forward), ("backward", op)):
        assert one.reference.__module__ == one.error.__module__ == forward.reference.__module__
        assert one.reference.__name__ == way
        assert one.error.__name__ == f"{one.reference.__name__}_error"
