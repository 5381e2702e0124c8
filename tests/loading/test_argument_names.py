"""The names that other people use, beside our own."""

from verify_norm.loading.argument_names import ALIASES, meant


def test_no_alias_is_a_name_of_ours():
    """But x, a sum where a backward has no x; scale and shift, a weight and a bias; y_scale; dresidual."""
    theirs = {name for names in ALIASES.values() for name in names}
    assert theirs & set(ALIASES) == {"x", "scale", "shift", "y_scale", "dresidual"}


def test_what_flash_attn_and_diffusers_call_x_is_x():
    assert {meant(name, ("x", "residual", "weight")) for name in ("x0", "input_tensor", "hidden_states")} == {"x"}


def test_what_transformer_engine_calls_a_gradient_is_dy():
    offered = ("dy", "x", "weight", "mean", "rstd")
    assert [meant(name, offered) for name in ("dz", "x", "mu", "rsigma", "gamma")] == [
        "dy",
        "x",
        "mean",
        "rstd",
        "weight",
    ]
    assert meant("dz", ("dgate",)) == "dgate"


def test_what_diffusers_calls_a_modulation():
    offered = ("x", "scale", "shift")
    assert [meant(name, offered) for name in ("shift_msa", "scale_mlp", "scale_msa")] == ["shift", "scale", "scale"]


def test_what_vllm_and_megatron_call_eps():
    assert {meant(name, ("x", "eps")) for name in ("var_epsilon", "layernorm_epsilon", "rms_norm_eps")} == {"eps"}
