"""Elementwise operations, functions and casts. Each program stores its results, and their type in four numbers."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from .program import FLOAT, MODERATE, NEAR, POSITIVE, N, Program, described, given, tensor

APPROXIMATE = 8.0  # ulp allowed for exp, log, sin, …: PTX's approximations, with a rounded argument
DIVIDED = 3.0  # ulp allowed for / and the roots: div.full.f32 and sqrt.approx.f32 are off by 2 at most


@triton.jit
def one(X, Out, Kind, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    if OP == "clamped":
        r = tl.clamp(x, -2.0, 448.0)
    elif OP == "clamped_all":
        r = tl.clamp(x, -2.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "limited":
        r = tl.minimum(tl.maximum(x, -127.0), 127.0)
    elif OP == "tenth":
        r = x * 0.1
    elif OP == "minus_tenth":
        r = 0.1 - x
    elif OP == "over_three":
        r = x / 3
    elif OP == "reciprocal":
        r = 1.0 / x
    elif OP == "tripled":
        r = x * 3 + 1
    elif OP == "negated":
        r = -x
    elif OP == "inverted":
        r = ~x
    elif OP == "turned":
        r = not x  # element by element
    elif OP == "magnitude":
        r = tl.abs(x)
    elif OP == "squared_difference":
        r = (x - 1) * (x + 1)
    elif OP == "root":
        r = tl.sqrt(x)
    elif OP == "exact_root":
        r = tl.sqrt_rn(x)
    elif OP == "inverse_root":
        r = tl.rsqrt(x)
    elif OP == "exponential":
        r = tl.exp(x)
    elif OP == "power_of_two":
        r = tl.exp2(x)
    elif OP == "logarithm":
        r = tl.log(x)
    elif OP == "logarithm_2":
        r = tl.log2(x)
    elif OP == "sine":
        r = tl.sin(x)
    elif OP == "cosine":
        r = tl.cos(x)
    elif OP == "error_function":
        r = tl.erf(x)
    elif OP == "floor":
        r = tl.floor(x)
    elif OP == "ceil":
        r = tl.ceil(x)
    elif OP == "sigmoid":
        r = tl.sigmoid(x)
    elif OP == "softmax":
        r = tl.softmax(x)
    elif OP == "library_tanh":
        r = libdevice.tanh(x)
    elif OP == "library_rsqrt":
        r = libdevice.rsqrt(x)
    elif OP == "library_log1p":
        r = libdevice.log1p(x)
    elif OP == "library_expm1":
        r = libdevice.expm1(x)
    elif OP == "library_rint":
        r = libdevice.rint(x)
    elif OP == "library_round":
        r = libdevice.round(x)
    elif OP == "library_trunc":
        r = libdevice.trunc(x)
    elif OP == "library_isnan":
        r = libdevice.isnan(x)
    elif OP == "library_isinf":
        r = libdevice.isinf(x)
    elif OP == "library_erf":
        r = libdevice.erf(x)
    elif OP == "library_exp":
        r = libdevice.exp(x)
    elif OP == "library_cbrt":
        r = libdevice.cbrt(x)
    elif OP == "library_abs":
        r = libdevice.abs(x)
    elif OP == "library_ceil":
        r = libdevice.ceil(x)
    elif OP == "library_sqrt":
        r = libdevice.sqrt(x)
    elif OP == "cut_to_float16":
        r = x.to(tl.float16, fp_downcast_rounding="rtz")
    elif OP == "cut_to_bfloat16":
        r = x.to(tl.bfloat16, fp_downcast_rounding="rtz")
    elif OP == "bits_of":
        r = x.to(tl.int32, bitcast=True)
    described(r, Kind)
    tl.store(Out + i, r)


@triton.jit
def cast(X, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.load(X + i).to(Out.dtype.element_ty))


@triton.jit
def two(X, Y, Out, Kind, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(X + i), tl.load(Y + i)
    if OP == "add":
        r = x + y
    elif OP == "sub":
        r = x - y
    elif OP == "mul":
        r = x * y
    elif OP == "div":
        r = x / y
    elif OP == "floordiv":
        r = x // y
    elif OP == "mod":
        r = x % y
    elif OP == "less":
        r = x < y
    elif OP == "same":
        r = x == y
    elif OP == "differs":
        r = x != y
    elif OP == "at_least":
        r = x >= y
    elif OP == "both":
        r = x & y
    elif OP == "either":
        r = x | y
    elif OP == "one_of":
        r = x ^ y
    elif OP == "left":
        r = x << (y & 7)
    elif OP == "right":
        r = x >> (y & 7)
    elif OP == "far_left":
        r = x << (y & 63)
    elif OP == "lower":
        r = tl.minimum(x, y)
    elif OP == "upper":
        r = tl.maximum(x, y)
    elif OP == "lower_all":
        r = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "upper_all":
        r = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "chosen":
        r = tl.where(x < y, x, y)
    elif OP == "where_scalar":
        r = tl.where(x < y, x, 0.0)
    elif OP == "where_scalars":
        r = tl.where(x < y, 1.0, 2)
    elif OP == "high_half":
        r = tl.umulhi(x, y)
    elif OP == "exact_quotient":
        r = tl.div_rn(x, y)
    elif OP == "quotient":
        r = tl.fdiv(x, y)
    elif OP == "library_pow":
        r = libdevice.pow(x, y)
    elif OP == "library_atan2":
        r = libdevice.atan2(x, y)
    elif OP == "library_copysign":
        r = libdevice.copysign(x, y)
    elif OP == "library_fmod":
        r = libdevice.fmod(x, y)
    elif OP == "library_fdim":
        r = libdevice.fdim(x, y)
    elif OP == "library_div_rn":
        r = libdevice.div_rn(x, y)
    elif OP == "ceiling":
        r = tl.cdiv(x, y)
    described(r, Kind)
    tl.store(Out + i, r)


@triton.jit
def three(X, Y, Z, Out, Kind, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y, z = tl.load(X + i), tl.load(Y + i), tl.load(Z + i)
    if OP == "fused":
        r = tl.fma(x, y, z)
    elif OP == "library_fma":
        r = libdevice.fma(x, y, z)
    described(r, Kind)
    tl.store(Out + i, r)


def elementwise(op: str, out: str, *inputs: Tensor, **options: Any) -> Program:
    """Return the program of an operation on one to three arguments, whose result is stored in the type `out`."""
    kernel = (one, two, three)[len(inputs) - 1]
    name = "_".join([op, *(str(i.dtype).removeprefix("torch.") for i in inputs)]) + options.pop("mark", "")
    return Program(name, kernel, inputs, ((out, N), ("int32", 4)), {"OP": op, "N": N}, **options)


def pairs(ops: str, out: str, x: str, y: str = "", **options: Any) -> list[Program]:
    """Return the programs of operations on pairs of two types."""
    return [elementwise(op, out, given(x), given(y or x, 1), **options) for op in ops.split()]


ARITHMETIC = [
    *(p for t in FLOAT for p in pairs("add sub mul lower upper lower_all upper_all chosen", t, t)),
    *(p for t in FLOAT for p in pairs("less same differs at_least", "bool", t)),
    *(p for t in FLOAT for p in pairs("div", "float32", t, ulp=DIVIDED)),
    *pairs("mod", "float32", "float32", undefined="x − y·trunc(x/y) by an approximate quotient"),
    *(p for x, y, out in (("float16", "bfloat16", "float16"), ("float16", "float32", "float32"),
                          ("bfloat16", "float32", "float32"), ("int32", "float16", "float16"),
                          ("bfloat16", "int32", "bfloat16"), ("int64", "float32", "float32"),
                          ("bool", "float32", "float32"), ("bool", "bfloat16", "bfloat16"))
      for p in pairs("add mul lower chosen", out, x, y)),
    *(p for t in FLOAT for p in pairs("where_scalar", t, t)), *pairs("where_scalars", "float32", "int32"),
    *(p for x, y, out in (("int32", "int32", "int32"), ("int64", "int64", "int64"), ("int8", "int8", "int8"),
                          ("uint8", "uint8", "uint8"), ("uint32", "uint32", "uint32"), ("int8", "int32", "int32"),
                          ("int32", "int64", "int64"), ("uint8", "int8", "uint8"), ("int32", "uint32", "uint32"),
                          ("int64", "uint32", "int64"), ("int16", "uint8", "int16"), ("bool", "int32", "int32"))
      for p in pairs("add sub mul both either one_of lower upper", out, x, y)),
    *pairs("add sub mul both either one_of lower", "bool", "bool"),
    *(p for t in ("int32", "int64", "int8", "uint32", "uint8") for p in pairs("floordiv mod ceiling", t, t)),
    *pairs("floordiv mod", "int64", "int32", "int64"), *pairs("div", "float32", "int32", ulp=DIVIDED),
    *(p for t in ("int32", "int64", "uint32", "int8", "uint8") for p in pairs("left right", t, t)),
    *(p for t in ("int32", "uint32", "int64", "bool") for p in pairs("less same at_least", "bool", t)),
    *pairs("less same", "bool", "int32", "uint32"), *pairs("less", "bool", "int32", "int64"),
    *pairs("far_left", "int32", "int32", undefined="LLVM's shl by the width or more is poison"),
    *(p for t in ("int32", "uint32") for p in pairs("high_half", t, t)),
    *pairs("exact_quotient", "float32", "float32"), *pairs("quotient", "float32", "float32", ulp=DIVIDED),
    *(elementwise("fused", t, given(t), given(t, 1), given(t).flip(0)) for t in FLOAT),
    *(elementwise(op, t, given(t)) for t in FLOAT for op in ("clamped", "clamped_all", "limited", "tenth",
      "minus_tenth", "negated", "magnitude", "squared_difference")),
    *(elementwise("over_three", "float32", given(t), ulp=DIVIDED) for t in (*FLOAT, "int32")),
    *(elementwise("reciprocal", "float32", given(t), ulp=DIVIDED) for t in FLOAT),
    *(elementwise(op, t, given(t)) for t in ("int32", "int64", "int8", "uint8", "uint32") for op in ("tripled",
      "inverted")),
    *(elementwise(op, t, given(t)) for t in ("int32", "int8") for op in ("negated", "magnitude")),
    *(elementwise("tenth", "float32", given(t)) for t in ("int32", "int8", "uint32")),
    *(elementwise(op, "bool", given("bool")) for op in ("inverted", "turned")),
    *(elementwise(f"cut_to_{t}", t, given("float32")) for t in ("float16", "bfloat16")),
    elementwise("bits_of", "int32", given("float32")),
]  # fmt: skip

SMALL = tensor("float32", [sign * 2.0**-power for power in (149, 140, 127, 126, 125, 20, 1, 0) for sign in (1, -1)] * 4)
MATHEMATICS = [
    *(elementwise(op, "float32", tensor("float32", NEAR), ulp=APPROXIMATE) for op in ("exponential", "power_of_two",
      "sine", "cosine", "error_function", "sigmoid", "softmax", "library_tanh", "library_expm1", "library_erf",
      "library_exp")),
    *(elementwise(op, "float32", given("float32"), ulp=APPROXIMATE, mark="_edges") for op in ("exponential",
      "power_of_two", "logarithm", "logarithm_2", "error_function", "library_tanh", "library_exp")),
    *(elementwise(op, "float32", tensor("float32", MODERATE), ulp=APPROXIMATE) for op in ("library_cbrt",
      "logarithm", "logarithm_2", "library_log1p")),
    *(elementwise(op, "float32", given("float32"), ulp=DIVIDED) for op in ("root", "inverse_root", "library_rsqrt")),
    elementwise("exact_root", "float32", given("float32")),
    *(elementwise(op, "float32", given("float32")) for op in ("floor", "ceil", "library_rint", "library_round",
      "library_trunc")),
    *(elementwise(op, "bool", given("float32")) for op in ("library_isnan", "library_isinf")),
    *pairs("library_copysign", "float32", "float32"),
    *(elementwise(op, "float32", tensor("float32", POSITIVE), tensor("float32", NEAR), ulp=APPROXIMATE)
      for op in ("library_pow", "library_atan2", "library_fmod")),
    *(elementwise(op, "float32", SMALL, mark="_subnormal") for op in ("library_abs", "library_ceil", "library_sqrt",
      "library_rint")), elementwise("library_rsqrt", "float32", SMALL, mark="_subnormal", ulp=DIVIDED),
    *(elementwise(op, "float32", SMALL, SMALL.flip(0), mark="_subnormal") for op in ("library_copysign",
      "library_fdim", "library_div_rn", "library_fmod")),
    *(elementwise(op, "float32", SMALL, given("float32"), SMALL.flip(0), mark="_subnormal") for op in ("fused",
      "library_fma")),
]  # fmt: skip


def casting(x: Tensor, target: str, **options: Any) -> Program:
    """Return the program of a cast and a store of its result."""
    name = f"cast_{str(x.dtype).removeprefix('torch.')}_{target}{'_beyond' if options else ''}"
    return Program(name, cast, (x,), ((target, N),), {"N": N}, **options)


WITHIN = [0.0, -0.0, 0.5, -0.9, 1.5, 2.5, -2.5, 99.9, 126.99, -127.5, 3.0, 100.0, 7.25, 1e-9, -1e-30, 64.0] * 4
EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
BEYOND = "LLVM's fptosi beyond the range of the type is poison"
CASTS = [
    *(casting(given(s), t) for s in ("float64", *FLOAT) for t in ("float64", *FLOAT, "bool") if s != t),
    *(casting(given(s), t) for s in FLOAT for t in EIGHT_BITS),
    *(casting(given(s), t) for s in EIGHT_BITS for t in FLOAT),
    *(casting(tensor(s, WITHIN), t) for s in FLOAT for t in ("int8", "int16", "int32", "int64")),
    *(casting(tensor(s, [abs(v) for v in WITHIN]), t) for s in FLOAT for t in ("uint8", "uint32")),
    *(casting(given("float32"), t, undefined=BEYOND) for t in ("int8", "int16", "int32", "int64", "uint8", "uint32")),
    *(casting(given(s), t) for s in ("int32", "int64", "uint32", "int8", "uint8", "bool") for t in FLOAT),
    *(casting(given(s), t) for s in ("int32", "int64", "uint32", "int8", "uint8") for t in ("int8", "int32", "int64",
      "uint8", "uint32", "bool") if s != t),
]  # fmt: skip

PROGRAMS = [*ARITHMETIC, *MATHEMATICS, *CASTS]
