"""The table of kernels by name, and which operator a name stands for."""

import importlib.util
import re

from verify_norm.core.chains import is_chain
from verify_norm.core.errors import LIST, UnknownOpError, one_of
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, resolved
from verify_norm.core.user_operators import Operator, is_own
from verify_norm.kernels import KERNELS
from verify_norm.kernels.adapters import THIRD_PARTY

BUILTIN: dict[str, Kernel] = {kernel.name: kernel for kernel in KERNELS}
PEERS: dict[str, Kernel] = {kernel.name: kernel for kernel in THIRD_PARTY}  # of other libraries, which may be missing
BOTH: dict[str, tuple[str, str]] = {  # the two directions of an operator: layernorm: (layernorm_fwd, layernorm_bwd)
    op.forward.removesuffix("_fwd"): (op.forward, op.name) for op in OPS.values() if op.forward is not None
}
EXTRA = "'verify-norm[third-party]'"
BUILT = {"flash_attn": "flash-attn --no-build-isolation"}  # no extra installs it: its build takes minutes
FAMILIES = (  # patterns of names, the most specific first
    (r"dropout.*(add|residual).*rmsnorm", "dropout_add_rmsnorm"),
    (r"dropout.*(add|residual).*layernorm", "dropout_add_layernorm"),
    (r"(add|residual).*rmsnorm.*(group.*quant|quant.*group)", "add_rmsnorm_quant_group"),
    (r"(add|residual).*rmsnorm.*dynamic.*quant|addrmsnormquant", "add_rmsnorm_quant"),
    (r"rmsnorm.*dynamic.*quant|rmsnorm.*pertoken.*quant|rmsnormquant", "rmsnorm_quant"),
    (r"rmsnorm.*(fp8|float8|e4m3|e5m2)|(fp8|float8).*rmsnorm", "rmsnorm_fp8"),
    (r"layernorm.*(fp8|float8|e4m3|e5m2)|(fp8|float8).*layernorm", "layernorm_fp8"),
    (r"gat(e|ing).*rmsnorm|rmsnorm.*gat(e|ing)", "gated_rmsnorm"),
    (r"modulat.*rmsnorm|rmsnorm.*modulat", "modulate_rmsnorm"),
    (r"modulat.*layernorm|layernorm.*modulat|adaln|adalayernorm", "modulate_layernorm"),
    (r"norm.*(rope|rotary|rotate)", "qk_norm_rope"),
    (r"(add|residual).*rmsnorm", "add_rmsnorm"),
    (r"(add|residual).*layernorm", "add_layernorm"),
    (r"partial.*rmsnorm|p_?rmsnorm", "partial_rmsnorm"),
    (r"rmsnorm|t5layernorm", "rmsnorm"),  # T5LayerNorm has neither a mean nor a bias
    (r"layernorm", "layernorm"),
    (r"l2norm", "l2norm"),
    (r"groupnorm", "groupnorm"),
    (r"batchnorm", "batchnorm"),
    (r"instancenorm", "instancenorm"),
)
METHODS = ("apply", "forward", "__call__")  # here the name of the class tells more


def infer(attribute: str) -> str | None:
    """Return the operator that an attribute's name suggests, with a direction if it has one; None if it suggests none.

    >>> infer("layernorm_bwd"), infer("rms_norm_forward"), infer("Qwen2RMSNorm"), infer("LigerLayerNormFunction.apply")
    ('layernorm_bwd', 'rmsnorm_fwd', 'rmsnorm', 'layernorm')
    >>> infer("fused_add_rms_norm"), infer("Qwen3NextRMSNormGated"), infer("fused")
    ('add_rmsnorm', 'gated_rmsnorm', None)
    """
    *owners, last = attribute.split(".")
    if owners and last in METHODS:
        last = owners[-1]
    letters = re.sub(r"[^a-z0-9]", "", last.lower())
    base = next((name for pattern, name in FAMILIES if re.search(pattern, letters)), None)
    if base is None or last in OPS:
        return last if last in OPS else None
    if base not in BOTH:
        return f"{base}_fwd"
    told = [f"_{d}wd" for d, word in (("f", "forward"), ("b", "backward")) if f"{d}wd" in letters or word in letters]
    return base + told[0] if len(told) == 1 else base


def unnamed(attribute: str) -> UnknownOpError:
    """Return the error of an attribute whose name suggests no operator."""
    one = "--op layernorm_fwd, or --op layernorm for both directions"
    return UnknownOpError(
        f"cannot infer the op from the name {attribute!r}: say it with {one}; {LIST} shows all {len(OPS) + len(BOTH)}"
    )


def directions(op: str) -> tuple[str, ...]:
    """Return the operators that a name stands for: both directions of one that has none, for example of a chain.

    >>> directions("rmsnorm"), directions("rmsnorm | silu_bwd"), directions("layernorm | gate")
    (('rmsnorm_fwd', 'rmsnorm_bwd'), ('rmsnorm | silu_bwd',), ('layernorm | gate_fwd', 'layernorm | gate_bwd'))
    """
    bare = (is_chain(op) or is_own(op)) and not op.endswith(("_fwd", "_bwd"))
    return (f"{op}_fwd", f"{op}_bwd") if bare else BOTH.get(op, (op,))


def known(op: str | Operator, bind: str = "") -> tuple[str, str]:
    """Return the name of an operator or a chain, and `--bind` with what the chain's text fixes; raises UsageError.

    >>> known("rmsnorm(weight_offset=1) | modulate", "x=inp -> y")
    ('modulate_rmsnorm', 'weight_offset=1, x=inp -> y')
    """
    name, constants = resolved(op)
    if not is_chain(name) and not is_own(name):
        one_of("op", name, (*OPS, *BOTH), see=LIST)
    return name, f"{constants}{', ' * bool(constants and bind and bind[:1] != '-')}{bind}"


def missing(kernel: Kernel) -> str | None:
    """Return why a kernel of another library cannot run here, without importing the library; None if it can."""
    if importlib.util.find_spec(kernel.origin) is not None:
        return None
    return f"{kernel.origin} is not installed here: pip install {BUILT.get(kernel.origin, EXTRA)}"
