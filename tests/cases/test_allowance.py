"""What contracts allow in a typical case follows from the bounds of the references."""

import pytest

from verify_norm.cases import allowance, make
from verify_norm.cases.allowance import allowances, types, typical, words
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.known import NAMES, WEAKER, declared
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


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


@pytest.mark.parametrize(
    ("op", "types", "case"),
    [
        ("layernorm_fwd", ("float16", None), CaseSpec((64, 1024), "float16", offset=1.0, weight_offset=1.0)),
        (
            "rmsnorm_bwd",
            ("bfloat16", "float32"),
            CaseSpec((64, 1024), "bfloat16", "float32", offset=1.0, weight_offset=1.0),
        ),
        ("groupnorm_fwd", ("float32", None), CaseSpec((2, 32, 64), "float32", num_groups=8, offset=1.0)),
        ("instancenorm_fwd", ("float32", None), CaseSpec((2, 32, 64), "float32", offset=1.0)),
        ("batchnorm_fwd", ("float32", "bfloat16"), CaseSpec((64, 32, 16), "float32", "bfloat16", offset=1.0)),
    ],
)
def test_the_typical_case_is_one_of_the_operator_around_one(op, types, case):
    assert typical(op, *types) == case


def test_weights_of_another_type_have_its_numbers_and_their_gradient_its_ulp(monkeypatch):
    def recorded(spec, op, contract, inputs):
        seen.append((spec.weight_dtype, inputs["weight"]))
        return truths(spec, op, contract, inputs)

    seen, truths = [], make.truths
    monkeypatch.setattr(make, "truths", recorded)
    for cached in (allowances, types, allowance._inputs):
        cached.cache_clear()
    assert types("rmsnorm_bwd", "bfloat16", "float32") == {"dx": "bfloat16", "dweight": "float32"}
    wide, narrow = (allowances("rmsnorm_bwd", Contract(), "bfloat16", one)["dweight"] for one in ("float32", None))
    assert wide > 100 > 1 > narrow >= 0.5  # of a float32's and of a bfloat16's ulp
    held = [(dtype, bool((FORMATS["bfloat16"].round(weight) == weight).all())) for dtype, weight in seen]
    assert held == [("float32", False)] * 2 + [(None, True)] * 2  # for the types, and for the bounds
