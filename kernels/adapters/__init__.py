"""Kernels of torch and of other libraries, as kernels of our operators, and their tables. Importing it loads none.

Stock torch has the contract that it was measured to keep on the CPU in float32; in half precision it does not keep all
of them, and the findings say where. A kernel of another library has the strict contract, but for what the library
documents, and its `origin` is the module to import, which may be missing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels import domain

Reason = Callable[[CaseSpec], str | None]
STRICT, EXPANDED = Contract(), Contract(expanded=True)
SEQUENTIAL = Contract(expanded=True, summation="sequential")
RUNNING = Contract(expanded=True, summation="atomic")  # sums over rows are one running sum, those of a row are not
ATOMIC = Contract(summation="atomic", deterministic=False)
# What casting_mode="llama" is documented to match, Llama's own module: x̂ is rounded to the type of x before it meets
# the weight, and so is each term of dweight, its product with dy.
LLAMA = Contract(xhat="x", partials="x")
ALL = ("float32", "float16", "bfloat16")


def _torch(name: str, op: str, summary: str, contract: Contract = STRICT, unsupported: Reason | None = None) -> Kernel:
    """Return the row of a kernel of stock torch."""
    return Kernel(
        name,
        op,
        f"verify_norm.kernels.adapters.torch_native:{name}",
        "torch",
        contract=contract,
        summary=summary,
        unsupported=unsupported,
        forward=name.replace("_bwd", "_fwd") if op.endswith("_bwd") else None,
    )


TORCH: tuple[Kernel, ...] = (
    _torch("layernorm_fwd_torch", "layernorm_fwd", "torch.native_layer_norm"),
    _torch(
        "layernorm_bwd_torch",
        "layernorm_bwd",
        "the gradients of functional.layer_norm",
        RUNNING,
        domain.bias_of_another_type,
    ),
    _torch("rmsnorm_fwd_torch", "rmsnorm_fwd", "functional.rms_norm", unsupported=domain.no_offset),
    _torch("rmsnorm_bwd_torch", "rmsnorm_bwd", "the gradients of functional.rms_norm", unsupported=domain.no_offset),
    _torch("groupnorm_fwd_torch", "groupnorm_fwd", "torch.native_group_norm", EXPANDED),
    _torch(
        "groupnorm_bwd_torch",
        "groupnorm_bwd",
        "the gradients of functional.group_norm",
        EXPANDED,
        domain.bias_needs_weight,
    ),
    _torch("batchnorm_fwd_torch", "batchnorm_fwd", "torch.native_batch_norm", SEQUENTIAL),
    _torch(
        "batchnorm_bwd_torch",
        "batchnorm_bwd",
        "aten.native_batch_norm_backward",
        replace(SEQUENTIAL, xhat="x", partials="x"),
        domain.strided_weight,
    ),
    _torch("instancenorm_fwd_torch", "instancenorm_fwd", "functional.instance_norm", unsupported=domain.one_value),
    _torch(
        "instancenorm_bwd_torch",
        "instancenorm_bwd",
        "the gradients of functional.instance_norm",
        unsupported=domain.one_value,
    ),
)


@dataclass(frozen=True)
class Library:
    """A library, and the module of this package that calls its kernels."""

    origin: str
    module: str
    backend: Literal["torch", "triton", "cuda"]

    def pair(
        self,
        name: str,
        op: str,
        summary: str,
        unsupported: Reason | None = None,
        contract: Contract = STRICT,
        dtypes: tuple[str, ...] = ALL,
    ) -> tuple[Kernel, Kernel]:
        """Return the rows of a forward and its backward; "{}" in the name is the direction."""
        target = f"verify_norm.kernels.adapters.{self.module}:{name}"
        forward = Kernel(
            name.format("fwd"),
            f"{op}_fwd",
            target.format("fwd"),
            self.backend,
            dtypes,
            replace(contract, inplace=()),
            summary,
            unsupported,
            origin=self.origin,
        )
        backward = replace(
            forward,
            name=name.format("bwd"),
            op=f"{op}_bwd",
            target=target.format("bwd"),
            contract=contract,
            summary=f"the gradients of {summary}",
            forward=forward.name,
        )
        return forward, backward


_TORCH = Library("torch", "torch_native", "torch")
_LIGER = Library("liger_kernel", "third_party", "triton")
_FLA = Library("fla", "third_party", "triton")
_FLASH = Library("flash_attn", "flash_attn", "triton")
_QUACK = Library("quack", "third_party", "cuda")
THIRD_PARTY: tuple[Kernel, ...] = (
    *_TORCH.pair("layernorm_{}_torch_compiled", "layernorm", "functional.layer_norm, compiled"),
    *_TORCH.pair("rmsnorm_{}_torch_compiled", "rmsnorm", "functional.rms_norm, compiled"),
    *_TORCH.pair(
        "groupnorm_{}_torch_compiled",
        "groupnorm",
        "functional.group_norm, compiled",
        domain.one_value_a_group,
        EXPANDED,
    ),
    *_TORCH.pair("batchnorm_{}_torch_compiled", "batchnorm", "functional.batch_norm, compiled"),
    *_TORCH.pair(
        "instancenorm_{}_torch_compiled", "instancenorm", "functional.instance_norm, compiled", domain.one_value
    ),
    *_LIGER.pair("liger_layernorm_{}", "layernorm", "Liger's layer_norm", domain.needs_both),
    *_LIGER.pair(
        "liger_rmsnorm_llama_{}",
        "rmsnorm",
        "Liger's rms_norm, casting_mode llama",
        contract=replace(LLAMA, inplace=("dx:dy",)),
    ),
    *_LIGER.pair("liger_rmsnorm_gemma_{}", "rmsnorm", "Liger's rms_norm, casting_mode gemma"),
    *_LIGER.pair(  # computes in the type of x
        "liger_rmsnorm_none_{}", "rmsnorm", "Liger's rms_norm, casting_mode none", dtypes=("float32",)
    ),
    *_LIGER.pair("liger_groupnorm_{}", "groupnorm", "Liger's group_norm", domain.liger_groups, ATOMIC),
    *_LIGER.pair(
        "liger_add_rmsnorm_{}",
        "add_rmsnorm",
        "Liger's fused_add_rms_norm, casting_mode llama",
        domain.liger_addition,
        replace(LLAMA, residual="rounded"),
    ),
    *_FLA.pair("fla_layernorm_{}", "layernorm", "fla's layer_norm", domain.short_rows),
    *_FLA.pair("fla_rmsnorm_{}", "rmsnorm", "fla's rms_norm", domain.short_rows),
    *_FLA.pair("fla_groupnorm_{}", "groupnorm", "fla's group_norm", domain.last_dimension),
    *_FLA.pair("fla_add_rmsnorm_{}", "add_rmsnorm", "fla's rms_norm with a residual", domain.short_rows),
    *_FLASH.pair("flash_layernorm_{}", "layernorm", "flash-attn's layer_norm_fn", domain.flash),
    *_FLASH.pair("flash_rmsnorm_{}", "rmsnorm", "flash-attn's rms_norm_fn", domain.flash),
    *_FLASH.pair("flash_add_rmsnorm_{}", "add_rmsnorm", "flash-attn's rms_norm_fn with a residual", domain.flash),
    *_QUACK.pair("quack_layernorm_{}", "layernorm", "quack's layernorm", domain.float32_weight),
    *_QUACK.pair("quack_rmsnorm_{}", "rmsnorm", "quack's rmsnorm", domain.offset_needs_weight),
    *_QUACK.pair("quack_add_rmsnorm_{}", "add_rmsnorm", "quack's rmsnorm with a residual", domain.offset_needs_weight),
)
