"""What contracts allow in a typical case follows from the bounds of the references."""

import pytest

from verify_norm.cases.allowance import allowances, words
from verify_norm.core.known import NAMES, WEAKER, declared
from verify_norm.core.ops import OPS
from verify_norm.core.spec import Contract


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", ["add_layernorm_fwd", "add_layernorm_bwd", "groupnorm_bwd", "batchnorm_fwd", "rmsnorm_bwd"]
)
def test_no_contract_is_stricter_than_the_strict_one(op):
    for dtype in ("float32", "bfloat16"):
        strict = allowances(op, Contract(), dtype)
        for one in (*NAMES.values(), *WEAKER):
            weaker = allowances(op, declared(Contract(), one.fields, OPS[op]), dtype)
            assert weaker.keys() == strict.keys()
            wider = one.fields.startswith(("output=", "weight_grad="))  # of another type, with another last rounding
            assert wider or all(weaker[name] >= strict[name] * 0.999 for name in strict), one.fields


def test_a_rounding_costs_what_it_must():
    bf16 = allowances("rmsnorm_fwd", Contract(), "bfloat16")["y"]
    assert 0.5 <= bf16 < 0.51, "little more than the last rounding"
    llama = allowances("rmsnorm_fwd", Contract(xhat="x"), "bfloat16")["y"]
    assert 0.9 < llama < 1.6, "half an ulp of x̂, which is half to one ulp of y, and the last rounding"
    assert allowances("rmsnorm_fwd", Contract(output="bfloat16"), "float32")["y"] > 2**15, "in ulp of float32"
    assert "64×1024" in words("rmsnorm_fwd")
