"""A residual in float32 beside an x of 16 bits: wrong kernels that the checks detect, and right ones that pass."""

from math import prod

import pytest
import torch
from dropped import forward as dropped

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.serial import read_spec
from verify_norm.core.spec import FURTHER, CaseSpec
from verify_norm.testing import assert_norm_close

MANY = tuple(name for name in FURTHER if name not in ("effects", "memory", "honesty"))
STREAM = {"residual_dtype": "float32", "further": MANY}
SPECS = (
    CaseSpec((3, 40), "bfloat16", seed=1, **STREAM),
    CaseSpec((2, 5, 33), "float16", weight_dtype="float32", residual_layout="transposed", seed=2, **STREAM),
    CaseSpec((4, 2, 16), "bfloat16", normalized_ndim=2, offset=100.0, seed=3, alias="x:residual", **STREAM),
    CaseSpec((300, 8), "float16", data="heavy", weight=False, seed=4, **STREAM),
    CaseSpec((3, 30), "bfloat16", special="inf", special_in="residual", seed=5, residual_dtype="float32"),
    CaseSpec((5, 24), "float16", seed=6, log2_scale=16, residual_dtype="float32", further=()),
)
ALIKE = tuple(CaseSpec((3, 40), dtype, seed=7, further=()) for dtype in ("float32", "bfloat16", "float16"))


def normalized(h, weight, eps, shape, bias=None, centred=False):
    rows = h.reshape(-1, prod(shape))
    mean = rows.mean(1, keepdim=True) if centred else torch.zeros_like(rows[:, :1])
    rstd = ((rows - mean).square().mean(1, keepdim=True) + eps).rsqrt()
    y = ((rows - mean) * rstd).reshape(h.shape)
    y = y if weight is None else y * weight.float()
    return y if bias is None else y + bias.float(), mean[:, 0], rstd[:, 0]


def added(how=""):
    """Return an addition and RMSNorm; `how` it goes wrong, or is written."""

    def run(x, residual, weight, eps, normalized_shape):
        other = residual
        if how == "residual rounded":
            other = residual.to(x.dtype)
        elif how == "taken for that of x":
            other = residual.contiguous().view(x.dtype)[..., : x.shape[-1]]
        h = x.float() + other.float()
        kept = h.to(residual.dtype)
        if how == "sum rounded":
            kept = h.to(x.dtype).to(residual.dtype)
        elif how == "sum of x's type":
            kept = h.to(x.dtype)
        elif how == "norm of the sum in x's type":
            h = h.to(x.dtype).float()
        y, _, rstd = normalized(h, weight, eps, normalized_shape)
        return y.to(residual.dtype if how == "y promoted" else x.dtype), kept, rstd

    return run


def in_torch(x, residual, weight, bias, eps, normalized_shape):
    """Return LayerNorm by torch's operations alone, which promote the types."""
    h = x + residual
    y, mean, rstd = normalized(h.float(), weight, eps, normalized_shape, bias, centred=True)
    return y.to(x.dtype), h, mean, rstd


def gated(x, residual, weight, gate, eps, normalized_shape):
    h = x.float() + residual.float()
    y, _, rstd = normalized(h, weight, eps, normalized_shape)
    return (y * torch.nn.functional.silu(gate.float())).to(x.dtype), h.to(residual.dtype), rstd


def quantized(x, residual, weight, eps, normalized_shape):
    h = x.float() + residual.float()
    z, _, rstd = normalized(h, weight, eps, normalized_shape)
    rows = z.reshape(-1, prod(normalized_shape))
    scale = rows.abs().amax(1) / 448
    scale = torch.where(scale == 0, 1.0, scale)
    y = (rows / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn).reshape(x.shape)
    return y, scale, h.to(residual.dtype), rstd


RIGHT = [
    ("add_rmsnorm_fwd", added(), {}),
    ("add_rmsnorm_fwd", added("y promoted"), {}),
    ("add_rmsnorm_fwd", added("y promoted"), {"output": "promoted"}),
    ("add_layernorm_fwd", in_torch, {"residual": "rounded"}),
    ("add | rmsnorm | gate_fwd", gated, {}),
    ("dropout_add_layernorm_fwd", dropped("", centred=True), {}),
    ("dropout_add_rmsnorm_fwd", dropped("", centred=False), {}),
]
WRONG = {
    "residual rounded": {("accuracy", "y"), ("accuracy", "residual_out"), ("accuracy", "rstd")},
    "taken for that of x": {("accuracy", "y"), ("accuracy", "residual_out"), ("accuracy", "rstd")},
    "sum rounded": {("accuracy", "residual_out")},
    "sum of x's type": {("signature", "residual_out"), ("accuracy", "residual_out")},
    "norm of the sum in x's type": {("accuracy", "y"), ("accuracy", "rstd")},
}


@pytest.mark.slow
@pytest.mark.parametrize(("op", "run", "contract"), RIGHT)
def test_right_kernels_pass_all_checks(op, run, contract, findings):
    kernel = Kernel("k", op, run=run, contract=Contract(**contract))
    assert findings(kernel, SPECS) == {}
    assert findings(kernel, ALIKE) == {}


def test_a_right_sum_may_be_quantized(findings):
    kernel = Kernel("k", "add_rmsnorm_quant_fwd", run=quantized)
    specs = [spec for spec in (*SPECS, *ALIKE) if spec.special is None and spec.weight_dtype is None]
    assert findings(kernel, specs, "signature", "accuracy", "statistics", "identities") == {}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_kernels_are_detected_beside_a_residual_in_float32(how, findings):
    kernel = Kernel("k", "add_rmsnorm_fwd", run=added(how))
    found = findings(kernel, SPECS[:3], "signature", "accuracy", "statistics")
    assert {(check.replace("statistics", "accuracy"), output) for check, output in found} == WRONG[how]
    if how.startswith(("residual", "taken", "sum of")):  # as if it had the type of x
        assert findings(kernel, ALIKE, "signature", "accuracy", "statistics") == {}


def test_a_declared_rounding_of_the_sum_is_that_to_the_type_of_residual_out(findings):
    kernel = Kernel("k", "add_rmsnorm_fwd", run=added("norm of the sum in x's type"))
    declared = Kernel("k", "add_rmsnorm_fwd", run=kernel.run, contract=Contract(residual="rounded"))
    assert ("accuracy", "y") in findings(kernel, ALIKE, "accuracy")
    assert findings(declared, ALIKE, "accuracy") == {}
    assert ("accuracy", "y") in findings(declared, SPECS[:3], "accuracy")


def test_a_test_of_ones_own_gives_the_residual_in_float32():
    x, residual = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    x = x.bfloat16()
    right = added()(x, residual, None, 1e-6, (64,))
    assert_norm_close(right, "add_rmsnorm", x, residual, None, eps=1e-6)
    wrong = added("residual rounded")(x, residual, None, 1e-6, (64,))
    with pytest.raises(AssertionError, match="x 3×64 bfloat16, residual float32"):
        assert_norm_close(wrong, "add_rmsnorm", x, residual, None, eps=1e-6)
    with pytest.raises(Exception, match="residual: expected bfloat16, the type of x, got float16"):
        assert_norm_close(right, "add_rmsnorm", x, residual.half(), None, eps=1e-6)


def test_a_type_that_no_residual_has_is_refused():
    with pytest.raises(UsageError, match="unknown dtype 'half'"):
        read_spec('{"kernel": "k", "shape": [2, 3], "dtype": "float16", "residual_dtype": "half"}')
