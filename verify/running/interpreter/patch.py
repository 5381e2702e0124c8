"""Patches Triton's interpreter to round and to reduce in a tree, as a GPU does.

Without patched `conversions`, half of all bfloat16 results would look one ulp wrong. `enable` also silences NumPy's
floating-point warnings inside kernels, where NaN and infinity are usual.

Triton reduces with a function of the kernel one element at a time, in Python: seconds a call. `enable` combines whole
arrays of neighbours, log2 n times. `speedups` make the rest faster without a change of any result.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from verify_norm.running.interpreter import conversions, speedups

PATCHED = "_verify_norm_patched"

combining = False  # whether the function of a reduction is called on arrays instead of scalars


def enable() -> str:
    """Turn on and patch Triton's interpreter, and return a description of it; call it before Triton is imported.

    Raises RuntimeError if Triton was imported without its interpreter, or if a patched cast rounds wrongly.
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
    if not hasattr(interpreter, PATCHED):
        _around(interpreter, "_convert_float", conversions.convert)
        _around(interpreter, "_implicit_cvt", _with_float_scalars)
        _around(interpreter.GridExecutor, "__call__", _without_warnings)
        reductions: Any = getattr(interpreter, "ReduceOps", None)
        if hasattr(reductions, "generic_reduce") and hasattr(interpreter, "_patch_lang_tensor"):
            _around(interpreter, "_patch_lang_tensor", _without_blind_truth)
            _around(reductions, "generic_reduce", _in_a_tree)
        if hasattr(reductions, "sum"):
            _around(reductions, "sum", _sum_in_a_tree)
        _compute_bfloat16_in_float32(interpreter.InterpreterBuilder)
        # @triton.autotune takes its first configuration: timing needs a GPU, and Triton raises without one
        triton.runtime.autotuner.Autotuner._bench = lambda self, *args, config, **meta: [0.0]
        _fill_libdevice()
        speedups.patch_once(interpreter, triton.language)
        speedups.make_types_once(triton.language.core)
        conversions.prove()
        setattr(interpreter, PATCHED, True)
    return f"Triton {triton.__version__} interpreter on the CPU, fp32→bf16 patched to round to nearest even"


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function or method of Triton by `wrapper`, which gets the original before the arguments."""
    own = getattr(owner, name)

    @functools.wraps(own)
    def patched(*args: Any, **options: Any) -> Any:
        return wrapper(own, *args, **options)

    setattr(owner, name, patched)


def _in_a_tree(own: Any, self: Any, input: Any) -> Any:
    """Reduce in a tree where possible, else in Triton's loop, which also raises the errors."""
    global combining
    combining = True
    try:
        outputs = _tree(self, input)
    except Exception:
        outputs = None
    finally:
        combining = False
    return own(self, input) if outputs is None else outputs


def _without_blind_truth(own: Any, tensor: Any, *scope: Any) -> None:
    """Set the truth value of Triton's tensors, at every call of a function.

    To Triton every array is true. A function that uses `if`, `and`, `or` or `not` on its operands, as Triton's maximum
    with index, would take one branch for all elements: an error sends it to the loop over scalars.
    """
    own(tensor, *scope)
    blind = tensor.__bool__

    def truth(self: Any) -> bool:
        if combining and self.handle.data.size != 1:
            raise ValueError("an array has no truth value")
        return bool(blind(self))

    tensor.__bool__ = truth


def _sum_in_a_tree(own: Any, self: Any, input: Any) -> Any:
    """Add floating-point halves to each other in tl.sum, like the lanes of a GPU.

    NumPy adds rows one after another and rounds equal rows alike: with 257 rows that error is four times the largest of
    any order on a GPU.
    """
    data, axis = input.handle.data, self.axis
    part = data.ravel() if axis is None else np.moveaxis(data, axis, -1)
    narrow = str(input.dtype.scalar) == "bf16"  # Triton stores it as integers, and would add those
    if (data.dtype.kind != "f" and not narrow) or part.shape[-1].bit_count() != 1:
        return own(self, input)
    part = part.view(ml_dtypes.bfloat16) if narrow else part
    while (half := part.shape[-1] // 2) > 0:
        part = part[..., :half] + part[..., half:]
    part = part.view(np.uint16) if narrow else part
    kept = part.reshape([1] * data.ndim) if axis is None else np.moveaxis(part, -1, axis)
    return self.to_tensor(kept if self.keep_dims else part[..., 0], input.dtype)


def _tree(reduction: Any, inputs: Any) -> list[Any] | None:
    """Return a reduction of whole arrays; None if the axis is no power of two or the function changes shapes or types.

    It combines neighbours, the left one as the first operand: the function need not commute.
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


def _compute_bfloat16_in_float32(builder: Any) -> None:
    """Compute bfloat16 operations in float32, and round to bfloat16.

    Triton stores bfloat16 as 16-bit integers, and adds, multiplies and compares those. One operation in float32, with
    more than 2p + 2 bits, rounds to the same bfloat16 as the exact result.
    """
    prefixes = ("create_min", "create_max", "create_fcmp")
    names = ["create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_precise_divf", "create_frem"]
    names += ["create_fma", *(name for name in dir(builder) if name.startswith(prefixes))]
    for name in names:
        if hasattr(builder, name):
            _around(builder, name, _in_float32)


def _in_float32(own: Any, self: Any, *operands: Any, **options: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if any(operand.dtype.scalar != tl.bfloat16 for operand in operands):
        return own(self, *operands, **options)
    wide = [TensorHandle(conversions.widened(operand.data, "bf16"), tl.float32) for operand in operands]
    result = own(self, *wide, **options)
    if result.data.dtype != np.float32:
        return result  # a comparison
    return TensorHandle(conversions.rounded(result.data, "bfloat16").view(np.uint16), tl.bfloat16)


def _with_float_scalars(own: Any, argument: Any) -> Any:
    """Convert a kernel's argument: a Python float, which has no `.to`, becomes a float32 scalar, as on a GPU."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if isinstance(argument, float):
        return tl.tensor(TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
    return own(argument)


def _fill_libdevice() -> None:
    """Let libdevice's functions (rsqrt, exp, erf, …) call those of Triton's language with the same name.

    Without a GPU's library they are empty, and return None.
    """
    math, libdevice = (importlib.import_module(f"triton.language.{name}") for name in ("math", "extra.libdevice"))
    for name in {name for name in vars(libdevice) if not name.startswith("_")} & vars(math).keys():
        if getattr(getattr(libdevice, name), "__module__", "") == libdevice.__name__:
            setattr(libdevice, name, functools.partial(_from_language, math, name))


def _from_language(module: Any, name: str, *operands: Any) -> Any:
    return getattr(module, name)(*operands)  # looked up at the call: a kernel's run replaces it


def _without_warnings(own: Any, *args: Any, **options: Any) -> Any:
    with np.errstate(all="ignore"):
        return own(*args, **options)
