"""OPS: the table of operators. To add one, add its reference and a row here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from verify_norm.core import user_operators
from verify_norm.core.chains import is_chain, operators, operators_of, parse
from verify_norm.core.errors import LIST, one_of
from verify_norm.core.op import Op, Tensor
from verify_norm.core.tensors import (
    AMAX,
    BIAS,
    DBIAS,
    DRESIDUAL_OUT,
    DWEIGHT,
    DX,
    DY,
    MEAN,
    NEW_MEAN,
    NEW_VAR,
    QUANTIZED,
    RESIDUAL,
    RESIDUAL_OUT,
    RSTD,
    RUNNING_MEAN,
    RUNNING_VAR,
    SAVED_MEAN,
    SAVED_RSTD,
    SAVED_SUM,
    SCALE,
    STATE_MEAN,
    STATE_VAR,
    WEIGHT,
    X,
    Y,
)
from verify_norm.reference import (
    add_layernorm,
    add_rmsnorm,
    batchnorm,
    groupnorm,
    instancenorm,
    layernorm,
    quantized,
    rmsnorm,
)
from verify_norm.reference.chain import Chain
from verify_norm.reference.stages.activate import Activate
from verify_norm.reference.stages.dropout import Dropout
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.modulate import Modulate
from verify_norm.reference.stages.quantize import Quantize
from verify_norm.reference.stages.rotate import Rotate


def _both(
    forward: Op, inputs: tuple[Tensor, ...], reference: Callable[..., Any], error: Callable[..., Any], note: str = ""
) -> tuple[Op, Op]:
    """Return the operator and its backward, which takes `inputs` and returns the gradients of x, weight and bias."""
    backward = replace(
        forward,
        name=forward.name.replace("_fwd", "_bwd"),
        inputs=inputs,
        outputs=(DX, DWEIGHT, DBIAS) if BIAS in inputs else (DX, DWEIGHT),
        attrs=tuple(name for name in forward.attrs if name != "momentum"),
        reference=reference,
        error=error,
        forward=forward.name,
        summary=f"the gradients of {forward.name}{note}",
    )
    return forward, backward


def _centered(
    name: str, attrs: tuple[str, ...], functions: tuple[Callable[..., Any], ...], summary: str, **fields: Any
) -> tuple[Op, Op]:
    """Return forward and backward of a norm with mean, weight and bias; `functions` are references and errors."""
    reference, error, backward, backward_error = functions
    inputs, outputs = (X, WEIGHT, BIAS), (Y, MEAN, RSTD)
    forward = Op(f"{name}_fwd", inputs, outputs, attrs, reference, error, summary=summary, **fields)
    return _both(forward, (DY, *inputs, SAVED_MEAN, SAVED_RSTD), backward, backward_error)


class Operators(dict[str, Op]):
    """The operators by name; one without a row is a chain (`chains`) or a user's own (`user_operators`)."""

    def __missing__(self, name: str) -> Op:
        """Return the operator of a chain's name, such as "layernorm | gate_bwd", or a user's own; raises KeyError."""
        return {op.name: op for op in (*operators_of(name), *user_operators.records(name))}[name]


OPS: dict[str, Op] = Operators(
    (op.name, op)
    for op in (
        *_centered(
            "layernorm",
            ("eps", "weight_offset", "normalized_shape"),
            (layernorm.forward, layernorm.forward_error, layernorm.backward, layernorm.backward_error),
            "y = (x − mean)·rstd·(weight + weight_offset) + bias over the last dimensions",
        ),
        *_both(
            Op(
                "rmsnorm_fwd",
                inputs=(X, WEIGHT),
                outputs=(Y, RSTD),
                attrs=("eps", "weight_offset", "normalized_shape"),
                reference=rmsnorm.forward,
                error=rmsnorm.forward_error,
                centred=False,
                summary="y = x·rstd·(weight + weight_offset) over the last dimensions",
            ),
            (DY, X, WEIGHT, SAVED_RSTD),
            rmsnorm.backward,
            rmsnorm.backward_error,
        ),
        *operators("l2norm", Chain("l2norm", ()), "y = x/√(Σx² + eps) over the last dimensions; rstd = 1/√(Σx² + eps)"),
        *operators(
            "partial_rmsnorm",
            Chain("partial_rmsnorm", ()),
            "y = x·rstd·(weight + weight_offset), rstd that of the first variance_size elements of a row",
        ),
        *operators(
            "rmsnorm_silu",
            Chain("rmsnorm", (Activate("silu"),)),
            "y = z·σ(z), SiLU, of rmsnorm_fwd's z, as in the VAE of Wan",
        ),
        *operators(
            "gated_rmsnorm",
            Chain("rmsnorm", (Gate("silu"),)),
            "y = z·SiLU(gate) of rmsnorm_fwd's z; gate has the shape of x",
        ),
        *operators(
            "gate_rmsnorm",
            Chain("rmsnorm", (), before=Gate("silu")),
            "y = rmsnorm_fwd of x·SiLU(gate), as in Mamba-2; gate has the shape of x",
        ),
        *operators(
            "gated_rmsnorm_sigmoid",
            Chain("rmsnorm", (Gate("sigmoid"),)),
            "y = z·σ(gate) of rmsnorm_fwd's z; gate has the shape of x",
        ),
        *operators(
            "qk_norm_rope",
            Chain("rmsnorm", (Rotate("neox"),)),
            "y is rmsnorm_fwd's z of each head, its first elements rotated by cos and sin in halves, as in Qwen3",
        ),
        *operators(
            "modulate_layernorm",
            Chain("layernorm", (Modulate(),)),
            "y = z(1 + scale) + shift of layernorm_fwd's z; scale and shift have one row a sample, or the shape of x",
        ),
        *operators(
            "modulate_rmsnorm",
            Chain("rmsnorm", (Modulate(),)),
            "y = z(1 + scale) + shift of rmsnorm_fwd's z; scale and shift have one row a sample, or the shape of x",
        ),
        Op(
            "layernorm_fp8_fwd",
            inputs=(X, WEIGHT, BIAS, SCALE),
            outputs=(QUANTIZED, AMAX, MEAN, RSTD),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=quantized.layernorm_forward,
            error=quantized.layernorm_error,
            quantized=True,
            summary="y = layernorm_fwd's z times scale, saturated to 8 bits; amax = max |z|",
        ),
        Op(
            "rmsnorm_fp8_fwd",
            inputs=(X, WEIGHT, SCALE),
            outputs=(QUANTIZED, AMAX, RSTD),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=quantized.rmsnorm_forward,
            error=quantized.rmsnorm_error,
            quantized=True,
            centred=False,
            summary="y = rmsnorm_fwd's z times scale, saturated to 8 bits; amax = max |z|",
        ),
        *_centered(
            "groupnorm",
            ("num_groups", "eps"),
            (groupnorm.forward, groupnorm.forward_error, groupnorm.backward, groupnorm.backward_error),
            "y = (x − mean)·rstd·weight + bias over each group of channels of (B, C, *spatial)",
            view="groups",
        ),
        *operators(
            "groupnorm_silu",
            Chain("groupnorm", (Activate("silu"),)),
            "y = z·σ(z), SiLU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
        ),
        *operators(
            "groupnorm_gelu",
            Chain("groupnorm", (Activate("gelu"),)),
            "y = z·Φ(z), the exact GELU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
        ),
        *_both(
            Op(
                "batchnorm_fwd",
                inputs=(X, WEIGHT, BIAS, STATE_MEAN, STATE_VAR),
                outputs=(Y, MEAN, RSTD, NEW_MEAN, NEW_VAR),  # the last two in place: they are read from the arguments
                attrs=("training", "momentum", "eps"),
                view="channels",
                reference=batchnorm.forward,
                error=batchnorm.forward_error,
                summary="y = (x − mean)·rstd·weight + bias over each channel of (B, C, *spatial); in training by "
                "its own statistics, which also update the running ones, otherwise by the running ones",
            ),
            (DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD, RUNNING_MEAN, RUNNING_VAR),
            batchnorm.backward,
            batchnorm.backward_error,
            note="; with running statistics these are constants",
        ),
        *_centered(
            "instancenorm",
            ("eps",),
            (instancenorm.forward, instancenorm.forward_error, instancenorm.backward, instancenorm.backward_error),
            "y = (x − mean)·rstd·weight + bias over each channel of each sample of (B, C, *spatial)",
            view="groups",
        ),
        *_both(
            Op(
                "add_layernorm_fwd",
                inputs=(X, RESIDUAL, WEIGHT, BIAS),
                outputs=(Y, RESIDUAL_OUT, MEAN, RSTD),
                attrs=("eps", "weight_offset", "normalized_shape"),
                reference=add_layernorm.forward,
                error=add_layernorm.forward_error,
                summary="residual_out = x + residual, y = its LayerNorm",
            ),
            (DY, DRESIDUAL_OUT, SAVED_SUM, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            add_layernorm.backward,
            add_layernorm.backward_error,
            note="; dx is also the gradient of residual",
        ),
        *_both(
            Op(
                "add_rmsnorm_fwd",
                inputs=(X, RESIDUAL, WEIGHT),
                outputs=(Y, RESIDUAL_OUT, RSTD),
                attrs=("eps", "weight_offset", "normalized_shape"),
                reference=add_rmsnorm.forward,
                error=add_rmsnorm.forward_error,
                centred=False,
                summary="residual_out = x + residual, y = its RMSNorm",
            ),
            (DY, DRESIDUAL_OUT, SAVED_SUM, WEIGHT, SAVED_RSTD),
            add_rmsnorm.backward,
            add_rmsnorm.backward_error,
            note="; dx is also the gradient of residual",
        ),
        *operators(
            "dropout_add_layernorm",
            Chain("layernorm", (), adds=True, dropout=Dropout()),
            "residual_out = x·mask/(1 − dropout_p) + residual, y = its LayerNorm; mask is True where x is kept",
        ),
        *operators(
            "dropout_add_rmsnorm",
            Chain("rmsnorm", (), adds=True, dropout=Dropout()),
            "residual_out = x·mask/(1 − dropout_p) + residual, y = its RMSNorm; mask is True where x is kept",
        ),
        *operators(
            "rmsnorm_quant",
            Chain("rmsnorm", (Quantize("float8_e4m3fn", "per_token"),)),
            "y = rmsnorm_fwd's z/y_scale in float8_e4m3fn; y_scale = max |z| of each row over 448",
        ),
        *operators(
            "add_rmsnorm_quant",
            Chain("rmsnorm", (Quantize("float8_e4m3fn", "per_token"),), adds=True),
            "residual_out = x + residual, y = its RMSNorm in float8_e4m3fn, y_scale = max |z| of each row over 448",
        ),
        *operators(
            "add_rmsnorm_quant_group",
            Chain("rmsnorm", (Quantize("float8_e4m3fn", "group128"),), adds=True),
            "as add_rmsnorm_quant, with a scale of every 128 elements of a row",
        ),
    )
)


def resolved(text: str | user_operators.Operator) -> tuple[str, str]:
    """Return the name of the operator that a text means, with its direction if it has one, and constants for `--bind`.

    A chain that has a row of its own gets that name. A user's own operator may stand for its name. Raises UsageError
    for a chain, or the name of a user's own operator, that is none.

    >>> resolved("rmsnorm(weight_offset=1)|gate_bwd"), resolved("add | rmsnorm"), resolved("layernorm | gate(gelu)")
    (('gated_rmsnorm_bwd', 'weight_offset=1'), ('add_rmsnorm', ''), ('layernorm | gate(gelu)', ''))
    """
    if isinstance(text, user_operators.Operator):
        return text.name, ""
    if user_operators.records(text) or not is_chain(text):
        return text, ""
    chain, name, constants = parse(text)
    row = next((op.name for op in OPS.values() if op.chain == chain), None)
    if not (chain.stages or chain.before or chain.dropout):
        row = f"{'add_' if chain.adds else ''}{chain.norm}"
        one_of("operator", row, map(base, OPS), see=LIST)
    direction = text.strip()[-4:] if text.strip().endswith(("_fwd", "_bwd")) else "_fwd" * (chain.quantizer is not None)
    return (name if row is None else base(row)) + direction, constants


def base(name: str) -> str:
    """Return an operator's name without its direction: "layernorm" of "layernorm_bwd"."""
    return name.removesuffix("_fwd").removesuffix("_bwd")


def forward_of(op: Op) -> Op:
    """Return the forward operator of a backward; raises KeyError for a forward."""
    return OPS[str(op.forward)]
