"""The table of kernels with stages behind a norm: gates and modulations, wrong ones and right ones."""

from functools import partial

from verify_norm.kernels.zoo.example import WHERE, Example, row

_wrong = partial(row, backend="torch")
_right = partial(row, wrong=False, caught_by=(), backend="torch")
GATED, MODULATED = "gated_rmsnorm", "modulate_rmsnorm"
OF_GATED, OF_MODULATED, OF_L2NORM, OF_GATE = (  # forwards of the backwards
    f"{WHERE}stages:{name}" for name in ("gated", "modulated", "l2norm", "of_gate")
)

CHAINS: tuple[Example, ...] = (
    _wrong(
        "B01_gate_before_norm",
        f"{GATED}_fwd",
        "stages:gate_before_the_norm",
        "numerics",
        "x·SiLU(gate) is normalized, where the model gates the result",
        "Mamba2 and Qwen3-Next differ in the order: fla's layernorm_gated.py, norm_before_gate",
        outputs=("y", "rstd"),
    ),
    _wrong(
        "B02_sigmoid_for_silu",
        f"{GATED}_fwd",
        "stages:sigmoid_for_silu",
        "numerics",
        "the gate is σ(gate), without the factor gate",
        "fla's fused_norm_gate.py has both",
        outputs=("y",),
    ),
    _wrong(
        "B03_coarse_gate",
        f"{GATED}_fwd",
        "stages:coarse_gate",
        "dtype",
        "SiLU of the gate in bfloat16, whatever x is",
        "vLLM's test_fused_rms_norm_gated.py",
        outputs=("y",),
    ),
    _wrong(
        "B04_silu_slope",
        f"{GATED}_bwd",
        "stages:slope_without_its_second_term",
        "gradient",
        "dgate has σ in place of σ(1 + gate(1 − σ))",
        "fla's fused_norm_gate.py",
        outputs=("dgate",),
        forward=OF_GATED,
    ),
    _wrong(
        "B05_one_left_out",
        f"{MODULATED}_fwd",
        "stages:one_left_out",
        "numerics",
        "z·scale + shift: the 1 of 1 + scale is missing",
        "diffusers, AdaLayerNorm",
        outputs=("y",),
    ),
    _wrong(
        "B06_token_for_sample",
        f"{MODULATED}_fwd",
        "stages:token_for_sample",
        "index",
        "row i takes the row i mod B of a modulation per sample",
        "SGLang's and flashinfer's fused modulations have both shapes",
        outputs=("y",),
    ),
    _wrong(
        "B07_scale_of_the_neighbour",
        f"{MODULATED}_fwd",
        "stages:scale_of_the_neighbour",
        "index",
        "each sample takes the modulation of the next one",
        "SGLang's and flashinfer's fused modulations have both shapes",
        outputs=("y",),
    ),
    _wrong(
        "B08_last_token_left_out",
        f"{MODULATED}_bwd",
        "stages:last_token_left_out",
        "coverage",
        "dscale and dshift leave out the last token of each sample",
        "Liger's modulated_rms_norm.py sums over tokens",
        outputs=("dscale", "dshift"),
        forward=OF_MODULATED,
    ),
    _wrong(
        "B09_mean_of_squares",
        "l2norm_fwd",
        "stages:mean_of_squares",
        "numerics",
        "RMSNorm taken for L2Norm: the squares are averaged",
        "fla's l2norm.py beside its RMSNorm",
        outputs=("y", "rstd"),
    ),
    _wrong(
        "B10_eps_outside_the_norm",
        "l2norm_fwd",
        "stages:eps_outside_the_norm",
        "eps",
        "x/(‖x‖ + eps): eps beside the root",
        "fla's l2norm.py has it under the root, torch's normalize as a lower limit",
        outputs=("y", "rstd"),
    ),
    _wrong(
        "B11_mean_in_the_gradient",
        "l2norm_bwd",
        "stages:mean_in_the_gradient",
        "gradient",
        "dx subtracts x̂·mean(dy·x̂), as RMSNorm's does, not x̂·Σ(dy·x̂)",
        "fla's l2norm.py",
        outputs=("dx",),
        forward=OF_L2NORM,
    ),
    _right(
        "V07_l2norm", "l2norm_fwd", "stages:l2norm", "unusual", "scaled by a power of two before it is squared", "BLAS"
    ),
    _right(
        "V08_l2norm_bwd",
        "l2norm_bwd",
        "stages:l2norm_bwd",
        "unusual",
        "r·dy − x·r³·Σ(dy·x), without x̂",
        "fla",
        forward=OF_L2NORM,
    ),
    _wrong(
        "B12_gate_after_the_norm",
        "gate_rmsnorm_fwd",
        "stages:gate_after_the_norm",
        "numerics",
        "x is normalized, then gated, where the model normalizes x·SiLU(gate)",
        "Mamba2's norm_before_gate=False taken for True: fla's layernorm_gated.py",
        outputs=("y", "rstd"),
    ),
    _wrong(
        "B13_coarse_product",
        "gate_rmsnorm_fwd",
        "stages:coarse_product",
        "dtype",
        "x·SiLU(gate) in bfloat16 before the norm, whatever x is",
        "HF's MambaRMSNormGated multiplies in float32",
        outputs=("y", "rstd"),
    ),
    _wrong(
        "B14_gate_missing_in_dx",
        "gate_rmsnorm_bwd",
        "stages:gate_missing_in_dx",
        "gradient",
        "dx is the gradient of x·SiLU(gate)",
        "fla's layernorm_gated.py",
        outputs=("dx",),
        forward=OF_GATE,
    ),
    _right("V09_gate_folded", "gate_rmsnorm_fwd", "stages:of_gate_folded", "unusual", "(x·gate)·σ(gate)", "compilers"),
    _right(
        "V10_gate_bwd", "gate_rmsnorm_bwd", "stages:of_gate_bwd", "unusual", "its gradients", "fla", forward=OF_GATE
    ),
    _right("V01_gated", f"{GATED}_fwd", "stages:gated", "unusual", "RMSNorm, then the gate", "fla"),
    _right("V02_gated_bwd", f"{GATED}_bwd", "stages:gated_bwd", "unusual", "its gradients", "fla", forward=OF_GATED),
    _right(
        "V03_gate_meets_weight",
        f"{GATED}_fwd",
        "stages:gate_meets_weight",
        "unusual",
        "σ by powers of 2, and the gate meets the weight before x̂",
        "fla's fused_norm_gate.py has the powers",
    ),
    _right("V04_modulated", f"{MODULATED}_fwd", "stages:modulated", "unusual", "RMSNorm, then 1 + scale", "Liger"),
    _right(
        "V05_modulated_bwd",
        f"{MODULATED}_bwd",
        "stages:modulated_bwd",
        "unusual",
        "its gradients",
        "Liger",
        forward=OF_MODULATED,
    ),
    _right(
        "V06_modulation_folded",
        f"{MODULATED}_fwd",
        "stages:modulation_folded",
        "unusual",
        "z + shift + z·scale, one fused addition each",
        "compilers",
    ),
)
