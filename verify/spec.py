"""The nouns that every module speaks in: frozen, slotted dataclasses. A leaf: standard library and NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Role = Literal["input", "weight", "saved", "cotangent", "state", "output"]
Extent = Literal["data", "affine", "statistic", "one"]
View = Literal["rows", "groups", "channels"]
Status = Literal["fail", "error"]

LAYOUTS = (
    "contiguous", "row_strided", "transposed", "every_other", "offset", "expanded", "channels_last", "far",
    "scalar",
)  # fmt: skip
FAMILIES = ("normal", "heavy", "channel", "constant", "alternating", "integers", "zero")
WEIGHTS = ("random", "zero", "some_zero")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or a result of an operator.

    `extent` says which shape it has: "data" as x, "affine" as weight, "statistic" one value a row or group, "one" one
    value in all. A "state" is changed in place, and comes out as the output of its name.
    `dtype` says which type it has: "x" as x, "weight" as weight, or that of its name.
    """

    name: str
    extent: Extent
    role: Role
    dtype: Literal["x", "weight", "float32", "float8_e4m3fn"] = "x"
    optional: bool = False

    def among(self, dtype: str, weight_dtype: str | None) -> str:
        """Its type, for an x and weights of these types; None: weights are as x."""
        return {"x": dtype, "weight": weight_dtype or dtype}.get(self.dtype, self.dtype)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: what it takes and returns, its reference, and the reference's rounding analysis.

    `reference` and `error` take the float64 arguments they name; `error` also takes `arithmetic`, and returns, per
    element of every output, how far a kernel of that arithmetic may be from the truth before the final rounding.
    `view` says what is normalized together: the last dimensions, a group of channels of one sample, or a channel of all
    samples. `activation` is what y has been through last, `verify_norm.reference.activation`. What is `quantized` has
    been multiplied by a scale and saturated, `verify_norm.reference.quantized`.
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
    activation: Literal["silu", "gelu"] | None = None
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """What a kernel promises about its arithmetic; the error bound is derived from it.

    The default is the strict promise that a good kernel keeps: float32 everywhere, sums in blocks, a variance of
    centred values, one rounding at the end, the same bits at every run.

    Parameters
    ----------
    accumulate : type of every intermediate and every sum.
    stats : type in which mean and rstd are saved between forward and backward.
    xhat : type x̂ is rounded to before it meets the weight ("x": that of x, as in Llama's RMSNorm), None if it is not.
    partials : type of the partial sums of dweight and dbias.
    summation : "blocked" (runs of bounded length, then a tree), "sequential" (one running sum), "atomic" (blocked, in
        an order that changes from run to run).
    variance : "two_pass"; "centered" (two-pass, Welford or Chan merging); "shifted" (E[d²] − E[d]², d = x − x[0]).
    expanded : True where (x − mean)·a + b is computed as x·a + (b − mean·a), which cancels at large offsets.
    deterministic : the same bits at every run; where not, only sums over rows may differ, by a reordering's rounding.
    batch_invariant : the same bits for a row whatever the other rows, and its place among them.
    inplace : outputs that may overwrite an input, as "dx:dy".
    residual : what a fused addition normalizes: the "sum" as float32 has it, or the sum "rounded" to the type of x, as
        it is returned (vLLM's CUDA kernel, vLLM issue 52104).
    output : type of y and dx, None if it is that of x; of what is quantized, float8_e4m3fn.
    """

    accumulate: str = "float32"
    stats: str = "float32"
    xhat: str | None = None
    partials: str = "float32"
    summation: Literal["blocked", "sequential", "atomic"] = "blocked"
    variance: Literal["two_pass", "centered", "shifted"] = "centered"
    expanded: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    inplace: tuple[str, ...] = ()
    residual: Literal["sum", "rounded"] = "sum"
    output: str | None = None


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """Everything that determines a case: what Hypothesis draws, one line of JSON, small enough to read.

    `shape` is x's. LayerNorm and RMSNorm normalize its last `normalized_ndim` dimensions, GroupNorm each of
    `num_groups` groups of channels. Values are (offset + noise of family `data`) · 2**log2_scale. Every tensor has its
    own layout in memory, and the gaps of its storage hold poison. `training`, `momentum` and `running` (whether running
    statistics are kept) are BatchNorm's, `scale` is what y is multiplied by where it is quantized. `frozen` inputs need
    no gradient, where a gradient is torch's to ask for.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    weight_dtype: str | None = None  # None: that of x
    normalized_ndim: int = 1
    num_groups: int | None = None
    eps: float = 1e-5
    data: str = "normal"
    offset: float = 0.0
    log2_scale: int = 0
    dy_log2_scale: int = 0
    special: Literal["nan", "inf", "-inf"] | None = None  # one such value in x's first row
    x_layout: str = "contiguous"
    dy_layout: str = "contiguous"
    weight_layout: str = "contiguous"
    bias_layout: str = "contiguous"
    residual_layout: str = "contiguous"
    residual_out_layout: str = "contiguous"
    dresidual_out_layout: str = "contiguous"
    weight: bool = True
    bias: bool = True
    dresidual_out: bool = True
    weight_offset: float = 0.0
    weight_data: str = "random"
    training: bool = True
    momentum: float = 0.1
    running: bool = True
    scale: float = 1.0
    frozen: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A thing under test: a callable on torch tensors whose arguments are bound by name.

    `target` says where it is found ("package.module:attr" or "path/file.py:attr"); `run` is set once it is loaded.
    `unsupported(spec)` returns why a case is outside what the kernel offers, None where it is inside; `fit(spec)` is
    the nearest case that is inside. `forward` names the kernel that a backward is the gradient of, `forward_run` is set
    once that is loaded. `bind` says how the arguments are bound (`verify_norm.bind`). An `autograd` kernel is a
    backward that torch makes of a forward pass: it is offered `frozen` too. `origin` is the package that registered it.
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
    fit: Callable[[CaseSpec], CaseSpec] | None = field(default=None, repr=False)
    run: Callable[..., Any] | None = None
    forward_run: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The truth for one output: float64 values, the error allowed before the final rounding, the output's type."""

    value: Array
    delta: Array
    dtype: str


@dataclass(frozen=True, slots=True)
class Case:
    """A spec made real for one op: torch arguments, their exact values, the truth about each output, the poison.

    `expected` is empty where nobody asked for the truth.
    """

    spec: CaseSpec
    op: Op
    arguments: Mapping[str, Any]
    exact: Mapping[str, Array | None]
    expected: Mapping[str, Expected | None]
    poison: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a kernel is wrong, with the smallest case that shows it.

    `during` names the check in whose further runs, near the case, it happened. `cases` counts the cases that showed it,
    `after` those that were run until it was seen first.
    """

    kernel: str
    check: str
    output: str | None
    status: Status
    message: str
    spec: CaseSpec
    index: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    ulp: float | None = None
    allowed: float | None = None
    cases: int = 1
    after: int = 1
    during: str | None = None


@dataclass(frozen=True, slots=True)
class Power:
    """What a check that compares differences would have caught in a case: the smallest relative error of an output."""

    output: str
    smallest: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Whether a property that the kernel does not promise held in a case."""

    held: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """Memory that a kernel changed and was not to change: in which buffer, and where about its elements."""

    buffer: str  # an argument's name, or what the kernel allocated
    where: str  # "before", "after" or "between" its elements, or "in" them
    count: int  # bytes, of all elements that are not what they were
    nearest: int  # bytes between them and the nearest element; 0 in them
    output: str | None = None  # the output that lies in the buffer


@dataclass(frozen=True, slots=True)
class Output:
    """What a kernel returned for one output: its values in float64, its own shape and type, and the verdict on each.

    `ratio` is |got − want| / allowed, element by element, 0 where nothing can be judged; None where the shapes differ
    or there is nothing to compare with.
    """

    dtype: str
    shape: tuple[int, ...]
    got: Array
    ratio: Array | None


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a kernel on one case. An output that is missing was not returned; one that is None was, as None."""

    kernel: Kernel
    case: Case
    outputs: Mapping[str, Output | None]
    damage: tuple[Damage, ...] = ()
    overlaps: tuple[tuple[str, str], ...] = ()  # an output, and the argument or other output it shares memory with
    problem: str | None = None  # why there are no outputs: what the kernel raised, or what it returned instead
    refused: bool = False  # the problem is no fault of the kernel's, but a case that it does not take
    returned: Mapping[str, Any] = field(default_factory=dict)  # the tensors: none gets their memory while they are held
