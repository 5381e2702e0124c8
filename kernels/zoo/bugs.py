"""The table of bugs read in public trackers; the letters and numbers are those of the project's list of them."""

from verify_norm.kernels.zoo import Specimen, specimen
from verify_norm.spec import Contract

ATOMIC: Contract = Contract(summation="atomic", deterministic=False)
VALUES: tuple[str, ...] = ("accuracy", "statistics")
GRADIENTS: tuple[str, ...] = ("accuracy", "gradient")
Y: tuple[str, ...] = ("y", "rstd")
STATS: tuple[str, ...] = ("y", "mean", "rstd")

BUGS: tuple[Specimen, ...] = (
    specimen(
        "A01_ln_masked_variance", "layernorm_fwd", "layernorm:masked_variance", "masking",
        "lanes beyond the row add mean² to the variance",
        "Liger #518, unsloth #1867", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A02_gn_mask_bound_C", "groupnorm_fwd", "groupnorm:mask_bound_c", "masking",
        "a group whose channels are no power of two takes in channels of the next group",
        "FlagGems #4984", outputs=STATS, caught_by=VALUES,
    ),
    specimen(
        "A03_dw_partials_uninit", "layernorm_bwd", "layernorm:dw_partials_uninit", "coverage",
        "partial sums that no row wrote to are added, and hold what the memory held",
        "Triton's tutorial 05 (seed 001)", outputs=("dweight", "dbias"), caught_by=GRADIENTS, few=True,
        contract=ATOMIC,
    ),
    specimen(
        "A04_dw_partials_floor", "rmsnorm_bwd", "rmsnorm:dw_partials_floor", "coverage",
        "dweight leaves out the rows of the last, incomplete tile",
        "attorch #18", outputs=("dweight",), caught_by=GRADIENTS,
    ),
    specimen(
        "A05_row_tile_unmasked", "layernorm_fwd", "layernorm:row_tile_unmasked", "memory",
        "an odd number of rows: the last tile of two writes a row beyond y",
        "TurboDiffusion #103", outputs=("y",), caught_by=("memory",), few=True,
    ),
    specimen(
        "A06_cols_beyond_block", "layernorm_fwd", "layernorm:cols_beyond_block", "coverage",
        "columns from 1024 on are neither read nor written",
        "xformers #785", outputs=STATS, caught_by=VALUES,
    ),
    specimen(
        "A07_row_sum_broadcast", "rmsnorm_bwd", "rmsnorm:row_sum_broadcast", "gradient",
        "in a square tile the row sums run along the columns",
        "attorch #17", outputs=("dx",), caught_by=GRADIENTS, few=True,
    ),
    specimen(
        "A08_prenorm_dres_early", "add_rmsnorm_bwd", "rmsnorm:prenorm_dres_early", "gradient",
        "the residual stream's gradient goes through the norm",
        "quack #53", outputs=("dx", "dweight"),
    ),
    specimen(
        "A09_gated_recompute_pregate", "rmsnorm_bwd", "rmsnorm:right_bwd", "gradient",
        "a gated norm's backward, fused with a linear layer, recomputes y without the gate",
        "fla #1071", needs="none", reason="no such operator: none has a gate, or a weight of the layer that follows",
    ),
    specimen(
        "A10_mem_efficient_gamma0", "layernorm_bwd", "layernorm:mem_efficient_gamma0", "numerics",
        "x̂ is recovered from y by dividing by the weight, and is 0 where the weight is",
        "apex #1715", outputs=("dx", "dweight"), caught_by=GRADIENTS, backend="torch",
    ),
    specimen(
        "A11_offset_bwd_forgotten", "rmsnorm_bwd", "rmsnorm:offset_bwd_forgotten", "options",
        "the weight's offset is in the forward alone",
        "Liger #74", outputs=("dx",), caught_by=GRADIENTS,
    ),
    specimen(
        "A12_dy_contiguous_assumed", "rmsnorm_bwd", "rmsnorm:dy_contiguous_assumed", "layout",
        "dy is read by the strides of a contiguous x",
        "FlagGems #1084", outputs=("dx", "dweight"), caught_by=GRADIENTS,
    ),
    specimen(
        "A13_normalize_drops_col_stride", "rmsnorm_fwd", "rmsnorm:normalize_drops_col_stride", "layout",
        "the second pass takes the columns of x to be adjacent",
        "LightLLM #1467", outputs=("y",),
    ),
    specimen(
        "A14_y_uses_x_stride", "layernorm_fwd", "layernorm:y_uses_x_stride", "layout",
        "y is written by x's row stride: beyond its end where x has gaps, all rows into one where x is expanded",
        "Triton's tutorial 05 (seed 001)", outputs=("y",), caught_by=("accuracy", "memory"),
    ),
    specimen(
        "A15_vec_load_unaligned", "layernorm_fwd", "layernorm:vec_load_unaligned", "alignment",
        "x is read by 16 bytes at a time wherever it begins",
        "flash-attention d2f4324f", caught_by=("crash", "signature"), needs="gpu",
        reason="a CPU, and Triton's interpreter, read any address", few=True,
    ),
    specimen(
        "A16_int32_row_offset", "rmsnorm_fwd", "rmsnorm:int32_row_offset", "index",
        "row·stride wraps at 2³¹",
        "Liger #804", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A17_onepass_variance", "layernorm_fwd", "layernorm:onepass_variance", "numerics",
        "mean(x²) − mean² cancels where the mean is far from 0",
        "MLX #2238, seed 004", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A18_fp16_sumsq", "rmsnorm_fwd", "rmsnorm:fp16_sumsq", "numerics",
        "squares are formed and summed in float16",
        "onnxruntime #29034", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A19_onepass_variance_clipped", "layernorm_fwd", "layernorm:onepass_variance_clipped", "numerics",
        "mean(x²) − mean², held at 0 or above, so that no NaN tells of it",
        "equinox #314", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A20_stats_saved_bf16", "layernorm_bwd", "layernorm:stats_saved_in_x_dtype", "dtype",
        "mean and rstd are kept for the backward in the type of x",
        "llm.c 7beaa1e, helion #2273", outputs=("dx", "dweight"), caught_by=GRADIENTS,
    ),
    specimen(
        "A20_stats_saved_bf16_fwd", "layernorm_fwd", "layernorm:stats_returned_in_x_dtype", "dtype",
        "mean and rstd are returned in the type of x",
        "llm.c 7beaa1e, helion #2273", outputs=("mean", "rstd"), caught_by=("signature", "statistics"),
    ),
    specimen(
        "A21_dw_sum_bf16", "rmsnorm_bwd", "rmsnorm:dw_sum_in_x_dtype", "dtype",
        "partial sums of dweight have the type of x, and are added in it",
        "Liger #950", outputs=("dweight",), caught_by=GRADIENTS,
    ),
    specimen(
        "A22_weight_bytes_reinterpreted", "rmsnorm_fwd", "rmsnorm:weight_bytes_reinterpreted", "dtype",
        "a float32 weight beside a 16-bit x is read as 16-bit numbers",
        "sglang #32807", outputs=("y",),
    ),
    specimen(
        "A23_residual_rounded_first", "add_rmsnorm_fwd", "rmsnorm:residual_rounded_first", "numerics",
        "the norm is that of the sum as rounded, which its contract does not say",
        "vLLM #52104", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A24_eps_outside_sqrt", "layernorm_fwd", "layernorm:eps_outside_sqrt", "eps",
        "eps is added to the root, not under it",
        "fla 83845577", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A25_eps_none_low_precision", "rmsnorm_fwd", "rmsnorm:default_eps_of_x_dtype", "eps",
        "the default of eps depends on the type of x",
        "pytorch #189581", outputs=Y, caught_by=VALUES, own=True,
    ),
    specimen(
        "A26_eps_on_sum", "rmsnorm_fwd", "rmsnorm:eps_on_sum", "eps",
        "eps is added to the sum of squares, not to their mean",
        "mlx-lm #1624 (its mirror image)", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "A27_lock_no_barrier", "layernorm_bwd", "layernorm:lock_no_barrier", "race",
        "a lock is released before all threads have stored what it guards",
        "triton #6307", outputs=("dweight", "dbias"), caught_by=("accuracy", "determinism"), needs="gpu",
        reason="the interpreter runs one program after another", contract=ATOMIC,
    ),
    specimen(
        "A28_block_depends_on_M", "rmsnorm_fwd", "rmsnorm:block_depends_on_m", "determinism",
        "a row's bits depend on how many other rows there are, which its contract denies",
        "vLLM #48391", outputs=Y, caught_by=("batch_invariance",), contract=Contract(batch_invariant=True),
    ),
    specimen(
        "A29_rank2_assumed", "layernorm_bwd", "layernorm:rank2_assumed", "shape",
        "the first dimension is taken for the rows, and all others for the columns",
        "FlagGems #5392", outputs=("dx", "dweight", "dbias"), caught_by=("accuracy", "memory", "signature"),
    ),
    specimen(
        "A30_gn_hidden_last_dim", "groupnorm_bwd", "groupnorm:hidden_last_dim", "shape",
        "the last dimension is taken for all of space",
        "Liger #1375", outputs=("dx", "dweight", "dbias"), caught_by=GRADIENTS, backend="torch",
    ),
    specimen(
        "A31_dx_over_dy", "rmsnorm_bwd", "rmsnorm:dx_over_dy", "aliasing",
        "dy is overwritten, which its contract does not say",
        "Liger #376", outputs=("dx",), caught_by=("memory",),
    ),
    specimen(
        "A32_db_after_overwrite", "layernorm_bwd", "layernorm:db_after_overwrite", "aliasing",
        "dbias is the sum of dx, which lies where dy was",
        "MLX #941", outputs=("dbias",), caught_by=GRADIENTS, contract=Contract(inplace=("dx:dy",)),
    ),
    specimen(
        "A33_dx_none_ignored", "groupnorm_bwd", "groupnorm:unwanted_gradient_stored", "memory",
        "a gradient that nobody asked for is stored in a buffer of one element (here dbias; upstream dx, which our "
        "operators always ask for)",
        "pytorch #44863", caught_by=("memory",),
    ),
    specimen(
        "A34_dw_missing", "rmsnorm_bwd", "rmsnorm:dw_missing", "options",
        "None is returned for the weight's gradient",
        "unsloth #4533", outputs=("dweight",), caught_by=("signature",),
    ),
    specimen(
        "A35_empty_rows_launch", "rmsnorm_fwd", "rmsnorm:empty_rows_launch", "degenerate",
        "no rows: the launch is computed all the same, and fails",
        "flash-attention #1620", caught_by=("signature",),
    ),
    specimen(
        "A36_empty_batch_poisons_state", "batchnorm_fwd", "groupnorm:empty_batch_poisons_state", "state",
        "a batch of no samples makes the running statistics NaN",
        "pytorch #12013", outputs=("running_mean", "running_var"), caught_by=VALUES, backend="torch",
    ),
    specimen(
        "A37_running_var_biased", "batchnorm_fwd", "groupnorm:running_var_biased", "state",
        "the running variance is that over n, not over n − 1",
        "trident bed3c4d", outputs=("running_var",), caught_by=VALUES, backend="torch",
    ),
    specimen(
        "A38_default_stream", "layernorm_fwd", "layernorm:default_stream", "race",
        "the launch is not in torch's current stream",
        "pytorch #22470", outputs=("y", "mean", "rstd"), caught_by=("determinism",), needs="gpu",
        reason="a CPU has no streams",
    ),
    specimen(
        "A39_no_dependency_wait", "rmsnorm_fwd", "rmsnorm:no_dependency_wait", "race",
        "a dependent launch loads before the launch ahead of it has stored",
        "sglang #38290", outputs=("y", "rstd"), caught_by=("determinism",), needs="sm_90",
        reason="no other device has dependent launches",
    ),
    specimen(
        "A40_amax_too_early", "rmsnorm_fp8_fwd", "rmsnorm:amax_too_early", "race",
        "a dependent launch loads what the kernel's launch before it has not stored yet",
        "cutlass #2760", outputs=("amax",), caught_by=("accuracy", "determinism"), needs="sm_90",
        reason="no other device has dependent launches",
    ),
)  # fmt: skip
