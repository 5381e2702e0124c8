"""Triton's interpreter, made to round as a GPU does, and to reduce in a tree as a GPU does.

Triton 3.6 to 3.9 cut float32 to bfloat16 by dropping bits, in an explicit cast and in a store alike, where a GPU
rounds to nearest, ties to even. Half of all bfloat16 results would then look one ulp wrong, so `enable` mends the
conversions (`conversions`) and proves the mend with a kernel. It also silences NumPy's floating-point warnings inside
kernels: the hardware has none, and a kernel may well meet NaN and infinity.

A reduction by a function of the kernel's own runs in Triton's interpreter one element at a time, in Python: seconds a
call. `enable` has it combine whole arrays of neighbours instead, log2 n times. What surrounds the arithmetic is made
quicker as well (`quicken`), which changes no result.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

import ml_dtypes
import numpy as np

from verify_norm import conversions
from verify_norm.quicken import quicken

MENDED = "_verify_norm_mended"

combining = False  # whether a reduction's function is being called on arrays in place of scalars


def enable() -> str:
    """Turn Triton's interpreter on, mend it, and prove the mend; call it before anything imports Triton.

    Returns
    -------
    str
        What was done, for a report's environment.

    Raises
    ------
    RuntimeError
        If Triton was imported before without its interpreter, or if the mended cast still rounds wrongly.
    """
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language
    from triton.runtime import interpreter

    # Triton chooses between compiling and interpreting when a function is decorated, its own library included.
    if not isinstance(triton.language.sum, interpreter.InterpretedFunction):
        raise RuntimeError(
            "Triton was imported without its interpreter: set TRITON_INTERPRET=1 before the first import"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    if not hasattr(interpreter, MENDED):
        interpreter._convert_float = conversions.mended(interpreter._convert_float)
        interpreter._implicit_cvt = _with_float_scalars(interpreter._implicit_cvt)
        interpreter.GridExecutor.__call__ = _without_warnings(interpreter.GridExecutor.__call__)
        reductions: Any = getattr(interpreter, "ReduceOps", None)
        if hasattr(reductions, "generic_reduce") and hasattr(interpreter, "_patch_lang_tensor"):
            interpreter._patch_lang_tensor = _without_blind_truth(interpreter._patch_lang_tensor)
            reductions.generic_reduce = _in_a_tree(reductions.generic_reduce)
        if hasattr(reductions, "sum"):
            reductions.sum = _sum_in_a_tree(reductions.sum)
        _widened(interpreter.InterpreterBuilder)
        _untimed(triton.runtime.autotuner.Autotuner)
        _fill_libdevice()
        quicken(interpreter)
        conversions.prove()
        setattr(interpreter, MENDED, True)
    return f"Triton {triton.__version__} interpreter on the CPU, fp32→bf16 mended to round to nearest even"


def _in_a_tree(reduce: Any) -> Any:
    """Wrap Triton's loop of a reduction: a tree where it applies, the loop where not, which also words the errors."""

    @functools.wraps(reduce)
    def mended(self: Any, input: Any) -> Any:
        global combining
        combining = True
        try:
            outputs = _tree(self, input)
        except Exception:
            outputs = None
        finally:
            combining = False
        return reduce(self, input) if outputs is None else outputs

    return mended


def _without_blind_truth(patch: Any) -> Any:
    """Wrap the step that gives Triton's tensors their truth value, and does so anew at every call of a function.

    It holds any array to be true. A function that says `if`, `and`, `or` or `not` of its operands, as Triton's own for
    a maximum and its index do, would take one branch for all: an error sends it to the loop over scalars.
    """

    @functools.wraps(patch)
    def mended(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        blind = tensor.__bool__

        def truth(self: Any) -> bool:
            if combining and self.handle.data.size != 1:
                raise ValueError("an array has no truth value")
            return bool(blind(self))

        tensor.__bool__ = truth

    return mended


def _sum_in_a_tree(own: Any) -> Any:
    """Wrap Triton's tl.sum: floating-point halves are added to each other, as a GPU's lanes are.

    NumPy adds rows one after another, and rounds equal rows the same way each time: with 257 of them that error is four
    times what any order that a GPU uses may lose.
    """

    @functools.wraps(own)
    def total(self: Any, input: Any) -> Any:
        data, axis = input.handle.data, self.axis
        part = data.ravel() if axis is None else np.moveaxis(data, axis, -1)
        narrow = str(input.dtype.scalar) == "bf16"  # which Triton keeps as integers, and would add as such
        if (data.dtype.kind != "f" and not narrow) or part.shape[-1].bit_count() != 1:
            return own(self, input)
        part = part.view(ml_dtypes.bfloat16) if narrow else part
        while (half := part.shape[-1] // 2) > 0:
            part = part[..., :half] + part[..., half:]
        part = part.view(np.uint16) if narrow else part
        kept = part.reshape([1] * data.ndim) if axis is None else np.moveaxis(part, -1, axis)
        return self.to_tensor(kept if self.keep_dims else part[..., 0], input.dtype)

    return total


def _tree(reduction: Any, inputs: Any) -> list[Any] | None:
    """Reduce whole arrays, or None if the axis is no power of two or the function returns other shapes or types.

    Only neighbours are combined, the left one as the first operand, so a function need not commute.
    """
    shape, flat = inputs[0].handle.data.shape, reduction.axis is None
    axis = 0 if flat else range(len(shape))[reduction.axis]
    parts = [t.handle.data.ravel() if flat else np.moveaxis(t.handle.data, axis, -1) for t in inputs]
    if parts[0].shape[-1].bit_count() != 1:
        return None
    while parts[0].shape[-1] > 1:
        sides = [
            [reduction.to_tensor(p[..., i::2], t.dtype) for p, t in zip(parts, inputs, strict=True)] for i in (0, 1)
        ]
        combined = reduction.combine_fn.fn(*sides[0], *sides[1])
        combined = combined if isinstance(combined, tuple) else (combined,)
        if [(c.shape, c.dtype) for c in combined] != [(t.shape, t.dtype) for t in sides[0]]:
            return None
        parts = [c.handle.data for c in combined]
    ends = [p[..., 0] for p in parts]
    if reduction.keep_dims:
        ends = [e.reshape([1] * len(shape)) if flat else np.expand_dims(e, axis) for e in ends]
    return [reduction.to_tensor(e, t.dtype) for e, t in zip(ends, inputs, strict=True)]


def _widened(builder: Any) -> None:
    """Let arithmetic on bfloat16 be done in float32, and rounded to bfloat16 again.

    Triton keeps bfloat16 as 16-bit integers, and adds, multiplies and compares those. One operation in float32, which
    has more than twice the bits and two more, rounds to the same bfloat16 as the exact result.
    """
    arithmetic = ("create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_precise_divf", "create_frem",
                  "create_fma", *(name for name in dir(builder) if name.startswith(("create_min", "create_max"))),
                  *(name for name in dir(builder) if name.startswith("create_fcmp")))  # fmt: skip
    for name in arithmetic:
        if hasattr(builder, name):
            setattr(builder, name, _in_float32(getattr(builder, name)))


def _in_float32(operation: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    @functools.wraps(operation)
    def mended(self: Any, *operands: Any, **options: Any) -> Any:
        if any(operand.dtype.scalar != tl.bfloat16 for operand in operands):
            return operation(self, *operands, **options)
        wide = [interpreter.TensorHandle(conversions.widened(operand.data, "bf16"), tl.float32) for operand in operands]
        result = operation(self, *wide, **options)
        if result.data.dtype != np.float32:
            return result  # a comparison
        return interpreter.TensorHandle(conversions.rounded(result.data, "bfloat16").view(np.uint16), tl.bfloat16)

    return mended


def _with_float_scalars(convert: Any) -> Any:
    """Wrap what makes a kernel's arguments: a Python float is a float32 scalar, as for a compiled kernel.

    Triton leaves it a Python float, which has no `.to` that a kernel could call.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    @functools.wraps(convert)
    def mended(argument: Any) -> Any:
        if isinstance(argument, float):
            return tl.tensor(TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
        return convert(argument)

    return mended


def _untimed(autotuner: Any) -> None:
    """Let @triton.autotune take its first configuration: to time them takes a GPU, and Triton raises without one."""
    autotuner._bench = lambda self, *args, config, **meta: [0.0]


def _fill_libdevice() -> None:
    """Give libdevice's functions that Triton's own language has too (rsqrt, exp, erf, …) a body, which here is its own.

    They are empty until a GPU's library fills them, and return None.
    """
    math, libdevice = (importlib.import_module(f"triton.language.{name}") for name in ("math", "extra.libdevice"))
    for name in {name for name in vars(libdevice) if not name.startswith("_")} & vars(math).keys():
        if getattr(getattr(libdevice, name), "__module__", "") == libdevice.__name__:
            setattr(libdevice, name, functools.partial(_from_language, math, name))


def _from_language(module: Any, name: str, *operands: Any) -> Any:
    return getattr(module, name)(*operands)  # found at the call: a kernel's run puts another in its place


def _without_warnings(call: Any) -> Any:
    @functools.wraps(call)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(*args, **kwargs)

    return quiet
