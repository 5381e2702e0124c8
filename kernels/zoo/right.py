"""The table of kernels that are right, with the promise each of them makes: none of them is ever to be convicted."""

from functools import partial

from verify_norm.kernels.zoo import Specimen, specimen
from verify_norm.kernels.zoo.bugs import ATOMIC
from verify_norm.spec import Contract

LADDER = "seed 004, a CUDA ladder after llm.c"
_right = partial(specimen, wrong=False, caught_by=())

RIGHT: tuple[Specimen, ...] = (
    _right(
        "U01_atomic_dweight", "layernorm_bwd", "unusual:atomic_dweight", "unusual",
        "dweight and dbias by atomic additions in float32: other bits at every run", "Triton's tutorial 05",
        contract=ATOMIC, few=True,
    ),
    _right(
        "U02_llama_order", "rmsnorm_fwd", "unusual:llama_order", "unusual",
        "x̂ is rounded before it meets the weight, and that is declared", "Liger #92, vLLM #42379",
        contract=Contract(xhat="x"), backend="torch",
    ),
    _right(
        "U02_gemma_order", "rmsnorm_fwd", "unusual:gemma_order", "unusual",
        "all in float32, then one rounding", "Liger #92, vLLM #42379", backend="torch",
    ),
    _right(
        "U03_shifted_onepass", "layernorm_fwd", "unusual:shifted_onepass", "unusual",
        "one-pass variance of what is left when the first element is subtracted", "MLX #2238",
        contract=Contract(variance="shifted"), backend="torch",
    ),
    _right(
        "U03_welford", "layernorm_fwd", "unusual:welford", "unusual",
        "Welford in lanes, merged by Chan's formula", "seed 003, mended",
        backend="torch",
    ),
    _right(
        "U04_library_var_mean", "layernorm_fwd", "unusual:library_var_mean", "unusual",
        "statistics some ulp from those of two passes", "pytorch #186577", backend="torch",
    ),
    _right(
        "U05_approximate_rsqrt", "layernorm_fwd", "unusual:approximate_rsqrt", "unusual",
        "an rstd that is off by 2 ulp", "CUDA's rsqrtf",
    ),
    _right(
        "U06_in_place", "rmsnorm_bwd", "unusual:in_place", "unusual",
        "dx is written over dy, and that is declared", "Liger #376",
        contract=Contract(inplace=("dx:dy",)),
    ),
    _right(
        "U07_overflowing", "rmsnorm_fwd", "unusual:overflowing", "unusual",
        "squares overflow float32 from 2e19 on", "pytorch #178123", backend="torch",
    ),
    _right(
        "U08_one_column", "layernorm_bwd", "unusual:one_column", "unusual",
        "rows of one element: exact zeros", "the definition",
    ),
    _right(
        "U09_exact_zero", "layernorm_bwd", "unusual:exact_zero", "unusual",
        "dx is exactly 0 where w·dy is constant", "the definition", backend="torch",
    ),
    _right(
        "U10_no_rows", "rmsnorm_bwd", "unusual:no_rows", "unusual",
        "no rows: zeros for dweight, and no launch", "the definition",
    ),
    _right(
        "U11_memory_format_of_x", "layernorm_fwd", "unusual:memory_format_of_x", "unusual",
        "x is copied to be read, and y has the strides of x", "pytorch #111824",
    ),
    _right(
        "U12_same_value_by_many", "layernorm_fwd", "unusual:same_value_by_many", "unusual",
        "many programs store the same number in the same place", LADDER, few=True,
    ),
    _right(
        "U13_own_stream", "layernorm_fwd", "unusual:own_stream", "unusual",
        "a stream of its own, which waits for the current one and is waited for", "CUDA's streams", needs="gpu",
        reason="a CPU has no streams",
    ),
    _right("H01_layernorm_fwd", "layernorm_fwd", "layernorm:right_fwd", "unusual", "the host without a bug", "ours"),
    _right("H02_layernorm_bwd", "layernorm_bwd", "layernorm:right_bwd", "unusual", "the host without a bug", "ours"),
    _right("H03_rmsnorm_fwd", "rmsnorm_fwd", "rmsnorm:right_fwd", "unusual", "the host without a bug", "ours"),
    _right("H04_rmsnorm_bwd", "rmsnorm_bwd", "rmsnorm:right_bwd", "unusual", "the host without a bug", "ours"),
    _right("H05_groupnorm_fwd", "groupnorm_fwd", "groupnorm:right_fwd", "unusual", "the host without a bug", "ours"),
    _right(
        "H06_groupnorm_bwd", "groupnorm_bwd", "groupnorm:backward", "unusual", "the host without a bug", "ours",
        backend="torch",
    ),
    _right(
        "H07_batchnorm_fwd", "batchnorm_fwd", "groupnorm:batchnorm", "unusual", "the host without a bug", "ours",
        backend="torch",
    ),
    _right(
        "H08_tutorial", "layernorm_bwd", "tutorial:backward", "unusual", "the tutorial's backward, mended",
        "triton #6307", contract=ATOMIC, few=True,
    ),
    _right(
        "H09_tutorial_flagged", "layernorm_bwd", "tutorial:flagged", "unusual",
        "the same with a flag for the first to store, and rows of one buffer in turn", "triton #6307",
        contract=ATOMIC, few=True,
    ),
    _right(
        "H10_welford", "groupnorm_fwd", "welford:expanded", "unusual", "the text's GroupNorm, mended and declared",
        "seed 003", contract=Contract(expanded=True),
    ),
    _right(
        "H11_ladder_tail", "layernorm_fwd", "ladder:guarded_tail", "unusual", "kernel 2 with its guard", LADDER,
        few=True,
    ),
    _right(
        "H12_ladder_tree", "layernorm_fwd", "ladder:whole_tree", "unusual", "kernel 2 with all of its sums", LADDER,
        few=True,
    ),
    _right(
        "H13_ladder_warps", "layernorm_fwd", "ladder:every_warp", "unusual", "kernel 5 with all of its warps", LADDER,
        few=True,
    ),
)  # fmt: skip
