"""The functions of NVIDIA's libdevice for Triton's interpreter, by NumPy in float64, rounded once.

Without a GPU's library Triton leaves them empty, and they return None. A GPU's results differ by some ulp. Nearly all
take float32's subnormal numbers for zeros, as Triton compiles them.
"""

import functools
import importlib
import inspect
import math
import re
from typing import Any

import numpy as np

from verify_norm.running.interpreter.arithmetic import flushed
from verify_norm.running.refusals import INTERPRETED

NEEDS_GPU = f"{{}} needs a GPU: {INTERPRETED}"


def _rounded_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


ALIKE = """sin cos tan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt hypot copysign fmod floor ceil trunc
    rint isnan isinf signbit ldexp"""  # of the same name in NumPy
FUNCTIONS: dict[str, Any] = {name: getattr(np, name) for name in ALIKE.split()} | {  # without the f of float32
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "pow": np.power, "powi": np.power, "fabs": np.abs, "fdim": lambda x, y: np.maximum(x - y, 0),
    "exp10": lambda x: np.power(10.0, x), "rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x),
    "erf": np.vectorize(math.erf, otypes=[float]), "erfc": np.vectorize(math.erfc, otypes=[float]),
    "nearbyint": np.rint, "llrint": np.rint, "round": _rounded_away, "finite": np.isfinite, "isfinite": np.isfinite,
    "saturate": lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)), "normcdf": lambda x: _normal(x),
    "fdiv_rn": np.divide, "fsqrt_rn": np.sqrt, "frsqrt_rn": lambda x: 1 / np.sqrt(x), "frcp_rn": lambda x: 1 / x,
    "fadd_rn": np.add, "fsub_rn": np.subtract, "fmul_rn": np.multiply, "fast_fdivide": np.divide,
    "fast_exp": np.exp, "fast_log": np.log, "fast_log2": np.log2, "fast_log10": np.log10, "fast_pow": np.power,
    "fast_sin": np.sin, "fast_cos": np.cos, "fast_tan": np.tan, "fast_exp10": lambda x: np.power(10.0, x),
}  # fmt: skip


KEEPING = (FUNCTIONS["copysign"], FUNCTIONS["fdim"])  # subnormal numbers


def _normal(x: Any) -> Any:
    return FUNCTIONS["erfc"](-x / math.sqrt(2)) / 2


def fill(interpreter: Any) -> None:
    """Let kernels call libdevice's functions, and let the interpreter's builder know them by their symbols.

    Those that are missing here raise NotImplementedError, which names the GPU: the case is then refused.
    """
    names = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
    empty, cuda = (importlib.import_module(name) for name in names)
    for name, function in inspect.getmembers(cuda, inspect.isfunction):
        if function.__module__ == cuda.__name__:
            called = functools.partial(_call, interpreter.interpreter_semantic, function)
            setattr(cuda, name, called)
            if hasattr(empty, name):
                setattr(empty, name, called)
    builder: Any = interpreter.InterpreterBuilder
    builder.create_extern_elementwise = _elementwise
    builder.create_inline_asm = _inline_asm


def _call(semantic: Any, function: Any, *operands: Any, **_: Any) -> Any:
    return function(*operands, _semantic=semantic)


def _elementwise(self: Any, library: str, path: str, symbol: str, operands: Any, kind: Any, pure: bool) -> Any:
    """Compute the function of libdevice with this symbol, such as __nv_tanhf."""
    from triton.runtime.interpreter import TensorHandle

    name, form = symbol.removeprefix("__nv_"), self.get_null_value(kind.scalar).data.dtype
    function: Any = FUNCTIONS.get(name) or FUNCTIONS.get(re.sub("[fd]$", "", name))
    fused = name in ("fma", "fmaf", "fma_rn", "fmaf_rn")
    if function is None and not fused:
        raise NotImplementedError(NEEDS_GPU.format(symbol))
    flush = flushed if form == np.float32 and function not in KEEPING else lambda values: values
    given = [flush(o.data) if o.data.dtype.kind == "f" else o.data for o in operands]
    if fused:
        result = self.create_fma(*(TensorHandle(values, kind.scalar) for values in given)).data
    else:
        result = np.asarray(function(*(v.astype(np.float64) if v.dtype.kind == "f" else v for v in given)))
    return TensorHandle(flush(result.astype(form)), kind.scalar)


def _inline_asm(self: Any, *_: Any) -> Any:
    raise NotImplementedError(NEEDS_GPU.format("tl.inline_asm_elementwise"))
