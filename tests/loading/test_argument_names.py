"""The names that other people use, beside our own."""

from verify_norm.loading.argument_names import ALIASES, meant


def test_no_alias_is_a_name_of_ours():
    """But x, a sum where a backward has no x; scale, a weight where nothing is quantized; y_scale; dresidual."""
    theirs = {name for names in ALIASES.values() for name in names}
    assert theirs & set(ALIASES) == {"x", "scale", "y_scale", "dresidual"}


def test_what_flash_attn_and_diffusers_call_x_is_x():
    assert {meant(name, ("x", "residual", "weight")) for name in ("x0", "input_tensor", "hidden_states")} == {"x"}
