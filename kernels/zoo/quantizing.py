"""The table of quantized norms: wrong ones and right ones."""

from functools import partial

from verify_norm.core.spec import Contract
from verify_norm.kernels.zoo.example import Example, row

_wrong = partial(row, backend="torch", outputs=("y", "y_scale"))
_right = partial(row, wrong=False, caught_by=(), backend="torch")
TOKEN, ADDED, GROUPS = "rmsnorm_quant_fwd", "add_rmsnorm_quant_fwd", "add_rmsnorm_quant_group_fwd"
BOUNDED = "rmsnorm | quantize(e4m3fn, per_token, scale_ub)_fwd"
INT8, INT8_BOUNDED = (f"rmsnorm | quantize(int8, per_token{more})_fwd" for more in ("", ", scale_ub"))
STATIC = "rmsnorm | quantize(int8)_fwd"
VLLM = "vLLM's layernorm_utils.cuh"

QUANTIZED: tuple[Example, ...] = (
    _wrong(
        "Q01_scale_of_the_neighbour",
        ADDED,
        "quantized:scale_of_the_neighbour",
        "index",
        "each row is divided by the scale of the row before",
        "vLLM #33255",
        outputs=("y",),
    ),
    _wrong(
        "Q02_most_before_the_addition",
        ADDED,
        "quantized:most_before_the_addition",
        "numerics",
        "the scale is that of the norm of x, without the residual",
        "vLLM's test_fused_quant_layernorm.py",
    ),
    _wrong(
        "Q03_most_in_the_type_of_x",
        TOKEN,
        "quantized:most_in_the_type_of_x",
        "dtype",
        "max |z| is rounded to the type of x, and z is not",
        "fusions of a norm and a quantization that were apart",
    ),
    _wrong(
        "Q04_most_of_the_signed",
        TOKEN,
        "quantized:most_of_the_signed",
        "numerics",
        "the scale is that of the largest z, not of the largest |z|",
        "amax without abs",
    ),
    _wrong(
        "Q05_most_of_the_batch",
        TOKEN,
        "quantized:most_of_the_batch",
        "index",
        "all rows have the scale of the batch, as in a quantization per tensor",
        "two granularities in one library",
    ),
    _wrong(
        "Q06_last_writer_wins",
        ADDED,
        "quantized:last_writer_wins",
        "race",
        "the halves of a row write their maximum to one place: the form that a race takes on a CPU",
        "vLLM #54111",
    ),
    _wrong(
        "Q07_largest_of_another_type",
        TOKEN,
        "quantized:largest_of_another_type",
        "numerics",
        "the scale is max |z| over 240, the largest number of float8_e4m3fnuz",
        "vLLM on ROCm",
    ),
    _wrong(
        "Q08_reciprocal_rounded_twice",
        TOKEN,
        "quantized:reciprocal_rounded_twice",
        "dtype",
        "z is multiplied by 1/scale in bfloat16",
        "scales kept in the type of the model",
        outputs=("y",),
    ),
    _wrong(
        "Q09_zero_by_zero",
        ADDED,
        "quantized:zero_by_zero",
        "degenerate",
        "a row of zeros has the scale 0, and y = 0/0",
        "padded tokens",
        outputs=("y",),
    ),
    _wrong(
        "Q10_tail_of_the_group_before",
        GROUPS,
        "quantized:tail_of_the_group_before",
        "coverage",
        "the columns behind the last whole group of 128 have the scale of the group before",
        VLLM,
    ),
    _wrong(
        "Q11_stored_transposed",
        GROUPS,
        "quantized:stored_transposed",
        "layout",
        "the scales of groups lie in columns, and are returned as rows",
        "SGLang's column-major scales",
        outputs=("y_scale",),
    ),
    _wrong(
        "Q12_bound_of_the_first_call",
        BOUNDED,
        "quantized:bound_of_the_first_call",
        "state",
        "scale_ub is that of the first call",
        "a bound that a captured graph keeps",
        caught_by=("accuracy", "calls"),
    ),
    _wrong(
        "Q13_bound_of_the_scale",
        BOUNDED,
        "quantized:bound_of_the_scale",
        "options",
        "scale_ub bounds the scale, not max |z|",
        "vLLM: rms_norm_dynamic_per_token_quant bounds max |z|, silu_and_mul_per_block_quant the scale",
    ),
    _wrong(
        "Q14_truncated",
        INT8,
        "quantized:truncated",
        "numerics",
        "z/scale is cut off towards 0, as a cast to int8 does",
        "static_cast<int8_t> in place of rintf",
        outputs=("y",),
    ),
    _wrong(
        "Q15_wrapped",
        INT8_BOUNDED,
        "quantized:wrapped",
        "numerics",
        "what is beyond ±127 wraps around",
        "a cast to int8 without saturation",
        outputs=("y",),
    ),
    _right("R01_by_reciprocal", ADDED, "quantized:by_reciprocal", "unusual", "z times 1/scale", VLLM),
    _right("R02_times_a_constant", TOKEN, "quantized:times_a_constant", "unusual", "max |z| times 1/448", "SGLang"),
    _right(
        "R03_floored",
        TOKEN,
        "quantized:floored",
        "unusual",
        "no scale is below 1/(448·512), and the contract says so",
        VLLM,
        contract=Contract(scale_floor=1 / (448 * 512)),
    ),
    _right("R04_zeros_have_scale_0", TOKEN, "quantized:zeros_have_scale_0", "unusual", "zeros have scale 0", "padding"),
    _right("R05_column_major", GROUPS, "quantized:column_major", "unusual", "scales that lie in columns", "SGLang"),
    _right(
        "R06_largest_over_most", GROUPS, "quantized:largest_over_most", "unusual", "z times 448/max |z|", "compilers"
    ),
    _right("R07_to_minus_128", STATIC, "quantized:to_minus_128", "unusual", "int8 saturates at −128", VLLM),
)
