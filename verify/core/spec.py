"""A case as plain data, one line of JSON, and the words that its fields choose from."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from annotated_types import Interval

from verify_norm.core.intervals import Exponent, Finite, NotNegative, Positive, Seed, Single

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
LAYOUTS = (
    *("contiguous", "row_strided", "transposed", "every_other", "offset", "expanded", "channels_last", "far"),
    *("scalar", "expanded_last", "sequence_slice", "channel_slice", "own", "swapped", "swapped_last", "loose"),
    *("expanded_middle", "expanded_inner", "inner_slice", "heads_first"),
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
COTANGENTS = ("random", "zero", "one", "zero_rows", "zero_columns", "ramp", "uneven", "heavy")
WEIGHTS = ("random", "zero", "some_zero", "one", "some_one", "initial", "wide", "subnormal")
LAWS = ("scale", "scale_dy", "linearity", "shift", "permutation")
FURTHER = (
    *("memory", "distribution", "batch_invariance", "determinism", "calls", "effects", "modes", "autograd"),
    *("honesty", "gradient", "degenerate", "power", *LAWS),
)


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
    alias : two inputs that are one tensor, such as "x:residual": the first. It has no effect beside a special value,
        on an input that is None, on one that the kernel may overwrite, or on two types. Those of "x+gate" are the
        chunks of one tensor, `t.chunk(2, -1)`, where both are "row_strided" and have rows of whole vectors.
    weight, bias, dresidual_out : whether the kernel gets this input; it is None otherwise.
    weight_offset : what is added to weight, for example 1 in Gemma's RMSNorm and NeMo's LayerNorm1P. It is a float32:
        a kernel that adds any other number may round it first, which weight + offset near 0 would show.
    weight_data : the data of weight + weight_offset: "zero" or "one" in all or some elements. "initial" is 1, with a
        bias of 0, and running statistics of 0 and 1. "wide" is of all magnitudes, as are bias, and scale and shift of
        a modulation. "subnormal" is so in some elements, with a bias of 0.
    training, momentum, running : of BatchNorm; `running` says whether there are running statistics.
    scale : a quantized y is multiplied by it, or divided by y_scale = 1/scale; scale_ub is 300/scale.
    modulation : whether the scale and shift of a modulation have a row for each sample, an index of x's first
        dimension, or for each token.
    rotary : the part of a row that a rotation turns: "full" (less one element of an odd length), its first "half" or
        "quarter".
    other_dtype : the type of cos and sin, and of scale and shift of a modulation; None: that of x.
    residual_dtype : the type of a forward's residual and residual_out: float32 beside an x of 16 bits; None: that of x.
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
    weight_offset: Single = 0.0
    weight_data: str = "random"
    training: bool = True
    momentum: Annotated[float, Interval(ge=0, le=1)] = 0.1
    running: bool = True
    scale: NotNegative = 1.0
    modulation: Literal["sample", "token"] = "sample"
    rotary: Literal["full", "half", "quarter"] = "full"
    other_dtype: str | None = None
    residual_dtype: str | None = None
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


def having(spec: CaseSpec, fields: dict[str, Any]) -> CaseSpec:
    """Return the spec with these fields; the spec itself if it has them, since `replace` copies all of its fields.

    >>> spec = CaseSpec((2, 3))
    >>> having(spec, {"seed": 0}) is spec, having(spec, {"seed": 1}).seed
    (True, 1)
    """
    other = {name: value for name, value in fields.items() if getattr(spec, name) != value}
    return replace(spec, **other) if other else spec
