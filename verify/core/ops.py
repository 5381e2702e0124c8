"""OPS: the table of operators. To add one, add its reference and a row here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.spec import Contract, Op, Tensor
from verify_norm.reference import (
    activated,
    add_layernorm,
    add_rmsnorm,
    batchnorm,
    groupnorm,
    instancenorm,
    layernorm,
    quantized,
    rmsnorm,
)
from verify_norm.reference.arithmetic import Arithmetic

X = Tensor("x", "data", "input")
WEIGHT = Tensor("weight", "affine", "weight", dtype="weight", optional=True)
BIAS = Tensor("bias", "affine", "weight", dtype="weight", optional=True)
DY = Tensor("dy", "data", "cotangent")
SAVED_MEAN = Tensor("mean", "statistic", "saved", dtype="float32")
SAVED_RSTD = Tensor("rstd", "statistic", "saved", dtype="float32")

STATE_MEAN = Tensor("running_mean", "affine", "state", dtype="weight", optional=True)  # torch takes no other type
STATE_VAR = Tensor("running_var", "affine", "state", dtype="weight", optional=True)
RUNNING_MEAN = Tensor("running_mean", "affine", "input", dtype="weight", optional=True)
RUNNING_VAR = Tensor("running_var", "affine", "input", dtype="weight", optional=True)

RESIDUAL = Tensor("residual", "data", "input")
SCALE = Tensor("scale", "one", "input", dtype="float32")
SAVED_SUM = Tensor("residual_out", "data", "input")
DRESIDUAL_OUT = Tensor("dresidual_out", "data", "cotangent", optional=True)

Y = Tensor("y", "data", "output")
QUANTIZED = Tensor("y", "data", "output", dtype="float8_e4m3fn")
AMAX = Tensor("amax", "one", "output", dtype="float32")
MEAN = Tensor("mean", "statistic", "output", dtype="float32")
RSTD = Tensor("rstd", "statistic", "output", dtype="float32")
RESIDUAL_OUT = Tensor("residual_out", "data", "output")
DX = Tensor("dx", "data", "output")
DWEIGHT = Tensor("dweight", "affine", "output", dtype="weight")
DBIAS = Tensor("dbias", "affine", "output", dtype="weight")
NEW_MEAN = Tensor("running_mean", "affine", "output", dtype="weight")
NEW_VAR = Tensor("running_var", "affine", "output", dtype="weight")


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


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        *_centered(
            "layernorm",
            ("eps", "normalized_shape"),
            (layernorm.forward, layernorm.forward_error, layernorm.backward, layernorm.backward_error),
            "y = (x − mean)·rstd·weight + bias over the last dimensions",
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
        Op(
            "layernorm_fp8_fwd",
            inputs=(X, WEIGHT, BIAS, SCALE),
            outputs=(QUANTIZED, AMAX, MEAN, RSTD),
            attrs=("eps", "normalized_shape"),
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
        *_centered(
            "groupnorm_silu",
            ("num_groups", "eps"),
            (
                activated.silu_forward,
                activated.silu_forward_error,
                activated.silu_backward,
                activated.silu_backward_error,
            ),
            "y = z·σ(z), SiLU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
            view="groups",
            activation="silu",
        ),
        *_centered(
            "groupnorm_gelu",
            ("num_groups", "eps"),
            (
                activated.gelu_forward,
                activated.gelu_forward_error,
                activated.gelu_backward,
                activated.gelu_backward_error,
            ),
            "y = z·Φ(z), the exact GELU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
            view="groups",
            activation="gelu",
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
                summary="y = (x − mean)·rstd·weight + bias over each channel of (B, C, *spatial), by its statistics in "
                "training, which also move the running ones; by the running ones else",
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
                attrs=("eps", "normalized_shape"),
                reference=add_layernorm.forward,
                error=add_layernorm.forward_error,
                summary="residual_out = x + residual, y = its LayerNorm",
            ),
            (DY, DRESIDUAL_OUT, SAVED_SUM, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            add_layernorm.backward,
            add_layernorm.backward_error,
            note="; dx is that of residual too",
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
            note="; dx is that of residual too",
        ),
    )
}


def base(name: str) -> str:
    """Return an operator's name without its direction: "layernorm" of "layernorm_bwd"."""
    return name.removesuffix("_fwd").removesuffix("_bwd")


def forward_of(op: Op) -> Op:
    """Return the forward operator of a backward; raises KeyError for a forward."""
    return OPS[str(op.forward)]


def arithmetic(contract: Contract, dtype: str, weight_dtype: str | None = None) -> Arithmetic:
    """Return the arithmetic that `contract` promises for x and weight of these types, as the error bounds take it.

    A weight_dtype of None means that of x.
    """
    form, offset = FORMATS[contract.accumulate], FORMATS[weight_dtype or dtype].u
    narrow = {
        field: FORMATS[dtype if name == "x" else name]
        for field, name in (("stats", contract.stats), ("xhat", contract.xhat), ("partials", contract.partials))
        if name is not None
    }
    roundoff = {field: f.u if f.u > form.u else 0.0 for field, f in narrow.items()}
    narrower = [f for field, f in narrow.items() if roundoff[field]]
    return Arithmetic(
        u=form.u,
        tiny=form.smallest_normal,
        huge=form.largest,
        summation="sequential" if contract.summation == "sequential" else "blocked",
        variance=contract.variance,
        expanded=contract.expanded,
        products=contract.products,
        offset_u=offset if contract.offset_weight == "weight" and offset > form.u else 0.0,
        stats_u=roundoff["stats"],
        xhat_u=roundoff.get("xhat", 0.0),
        partials_u=roundoff["partials"],
        narrow_tiny=max((float(f.ulp(np.zeros(()))) / 2 for f in narrower), default=0.0),
        narrow_huge=min((f.largest for f in narrower), default=np.inf),
        lanes=contract.lanes,
        atomic=contract.summation == "atomic",
    )


def output_dtype(tensor: Tensor, contract: Contract, dtype: str, weight_dtype: str | None = None) -> str:
    """Return the type of an output, given the types of x and weight."""
    if tensor.extent == "statistic" and tensor.dtype == "float32":
        return dtype if contract.stats == "x" else contract.stats
    own = contract.output
    if own == "promoted":  # x and a weight of another 16-bit type make y float32
        own = "float32" if tensor.name == "y" and weight_dtype not in (None, dtype) else None
    promised = {"y": own, "dx": own, "dweight": contract.weight_grad, "dbias": contract.weight_grad}
    return promised.get(tensor.name) or tensor.among(dtype, weight_dtype)


def roundings(contract: Contract, dtype: str, output: str) -> dict[str, Any]:
    """Return what a reference may ask about types: how a fused sum is rounded, and where a quantized y saturates."""
    rounded = FORMATS[dtype].round if contract.residual == "rounded" else None
    return {"rounded": rounded, "largest": np.inf if contract.saturate == "overflow" else FORMATS[output].largest}
