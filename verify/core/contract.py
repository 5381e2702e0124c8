"""A contract: what a kernel promises about its arithmetic."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Predicate

from verify_norm.core.intervals import NotNegative, Positive

Float = Literal["float64", "float32", "float16", "bfloat16"]
Float8 = Literal["float8_e4m3fn", "float8_e5m2"]
Beyond = Literal["either", "saturate", "overflow"]
Pair = Annotated[str, Predicate(lambda pair: len([name for name in pair.split(":") if name]) == 2)]  # "dx:dy"


@dataclass(frozen=True, slots=True)
class Contract:
    """What a kernel promises about its arithmetic; the error bound follows from it.

    The default is strict: float32 everywhere, sums in blocks, a variance of centred values, one rounding at the end,
    the same bits in every run.

    Parameters
    ----------
    accumulate : type of every intermediate and every sum.
    stats : type in which mean and rstd are saved between forward and backward ("x": that of x).
    xhat : type to which x̂ is rounded before the weight ("x": that of x, as Llama's RMSNorm does); None: no rounding.
    partials : type of the partial sums of dweight and dbias.
    products : operands of the products inside sums, where a kernel sums by matrix products: "float32" as they are
        (tl.dot's "ieee"); "tf32", "tf32x3", "bf16x3", "bf16x6" as by tl.dot's input_precision; "bf16" rounded to
        bfloat16. `verify_norm.reference.arithmetic` says what each of them misses.
    offset_weight : type of weight + weight_offset: "float32", or rounded to that of "weight" (1 + weight in bfloat16).
    summation : "blocked" (`lanes` runs, then a tree), "sequential" (one running sum), "atomic" (blocked within a row or
        group; over rows, one running sum in any order, as of one atomic addition for each row or each program).
    lanes : how many runs a blocked sum has at least: 128 in a block of a GPU; a matrix product of a CPU has 4 to 32,
        or 1 if it has one row, a loop of tl.dot 1. With other `products` runs of 512 terms are right in any case.
    variance : "two_pass"; "centered" (two-pass, Welford or Chan merging); "shifted" (E[d²] − E[d]², d = x − x[0]).
    expanded : True if (x − mean)·a + b is computed as x·a + (b − mean·a), which cancels at large offsets.
    deterministic : the same bits in every run; if False, sums over rows may differ by a reordering's rounding.
    batch_invariant : the same bits for a row, whatever the other rows and its position.
    inplace : outputs that may overwrite an input, such as "dx:dy".
    residual : what a fused addition normalizes: the float32 "sum", or the sum "rounded" to the type of residual, as
        returned (vLLM's CUDA kernel, vLLM issue 52104).
    output : type of y and dx; None: that of x, or float8_e4m3fn for a quantized y; "promoted": that of x, but of y the
        type to which torch promotes those of x and weight (weight * x̂ in LlamaRMSNorm of transformers).
    weight_grad : type of dweight and dbias; None: that of weight.
    saturate : what is returned beyond the largest number of an output's type: that number ("saturate"), or an infinity,
        in float8_e4m3fn NaN ("overflow"). "either": a quantized y saturates, another 8-bit y may do either, and wider
        outputs overflow.
    z : type to which the result of the norm, and of each operation before and behind it, is rounded before the next one
        ("x": that of x, as where modules of torch follow each other), also gradients in between; None: no rounding.
    e8m0 : how the power of two of an MX block is rounded: "floor" (OCP), "ceil", "even", or "rceil", that of
        max |z|/L upwards, as PTX's cvt.rp (`verify_norm.reference.stages.block_scale`).
    packing : the 4 bits of a byte that hold the first of its two numbers: "low" (torch.float4_e2m1fn_x2), or "high".
    scale_floor : the smallest scale of a quantized y that the data determine, for example 1/(448·512).
    """

    accumulate: Float = "float32"
    stats: Float | Literal["x"] = "float32"
    xhat: Float | Literal["x"] | None = None
    partials: Float | Literal["x"] = "float32"
    products: Literal["float32", "tf32", "tf32x3", "bf16", "bf16x3", "bf16x6"] = "float32"
    offset_weight: Literal["float32", "weight"] = "float32"
    summation: Literal["blocked", "sequential", "atomic"] = "blocked"
    lanes: Positive = 128
    variance: Literal["two_pass", "centered", "shifted"] = "centered"
    expanded: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    inplace: tuple[Pair, ...] = ()
    residual: Literal["sum", "rounded"] = "sum"
    output: Float | Float8 | Literal["promoted"] | None = None
    weight_grad: Float | None = None
    saturate: Beyond = "either"
    z: Float | Literal["x"] | None = None
    scale_floor: NotNegative = 0.0
    e8m0: Literal["floor", "ceil", "even", "rceil"] = "floor"
    packing: Literal["low", "high"] = "low"
