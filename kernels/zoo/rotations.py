"""The table of kernels that rotate normalized heads: wrong ones and right ones."""

from functools import partial

from verify_norm.core.contract import Contract
from verify_norm.kernels.zoo.example import WHERE, Example, row

_wrong = partial(row, backend="torch")
_right = partial(row, wrong=False, caught_by=(), backend="torch")
FORWARD, BACKWARD, OF_ROPE = "qk_norm_rope_fwd", "qk_norm_rope_bwd", f"{WHERE}rope:rope"
TESTED = "vLLM's test_fused_qk_norm_rope.py, flashinfer's fused_qk_rmsnorm_rope"

ROTATIONS: tuple[Example, ...] = (
    _wrong(
        "B15_interleaved_for_neox",
        FORWARD,
        "rope:interleaved_for_neox",
        "index",
        "pairs are (2i, 2i + 1), where the model has (i, i + R/2)",
        TESTED,
        outputs=("y",),
    ),
    _wrong(
        "B16_wrong_half",
        FORWARD,
        "rope:wrong_half",
        "index",
        "the second element of a pair is half a row away, also where a part of the row turns",
        "vLLM issue 43676: partial rotation",
        outputs=("y",),
    ),
    _wrong(
        "B17_all_of_the_row",
        FORWARD,
        "rope:all_of_the_row",
        "index",
        "a partial rotation is ignored: the tail turns too",
        "vLLM issue 43676: gsm8k fell to 0 of 1319",
        outputs=("y",),
    ),
    _wrong(
        "B90_rounded_tables",
        FORWARD,
        "rope:rounded_tables",
        "dtype",
        "cos and sin in float32 are rounded to the type of x",
        "transformers' rotary embeddings return them in the type of x",
        outputs=("y",),
    ),
    _wrong(
        "B18_sign_of_sin",
        FORWARD,
        "rope:sign_of_sin",
        "numerics",
        "the rotation is by the opposite angle",
        TESTED,
        outputs=("y",),
    ),
    _wrong(
        "B19_position_of_the_neighbour",
        FORWARD,
        "rope:position_of_the_neighbour",
        "index",
        "each token has the angles of the one before it",
        TESTED,
        outputs=("y",),
    ),
    _wrong(
        "B20_token_of_the_head",
        FORWARD,
        "rope:token_of_the_head",
        "index",
        "head i takes the angles of token i, modulo their number",
        TESTED,
        outputs=("y",),
    ),
    _wrong(
        "B21_before_the_norm",
        FORWARD,
        "rope:before_the_norm",
        "numerics",
        "rotated, then normalized: each weight meets another element",
        "HF's Qwen3 normalizes first",
        outputs=("y",),
    ),
    _wrong(
        "B22_turned_on",
        BACKWARD,
        "rope:turned_on",
        "gradient",
        "dy turns by the same angle once more, not back",
        TESTED,
        outputs=("dx", "dweight"),
        forward=OF_ROPE,
    ),
    _right("V11_rope", FORWARD, "rope:rope", "unusual", "RMSNorm of heads, then pairs by index", "HF's Qwen3"),
    _right("V12_rope_bwd", BACKWARD, "rope:rope_bwd", "unusual", "its gradients", "HF's Qwen3", forward=OF_ROPE),
    _right("V13_complex", FORWARD, "rope:in_complex_numbers", "unusual", "pairs are complex numbers", "Llama's code"),
    _right("V14_rope_in_float64", FORWARD, "rope:in_float64", "unusual", "in float64, rounded once", "references"),
    _right(
        "V15_rope_in_place",
        FORWARD,
        "rope:in_place",
        "unusual",
        "y is written over x",
        "vLLM's kernel works in a packed qkv",
        contract=Contract(inplace=("y:x",)),
    ),
)
