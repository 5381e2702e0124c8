"""The table of bugs that show in what a run seldom does: modes, autograd, history, effects, unusual inputs."""

from verify_norm.kernels.zoo.example import Example, Kind, row

_Row = tuple[str, str, str]  # the name, which ends in the function's; what is wrong; the source


def _wrong(module: str, kind: Kind, op: str, outputs: str, caught_by: str, *rows: _Row) -> tuple[Example, ...]:
    """Return the rows of bugs of one kind in one module; names of checks, and of outputs, are separated by spaces."""
    checks = tuple(caught_by.split())
    return tuple(
        row(
            *(name, op, f"{module}:{name.partition('_')[2]}", kind, line, source),
            outputs=tuple(outputs.split()),
            caught_by=checks,
            backend="torch",
        )
        for name, line, source in rows
    )


SELDOM: tuple[Example, ...] = (
    *_wrong(
        *("modes", "mode", "rmsnorm_fwd", "y", "modes"),
        ("B01_trained", "where x requires a gradient, x̂ is rounded to the type of x", "apex's fused norms"),
        ("B02_tuned", "the same where the weight alone is trained", "norms under adapters"),
        ("B03_served", "the same in inference mode", "fast paths of servers"),
        ("B08_compiled", "under torch.compile it has an eps of its own", "is_compiling() in transformers"),
        ("B09_Evaluated", "in evaluation x̂ is rounded to the type of x", "modules with two paths"),
    ),
    *_wrong(
        *("modes", "mode", "rmsnorm_fwd", "", "modes"),
        ("B04_reused", "under no_grad y is written over x", "Liger #376"),
        ("B05_versioned", "fails in inference mode, whose tensors have no version", "caches by Tensor._version"),
        ("B91_recording_again", "under no_grad it leaves gradients recorded", "switches put back to a constant"),
        ("B07_cast_into", "fails under autocast: its sums have another type than their buffer", "norms by einsum"),
    ),
    *_wrong(
        *("modes", "mode", "rmsnorm_fwd", "y", "modes"),
        ("B78_lowered", "x is rounded to bfloat16 where torch may multiply in TF32", "set_float32_matmul_precision"),
        ("B69_batched", "its rule for vmap has the first sample's weight for all", "register_vmap by hand"),
    ),
    *_wrong(
        *("modes", "mode", "rmsnorm_fwd", "rstd", "modes"),
        ("B79_default_type", "a buffer of torch's default type is written as float32", "set_default_dtype"),
    ),
    *_wrong(
        *("modes", "mode", "batchnorm_fwd", "y", "modes"),
        ("B80_Untracked", "evaluates with mean 0 and variance 1 where it keeps none", "track_running_stats=False"),
    ),
    *_wrong(
        *("modes", "mode", "layernorm_fwd", "y mean rstd", "modes"),
        ("B06_cast", "the mean is a matrix product, which autocast makes narrow", "norms by einsum"),
    ),
    *_wrong(
        *("functions", "autograd", "add_rmsnorm_bwd", "dx dweight", "autograd"),
        ("B10_SavesX", "a fused addition saves x, not the sum", "plausible"),
    ),
    *_wrong(
        *("functions", "autograd", "add_rmsnorm_bwd", "dx", "autograd"),
        ("B11_NoCotangent", "where nothing depends on y, the sum's gradient is lost", "set_materialize_grads(False)"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "dx", "autograd"),
        ("B12_RstdToo", "rstd is returned as if its gradient were 0", "no mark_non_differentiable"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "dx dweight", "autograd"),
        ("B13_Consumed", "the backward overwrites what it has saved", "Liger #376"),
        ("B15_Attribute", "x is saved behind torch's version counter", "ctx.x = x"),
        ("B17_TwiceDifferentiable", "derivatives of the gradients take rstd for a constant", "no once_differentiable"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "", "autograd"),
        ("B96_OverY", "dx is stored over y, which the caller still holds", "Liger #376"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "", "autograd"),
        ("B14_Freed", "fails in a second backward over one graph", "contexts that free tensors early"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "", "autograd"),
        ("B72_ForwardMode", "in forward mode rstd is a constant", "jvp of autograd.Function"),
        ("B81_WeightAlone", "a tangent of the weight alone is lost", "set_materialize_grads(False)"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "", "autograd effects"),
        ("B16_Accumulates", "weight.grad is written, and the gradient returned too", "Megatron's fused accumulation"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "dx", "accuracy"),
        ("B18_FrozenWeight", "a frozen weight is left out of dx", "needs_input_grad"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "dweight", "signature"),
        ("B19_FrozenX", "no dweight where x is frozen", "needs_input_grad"),
    ),
    *_wrong(
        *("functions", "autograd", "rmsnorm_bwd", "dx dweight", "autograd calls"),
        ("B20_OnClass", "a second forward replaces what the first backward needs", "state on a Function's class"),
    ),
    *_wrong(
        *("inputs", "refusal", "rmsnorm_fwd", "", "signature"),
        ("B21_misaligned", "a fault whose words speak of a GPU, where rows are no whole vectors", "robust-kbench"),
        ("B22_too_long", "rows above 4096 need more shared memory than there is", "Triton's OutOfResources"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_bwd", "dx dweight", "nonfinite"),
        ("B30_swallows_nan_of_dy", "NaN in dy becomes 0", "nan_to_num for mixed precision"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_fwd", "y", "nonfinite degenerate"),
        ("B31_swallows_nan_of_weight", "NaN in the weight becomes a number", "fmin and fmax"),
        ("B33_looks_at_first_row", "NaN in other rows than the first becomes 0", "plausible"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_fwd", "y rstd", "nonfinite"),
        ("B32_clamps", "−inf in x becomes a number", "T5 of transformers"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_fwd", "y rstd", "accuracy statistics"),
        ("B34_scale_of_all", "all rows are scaled by the largest element of all", "norms safe against overflow"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_bwd", "dx dweight", "accuracy"),
        (
            "B35_masked_by_first_row",
            "16 rows are taken for padding where dy is 0 in the first",
            "skipped tiles of masked tokens",
        ),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_fwd", "y", "nonfinite"),
        ("B73_infinity_hides_nan", "where a row has NaN and an infinity, y is infinite", "norms safe against overflow"),
    ),
    *_wrong(
        *("inputs", "values", "rmsnorm_fwd", "y", "degenerate"),
        ("B74_by_sign", "y of 0 is −0 where the weight is positive", "norms by magnitude and sign"),
    ),
    *_wrong(
        *("inputs", "layout", "rmsnorm_fwd", "y rstd", "accuracy"),
        ("B76_offset_of_16_bits", "an offset of x in its storage beyond 2^16 wraps", "packed descriptors"),
    ),
    *_wrong(
        *("inputs", "aliasing", "add_rmsnorm_fwd", "y residual_out rstd", "accuracy"),
        (
            "B77_doubled",
            "x and residual that are one tensor are not added",
            "fused additions with an optional residual",
        ),
    ),
    *_wrong(
        *("inputs", "size", "rmsnorm_fwd", "y rstd", "accuracy statistics"),
        ("B36_columns_below", "columns from 32,768 on are left out of the sum", "xformers #785"),
    ),
    *_wrong(
        *("inputs", "size", "rmsnorm_fwd", "y", "accuracy"),
        ("B37_rows_below", "rows from 65,535 on are 0", "rows in a grid's second dimension"),
        ("B38_persistent", "where rows are a multiple of 1024, the last four are 0", "persistent kernels"),
    ),
    *_wrong(
        *("inputs", "size", "groupnorm_fwd", "y mean rstd", "accuracy statistics"),
        (
            "B39_channels_below",
            "statistics are those of the first 16 channels of a group",
            "a fixed number of registers",
        ),
    ),
    *_wrong(
        *("inputs", "size", "groupnorm_fwd", "y", "accuracy"),
        ("B82_channels_of_one_group", "of one group's channels those from 1024 on have other weights", "plausible"),
        ("B83_samples_below", "samples from 65,535 on are 0", "samples in a grid's second dimension"),
    ),
    *_wrong(
        *("inputs", "layout", "rmsnorm_bwd", "dx dweight", "accuracy"),
        ("B40_columns_adjacent", "dy of strides (1, 0) is read beyond its elements", "FlagGems #1084"),
        ("B87_one_row_for_all", "dy of strides (N, 0, 1), as of .sum(1), is one row for all samples", "plausible"),
    ),
    *_wrong(
        *("inputs", "layout", "rmsnorm_fwd", "y rstd", "accuracy"),
        (
            "B41_rows_evenly_apart",
            "a batch's slice of longer sequences is read as if whole",
            "x.view(-1, N) by strides",
        ),
    ),
    *_wrong(
        *("inputs", "layout", "rmsnorm_fwd", "y", "accuracy"),
        ("B42_weight_in_storage_order", "a transposed 2-D weight is read in memory's order", "plausible"),
    ),
    *_wrong(
        *("inputs", "layout", "rmsnorm_fwd", "", "memory"),
        ("B43_donated", "an x with a storage of its own is overwritten", "buffers taken for temporary ones"),
    ),
    *_wrong(
        *("inputs", "options", "rmsnorm_fwd", "y", "accuracy"),
        (
            "B44_unit_weight",
            "a weight of ones is left out, and the product is narrow",
            "paths without affine parameters",
        ),
        ("B45_offset_is_a_flag", "any offset of the weight is taken for 1", "kernels with a flag for Gemma"),
        ("B88_offset_above_zero", "an offset of the weight below 0 is left out", "plausible"),
    ),
    *_wrong(
        *("inputs", "eps", "rmsnorm_fwd", "y rstd", "accuracy statistics identities"),
        ("B46_eps_in_type_of_x", "eps is rounded to the type of x", "torch.tensor(eps, dtype=x.dtype)"),
    ),
    *_wrong(
        *("inputs", "dtype", "rmsnorm_fwd", "y", "accuracy"),
        ("B47_type_of_weight", "x̂ is rounded to the type of a narrower weight", "LlamaRMSNorm with a float32 x"),
    ),
    *_wrong(
        *("inputs", "numerics", "add_rmsnorm_fwd", "residual_out", "accuracy"),
        ("B48_ties_away", "the sum's ties are rounded away from 0", "casts by adding 0x8000"),
    ),
    *_wrong(
        *("inputs", "dtype", "add_rmsnorm_fwd", "y residual_out rstd", "accuracy"),
        ("B94_narrowed_stream", "a float32 residual is rounded to the type of x before the addition", "plausible"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_fwd", "y rstd", "calls"),
        ("B50_kept_by_address", "rstd is kept by the address of x", "CUDA-L1: pointer replay"),
        ("B85_eps_forgotten", "rstd is kept by the content of x, whatever eps is", "caches by content"),
        ("B53_sampled", "rstd is kept unless the first or the last element changes", "kernelguard: content signature"),
        ("B54_replayed", "right ten times for a shape, then the tenth result again", "llm.c #851"),
        ("B57_shared_scratch", "calls in two threads share a scratch buffer", "global workspaces"),
    ),
    *_wrong(
        *("history", "state", "add_rmsnorm_fwd", "y rstd", "calls"),
        ("B84_residual_forgotten", "the sum's rstd is kept by the content of x", "caches by content"),
    ),
    *_wrong(
        *("history", "state", "layernorm_fwd", "y", "calls"),
        ("B86_bias_by_sum", "a converted bias is kept by its sum", "kernelguard: content signature"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_fwd", "y", "calls"),
        ("B51_weight_by_address", "a converted weight is kept by its address", "plausible"),
        ("B71_weight_by_sum", "a converted weight is kept by its sums", "kernelguard: content signature"),
        ("B55_ring", "y is one of four buffers in turn", "workspaces in a ring"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_fwd", "y rstd", "accuracy calls degenerate identities"),
        ("B52_plan_by_shape", "the plan of a shape keeps the eps of its first call", "plans kept by shape"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_fwd", "y", "accuracy calls determinism memory"),
        ("B56_late", "a thread stores the last row after the call", "pygpubench: submission_thread_fd"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_bwd", "dweight", "accuracy determinism"),
        ("B58_partials_left", "partial sums of an earlier, longer call are added", "workspaces that only grow"),
    ),
    *_wrong(
        *("history", "state", "rmsnorm_fwd", "y", "accuracy calls"),
        ("B59_converted", "a module keeps the weight of its first call", "plausible"),
    ),
    *_wrong(
        *("history", "effect", "rmsnorm_fwd", "", "effects"),
        ("B60_seeds", "seeds torch's global generator", "kernels that round at random"),
        ("B61_grad_left_off", "leaves gradients switched off", "torch.set_grad_enabled as a function"),
        ("B62_tf32_left_on", "leaves TF32 switched on", "plausible"),
        ("B63_leaf", "makes the caller's weight require a gradient", "plausible"),
        ("B64_keeps_inputs", "keeps every x in memory", "debugging left in"),
    ),
    *_wrong(
        *("history", "effect", "rmsnorm_fwd", "", "calls"),
        ("B93_grad_off_by_an_error", "a call that fails leaves gradients switched off", "no finally clause"),
    ),
    *_wrong(
        *("history", "effect", "layernorm_fwd", "y", "effects memory"),
        ("B65_shared_rows", "rows of one element share the memory of bias", "expand without clone"),
    ),
    *_wrong(
        *("groupnorm", "state", "batchnorm_fwd", "running_mean running_var", "accuracy"),
        ("B92_first_batch_alone", "the first batch replaces the running statistics of a new module", "plausible"),
    ),
    *_wrong(
        *("groupnorm", "autograd", "batchnorm_bwd", "", "autograd"),
        ("B95_learns_again", "the running statistics are updated in the backward too", "torch.utils.checkpoint"),
    ),
    *_wrong(
        *("history", "effect", "batchnorm_fwd", "", "signature"),
        ("B66_Uncounted", "num_batches_tracked stays as it is", "BatchNorms written anew"),
    ),
    *_wrong(
        *("custom", "effect", "rmsnorm_fwd", "", "effects"),
        ("B68_wrong_fake", "the fake implementation gives rstd the type of x", "torch.library's register_fake"),
    ),
    row(
        *("B67_on_cpu", "rmsnorm_fwd", "history:on_cpu", "effect"),
        *("results are on the CPU", "references used as kernels"),
        caught_by=("signature",),
        backend="torch",
        needs="gpu",
        reason="on a CPU they are where they must be",
    ),
)
