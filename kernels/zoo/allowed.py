"""The table of right kernels that are called or written in ways that a verifier may take for wrong."""

from verify_norm.core.contract import Contract
from verify_norm.kernels.zoo.example import Example, row


def _right(
    module: str, op: str, *rows: tuple[str, str, str], contract: Contract | None = None, bind: str = ""
) -> tuple[Example, ...]:
    """Return the rows of kernels in one module: the function's name after that of the row, what it does, and source."""
    return tuple(
        row(
            *(name, op, f"{module}:{name.partition('_')[2]}", "unusual", line, source),
            wrong=False,
            caught_by=(),
            backend="torch",
            contract=contract,
            bind=bind,
        )
        for name, line, source in rows
    )


ALLOWED: tuple[Example, ...] = (
    *_right(
        "habits",
        "rmsnorm_fwd",
        ("U17_built", "its first call in a process takes long", "compilers"),
        ("U20_kahan", "a running sum that carries what it loses", "Kahan"),
        ("U21_in_float64", "float64 inside", "references"),
        ("U22_in_numpy", "NumPy inside", "references"),
        ("U23_weight_required", "takes no None for the weight", "most libraries"),
        ("U24_two_dimensions", "takes matrices with rows of whole vectors, and says so", "sgl-kernel"),
        ("U25_y_and_none", "returns (y, None)", "FlagGems"),
        ("U27_by_name", "returns a mapping", "plausible"),
        ("U30_by_compile", "torch.compile without code of its own", "torch.compile"),
        ("U33_anything_by_name", "takes everything by **kwargs", "wrappers"),
        ("U34_of_partial", "a functools.partial", "wrappers"),
        ("U35_view_of_more", "y is a view of a larger, new buffer", "padded outputs"),
        ("U36_transposed", "y has other strides than x", "layouts"),
        ("U37_own_scratch", "a scratch buffer for each thread", "workspaces"),
        ("U58_into_zeros", "y is added to zeros, which lose the sign of −0", "scatter and index_add"),
        ("U38_converted", "a module keeps a converted weight by its version counter", "caches by Tensor._version"),
    ),
    *_right(
        "habits",
        "rmsnorm_fwd",
        ("U18_by_matrix_product", "sums by BLAS, of few rows in one lane, which is declared", "BLAS"),
        contract=Contract(summation="sequential"),
    ),
    *_right(
        "habits",
        "rmsnorm_fwd",
        ("U19_one_running_sum", "one running sum, declared", "loops"),
        contract=Contract(summation="sequential"),
    ),
    *_right(
        "habits",
        "rmsnorm_fwd",
        ("U26_one_output_more", "returns x̂ too, which the binding names", "fla"),
        bind="-> y,rstd,_",
    ),
    *_right(
        "habits",
        "rmsnorm_fwd",
        ("U28_saturates", "saturates where others overflow, declared", "torch_npu"),
        contract=Contract(saturate="saturate"),
    ),
    *_right("habits", "layernorm_fwd", ("U29_in_threads", "two threads, which are joined", "CPU kernels")),
    *_right(
        "cheats.honest",
        "rmsnorm_fwd",
        ("U43_plan_by_shape", "a plan is kept for each shape", "autotuners"),
        ("U44_workspace", "a workspace of each thread grows and is kept", "CUB's temporary storage"),
        ("U45_constants", "constants on the device in functools.lru_cache", "plausible"),
        ("U46_table", "a table is built in the first call, which imports a module", "lazy initialization"),
        ("U47_pool", "a pool of threads is kept, and waited for", "CPU kernels"),
        ("U48_worker", "a thread that is always there stores y, and is waited for", "servers"),
        (
            "U49_static_graph",
            "x is copied to where a graph was captured, and the result from there",
            "vLLM's CUDA graphs",
        ),
        ("U50_labelled", "a subclass of Tensor that is a label, an attribute on an output", "metadata on tensors"),
        ("U51_falls_back", "calls torch's own norm", "fallbacks in libraries"),
        ("U52_by_name", "a mapping of its own class, which gives views", "TensorDict"),
        ("U53_looks_around", "logs its caller and the command", "loggers"),
        ("U54_puts_back", "a timer and hooks, which it puts back", "watchdogs, profilers"),
        ("U55_processes", "another process computes a part, and is waited for", "multiprocessing"),
    ),
    *_right(
        "cheats.imports",
        "rmsnorm_fwd",
        ("U56_registers", "its module registers a callback of the garbage collector", "JAX"),
    ),
    *_right(
        *("history", "rmsnorm_fwd"),
        ("U59_content_and_eps", "keeps rstd by the content of x and by eps", "caches by content"),
    ),
    *_right(
        "in_turn",
        "rmsnorm_silu_fwd",
        ("U60_silu_behind", "modules in turn round each result, declared", "torch.nn.Sequential"),
        contract=Contract(z="x"),
    ),
    *_right(
        "in_turn",
        "gated_rmsnorm_bwd",
        ("U61_gate_behind", "the gradients of modules in turn, declared", "torch's autograd"),
        contract=Contract(z="x"),
    ),
    *_right(
        "in_turn",
        "modulate_rmsnorm_bwd",
        ("U62_modulation_behind", "y has the type to which torch promotes x and a float32 scale", "diffusers"),
        contract=Contract(z="x"),
    ),
    *_right(
        "in_turn",
        "qk_norm_rope_fwd",
        ("U63_rotation_behind", "the same with cos and sin in float32", "transformers' apply_rotary_pos_emb"),
        contract=Contract(z="x"),
    ),
    *_right(
        "in_turn",
        "add_rmsnorm_fwd",
        (
            "U64_float32_stream",
            "the sum has the type to which torch promotes x and residual",
            "Mamba's residual_in_fp32",
        ),
        contract=Contract(residual="rounded"),
    ),
    *_right("custom", "rmsnorm_fwd", ("U31_operator", "an operator of torch.library", "vLLM")),
    *_right(
        "habits",
        "add_rmsnorm_fwd",
        ("U32_in_place", "writes over x and residual and returns nothing, declared", "vLLM"),
        contract=Contract(inplace=("y:x", "residual_out:residual")),
    ),
    *_right(
        "derivatives",
        "rmsnorm_bwd",
        ("U39_Recomputes", "a backward that can be differentiated, with setup_context", "torch.func"),
        ("U40_AsNeeded", "computes only the gradients that are asked for", "needs_input_grad"),
        ("U41_InFloat32", "custom_fwd and custom_bwd", "torch.amp"),
        ("U42_checkpointed", "the forward runs again in the backward", "torch.utils.checkpoint"),
        ("U57_Transformed", "rules of its own for vmap and forward mode", "torch.func"),
    ),
)
