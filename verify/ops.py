"""OPS: the one table of operators. To add one, add its reference and a row here."""

from __future__ import annotations

from typing import Any

import numpy as np

from verify_norm.dtypes import FORMATS
from verify_norm.reference import activated, addnorm, batchnorm, groupnorm, instancenorm, layernorm, quantized, rmsnorm
from verify_norm.reference.rounding import Arithmetic
from verify_norm.spec import Contract, Op, Tensor

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

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op(
            "layernorm_fwd",
            inputs=(X, WEIGHT, BIAS),
            outputs=(Y, MEAN, RSTD),
            attrs=("eps", "normalized_shape"),
            reference=layernorm.forward,
            error=layernorm.forward_error,
            summary="y = (x − mean)·rstd·weight + bias over the last dimensions",
        ),
        Op(
            "layernorm_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("eps", "normalized_shape"),
            reference=layernorm.backward,
            error=layernorm.backward_error,
            forward="layernorm_fwd",
            summary="the gradients of layernorm_fwd",
        ),
        Op(
            "rmsnorm_fwd",
            inputs=(X, WEIGHT),
            outputs=(Y, RSTD),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=rmsnorm.forward,
            error=rmsnorm.forward_error,
            summary="y = x·rstd·(weight + weight_offset) over the last dimensions",
        ),
        Op(
            "rmsnorm_bwd",
            inputs=(DY, X, WEIGHT, SAVED_RSTD),
            outputs=(DX, DWEIGHT),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=rmsnorm.backward,
            error=rmsnorm.backward_error,
            forward="rmsnorm_fwd",
            summary="the gradients of rmsnorm_fwd",
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
            summary="y = rmsnorm_fwd's z times scale, saturated to 8 bits; amax = max |z|",
        ),
        Op(
            "groupnorm_fwd",
            inputs=(X, WEIGHT, BIAS),
            outputs=(Y, MEAN, RSTD),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=groupnorm.forward,
            error=groupnorm.forward_error,
            summary="y = (x − mean)·rstd·weight + bias over each group of channels of (B, C, *spatial)",
        ),
        Op(
            "groupnorm_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=groupnorm.backward,
            error=groupnorm.backward_error,
            forward="groupnorm_fwd",
            summary="the gradients of groupnorm_fwd",
        ),
        Op(
            "groupnorm_silu_fwd",
            inputs=(X, WEIGHT, BIAS),
            outputs=(Y, MEAN, RSTD),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=activated.silu_forward,
            error=activated.silu_forward_error,
            activation="silu",
            summary="y = z·σ(z), SiLU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
        ),
        Op(
            "groupnorm_silu_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=activated.silu_backward,
            error=activated.silu_backward_error,
            forward="groupnorm_silu_fwd",
            activation="silu",
            summary="the gradients of groupnorm_silu_fwd",
        ),
        Op(
            "groupnorm_gelu_fwd",
            inputs=(X, WEIGHT, BIAS),
            outputs=(Y, MEAN, RSTD),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=activated.gelu_forward,
            error=activated.gelu_forward_error,
            activation="gelu",
            summary="y = z·Φ(z), the exact GELU, of groupnorm_fwd's z = (x − mean)·rstd·weight + bias",
        ),
        Op(
            "groupnorm_gelu_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("num_groups", "eps"),
            view="groups",
            reference=activated.gelu_backward,
            error=activated.gelu_backward_error,
            forward="groupnorm_gelu_fwd",
            activation="gelu",
            summary="the gradients of groupnorm_gelu_fwd",
        ),
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
        Op(
            "batchnorm_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD, RUNNING_MEAN, RUNNING_VAR),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("training", "eps"),
            view="channels",
            reference=batchnorm.backward,
            error=batchnorm.backward_error,
            forward="batchnorm_fwd",
            summary="the gradients of batchnorm_fwd; with running statistics these are constants",
        ),
        Op(
            "instancenorm_fwd",
            inputs=(X, WEIGHT, BIAS),
            outputs=(Y, MEAN, RSTD),
            attrs=("eps",),
            view="groups",
            reference=instancenorm.forward,
            error=instancenorm.forward_error,
            summary="y = (x − mean)·rstd·weight + bias over each channel of each sample of (B, C, *spatial)",
        ),
        Op(
            "instancenorm_bwd",
            inputs=(DY, X, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("eps",),
            view="groups",
            reference=instancenorm.backward,
            error=instancenorm.backward_error,
            forward="instancenorm_fwd",
            summary="the gradients of instancenorm_fwd",
        ),
        Op(
            "add_layernorm_fwd",
            inputs=(X, RESIDUAL, WEIGHT, BIAS),
            outputs=(Y, RESIDUAL_OUT, MEAN, RSTD),
            attrs=("eps", "normalized_shape"),
            reference=addnorm.layernorm_forward,
            error=addnorm.layernorm_forward_error,
            summary="residual_out = x + residual, y = its LayerNorm",
        ),
        Op(
            "add_layernorm_bwd",
            inputs=(DY, DRESIDUAL_OUT, SAVED_SUM, WEIGHT, BIAS, SAVED_MEAN, SAVED_RSTD),
            outputs=(DX, DWEIGHT, DBIAS),
            attrs=("eps", "normalized_shape"),
            reference=addnorm.layernorm_backward,
            error=addnorm.layernorm_backward_error,
            forward="add_layernorm_fwd",
            summary="the gradients of add_layernorm_fwd; dx is that of residual too",
        ),
        Op(
            "add_rmsnorm_fwd",
            inputs=(X, RESIDUAL, WEIGHT),
            outputs=(Y, RESIDUAL_OUT, RSTD),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=addnorm.rmsnorm_forward,
            error=addnorm.rmsnorm_forward_error,
            summary="residual_out = x + residual, y = its RMSNorm",
        ),
        Op(
            "add_rmsnorm_bwd",
            inputs=(DY, DRESIDUAL_OUT, SAVED_SUM, WEIGHT, SAVED_RSTD),
            outputs=(DX, DWEIGHT),
            attrs=("eps", "weight_offset", "normalized_shape"),
            reference=addnorm.rmsnorm_backward,
            error=addnorm.rmsnorm_backward_error,
            forward="add_rmsnorm_fwd",
            summary="the gradients of add_rmsnorm_fwd; dx is that of residual too",
        ),
    )
}


def arithmetic(contract: Contract, dtype: str) -> Arithmetic:
    """What `contract` promises, in the numbers that the error bounds are made of, for inputs of type `dtype`."""
    form = FORMATS[contract.accumulate]
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
        stats_u=roundoff.get("stats", 0.0),
        xhat_u=roundoff.get("xhat", 0.0),
        partials_u=roundoff.get("partials", 0.0),
        narrow_tiny=max((float(f.ulp(np.zeros(()))) / 2 for f in narrower), default=0.0),
        narrow_huge=min((f.largest for f in narrower), default=np.inf),
    )


def output_dtype(tensor: Tensor, contract: Contract, dtype: str, weight_dtype: str | None = None) -> str:
    """The type of an output, for x and weights of these types."""
    if tensor.extent == "statistic" and tensor.dtype == "float32":
        return dtype if contract.stats == "x" else contract.stats
    if tensor.name in ("y", "dx") and contract.output is not None:
        return contract.output
    return tensor.among(dtype, weight_dtype)


def roundings(contract: Contract, dtype: str, output: str) -> dict[str, Any]:
    """What a reference may ask of the types of x and of the first output: how a sum is rounded, where y saturates."""
    rounded = FORMATS[dtype].round if contract.residual == "rounded" else None
    return {"rounded": rounded, "largest": FORMATS[output].largest}
