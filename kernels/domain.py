"""Which cases a kernel does not take: each function returns the reason, or None for a case that the kernel takes."""

import importlib.util
from functools import cache
from math import prod

from verify_norm.core.spec import CaseSpec


def no_offset(spec: CaseSpec) -> str | None:
    """Return why torch's rms_norm does not take a case."""
    return "torch's rms_norm adds nothing to its weight" if spec.weight_offset else None


def narrow_weight(spec: CaseSpec) -> str | None:
    """Return why the kernels here do not take a case (`arguments.check_types`)."""
    narrow = spec.dtype == "float32" and spec.weight_dtype not in (None, "float32")
    return "its weight must not be narrower than x" if narrow and (spec.weight or spec.bias) else None


def residual_of_another_type(spec: CaseSpec) -> str | None:
    """Return why a kernel that takes x and residual in one type does not take a case."""
    return "its residual has the type of x" if spec.residual_dtype not in (None, spec.dtype) else None


def types_here(spec: CaseSpec) -> str | None:
    """Return why the kernels here do not take the types of a case."""
    return narrow_weight(spec) or residual_of_another_type(spec)


def bias_of_another_type(spec: CaseSpec) -> str | None:
    """Return why torch 2.13's layer_norm cannot differentiate a case on the CPU."""
    wide = spec.dtype != "float32" and spec.weight_dtype == "float32"
    refused = wide and spec.bias and not spec.weight
    return "torch's layer_norm has no gradient of a float32 bias of a narrower x without a weight" if refused else None


def bias_needs_weight(spec: CaseSpec) -> str | None:
    """Return why torch 2.13's group_norm cannot differentiate a case on the CPU."""
    return "torch's group_norm has no gradient of a bias without a weight" if spec.bias and not spec.weight else None


def strided_weight(spec: CaseSpec) -> str | None:
    """Return why torch 2.13's batch_norm differentiates a channels_last case wrongly on the CPU."""
    wrong = spec.weight and spec.weight_layout == "every_other"
    return "torch's batch_norm reads a strided weight as if it were contiguous, and dx is wrong" if wrong else None


def one_value(spec: CaseSpec) -> str | None:
    """Return why torch's instance_norm refuses a case, or fails at one without samples."""
    if not spec.shape[0]:
        return "torch's instance_norm fails without samples"
    return "torch's instance_norm needs more than one value a channel" if prod(spec.shape[2:]) == 1 else None


def one_value_a_group(spec: CaseSpec) -> str | None:
    """Return why functional.group_norm refuses a case, as its check counts."""
    samples, channels, *space = spec.shape
    one = samples * channels // (spec.num_groups or 1) * prod(space) == 1
    return "torch's group_norm needs more than one value a channel" if one else None


def liger_addition(spec: CaseSpec) -> str | None:
    """Return why Liger's fused addition does not take a case: it returns the sum in the type of x."""
    return residual_of_another_type(spec) if spec.weight else "it needs a weight"


def needs_both(spec: CaseSpec) -> str | None:
    """Return why Liger's layer_norm does not take a case: its module always has both parameters."""
    return None if spec.weight and spec.bias else "Liger's layer_norm needs a weight and a bias"


def liger_groups(spec: CaseSpec) -> str | None:
    """Return why Liger's group_norm does not take a case, by the assertions of its module."""
    if len(spec.shape) < 3:
        return "Liger's group_norm needs a dimension beyond (B, C)"
    return None if spec.weight and spec.bias else "Liger's group_norm needs a weight and a bias"


def short_rows(spec: CaseSpec) -> str | None:
    """Return why fla's norms raise an error for a case: rows beyond 64 KB."""
    long = spec.shape[-1] * (4 if spec.dtype == "float32" else 2) > 2**16
    return "fla's norms take rows of up to 64 KB" if long else None


def flash(spec: CaseSpec) -> str | None:
    """Return why flash-attn's Triton norms do not take a case: they raise an error, or have no argument for it."""
    if not spec.weight:
        return "flash-attn's norms need a weight"
    if spec.weight_offset not in (0.0, 1.0):
        return "flash-attn's norms have an offset of 0 or 1 alone (zero_centered_weight)"
    long = spec.shape[-1] * (4 if spec.dtype == "float32" else 2) > 2**16
    return "flash-attn's norms take rows of up to 64 KB" if long else None


def last_dimension(spec: CaseSpec) -> str | None:
    """Return why fla's group_norm does not take a case: it groups the last dimension of each token."""
    return "fla's group_norm takes (B, C), without space" if len(spec.shape) > 2 else None


def float32_weight(spec: CaseSpec) -> str | None:
    """Return which assertion of quack's layernorm a case fails."""
    right = spec.weight and (spec.weight_dtype or spec.dtype) == "float32"
    return None if right else "quack's layernorm needs a weight, and float32 for it and its bias"


def offset_needs_weight(spec: CaseSpec) -> str | None:
    """Return which assertion of quack's rmsnorm a case fails."""
    return "quack's rmsnorm has no offset without a weight" if spec.weight_offset and not spec.weight else None


@cache
def no_cuda() -> str | None:
    """Return why CUDA C++ cannot be compiled and run here."""
    import torch

    if not torch.cuda.is_available():
        return "it is CUDA C++, and torch sees no GPU here"
    there = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None
    return None if there else "cuda-core is not installed here: pip install 'verify-norm[cuda]'"


def needs_cuda(spec: CaseSpec) -> str | None:
    """Return why the CUDA ladder cannot run here, whatever the case."""
    return no_cuda()
