"""The operator that a name stands for, and the libraries that are not there."""

import pytest

from verify_norm.loading.builtin import infer


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
        ("fused_layer_norm_fp8", "layernorm_fp8_fwd"),
        ("rmsnorm_forward", "rmsnorm_fwd"),
        ("softmax", None),
        ("norm", None),
    ],
)
def test_names_that_tell_the_operator(name, op):
    assert infer(name) == op
