"""An operator and its tensors, as records; `verify_norm.core.ops` has the table of operators."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from verify_norm.core.dtypes import Array

Extent = Literal["data", "affine", "sample", "position", "statistic", "block", "one"]
View = Literal["rows", "groups", "channels"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or a result of an operator.

    `extent` is its shape: "data" that of x, "affine" that of weight, "sample" a row of weight's shape for each sample
    or token (`CaseSpec.modulation`), "position" R/2 numbers for each token, which its heads share, "statistic" one
    value a row or group, "block" one a block of a row that has a scale of its own (M, K), "one" a single value. `dtype`
    is its type: "x" that of x, "weight" that of weight, "other" that of cos and sin, of scale and shift, "residual"
    that of a forward's residual and residual_out, or the name of a type. A tensor of role "state" is changed in
    place, and is the output of the same name. Values of a `positive` one are above 0.
    """

    name: str
    extent: Extent
    role: Literal["input", "weight", "saved", "cotangent", "state", "output"]
    dtype: Literal[
        "x",
        "weight",
        "other",
        "residual",
        "float32",
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
        "int8",
        "float4_e2m1fn",
        "float8_e8m0fnu",
    ] = "x"
    optional: bool = False
    positive: bool = False

    def among(
        self, dtype: str, weight_dtype: str | None, other_dtype: str | None = None, residual_dtype: str | None = None
    ) -> str:
        """Return its type, given those of x, weight, cos and the like, and residual; None stands for that of x."""
        beside_x = {"x": None, "weight": weight_dtype, "other": other_dtype, "residual": residual_dtype}
        return (beside_x[self.dtype] or dtype) if self.dtype in beside_x else self.dtype


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: its inputs and outputs, its reference, and the reference's rounding analysis.

    `reference` and `error` take the float64 arguments that they name. `error` also takes `arithmetic`; it returns, for
    each element of every output, how far a kernel of that arithmetic may be from the truth before the final rounding.
    `view` says which elements are normalized together: the last dimensions, a group of channels of one sample, or a
    channel of all samples. An operator that is a `chain` has stages behind its norm, or before it
    (`verify_norm.reference.chain`). A `quantized` y is multiplied by a scale and saturated
    (`verify_norm.reference.quantized`); a stage that quantizes is the `quantizer`. A `centred` norm subtracts the mean;
    one that `averages` takes the mean of the squares, L2Norm their sum. A `user_defined` one is a user's
    (`verify_norm.core.user_operators`), of which no law of a norm is known.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: tuple[str, ...]
    reference: Callable[..., tuple[Array | None, ...]]
    error: Callable[..., tuple[Array | None, ...]]
    forward: str | None = None
    view: View = "rows"
    summary: str = ""
    chain: Any = None  # a kernel's module sees this one, and no reference
    quantized: bool = False
    centred: bool = True
    averages: bool = True
    user_defined: bool = False

    @property
    def stages(self) -> tuple[Any, ...]:
        """The stages behind the norm."""
        return () if self.chain is None else tuple(self.chain.stages)

    @property
    def before(self) -> Any:
        """The stage before the norm; None where there is none."""
        return None if self.chain is None else self.chain.before

    @property
    def dropout(self) -> Any:
        """The dropout before a residual sum; None where there is none."""
        return None if self.chain is None else self.chain.dropout

    @property
    def composed(self) -> bool:
        """Whether other operations come before or behind its norm, as an addition or an activation."""
        return bool(self.stages) or not self.direct or any(tensor.name.startswith("residual") for tensor in self.inputs)

    @property
    def dh(self) -> str:
        """The name of the gradient of what is normalized: that of x, and of residual where x is dropped out first."""
        return "dx" if self.dropout is None else "dresidual"

    @property
    def direct(self) -> bool:
        """Whether what is normalized is an input, or a sum of two: nothing before that rounds all elements alike."""
        return self.before is None and (self.dropout is None or self.forward is not None)

    @property
    def lawful(self) -> bool:
        """Whether the laws of a norm hold: not in a user's own operator, nor where a part of a row is its statistic."""
        return not (self.user_defined or (self.chain is not None and self.chain.base.partial))

    @property
    def linear(self) -> bool:
        """Whether y is linear in weight and bias."""
        return all(stage.linear for stage in self.stages)

    @property
    def quantizer(self) -> Any:
        """The stage that makes 8 or 4 bits of y (`verify_norm.reference.stages.quantize`); None where there is none."""
        return None if self.chain is None else self.chain.quantizer

    @property
    def scaled(self) -> bool:
        """Whether it takes a scale of y, or a bound of one: `CaseSpec.scale`."""
        return any(tensor.extent == "one" for tensor in self.inputs)

    @property
    def other_inputs(self) -> tuple[str, ...]:
        """The names of the inputs whose type is `CaseSpec.other_dtype`: cos and sin, or scale and shift."""
        return tuple(tensor.name for tensor in self.inputs if tensor.dtype == "other")

    @property
    def takes_residual(self) -> bool:
        """Whether it has a residual whose type is `CaseSpec.residual_dtype`: a forward of a fused addition."""
        return any(tensor.dtype == "residual" for tensor in self.inputs)

    @property
    def stage_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of its stages."""
        return () if self.chain is None else tuple(self.chain.stage_inputs)

    @property
    def trained_inputs(self) -> tuple[str, ...]:
        """Those of them whose gradients a backward returns."""
        return tuple(name for name in self.stage_inputs if name in self.chain.trained)
