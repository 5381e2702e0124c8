"""Operators, contracts, cases and kernels, as every module names them: frozen dataclasses of plain data; no torch."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Interval, Predicate
from numpy.typing import NDArray

Array = NDArray[np.float64]
Extent = Literal["data", "affine", "sample", "position", "statistic", "block", "one"]
View = Literal["rows", "groups", "channels"]
Float = Literal["float64", "float32", "float16", "bfloat16"]
Float8 = Literal["float8_e4m3fn", "float8_e5m2"]
Beyond = Literal["either", "saturate", "overflow"]
Special = Literal[
    "x",
    "residual",
    "residual_out",
    "dy",
    "dresidual_out",
    "gate",
    "weight",
    "bias",
    "scale",
    "shift",
    "running_mean",
    "running_var",
]

LARGEST = sys.float_info.max
Finite = Annotated[float, Interval(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, Interval(ge=0, le=LARGEST)]
Positive = Annotated[int, Interval(ge=1)]
Exponent = Annotated[int, Interval(ge=-1074, le=1024)]  # of two: float64's smallest number to beyond its largest
Pair = Annotated[str, Predicate(lambda pair: len([name for name in pair.split(":") if name]) == 2)]  # "dx:dy"
Seed = Annotated[int, Interval(ge=0, le=2**64 - 1)]

LAYOUTS = (
    *("contiguous", "row_strided", "transposed", "every_other", "offset", "expanded", "channels_last", "far"),
    *("scalar", "expanded_last", "sequence_slice", "channel_slice", "own", "swapped", "swapped_last", "loose"),
    *("expanded_middle", "expanded_inner", "inner_slice"),
)
Alias = Literal[
    "",
    "x:residual",
    "weight:bias",
    "x:dy",
    "residual_out:dy",
    "residual_out:dresidual_out",
    "dy:dresidual_out",
    "x:gate",
    "scale:shift",
    "x+residual",
    "x+gate",
    "scale+shift",
    "cos+sin",
]
# Inputs of one shape and type, which a caller may give as one tensor, or as the two chunks of one.
ALIASES: tuple[Alias, ...] = get_args(Alias)[1:]
# layouts whose elements share memory
SHARED = frozenset({"expanded", "scalar", "expanded_last", "expanded_middle", "expanded_inner"})
FAMILIES = (
    *("normal", "heavy", "channel", "constant", "alternating", "integers", "zero", "sorted", "ramp", "steps"),
    *("uneven", "padded"),
)
COTANGENTS = ("random", "zero", "one", "zero_rows", "zero_columns", "ramp", "uneven")
WEIGHTS = ("random", "zero", "some_zero", "one", "some_one", "initial", "wide", "subnormal")
LAWS = ("scale", "scale_dy", "linearity", "shift", "permutation")
FURTHER = (
    *("memory", "distribution", "batch_invariance", "determinism", "calls", "effects", "modes", "autograd"),
    *("honesty", "gradient", "degenerate", "power", *LAWS),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or a result of an operator.

    `extent` is its shape: "data" that of x, "affine" that of weight, "sample" a row of weight's shape for each sample
    or token (`CaseSpec.modulation`), "position" R/2 numbers for each token, which its heads share, "statistic" one
    value a row or group, "block" one a block of a row that has a scale of its own (M, K), "one" a single value. `dtype`
    is its type: "x" that of x, "weight" that of weight, or the name of a type. A tensor of role "state" is changed in
    place, and is the output of the same name. Values of a `positive` one are above 0.
    """

    name: str
    extent: Extent
    role: Literal["input", "weight", "saved", "cotangent", "state", "output"]
    dtype: Literal[
        "x", "weight", "float32", "bool", "float8_e4m3fn", "float8_e5m2", "int8", "float4_e2m1fn", "float8_e8m0fnu"
    ] = "x"
    optional: bool = False
    positive: bool = False

    def among(self, dtype: str, weight_dtype: str | None) -> str:
        """Return its type, given the types of x and of weight; a weight_dtype of None means that of x."""
        return {"x": dtype, "weight": weight_dtype or dtype}.get(self.dtype, self.dtype)


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
    def stage_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of its stages."""
        return () if self.chain is None else tuple(self.chain.stage_inputs)

    @property
    def trained_inputs(self) -> tuple[str, ...]:
        """Those of them whose gradients a backward returns."""
        return tuple(name for name in self.stage_inputs if name in self.chain.trained)


@dataclass(frozen=True, slots=True)
class Contract:
    """What a kernel promises about its arithmetic; the error bound follows from it.

    The default is strict: float32 everywhere, sums in blocks, a variance of centred values, one rounding at the end,
    the same bits in every run.

    Parameters
    ----------
    accumulate : type of every intermediate and every sum.
    stats : type in which mean and rstd are saved between forward and backward ("x": that of x).
    xhat : type to which x̂ is rounded before the weight ("x": that of x, as in Llama's RMSNorm); None: no rounding.
    partials : type of the partial sums of dweight and dbias.
    products : operands of the products inside sums, where a kernel sums by matrix products: "float32" as they are
        (tl.dot's "ieee"); "tf32", "tf32x3", "bf16x3", "bf16x6" as by tl.dot's input_precision; "bf16" rounded to
        bfloat16. `verify_norm.reference.arithmetic` says what each of them misses.
    offset_weight : type of weight + weight_offset: "float32", or rounded to that of "weight" (1 + weight in bfloat16).
    summation : "blocked" (`lanes` runs, then a tree), "sequential" (one running sum), "atomic" (blocked within a row or
        group; over rows, one running sum in any order, as of one atomic addition for each row or each program).
    lanes : how many runs a blocked sum has at least: 128, as a block of a GPU; a matrix product of a CPU has 4 to 32,
        or 1 if it has one row, a loop of tl.dot 1. With other `products` runs of 512 terms are right in any case.
    variance : "two_pass"; "centered" (two-pass, Welford or Chan merging); "shifted" (E[d²] − E[d]², d = x − x[0]).
    expanded : True if (x − mean)·a + b is computed as x·a + (b − mean·a), which cancels at large offsets.
    deterministic : the same bits in every run; if False, sums over rows may differ by a reordering's rounding.
    batch_invariant : the same bits for a row, whatever the other rows and its position.
    inplace : outputs that may overwrite an input, as "dx:dy".
    residual : what a fused addition normalizes: the float32 "sum", or the sum "rounded" to the type of x, as returned
        (vLLM's CUDA kernel, vLLM issue 52104).
    output : type of y and dx; None: that of x, or float8_e4m3fn for a quantized y; "promoted": that of x, but of y the
        type to which torch promotes those of x and weight (weight * x̂ in LlamaRMSNorm of transformers).
    weight_grad : type of dweight and dbias; None: that of weight.
    saturate : what is returned beyond the largest number of an output's type: that number ("saturate"), or an infinity,
        in float8_e4m3fn NaN ("overflow"). "either": a quantized y saturates, another 8-bit y may do either, and wider
        outputs overflow.
    z : type to which the result of the norm, and of stages, is rounded before it is quantized, and before its largest
        is taken ("x": that of x, as of a norm and a quantization in turn); None: no rounding.
    e8m0 : how the power of two of an MX block is rounded: "floor" (OCP), "ceil", "even", or "rceil", that of
        max |z|/L upwards, as PTX's cvt.rp (`verify_norm.reference.stages.block_scale`).
    packing : the 4 bits of a byte that hold the first of its two numbers: "low" (torch.float4_e2m1fn_x2), or "high".
    scale_floor : the smallest scale of a quantized y that the data determine, as 4.359654017857143e-06 = 1/(448·512).
    """

    accumulate: Float = "float32"
    stats: Float | Literal["x"] = "float32"
    xhat: Float | Literal["x"] | None = None
    partials: Float | Literal["x"] = "float32"
    products: Literal["float32", "tf32", "tf32x3", "bf16", "bf16x3", "bf16x6"] = "float32"
    offset_weight: Literal["float32", "weight"] = "float32"
    summation: Literal["blocked", "sequential", "atomic"] = "blocked"
    lanes: Positive = 128
    variance: Literal["two_pass", "centered", "shifted"] = "centered"
    expanded: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    inplace: tuple[Pair, ...] = ()
    residual: Literal["sum", "rounded"] = "sum"
    output: Float | Float8 | Literal["promoted"] | None = None
    weight_grad: Float | None = None
    saturate: Beyond = "either"
    z: Float | Literal["x"] | None = None
    scale_floor: NotNegative = 0.0
    e8m0: Literal["floor", "ceil", "even", "rceil"] = "floor"
    packing: Literal["low", "high"] = "low"


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """Everything that determines a case: Hypothesis draws it, and one line of JSON holds it.

    Annotations hold the allowed ranges of the numbers. Values are (offset + noise of family `data`) · 2**log2_scale.
    Every tensor has its own layout in memory, and the gaps of its storage hold poison.

    Parameters
    ----------
    shape : the shape of x.
    dtype : the type of x.
    weight_dtype : the type of weight and bias; None: that of x.
    normalized_ndim : how many of the last dimensions LayerNorm and RMSNorm normalize.
    num_groups : how many groups of channels GroupNorm normalizes.
    eps : what is added under the root.
    data : the family of x's noise.
    offset : what is added to the noise.
    log2_scale : the power of two that multiplies their sum.
    dy_data : "random", "zero", "one" (as of a sum), zero in some rows (masked tokens) or columns, or a family of
        `data`.
    dy_log2_scale : the power of two that multiplies dy.
    special : a special value in one input. With "nan+inf" an infinity is beside each NaN, and every other such row has
        the infinity alone.
    special_in : the input that has it. In the backward of a fused addition "x" is residual_out.
    special_at : where it is: in the first, the middle or the last element, in one element of every other row ("rows"),
        or in all of the middle row ("row").
    x_layout, dy_layout, … : how this tensor lies in memory; each tensor has such a field.
    alias : two inputs that are one tensor, as "x:residual": the first. It has no effect beside a special value, on an
        input that is None, or on one that the kernel may overwrite. Those of "x+gate" are the chunks of one tensor, as
        of `t.chunk(2, -1)`, where both are "row_strided" and have rows of whole vectors.
    weight, bias, dresidual_out : whether the kernel gets this input; it is None otherwise.
    weight_offset : what is added to weight, as 1 in Gemma's RMSNorm.
    weight_data : the data of weight + weight_offset: "zero" or "one" in all or some elements. "initial" is 1, with a
        bias of 0. "wide" is of all magnitudes, as are bias, and scale and shift of a modulation. "subnormal" is so in
        some elements, with a bias of 0.
    training, momentum, running : of BatchNorm; `running` says whether there are running statistics.
    scale : a quantized y is multiplied by it, or divided by y_scale = 1/scale; scale_ub is 300/scale.
    modulation : whether the scale and shift of a modulation have a row for each sample, an index of x's first
        dimension, or for each token.
    rotary : the part of a row that a rotation turns: "full" (less one element of an odd length), its first "half" or
        "quarter".
    variance_size : a partial RMSNorm takes the mean of this many first squares of a row, or of all where there are
        fewer. None: half of a row.
    dropout_p : a dropout keeps each element with probability 1 − dropout_p.
    frozen : the inputs that need no gradient, where torch's autograd makes the backward.
    seed : the key of random numbers. It changes data, and the rows, columns, orders and directions that a check takes
        at random, never what is checked.
    poison : what unwritten memory holds.
    further : the checks and laws that run the kernel again. By default all do, so that a line written by hand or by an
        older version checks more, not less.
    mode, call, called, autograd, effect, series : the way of a check that has several ways to run the kernel again
        (`verify_norm.core.ways`): `mode` of the check modes, `call` and `called` of calls, `effect` of effects, and
        `series` of honesty. "" is all ways, "quick" those that cost about a call.
    variant : the place at which powers of two, directions and other shapes begin.
    batch : `batch_invariance` and `determinism` also repeat the rows of x until its first dimension is this number; 0:
        they do not. The truth is that of the case alone, so a batch as in serving costs little but the kernel's time.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    weight_dtype: str | None = None
    normalized_ndim: Positive = 1
    num_groups: Positive | None = None
    eps: NotNegative = 1e-5
    data: str = "normal"
    offset: Finite = 0.0
    log2_scale: Exponent = 0
    dy_data: str = "random"
    dy_log2_scale: Exponent = 0
    special: Literal["nan", "inf", "-inf", "nan+inf"] | None = None
    special_in: Special = "x"
    special_at: Literal["first", "middle", "last", "rows", "row"] = "first"
    x_layout: str = "contiguous"
    dy_layout: str = "contiguous"
    weight_layout: str = "contiguous"
    bias_layout: str = "contiguous"
    residual_layout: str = "contiguous"
    residual_out_layout: str = "contiguous"
    dresidual_out_layout: str = "contiguous"
    mean_layout: str = "contiguous"
    rstd_layout: str = "contiguous"
    running_mean_layout: str = "contiguous"
    running_var_layout: str = "contiguous"
    alias: Alias = ""
    mask_layout: str = "contiguous"
    gate_layout: str = "contiguous"
    scale_layout: str = "contiguous"
    shift_layout: str = "contiguous"
    cos_layout: str = "contiguous"
    sin_layout: str = "contiguous"
    other_layout: str = "contiguous"  # of the tensors of a user's own operator that have other names
    weight: bool = True
    bias: bool = True
    dresidual_out: bool = True
    weight_offset: Finite = 0.0
    weight_data: str = "random"
    training: bool = True
    momentum: Annotated[float, Interval(ge=0, le=1)] = 0.1
    running: bool = True
    scale: NotNegative = 1.0
    modulation: Literal["sample", "token"] = "sample"
    rotary: Literal["full", "half", "quarter"] = "full"
    variance_size: Positive | None = None
    dropout_p: Annotated[float, Interval(ge=0, le=1 - 2**-10)] = 0.1
    frozen: tuple[str, ...] = ()
    seed: Seed = 0
    poison: Literal["nan", "finite"] = "nan"
    further: tuple[str, ...] = FURTHER
    mode: str = ""
    call: str = ""
    called: str = ""
    autograd: str = ""
    effect: str = ""
    series: str = ""
    variant: Annotated[int, Interval(ge=0)] = 0
    batch: Annotated[int, Interval(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel under test: a callable on torch tensors whose arguments are bound by name.

    `target` says where to find it ("package.module:attr" or "path/file.py:attr"); loading sets `run`.
    `unsupported(spec)` returns why the kernel does not take a case, None if it does; `fit(spec)` returns the nearest
    case that it takes. `forward` names the forward kernel of a backward; loading sets `forward_run`. `bind` says how
    the arguments are bound (`verify_norm.loading.bind`). An `autograd` kernel is a backward that torch makes of a
    forward pass: it also takes `frozen`. `origin` is the package that registered the kernel.
    Arguments `unset` are None in every case, since the operator does not have them; those `kept` have the value of
    their default or of functools.partial. `only` says which cases it takes (`verify_norm.core.only`).
    An untrusted kernel runs in another process: `later` returns the tensors that a call has returned as they are there
    now, and checks that look into the kernel's process pass over it.
    """

    name: str
    op: str
    target: str = ""
    backend: Literal["triton", "torch", "cuda", "python"] = "python"
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    contract: Contract = field(default_factory=Contract)
    summary: str = ""
    unsupported: Callable[[CaseSpec], str | None] | None = None
    forward: str | None = None
    bind: str = ""
    autograd: bool = False
    origin: str = ""
    unset: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    only: str = ""
    fit: Callable[[CaseSpec], CaseSpec] | None = field(default=None, repr=False)
    run: Callable[..., Any] | None = None
    forward_run: Callable[..., Any] | None = None
    later: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(default=None, repr=False)

    @property
    def remote(self) -> bool:
        """Whether the kernel runs in another process, which this one does not look into (--untrusted)."""
        return self.later is not None

    def fitted(self, spec: CaseSpec) -> CaseSpec:
        """Return the nearest case that the kernel takes, as far as it says."""
        return spec if self.fit is None else self.fit(spec)

    def refuses(self, spec: CaseSpec) -> str | None:
        """Return why the kernel does not take this case; None if it does."""
        return None if self.unsupported is None else self.unsupported(spec)
