"""The operator that a name stands for, and the libraries that are not there."""

import doctest

import pytest

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.loading import builtin
from verify_norm.loading.builtin import BOTH, infer, missing


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
        ("rms_norm_static_fp8_quant", "rmsnorm_fp8_fwd"),
        ("layernorm_fwd_e4m3fn", "layernorm_fp8_fwd"),
        ("rms_norm_dynamic_per_token_quant", "rmsnorm_quant_fwd"),
        ("fused_add_rms_norm_dynamic_per_token_quant", "add_rmsnorm_quant_fwd"),
        ("add_rmsnorm_group_quant_fp8", "add_rmsnorm_quant_group_fwd"),
        ("fused_layer_norm_fp8", "layernorm_fp8_fwd"),
        ("rmsnorm_forward", "rmsnorm_fwd"),
        ("softmax", None),
        ("norm", None),
    ],
)
def test_names_that_tell_the_operator(name, op):
    assert infer(name) == op


def test_every_operator_has_names_that_stand_for_it():
    families = {name for _, name in builtin.FAMILIES}
    forwards = {name: op for name, op in OPS.items() if op.forward is None}
    plain = {name.removesuffix("_fwd") for name, op in forwards.items() if not (op.stages or op.before)}
    told = {"gated_rmsnorm", "modulate_rmsnorm", "modulate_layernorm", "qk_norm_rope"}  # an activation is not
    assert families == plain | told | {name.removesuffix("_fwd") for name, op in OPS.items() if op.quantizer}
    for name in OPS:
        assert infer(name) == name


def test_both_directions_belong_together():
    assert BOTH["layernorm"] == ("layernorm_fwd", "layernorm_bwd")
    assert "layernorm_fp8" not in BOTH  # which has no backward
    assert all(OPS[backward].forward == forward for forward, backward in BOTH.values())


def test_a_library_that_is_missing_is_told_with_the_command_that_installs_it():
    kernel = Kernel("k", "rmsnorm_fwd", origin="no_such_library")
    assert missing(kernel) == "no_such_library is not installed here: pip install 'verify-norm[third-party]'"
    assert missing(Kernel("k", "rmsnorm_fwd", origin="torch")) is None


def test_doctests():
    assert doctest.testmod(builtin).failed == 0
