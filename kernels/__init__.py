"""The kernels under test, and their table. Importing it loads neither torch nor Triton."""

from math import prod

from verify_norm.spec import CaseSpec, Contract, Kernel

TWO_PASS = Contract(variance="two_pass", batch_invariant=True)
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
        ("rmsnorm_fwd", "rmsnorm_fwd", "rmsnorm", TWO_PASS, "RMSNorm, with an optional offset of the weight"),
        ("rmsnorm_bwd", "rmsnorm_bwd", "rmsnorm", TWO_PASS, "RMSNorm's gradients, sums in two stages"),
        ("add_layernorm_fwd", "add_layernorm_fwd", "add_norm", TWO_PASS, "Addition and LayerNorm in one kernel"),
        ("add_layernorm_bwd", "add_layernorm_bwd", "add_norm", TWO_PASS, "its gradients, sums in two stages"),
        ("add_rmsnorm_fwd", "add_rmsnorm_fwd", "add_rmsnorm", TWO_PASS, "Addition and RMSNorm in one kernel"),
        ("add_rmsnorm_bwd", "add_rmsnorm_bwd", "add_rmsnorm", TWO_PASS, "its gradients, sums in two stages"),
        ("groupnorm_fwd", "groupnorm_fwd", "groupnorm", TWO_PASS, "GroupNorm, any strides, channels_last included"),
        ("groupnorm_bwd", "groupnorm_bwd", "groupnorm", TWO_PASS, "GroupNorm's gradients, from sums per channel"),
        (
            "groupnorm_fwd_welford", "groupnorm_fwd", "groupnorm_welford",
            Contract(variance="centered", batch_invariant=True),
            "GroupNorm, statistics in one pass by Welford and Chan",
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

KERNELS: tuple[Kernel, ...] = _TRITON + _TORCH
