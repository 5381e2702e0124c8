"""The table of operators: a backward belongs to its forward, and bounds follow the contract."""

import numpy as np
import pytest

from verify_norm.core import ops
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import Contract


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.forward is not None], ids=lambda op: op.name)
def test_a_backward_returns_the_gradients_of_its_forward(op):
    forward = OPS[op.forward]
    assert (op.view, op.activation) == (forward.view, forward.activation)
    assert {t.name for t in op.outputs} == {f"d{t.name}" for t in forward.inputs if t.name in ("x", "weight", "bias")}
    saved = {t.name for t in op.inputs if t.role == "saved"}
    assert saved <= {t.name for t in forward.outputs}


def test_the_arithmetic_follows_the_contract():
    strict = ops.arithmetic(Contract(), "bfloat16")
    assert (strict.u, strict.xhat_u) == (FORMATS["float32"].u, 0.0)
    assert ops.arithmetic(Contract(xhat="x"), "bfloat16").xhat_u == FORMATS["bfloat16"].u
    assert ops.arithmetic(Contract(products="tf32"), "bfloat16").products == "tf32"
    by_weight = Contract(offset_weight="weight")
    for dtype, weight_dtype, u in (
        ("bfloat16", None, 2.0**-8),
        ("float32", "float16", 2.0**-11),
        ("float16", "float32", 0),
    ):
        assert ops.arithmetic(by_weight, dtype, weight_dtype).offset_u == u
        assert ops.arithmetic(Contract(), dtype, weight_dtype).offset_u == 0


def test_the_types_of_outputs():
    y, mean = OPS["layernorm_fwd"].outputs[:2]
    assert ops.output_dtype(y, Contract(), "float16") == "float16"
    assert ops.output_dtype(y, Contract(output="float32"), "float16") == "float32"
    assert ops.output_dtype(mean, Contract(), "float16") == "float32"
    assert ops.output_dtype(mean, Contract(stats="x"), "float16") == "float16"
    dx, dweight, _ = OPS["layernorm_bwd"].outputs
    wide = Contract(weight_grad="float32")
    assert [ops.output_dtype(t, wide, "float16", "bfloat16") for t in (dx, dweight)] == ["float16", "float32"]
    assert ops.output_dtype(dweight, Contract(), "float16", "bfloat16") == "bfloat16"


@pytest.mark.parametrize(("saturate", "largest"), [("either", 448.0), ("saturate", 448.0), ("overflow", np.inf)])
def test_a_quantized_truth_is_clipped_unless_the_contract_says_that_it_overflows(saturate, largest):
    assert ops.roundings(Contract(saturate=saturate), "float32", "float8_e4m3fn")["largest"] == largest
