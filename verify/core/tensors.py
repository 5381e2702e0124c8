"""The arguments and results of the operators, each by the name that it has in all of them."""

from dataclasses import replace

from verify_norm.core.op import Tensor

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

RESIDUAL = Tensor("residual", "data", "input", dtype="residual")
SCALE = Tensor("scale", "one", "input", dtype="float32")
MASK = Tensor("mask", "data", "input", dtype="bool")
GATE = Tensor("gate", "data", "input")
MODULATION = (Tensor("scale", "sample", "input", dtype="other"), Tensor("shift", "sample", "input", dtype="other"))
ROTATION = (Tensor("cos", "position", "input", dtype="other"), Tensor("sin", "position", "input", dtype="other"))
SAVED_SUM = Tensor("residual_out", "data", "input")
DRESIDUAL_OUT = Tensor("dresidual_out", "data", "cotangent", optional=True)

Y = Tensor("y", "data", "output")
QUANTIZED = Tensor("y", "data", "output", dtype="float8_e4m3fn")
OF_FEW_BITS = {
    "float8_e4m3fn": QUANTIZED,
    "float8_e5m2": replace(Y, dtype="float8_e5m2"),
    "int8": replace(Y, dtype="int8"),
    "float4_e2m1fn": replace(Y, dtype="float4_e2m1fn"),
}
Y_SCALE = Tensor("y_scale", "one", "input", dtype="float32")
GLOBAL_SCALE = Tensor("global_scale", "one", "input", dtype="float32")
SCALE_UB = Tensor("scale_ub", "one", "input", dtype="float32")
SCALE_OF_Y = Tensor("y_scale", "block", "output", dtype="float32")
AMAX = Tensor("amax", "one", "output", dtype="float32")
MEAN = Tensor("mean", "statistic", "output", dtype="float32")
RSTD = Tensor("rstd", "statistic", "output", dtype="float32")
RESIDUAL_OUT = Tensor("residual_out", "data", "output", dtype="residual")
DX = Tensor("dx", "data", "output")
DWEIGHT = Tensor("dweight", "affine", "output", dtype="weight")
DBIAS = Tensor("dbias", "affine", "output", dtype="weight")
NEW_MEAN = Tensor("running_mean", "affine", "output", dtype="weight")
NEW_VAR = Tensor("running_var", "affine", "output", dtype="weight")


def gradient(tensor: Tensor) -> Tensor:
    """Return the output that is the gradient of an input.

    >>> gradient(GATE).name, gradient(WEIGHT) == DWEIGHT
    ('dgate', True)
    """
    return replace(tensor, name=f"d{tensor.name}", role="output", optional=False)
