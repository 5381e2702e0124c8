"""The table of what five published texts have wrong: two on Triton's LayerNorm, one each on NumPy, GroupNorm, CUDA."""

from verify_norm.kernels.zoo import Specimen, specimen
from verify_norm.kernels.zoo.bugs import ATOMIC, GRADIENTS, STATS, VALUES, Y
from verify_norm.spec import Contract

SUMS = ("dweight", "dbias")
EXPANDED = Contract(expanded=True)
REWRITE, TUTORIAL = "seed 000, a rewrite of Triton's tutorial 05", "seed 001, an older print of Triton's tutorial 05"
WELFORD, LADDER = "seed 003, FlyMy.AI on GroupNorm", "seed 004, a CUDA ladder after llm.c"

SEEDS: tuple[Specimen, ...] = (
    specimen(
        "S000_never_first", "layernorm_bwd", "tutorial:never_first", "coverage",
        "every row adds to partial sums that nothing has set to 0",
        REWRITE, outputs=SUMS, caught_by=GRADIENTS, few=True, contract=ATOMIC,
    ),
    specimen(
        "S000_adds_to_output", "layernorm_bwd", "tutorial:adds_to_output", "coverage",
        "the second stage adds to outputs that nothing has set to 0",
        REWRITE, outputs=SUMS, caught_by=GRADIENTS, few=True, contract=ATOMIC,
    ),
    specimen(
        "S000_as_printed", "layernorm_bwd", "tutorial:rewritten_as_printed", "coverage",
        "both, and no barrier before the lock is released",
        REWRITE, outputs=SUMS, caught_by=GRADIENTS, few=True, contract=ATOMIC,
    ),
    specimen(
        "S001_partials_in_x_dtype", "layernorm_bwd", "tutorial:partials_in_x_dtype", "dtype",
        "partial sums are kept in the type of x",
        TUTORIAL, outputs=SUMS, caught_by=GRADIENTS, few=True, contract=ATOMIC,
    ),
    specimen(
        "S001_one_stride_for_all", "layernorm_bwd", "tutorial:one_stride_for_all", "layout",
        "dy is read and dx written by x's row stride, and columns are taken to be adjacent",
        TUTORIAL, outputs=("dx", *SUMS), caught_by=("accuracy", "memory"), few=True, contract=ATOMIC,
    ),
    specimen(
        "S001_as_printed", "layernorm_bwd", "tutorial:as_printed", "coverage",
        "partial sums uninitialised and in x's type, one stride for all, no barrier before the lock is released",
        TUTORIAL, outputs=("dx", *SUMS), caught_by=("accuracy", "memory"), few=True, contract=ATOMIC,
    ),
    specimen(
        "S001_no_barrier", "layernorm_bwd", "layernorm:lock_no_barrier", "race",
        "a lock is released before all threads have stored what it guards",
        TUTORIAL, outputs=SUMS, caught_by=("accuracy", "determinism"), needs="gpu",
        reason="the interpreter runs one program after another", contract=ATOMIC,
    ),
    specimen(
        "S002_gradient_check", "layernorm_bwd", "differences:gradient_check", "check",
        "a gradient check in float32 with h = 1e-5 and gamma = 1: its noise is 1e4 times what it prints, and it cannot "
        "tell a forgotten gamma",
        "seed 002, a language model's LayerNorm in NumPy", needs="none",
        reason="it is a check, not a kernel: it convicts what is right and passes what is wrong",
    ),
    specimen(
        "S003_state_lost", "groupnorm_fwd", "welford:state_lost", "numerics",
        "Welford's loop overwrites what it has gathered",
        WELFORD, outputs=STATS, caught_by=VALUES, contract=EXPANDED,
    ),
    specimen(
        "S003_masked_lanes_undefined", "groupnorm_fwd", "welford:masked_lanes_undefined", "masking",
        "a masked lane's undefined value is merged with weight 0: NaN·0 is NaN",
        WELFORD, outputs=STATS, caught_by=VALUES, contract=EXPANDED,
    ),
    specimen(
        "S003_expanded", "groupnorm_fwd", "welford:expanded", "numerics",
        "y = a·x + (b − a·mean), which cancels where the mean is far from 0",
        WELFORD, outputs=("y",),
    ),
    specimen(
        "S004_k4_onepass", "layernorm_fwd", "ladder:onepass", "numerics",
        "mean(x²) − mean², with no word of what it costs",
        LADDER + ", kernels 4 and 5", outputs=Y, caught_by=VALUES,
    ),
    specimen(
        "S004_k2_unguarded_tail", "layernorm_fwd", "ladder:unguarded_tail", "memory",
        "the last block writes beyond y where the elements do not fill it",
        LADDER + ", kernel 2", outputs=("y",), caught_by=("memory",), few=True,
    ),
    specimen(
        "S004_k2_odd_tree", "layernorm_fwd", "ladder:odd_tree", "coverage",
        "with 96 threads the halving tree leaves out a third of the sums",
        LADDER + ", kernel 2", outputs=STATS, caught_by=VALUES, few=True,
    ),
    specimen(
        "S004_k5_dropped_warp", "layernorm_fwd", "ladder:dropped_warp", "coverage",
        "with 100 threads the last, incomplete warp's sums are left out",
        LADDER + ", kernel 5", outputs=STATS, caught_by=VALUES, few=True,
    ),
)  # fmt: skip
