"""Gives the operations of Triton's interpreter the results that a GPU gives.

Triton stores bfloat16 as 16-bit integers, and scales, multiplies and casts those. With NaN, signed zeros, subnormal
numbers, booleans and fma it follows NumPy, where PTX differs. What is not imitated is named in `differs_on_gpu` when a
kernel does it.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify_norm.running.interpreter import conversions

HALF_SUM = "tl.dot summed in float16"
OUT_OF_RANGE = "a cast to an integer of a number out of its range"
BY_ZERO = "an integer division by zero"
TOO_FAR = "a shift by the width of the type or more"

differs_on_gpu: set[str] = set()  # those of the above that ran since it was last cleared

Operation = Callable[..., Any]


def around(owner: Any, name: str, wrapper: Operation) -> None:
    """Replace a function or method, where Triton has it, by `wrapper`, which gets the original before the arguments."""
    own = getattr(owner, name, None)
    if own is None:
        return

    @functools.wraps(own)
    def patched(*args: Any, **options: Any) -> Any:
        return wrapper(own, *args, **options)

    setattr(owner, name, patched)


def patch(builder: Any) -> None:
    """Patch the operations of a class of builders."""
    around(builder, "binary_op", _typed)
    extremes = [f"create_{name}" for name in ("minnumf", "maxnumf", "minimumf", "maximumf")]
    for name in extremes:
        around(builder, name, functools.partial(_extreme, "min" in name, "num" in name))
    floats = [f"create_{name}" for name in ("fadd", "fsub", "fmul")]  # a quotient is float32
    for name in (*floats, *extremes, *(name for name in dir(builder) if name.startswith("create_fcmp"))):
        around(builder, name, _in_float32)
    for name in ("add", "sub"):
        around(builder, f"create_{name}", _of_booleans)
    for name in ("shl", "lshr", "ashr"):
        around(builder, f"create_{name}", _shifted)
    for name in ("idiv", "srem", "urem"):
        around(builder, f"create_{name}", _divided)
    for name in ("sqrt", "rsqrt", "exp2", "floor", "ceil"):
        around(builder, f"create_{name}", _flushing)
    around(builder, "create_fma", _fma)
    around(builder, "create_clampf", _clamp)
    around(builder, "create_umulhi", _high_half)
    around(builder, "create_dot", _dot)
    around(builder, "create_atomic_rmw", _atomic)
    around(builder, "cast_impl", _cast)
    around(builder, "get_all_ones_value", _all_ones)
    around(builder, "get_fp16", lambda own, self, value: own(self, np.float32(value)))  # as the compiler's constants
    builder.get_bf16 = lambda self, value: _narrow(np.array([value], np.float32))


def _handle(data: NDArray[Any], kind: Any) -> Any:
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(data, kind)


def _is(operand: Any, name: str) -> bool:
    return bool(operand.dtype.scalar.name == name)


def _wide(operand: Any) -> Any:
    """Return a bfloat16 operand in float32, another as it is."""
    import triton.language as tl

    return _handle(conversions.widened(operand.data, "bf16"), tl.float32) if _is(operand, "bf16") else operand


def _narrow(values: NDArray[Any]) -> Any:
    import triton.language as tl

    return _handle(conversions.rounded(values, "bfloat16").view(np.uint16), tl.bfloat16)


def _typed(own: Operation, self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    """Give a comparison the type int1, not the type of what it compares."""
    import triton.language as tl

    result = own(self, lhs, rhs, op)
    if result.data.dtype == np.bool_:
        result.dtype = tl.int1
    return result


def _in_float32(own: Operation, self: Any, *operands: Any) -> Any:
    """Compute bfloat16 in float32, and round to bfloat16.

    One operation in float32, with more than 2p + 2 bits, rounds to the same bfloat16 as the exact result.
    """
    if not all(_is(operand, "bf16") for operand in operands):
        return own(self, *operands)
    result = own(self, *map(_wide, operands))
    return _narrow(result.data) if result.data.dtype == np.float32 else result


def _extreme(least: bool, skips_nan: bool, own: Operation, self: Any, lhs: Any, rhs: Any) -> Any:
    """Return the smaller or larger number: −0 is below +0, and NaN loses unless it is to be kept."""
    a, b = lhs.data, rhs.data
    if skips_nan:
        extreme = np.fmin(a, b) if least else np.fmax(a, b)
    else:
        extreme = np.minimum(a, b) if least else np.maximum(a, b)
    of_equals = np.where(np.signbit(a) == least, a, b)  # zeros of two signs are equal
    return _handle(np.where(a == b, of_equals, extreme), lhs.dtype.scalar)


def _clamp(own: Operation, self: Any, value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    how = "imum" if propagate_nan.name == "ALL" else "num"
    above = getattr(self, f"create_max{how}f")(value, low)
    return getattr(self, f"create_min{how}f")(above, high)


def _fma(own: Operation, self: Any, x: Any, y: Any, z: Any) -> Any:
    """Round x·y + z once: the product is exact in float64, the sum is rounded to odd there; float64 itself twice."""
    if _is(z, "fp64"):
        return own(self, x, y, z)
    product, addend = (_wide(x).data.astype(np.float64) * _wide(y).data, _wide(z).data.astype(np.float64))
    total = product + addend
    part = total - product
    exact = conversions.to_odd(total, (product - (total - part)) + (addend - part))
    return _narrow(exact) if _is(z, "bf16") else _handle(exact.astype(z.data.dtype), z.dtype.scalar)


def flushed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values with zeros in place of float32's subnormal numbers."""
    small = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.zeros_like(values), values), values)


def _flushing(own: Operation, self: Any, x: Any) -> Any:
    """Take subnormal numbers for zeros, as sqrt.approx.ftz.f32 and its like do."""
    if not _is(x, "fp32"):
        return own(self, x)
    result = own(self, _handle(flushed(x.data), x.dtype))
    return _handle(flushed(result.data), x.dtype)


def _of_booleans(own: Operation, self: Any, lhs: Any, rhs: Any) -> Any:
    """Add or subtract booleans in one bit, where 1 + 1 = 0."""
    if lhs.data.dtype == np.bool_ and rhs.data.dtype == np.bool_:
        return _handle(lhs.data != rhs.data, lhs.dtype.scalar)
    return own(self, lhs, rhs)


def _shifted(own: Operation, self: Any, lhs: Any, rhs: Any) -> Any:
    width = lhs.dtype.scalar.primitive_bitwidth
    if ((rhs.data < 0) | (rhs.data >= width)).any():
        differs_on_gpu.add(TOO_FAR)
    return own(self, lhs, rhs)


def _divided(own: Operation, self: Any, lhs: Any, rhs: Any) -> Any:
    if not rhs.data.all():
        differs_on_gpu.add(BY_ZERO)
    return own(self, lhs, rhs)


def _high_half(own: Operation, self: Any, lhs: Any, rhs: Any) -> Any:
    """Multiply the bits as unsigned numbers, whatever the type says."""
    form = lhs.data.dtype
    bits = [_handle(operand.data.view(f"u{form.itemsize}"), operand.dtype.scalar) for operand in (lhs, rhs)]
    return _handle(own(self, *bits).data.view(form), lhs.dtype.scalar)


def _all_ones(own: Operation, self: Any, kind: Any) -> Any:
    form = self.get_null_value(kind.scalar).data.dtype
    return _handle(np.array([-1]).astype(form), kind.scalar)


def _dot(own: Operation, self: Any, a: Any, b: Any, total: Any, precision: Any, imprecise: Any) -> Any:
    """Multiply bfloat16 as numbers, and float32 in TF32 where asked; sums in float16 are not imitated."""
    if _is(a, "fp32") and precision.name == "TF32":
        a, b = (_handle(_in_tf32(operand.data), operand.dtype.scalar) for operand in (a, b))
    if _is(total, "fp16"):
        differs_on_gpu.add(HALF_SUM)
    return own(self, _wide(a), _wide(b), total, precision, imprecise)


def _in_tf32(values: NDArray[Any]) -> NDArray[Any]:
    """Return float32 values without their last 13 bits, which a tensor core does not read; a NaN may be in these."""
    return np.where(np.isnan(values), values, (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


def _cast(own: Operation, self: Any, source: Any, kind: Any) -> Any:
    """Round numbers of every type to bfloat16 and 8 bits; out of range, an integer is what PTX's cvt.rzi gives."""
    import triton.language as tl

    target, data = kind.scalar, source.data
    if target.name in conversions.TYPES:
        given = _handle(_exact(data), tl.float64) if source.dtype.scalar.is_int() else source
        return self.create_fp_to_fp(given, kind, None)
    if target.is_int() and data.dtype.kind == "f":
        return _handle(_to_integers(data, self.get_null_value(target).data.dtype), target)
    return own(self, source, kind)


def _exact(whole: NDArray[Any]) -> NDArray[np.float64]:
    """Return integers in float64: those beyond 53 bits rounded to odd, so that they round once to a narrower type."""
    if whole.itemsize < 8:
        return whole.astype(np.float64)
    below = whole & whole.dtype.type(0x7FF)
    odd = (whole - below) | (below != 0).astype(whole.dtype) << whole.dtype.type(11)
    return np.where(np.abs(whole.astype(np.float64)) < 2.0**53, whole, odd).astype(np.float64)


def _to_integers(values: NDArray[Any], form: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers truncated to integers, saturated in 16 bits or more and then cut to the type; 0 for NaN."""
    kind = np.dtype(f"{form.kind}{max(form.itemsize, 2)}")
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    whole = np.trunc(values.astype(np.float64))
    inside = (whole >= np.iinfo(form).min) & (whole < float(np.iinfo(form).max) + 1)
    if not inside.all():
        differs_on_gpu.add(OUT_OF_RANGE)
    result = whole.astype(kind)
    result[whole < least], result[whole >= float(most) + 1], result[np.isnan(whole)] = least, most, 0
    return result.astype(form)


def _atomic(own: Operation, self: Any, op: Any, ptr: Any, value: Any, mask: Any, *how: Any) -> Any:
    """Exchange numbers as bits, and add bfloat16 one element after another: Triton knows neither."""
    if op.name == "XCHG" and value.data.dtype.kind == "f":
        bits = _handle(value.data.view(f"u{value.data.itemsize}"), value.dtype.scalar)
        return _handle(own(self, op, ptr, bits, mask, *how).data.view(value.data.dtype), value.dtype.scalar)
    if not _is(value, "bf16"):
        return own(self, op, ptr, value, mask, *how)
    old = np.zeros_like(value.data)
    for i in np.flatnonzero(mask.data):
        at, term = (_handle(operand.data.ravel()[i : i + 1], operand.dtype) for operand in (ptr, value))
        before = self.create_load(at, None, None, False)
        self.create_store(at, self.create_fadd(before, term), None, None)
        old.flat[i] = before.data[0]
    return _handle(old, value.dtype.scalar)
