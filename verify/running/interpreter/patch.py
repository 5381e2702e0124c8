"""Patches Triton's interpreter to compute as a GPU does, and to reduce in a tree.

`conversions` rounds to bfloat16 and 8 bits, `arithmetic` patches operations, `syntax` the statements of a kernel,
`launches` what starts it, `device` what its launcher asks for, `libdevice` adds its functions, and `loads` notes what
lies beyond all tensors. This module gives the numbers that a kernel is called with the types that they have in a
compiled kernel. Results are compared with those of a GPU, program by program, in benchmarks/results/interpreter.json.
At every start two kernels test casts and loops (`conversions.prove` and `prove`). Without the patches half of all
bfloat16 results would look one ulp wrong, and a loop over int64 bounds would overflow.

What differs still: the order of sums, the last bits of functions, and x·y + z, which a GPU contracts into one fma. The
error bounds allow for these. An operation of `arithmetic.differs_on_gpu` is named in the findings of a kernel that uses
it.

`enable` also silences NumPy's floating-point warnings inside kernels, where NaN and infinity are usual. Triton reduces
with a function of the kernel one element at a time, in Python: seconds a call. `enable` combines whole arrays of
neighbours, log2 n times. `speedups` make the rest faster without a change of any result.
"""

import dataclasses
import importlib
import os
import sys
from typing import Any

import ml_dtypes
import numpy as np

from verify_norm.core import packages
from verify_norm.running.interpreter import (
    arithmetic,
    conversions,
    device,
    launches,
    libdevice,
    loads,
    speedups,
    syntax,
)

PATCHED = "_verify_norm_patched"


def enable() -> str:
    """Turn on and patch Triton's interpreter, and return a description of it; call it before Triton is imported.

    Without Triton, or with one that is too old, it stays off. Raises RuntimeError if Triton was imported without its
    interpreter, or if a patched cast or loop is wrong.
    """
    reason = packages.without_triton()
    if reason:
        return f"none: {reason}"
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
        _patch(interpreter)
        speedups.patch_once(interpreter, triton.language)
        launches.patch(interpreter)
        device.patch()
        speedups.make_types_once(triton.language.core)
        speedups.know_types_once(interpreter)
        speedups.broadcast_unequal(type(interpreter.interpreter_semantic))
        conversions.prove()
        prove()
        setattr(interpreter, PATCHED, True)
    return f"Triton {triton.__version__} interpreter on the CPU, patched to round and to type its loops as a GPU does"


def _patch(interpreter: Any) -> None:
    around = arithmetic.around
    arithmetic.patch(interpreter.InterpreterBuilder)
    around(interpreter.InterpreterBuilder, "create_masked_load", loads.load)
    around(interpreter.InterpreterBuilder, "create_masked_store", loads.store)
    around(interpreter.InterpreterBuilder, "create_int_to_ptr", loads.pointer_of_number)
    libdevice.fill(interpreter)
    setattr(interpreter, syntax.NAME, syntax)
    interpreter.FunctionRewriter.ast_transformer = syntax.Transformer()
    # Without its option `debug` Triton ignores overflows: looking for them costs time alone.
    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    around(interpreter, "_convert_float", conversions.convert)
    around(interpreter, "_implicit_cvt", _argument)
    around(interpreter.InterpretedFunction, "run", _with_declared_types)
    around(interpreter, "_patch_lang_core", _with_typed_range)
    around(interpreter.ReduceOps, "apply_impl", _reduced)
    around(interpreter.ReduceOps, "generic_reduce", _in_a_tree)
    around(interpreter.ReduceOps, "sum", _sum_in_a_tree)
    around(interpreter.ScanOps, "generic_scan", _rewritten)
    around(interpreter.ScanOps, "cumsum", _cumsum)


@dataclasses.dataclass(frozen=True)
class _Declared:
    """A number that a kernel is called with, in the type that its signature declares, or that its value has."""

    value: float
    type: str


def _with_declared_types(own: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Give numbers the types that the signature declares; with do_not_specialize, 1 is no constant either."""
    from triton.runtime.jit import _normalize_ty, mangle_type, type_canonicalisation_dict

    unspecialized = self.kwargs.get("do_not_specialize") or ()
    types = set(type_canonicalisation_dict.values())

    def declared(name: str, value: Any) -> Any:
        if type(value) not in (int, float, bool):
            return value
        given = self.fn.__annotations__.get(name, "")
        kind = _normalize_ty(given) if given != "" else ""
        if kind in types:
            return _Declared(value, kind)
        general = {name, self.arg_names.index(name)} & set(unspecialized) and "constexpr" not in kind
        return _Declared(value, mangle_type(value)) if general else value

    positional = (declared(name, value) for name, value in zip(self.arg_names, args, strict=False))
    named = {name: declared(name, value) if name in self.arg_names else value for name, value in options.items()}
    return own(self, *positional, *args[len(self.arg_names) :], **named)


def _argument(own: Any, value: Any) -> Any:
    """Convert a kernel's argument: a number becomes a scalar of its type, and a 1 a constant, as on a GPU."""
    from triton import language
    from triton.runtime import interpreter
    from triton.runtime.jit import mangle_type

    if type(value) in (int, float, bool):
        if value == 1 and type(value) is int:
            return 1
        value = _Declared(value, "fp32" if type(value) is float else mangle_type(value))
    if not isinstance(value, _Declared):
        return own(value)
    kind = language.str_to_ty(value.type, None)
    if value.type == "fp32":  # scalar_constant would build it twice
        handle = interpreter.TensorHandle(np.array([value.value], np.float32), kind)
        return language.tensor(handle, kind)
    return interpreter.interpreter_semantic.scalar_constant(value.value, kind)


def _with_typed_range(own: Any, language: Any, scope: Any) -> None:
    own(language, scope)
    scope.set_attr(language, "range", syntax.induction)


def _rewritten(own: Any, self: Any, input: Any) -> Any:
    """Run a reduction or scan with its function rewritten, as other functions of a kernel are."""
    function = self.combine_fn
    self.combine_fn = _Rewritten(function.rewrite()) if hasattr(function, "rewrite") else function
    try:
        return own(self, input)
    finally:
        self.combine_fn = function


@dataclasses.dataclass(frozen=True)
class _Rewritten:
    fn: Any


def _reduced(own: Any, self: Any, input: Any) -> Any:
    """Reduce by the function that a GPU reduces by: NumPy's maximum and its index differ with NaN and −0."""
    return self.sum(input[0]) if self.combine_fn == _language().standard._sum_combine else self.generic_reduce(input)


def _cumsum(own: Any, self: Any, input: Any) -> Any:
    """Add bfloat16, which Triton stores as integers, in a loop; tl.cumprod makes float32 of it."""
    return self.generic_scan((input,)) if str(input.dtype.scalar) == "bf16" else own(self, input)


def _language() -> Any:
    return importlib.import_module("triton.language")


def _in_a_tree(own: Any, self: Any, input: Any) -> Any:
    """Reduce in a tree where possible, else in Triton's loop, which also raises the errors."""

    def reduce(self: Any, input: Any) -> Any:
        try:
            outputs = _tree(self, input)
        except Exception:  # as a branch, which would be the same for all elements
            outputs = None
        return own(self, input) if outputs is None else outputs

    return _rewritten(reduce, self, input)


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
    if narrow:
        part = part.view(ml_dtypes.bfloat16)
    while part.shape[-1] > 1:
        half = part.shape[-1] // 2
        part = part[..., :half] + part[..., half:]
    if narrow:
        part = part.view(np.uint16)
    if not self.keep_dims:
        return self.to_tensor(part[..., 0], input.dtype)
    return self.to_tensor(part.reshape([1] * data.ndim) if axis is None else np.moveaxis(part, -1, axis), input.dtype)


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
        left, right = (
            [reduction.to_tensor(p[..., i::2], t.dtype) for p, t in zip(parts, inputs, strict=True)] for i in (0, 1)
        )
        combined = reduction.combine_fn.fn(*left, *right)
        if not isinstance(combined, tuple):
            combined = (combined,)
        if [(c.shape, c.dtype) for c in combined] != [(t.shape, t.dtype) for t in left]:
            return None
        parts = [c.handle.data for c in combined]
    ends = [p[..., 0] for p in parts]
    if reduction.keep_dims:
        ends = [e.reshape([1] * len(shape)) if flat else np.expand_dims(e, axis) for e in ends]
    return [reduction.to_tensor(e, t.dtype) for e, t in zip(ends, inputs, strict=True)]


FAR = 3 * 2**31  # an offset that needs 64 bits


def prove() -> None:
    """Run a small kernel with loops of each kind, and compare the offsets that it computes.

    Raises RuntimeError if a loop variable has not the type that the compiler gives it.
    """
    import torch
    import triton

    from verify_norm.running.interpreter.probes import loops

    out = torch.zeros(6, dtype=torch.int64)
    try:
        loops[(1,)](out, FAR, 7, 2**30)
        got = str(out.tolist())
    except Exception as error:
        got = str(error)
    want = [FAR, FAR, FAR + 14, -(2**31), 7, 32]
    if got != str(want):
        raise RuntimeError(f"Triton {triton.__version__} interpreter: loops give {got}, a GPU gives {want}")
