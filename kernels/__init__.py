"""The kernels under test, and their table. Importing it loads neither torch nor Triton."""

from dataclasses import replace

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.kernels.adapters import TORCH
from verify_norm.kernels.domain import needs_cuda, types_here

TWO_PASS = Contract(variance="two_pass", batch_invariant=True)
MERGED = Contract(variance="centered", batch_invariant=True)  # by Chan, where a group's parts are merged
BY_CHANNEL = Contract(variance="centered")  # all samples share the statistics
LOCKED = Contract(variance="two_pass", summation="atomic", deterministic=False, batch_invariant=True)
E5M2 = replace(TWO_PASS, output="float8_e5m2")


def _triton(name: str, module: str, summary: str, contract: Contract = TWO_PASS, op: str = "") -> Kernel:
    """Return a row of the table; the operator has the kernel's name if not given."""
    op = op or name
    forward = op.replace("_bwd", "_fwd") if op.endswith("_bwd") else None
    target = f"verify_norm.kernels.{module}:{name}"
    return Kernel(
        name, op, target, "triton", contract=contract, summary=summary, unsupported=types_here, forward=forward
    )


def _cuda(step: int, summary: str, contract: Contract = TWO_PASS) -> Kernel:
    """Return the row of a step of the CUDA ladder.

    Every step is held to the strict contract. Steps 4 and 5, whose variance is E[x²] − E[x]², have no contract that
    says so: no bound exists for what cancels without limit.
    """
    return Kernel(
        f"layernorm_fwd_cuda{step}",
        "layernorm_fwd",
        f"verify_norm.kernels.variants.cuda.layernorm:layernorm_fwd_cuda{step}",
        "cuda",
        contract=contract,
        summary=f"CUDA C++ ladder: {summary}",
        unsupported=needs_cuda,
    )


_TRITON: tuple[Kernel, ...] = (
    _triton("layernorm_fwd", "layernorm", "LayerNorm of rows of any length"),
    _triton("layernorm_bwd", "layernorm", "LayerNorm's gradients, sums in two stages"),
    _triton(
        "layernorm_bwd_locked",
        "variants.layernorm_locked",
        "LayerNorm's gradients, partial sums in shared buffers under spin locks",
        LOCKED,
        "layernorm_bwd",
    ),
    _triton("layernorm_fwd_e4m3fn", "quantized", "LayerNorm into 8 bits, e4m3fn", op="layernorm_fp8_fwd"),
    _triton("layernorm_fwd_e5m2", "quantized", "LayerNorm into 8 bits, e5m2", E5M2, "layernorm_fp8_fwd"),
    _triton("rmsnorm_fwd_e4m3fn", "quantized", "RMSNorm into 8 bits, e4m3fn", op="rmsnorm_fp8_fwd"),
    _triton("rmsnorm_fwd_e5m2", "quantized", "RMSNorm into 8 bits, e5m2", E5M2, "rmsnorm_fp8_fwd"),
    _triton("rmsnorm_fwd", "rmsnorm", "RMSNorm, with an optional offset of the weight"),
    _triton("rmsnorm_bwd", "rmsnorm", "RMSNorm's gradients, sums in two stages"),
    replace(_triton("l2norm_fwd", "l2norm", "L2Norm: rows divided by √(Σx² + eps)"), unsupported=None),
    replace(_triton("l2norm_bwd", "l2norm", "its gradient"), unsupported=None),
    _triton("gated_rmsnorm_fwd", "gated_rmsnorm", "RMSNorm times SiLU of a gate, in one kernel"),
    _triton("gated_rmsnorm_bwd", "gated_rmsnorm", "its gradients, with that of the gate"),
    _triton("qk_norm_rope_fwd", "qk_norm_rope", "RMSNorm of heads and their rotation (RoPE), in one kernel"),
    _triton("qk_norm_rope_bwd", "qk_norm_rope", "its gradients, sums in two stages"),
    _triton(
        "qk_norm_rope_interleaved_fwd",
        "qk_norm_rope",
        "as qk_norm_rope_fwd, pairs are neighbours",
        op="rmsnorm | rotate(interleaved)_fwd",
    ),
    replace(
        _triton(
            "qk_norm_rope_interleaved_bwd",
            "qk_norm_rope",
            "its gradients, sums in two stages",
            op="rmsnorm | rotate(interleaved)_bwd",
        ),
        forward="qk_norm_rope_interleaved_fwd",
    ),
    _triton(
        "modulate_layernorm_fwd", "modulate_layernorm", "LayerNorm with a scale and shift of each sample, or token"
    ),
    _triton("add_layernorm_fwd", "add_layernorm", "Addition and LayerNorm in one kernel"),
    _triton("add_layernorm_bwd", "add_layernorm", "its gradients, sums in two stages"),
    _triton("add_rmsnorm_fwd", "add_rmsnorm", "Addition and RMSNorm in one kernel"),
    _triton("add_rmsnorm_quant_fwd", "add_rmsnorm_quant", "Addition, RMSNorm and 8 bits, e4m3fn, a scale of each row"),
    _triton(
        "add_rmsnorm_quant_group_fwd", "add_rmsnorm_quant", "as add_rmsnorm_quant_fwd, a scale of every 128 of a row"
    ),
    _triton(
        "add_rmsnorm_quant_group64_fwd",
        "add_rmsnorm_quant",
        "as that, a scale of every 64 of a row",
        op="add | rmsnorm | quantize(e4m3fn, group64)_fwd",
    ),
    _triton("rmsnorm_quant_fwd", "add_rmsnorm_quant", "RMSNorm and 8 bits, e4m3fn, a scale of each row"),
    _triton("add_rmsnorm_bwd", "add_rmsnorm", "its gradients, sums in two stages"),
    _triton("groupnorm_fwd", "groupnorm", "GroupNorm, any strides, channels_last included", MERGED),
    _triton("groupnorm_bwd", "groupnorm", "GroupNorm's gradients, from sums per channel", MERGED),
    _triton("groupnorm_silu_fwd", "groupnorm", "GroupNorm and SiLU in one kernel", MERGED),
    _triton("groupnorm_silu_bwd", "groupnorm", "its gradients, from sums per channel", MERGED),
    _triton("groupnorm_gelu_fwd", "groupnorm", "GroupNorm and GELU in one kernel", MERGED),
    _triton("groupnorm_gelu_bwd", "groupnorm", "its gradients, from sums per channel", MERGED),
    _triton("batchnorm_fwd", "batchnorm", "BatchNorm, training and evaluation, any strides", BY_CHANNEL),
    _triton("batchnorm_bwd", "batchnorm", "BatchNorm's gradients, from sums per channel", BY_CHANNEL),
    _triton("instancenorm_fwd", "instancenorm", "InstanceNorm, in GroupNorm's launches", MERGED),
    _triton("instancenorm_bwd", "instancenorm", "InstanceNorm's gradients, in GroupNorm's launches", MERGED),
    _triton(
        "groupnorm_fwd_welford",
        "variants.groupnorm_welford",
        "GroupNorm, statistics in one pass by Welford and Chan",
        MERGED,
        "groupnorm_fwd",
    ),
)

_CUDA: tuple[Kernel, ...] = (
    _cuda(1, "a thread a row", replace(TWO_PASS, summation="sequential")),
    _cuda(2, "kernels for mean, rstd and y, shared memory"),
    _cuda(3, "a warp a row, cooperative groups"),
    _cuda(4, "a warp a row, E[x²] − E[x]²: wrong at large offsets"),
    _cuda(5, "a block a row in two stages, E[x²] − E[x]²: wrong at large offsets"),
)

KERNELS: tuple[Kernel, ...] = _TRITON + TORCH + _CUDA
