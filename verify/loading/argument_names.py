"""The names that other people give to an operator's inputs, attributes and outputs."""

from collections.abc import Iterable

FEATURES = "features"  # the number of elements of weight
ALIASES = {  # our name: other names, in any case unless another line has the exact spelling
    name: tuple(others.split())
    for name, others in {
        "x": "input inputs inp input_tensor x_in x0 hidden_states hidden_state hidden h src tensor "
        "q query query_states",
        "residual": "r res resid skip residual_in",
        "mask": "dropout_mask keep_mask keep dmask",
        "gate": "g z gating gates",
        "weight": "w weights gamma g scale gain",
        "bias": "b beta shift use_bias with_bias",
        "dy": "grad_output grad_outputs grad_out grad_y grad do dout gy dz",
        "dresidual_out": "dresidual ds ds_out dres grad_residual_out",
        "residual_out": "s summed x_plus_residual x input hidden_states",  # the x of a fused addition's backward
        "mean": "mu means save_mean saved_mean",
        "rstd": "inv_std invstd inv_var invvar rrms inv_rms rsigma save_rstd saved_rstd save_invstd",
        "running_mean": "moving_mean",
        "running_var": "moving_var running_variance",
        "scale": "output_scale out_scale y_scale scale_y quant_scale scale_msa scale_mlp",
        "shift": "shift_msa shift_mlp",
        "global_scale": "input_global_scale sf_scale",
        "y_scale": "scales scale out_scale output_scale scale_out token_scales group_scales output_s",
        "scale_ub": "scale_upper_bound ub",
        "cos": "cos_cache cosine freqs_cos cos_table",
        "sin": "sin_cache sine freqs_sin sin_table",
        "eps": "epsilon variance_epsilon variance_eps var_epsilon var_eps norm_eps norm_epsilon layer_norm_eps "
        "layer_norm_epsilon layernorm_eps layernorm_epsilon ln_eps rms_norm_eps rms_norm_epsilon rmsnorm_eps rms_eps",
        "variance_size": "variance_size_override var_hidden_size partial_size",
        "dropout_p": "p drop_p dropout dropout_rate p_dropout",
        "num_groups": "G groups n_groups ngroups num_group",
        "weight_offset": "offset unit_offset add_unit_offset zero_centered_gamma zero_centered_weight zero_centered "
        "layernorm_zero_centered_gamma apply_layernorm_1p",
        "training": "is_training train",
        "momentum": "",
        "normalized_shape": "norm_shape",
        FEATURES: "hidden_size hidden_dim hidden dim d d_model n_embd embed_dim embedding_dim emb_dim ndim size n c "
        "n_cols ncols num_features num_channels n_channels channels head_dim head_size dim_head",
        "affine": "elementwise_affine use_affine",
        "running": "track_running_stats",
        "y": "out output result",
        "amax": "abs_max absmax",
        "dx": "grad_input grad_x dinput out output",
        "dresidual": "dres grad_residual dresidual_in",
        "dgate": "dg dz grad_gate grad_g",
        "dscale": "grad_scale",
        "dshift": "grad_shift",
        "dweight": "dw dgamma grad_weight grad_gamma",
        "dbias": "db dbeta grad_bias grad_beta",
    }.items()
}

# Of weight_offset: whether 1 is added, in any annotation.
FLAGS = frozenset(ALIASES["weight_offset"]) - {"offset", "unit_offset"}


def meant(name: str, offered: Iterable[str]) -> str | None:
    """Return which of the offered names an argument's name stands for; None if it stands for none.

    >>> meant("dY", ("dy", "x")), meant("G", ("weight", "num_groups")), meant("g", ("weight", "num_groups"))
    ('dy', 'num_groups', 'weight')
    >>> meant("gate", ("x", "weight")) is None, meant("g", ("x", "gate", "weight"))
    (True, 'gate')
    """
    offered = tuple(offered)
    for spelling in dict.fromkeys((name, name.lower())):
        if spelling in offered:
            return spelling
        for ours in offered:
            if spelling in ALIASES.get(ours, ()):
                return ours
    return None
