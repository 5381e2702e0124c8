"""The kernels under test, and their table. Importing it loads neither torch nor Triton."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Literal

from verify_norm.spec import CaseSpec, Contract, Kernel

TWO_PASS = Contract(variance="two_pass", batch_invariant=True)
MERGED = Contract(variance="centered", batch_invariant=True)  # by Chan, where a group's parts are merged
STRICT, EXPANDED = Contract(), Contract(expanded=True)


def _no_offset(spec: CaseSpec) -> str | None:
    """What torch's rms_norm does not take."""
    return "torch's rms_norm adds nothing to its weight" if spec.weight_offset else None


def _bias_of_another_type(spec: CaseSpec) -> str | None:
    """What torch 2.13's layer_norm cannot differentiate on the CPU."""
    wide = spec.dtype != "float32" and spec.weight_dtype == "float32"
    refused = wide and spec.bias and not spec.weight
    return "torch's layer_norm has no gradient of a float32 bias of a narrower x without a weight" if refused else None


def _bias_needs_weight(spec: CaseSpec) -> str | None:
    """What torch 2.13's group_norm cannot differentiate on the CPU."""
    return "torch's group_norm has no gradient of a bias without a weight" if spec.bias and not spec.weight else None


def _strided_weight(spec: CaseSpec) -> str | None:
    """What torch 2.13's batch_norm differentiates wrongly on the CPU, where x is contiguous with channels last."""
    wrong = spec.weight and spec.weight_layout == "every_other"
    return "torch's batch_norm reads a strided weight as if it were contiguous, and dx is wrong" if wrong else None


def _one_value(spec: CaseSpec) -> str | None:
    """What torch's instance_norm refuses, and no samples, at which it fails."""
    if not spec.shape[0]:
        return "torch's instance_norm fails without samples"
    return "torch's instance_norm needs more than one value a channel" if prod(spec.shape[2:]) == 1 else None


def _one_value_a_group(spec: CaseSpec) -> str | None:
    """What functional.group_norm refuses, as its check counts."""
    samples, channels, *space = spec.shape
    one = samples * channels // (spec.num_groups or 1) * prod(space) == 1
    return "torch's group_norm needs more than one value a channel" if one else None


def _needs_weight(spec: CaseSpec) -> str | None:
    """What Liger's fused addition does not take."""
    return None if spec.weight else "it needs a weight"


def _needs_both(spec: CaseSpec) -> str | None:
    """What Liger's layer_norm does not take: its module has no way to leave one out."""
    return None if spec.weight and spec.bias else "Liger's layer_norm needs a weight and a bias"


def _liger_groups(spec: CaseSpec) -> str | None:
    """What Liger's group_norm does not take, by the assertions of its module."""
    if len(spec.shape) < 3:
        return "Liger's group_norm needs a dimension beyond (B, C)"
    return None if spec.weight and spec.bias else "Liger's group_norm needs a weight and a bias"


def _short_rows(spec: CaseSpec) -> str | None:
    """What fla raises at: rows beyond 64 KB."""
    long = spec.shape[-1] * (4 if spec.dtype == "float32" else 2) > 2**16
    return "fla's norms take rows of up to 64 KB" if long else None


def _flash(spec: CaseSpec) -> str | None:
    """What flash-attn's Triton norms do not take: they raise, or have no argument for it."""
    if not spec.weight:
        return "flash-attn's norms need a weight"
    if spec.weight_offset not in (0.0, 1.0):
        return "flash-attn's norms have an offset of 0 or 1 alone (zero_centered_weight)"
    long = spec.shape[-1] * (4 if spec.dtype == "float32" else 2) > 2**16
    return "flash-attn's norms take rows of up to 64 KB" if long else None


def _last_dimension(spec: CaseSpec) -> str | None:
    """What fla's group_norm is not: it knows no space, and groups the last dimension of each token."""
    return "fla's group_norm takes (B, C), without space" if len(spec.shape) > 2 else None


def _float32_weight(spec: CaseSpec) -> str | None:
    """What quack's layernorm asserts."""
    right = spec.weight and (spec.weight_dtype or spec.dtype) == "float32"
    return None if right else "quack's layernorm needs a weight, and float32 for it and its bias"


def _offset_needs_weight(spec: CaseSpec) -> str | None:
    """What quack's rmsnorm asserts."""
    return "quack's rmsnorm has no offset without a weight" if spec.weight_offset and not spec.weight else None


@cache
def _no_cuda() -> str | None:
    """Why CUDA C++ cannot be compiled and run here."""
    import torch

    if not torch.cuda.is_available():
        return "it is CUDA C++, and torch sees no GPU here"
    there = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None
    return None if there else "cuda-core is not installed here: pip install 'verify-norm[cuda]'"


def _needs_cuda(spec: CaseSpec) -> str | None:
    """What the CUDA ladder cannot do without, whatever the case."""
    return _no_cuda()


_TRITON: tuple[Kernel, ...] = tuple(
    Kernel(
        name, op, f"verify_norm.kernels.{module}:{name}", "triton", contract=contract, summary=summary,
        forward=op.replace("_bwd", "_fwd") if op.endswith("_bwd") else None,
    )
    for name, op, module, contract, summary in (
        ("layernorm_fwd", "layernorm_fwd", "layernorm", TWO_PASS, "LayerNorm of rows of any length"),
        ("layernorm_bwd", "layernorm_bwd", "layernorm", TWO_PASS, "LayerNorm's gradients, sums in two stages"),
        (
            "layernorm_bwd_locked", "layernorm_bwd", "layernorm_locked",
            Contract(variance="two_pass", summation="atomic", deterministic=False, batch_invariant=True),
            "LayerNorm's gradients, partial sums in shared buffers under spin locks",
        ),
        ("layernorm_fwd_e4m3fn", "layernorm_fp8_fwd", "quantized", TWO_PASS, "LayerNorm into 8 bits, e4m3fn"),
        (
            "layernorm_fwd_e5m2", "layernorm_fp8_fwd", "quantized", replace(TWO_PASS, output="float8_e5m2"),
            "LayerNorm into 8 bits, e5m2",
        ),
        ("rmsnorm_fwd_e4m3fn", "rmsnorm_fp8_fwd", "quantized", TWO_PASS, "RMSNorm into 8 bits, e4m3fn"),
        (
            "rmsnorm_fwd_e5m2", "rmsnorm_fp8_fwd", "quantized", replace(TWO_PASS, output="float8_e5m2"),
            "RMSNorm into 8 bits, e5m2",
        ),
        ("rmsnorm_fwd", "rmsnorm_fwd", "rmsnorm", TWO_PASS, "RMSNorm, with an optional offset of the weight"),
        ("rmsnorm_bwd", "rmsnorm_bwd", "rmsnorm", TWO_PASS, "RMSNorm's gradients, sums in two stages"),
        ("add_layernorm_fwd", "add_layernorm_fwd", "add_norm", TWO_PASS, "Addition and LayerNorm in one kernel"),
        ("add_layernorm_bwd", "add_layernorm_bwd", "add_norm", TWO_PASS, "its gradients, sums in two stages"),
        ("add_rmsnorm_fwd", "add_rmsnorm_fwd", "add_rmsnorm", TWO_PASS, "Addition and RMSNorm in one kernel"),
        ("add_rmsnorm_bwd", "add_rmsnorm_bwd", "add_rmsnorm", TWO_PASS, "its gradients, sums in two stages"),
        ("groupnorm_fwd", "groupnorm_fwd", "groupnorm", MERGED, "GroupNorm, any strides, channels_last included"),
        ("groupnorm_bwd", "groupnorm_bwd", "groupnorm", MERGED, "GroupNorm's gradients, from sums per channel"),
        ("groupnorm_silu_fwd", "groupnorm_silu_fwd", "groupnorm", MERGED, "GroupNorm and SiLU in one kernel"),
        ("groupnorm_silu_bwd", "groupnorm_silu_bwd", "groupnorm", MERGED, "its gradients, from sums per channel"),
        ("groupnorm_gelu_fwd", "groupnorm_gelu_fwd", "groupnorm", MERGED, "GroupNorm and GELU in one kernel"),
        ("groupnorm_gelu_bwd", "groupnorm_gelu_bwd", "groupnorm", MERGED, "its gradients, from sums per channel"),
        (
            "groupnorm_fwd_welford", "groupnorm_fwd", "groupnorm_welford",
            MERGED, "GroupNorm, statistics in one pass by Welford and Chan",
        ),
    )
)  # fmt: skip

# Stock torch, with the contract that it was measured to keep on the CPU in float32; in half precision it does not keep
# all of them, and the findings say where.
_TORCH: tuple[Kernel, ...] = tuple(
    Kernel(
        name, op, f"verify_norm.kernels.torch_native:{name}", "torch", contract=contract, summary=summary,
        unsupported=unsupported, forward=name.replace("_bwd", "_fwd") if op.endswith("_bwd") else None,
    )
    for name, op, contract, unsupported, summary in (
        ("layernorm_fwd_torch", "layernorm_fwd", STRICT, None, "torch.native_layer_norm"),
        (
            "layernorm_bwd_torch", "layernorm_bwd", EXPANDED, _bias_of_another_type,
            "the gradients of functional.layer_norm",
        ),
        ("rmsnorm_fwd_torch", "rmsnorm_fwd", STRICT, _no_offset, "functional.rms_norm"),
        ("rmsnorm_bwd_torch", "rmsnorm_bwd", STRICT, _no_offset, "the gradients of functional.rms_norm"),
        ("groupnorm_fwd_torch", "groupnorm_fwd", EXPANDED, None, "torch.native_group_norm"),
        (
            "groupnorm_bwd_torch", "groupnorm_bwd", EXPANDED, _bias_needs_weight,
            "the gradients of functional.group_norm",
        ),
        (
            "batchnorm_fwd", "batchnorm_fwd", Contract(expanded=True, summation="sequential"), None,
            "torch.native_batch_norm",
        ),
        (
            "batchnorm_bwd", "batchnorm_bwd",
            Contract(expanded=True, summation="sequential", xhat="x", partials="x"), _strided_weight,
            "aten.native_batch_norm_backward",
        ),
        ("instancenorm_fwd", "instancenorm_fwd", STRICT, _one_value, "functional.instance_norm"),
        ("instancenorm_bwd", "instancenorm_bwd", STRICT, _one_value, "the gradients of functional.instance_norm"),
    )
)  # fmt: skip

# A ladder of CUDA C++, held to the strict contract like any other: of its steps 4 and 5, whose variance is
# E[x²] − E[x]², there is none that says so, since no bound could be derived for what cancels without limit.
_CUDA: tuple[Kernel, ...] = tuple(
    Kernel(
        f"layernorm_fwd_cuda{step}", "layernorm_fwd", f"verify_norm.kernels.cuda.layernorm:layernorm_fwd_cuda{step}",
        "cuda", contract=contract, summary=f"CUDA C++ ladder: {summary}", unsupported=_needs_cuda,
    )
    for step, contract, summary in (
        (1, replace(TWO_PASS, summation="sequential"), "a thread a row"),
        (2, TWO_PASS, "kernels for mean, rstd and y, shared memory"),
        (3, TWO_PASS, "a warp a row, cooperative groups"),
        (4, TWO_PASS, "a warp a row, E[x²] − E[x]²: wrong at large offsets"),
        (5, TWO_PASS, "a block a row in two stages, E[x²] − E[x]²: wrong at large offsets"),
    )
)  # fmt: skip

KERNELS: tuple[Kernel, ...] = _TRITON + _TORCH + _CUDA

# What casting_mode="llama" is documented to match, Llama's own module: x̂ is rounded to the type of x before it meets
# the weight, and so is each term of dweight, its product with dy.
_LLAMA = Contract(xhat="x", partials="x")
_ATOMIC = Contract(summation="atomic", deterministic=False)

# Other people's kernels, each under the name of its library: the strict contract, but for what the library documents.
# `origin` is the module to import, which need not be there. "{}" is the direction.
_Row = tuple[str, str, Contract, Callable[[CaseSpec], str | None] | None, str]
_LIBRARIES: tuple[tuple[str, str, Literal["torch", "triton", "cuda"], tuple[_Row, ...]], ...] = (
    (
        "torch", "torch_native", "torch", (
            ("layernorm_{}_torch_compiled", "layernorm", STRICT, None, "functional.layer_norm, compiled"),
            ("rmsnorm_{}_torch_compiled", "rmsnorm", STRICT, None, "functional.rms_norm, compiled"),
            (
                "groupnorm_{}_torch_compiled", "groupnorm", EXPANDED, _one_value_a_group,
                "functional.group_norm, compiled",
            ),
            ("batchnorm_{}_torch_compiled", "batchnorm", STRICT, None, "functional.batch_norm, compiled"),
            (
                "instancenorm_{}_torch_compiled", "instancenorm", STRICT, _one_value,
                "functional.instance_norm, compiled",
            ),
        ),
    ),
    (
        "liger_kernel", "third_party", "triton", (
            ("liger_layernorm_{}", "layernorm", STRICT, _needs_both, "Liger's layer_norm"),
            (
                "liger_rmsnorm_llama_{}", "rmsnorm", replace(_LLAMA, inplace=("dx:dy",)), None,
                "Liger's rms_norm, casting_mode llama",
            ),
            ("liger_rmsnorm_gemma_{}", "rmsnorm", STRICT, None, "Liger's rms_norm, casting_mode gemma"),
            ("liger_rmsnorm_none_{}", "rmsnorm", STRICT, None, "Liger's rms_norm, casting_mode none"),
            ("liger_groupnorm_{}", "groupnorm", _ATOMIC, _liger_groups, "Liger's group_norm"),
            (
                "liger_add_rmsnorm_{}", "add_rmsnorm", replace(_LLAMA, residual="rounded"), _needs_weight,
                "Liger's fused_add_rms_norm, casting_mode llama",
            ),
        ),
    ),
    (
        "fla", "third_party", "triton", (
            ("fla_layernorm_{}", "layernorm", STRICT, _short_rows, "fla's layer_norm"),
            ("fla_rmsnorm_{}", "rmsnorm", STRICT, _short_rows, "fla's rms_norm"),
            ("fla_groupnorm_{}", "groupnorm", STRICT, _last_dimension, "fla's group_norm"),
            ("fla_add_rmsnorm_{}", "add_rmsnorm", STRICT, _short_rows, "fla's rms_norm with a residual"),
        ),
    ),
    (
        "flash_attn", "flash_attn", "triton", (
            ("flash_layernorm_{}", "layernorm", STRICT, _flash, "flash-attn's layer_norm_fn"),
            ("flash_rmsnorm_{}", "rmsnorm", STRICT, _flash, "flash-attn's rms_norm_fn"),
            ("flash_add_rmsnorm_{}", "add_rmsnorm", STRICT, _flash, "flash-attn's rms_norm_fn with a residual"),
        ),
    ),
    (
        "quack", "third_party", "cuda", (
            ("quack_layernorm_{}", "layernorm", STRICT, _float32_weight, "quack's layernorm"),
            ("quack_rmsnorm_{}", "rmsnorm", STRICT, _offset_needs_weight, "quack's rmsnorm"),
            (
                "quack_add_rmsnorm_{}", "add_rmsnorm", STRICT, _offset_needs_weight,
                "quack's rmsnorm with a residual",
            ),
        ),
    ),
)  # fmt: skip
THIRD_PARTY: tuple[Kernel, ...] = tuple(
    Kernel(
        name.format(way), f"{op}_{way}", f"verify_norm.kernels.{module}:{name.format(way)}", backend, dtypes,
        replace(contract, inplace=contract.inplace if way == "bwd" else ()),
        summary if way == "fwd" else f"the gradients of {summary}",
        unsupported, forward=name.format("fwd") if way == "bwd" else None, origin=origin,
    )
    for origin, module, backend, rows in _LIBRARIES
    for name, op, contract, unsupported, summary in rows
    for dtypes in (("float32",) if "_none_" in name else ("float32", "float16", "bfloat16"),)  # computes in that of x
    for way in ("fwd", "bwd")
)  # fmt: skip
