"""Launches kernels in Triton's interpreter as torch and Triton launch compiled ones.

Fake tensors, by which torch.library.opcheck and torch.export infer shapes, run nothing. A tuner runs a kernel once more
before the launch. A grid may be a list, a kernel may use variables of the function that encloses it, and an error names
the line of the kernel.
"""

import ast
import importlib
import linecache
import threading
import time
from typing import Any

import numpy as np

from verify_norm.core.errors import one_line
from verify_norm.running.interpreter import arithmetic, loads, syntax
from verify_norm.running.refusals import INTERPRETED

LAUNCH = threading.RLock()
FAKE = "a Triton kernel cannot run on fake tensors: launch it by torch.library.wrap_triton, or register a fake"
SHARE = 0.1  # of the time of a tuner's launches, which its trials may take
FREE = 0.5  # seconds that they may always take


def patch(interpreter: Any) -> None:
    """Patch launches, tuners, and the wrapper that torch gives to kernels."""
    from triton.runtime.autotuner import Autotuner

    arithmetic.around(interpreter.GridExecutor, "__call__", _launched)
    arithmetic.around(interpreter.FunctionRewriter, "_compile_and_exec", _enclosed)
    arithmetic.around(Autotuner, "run", _timed)
    Autotuner._bench = _tried
    for name in ("torch._library.triton", "torch._library", "torch.library"):
        module = importlib.import_module(name)
        arithmetic.around(module, "wrap_triton", _traceable)
        arithmetic.around(module, "capture_triton", _traceable)


def _launched(own: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Launch a grid without NumPy's warnings. Threads take turns: a launch patches the language."""
    from triton.runtime.errors import InterpreterError

    if _fake(*args, *options.values()):
        raise RuntimeError(FAKE)
    grid = self.grid
    self.grid = (lambda meta: tuple(grid(meta))) if callable(grid) else tuple(grid)  # Triton compiled takes lists
    given = {**dict(zip(self.arg_names, args, strict=False)), **options}
    try:
        with LAUNCH, np.errstate(all="ignore"), loads.given(given):
            return own(self, *args, **options)
    except InterpreterError as error:
        cause: BaseException = error
        while isinstance(cause, InterpreterError) and cause.__cause__ is not None:  # one for each function on the way
            cause = cause.__cause__
        raise InterpreterError(one_line(cause) + _place(cause)) from cause


def _fake(*given: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(one, FakeTensor) for one in given)


def _place(error: BaseException) -> str:
    """Return the last line of a kernel that led to an error, in words; "" if none did."""
    found, step = "", error.__traceback__
    while step is not None:
        names = step.tb_frame.f_globals
        if syntax.NAME in names and not names.get("__name__", "").startswith("triton."):
            line = linecache.getline(step.tb_frame.f_code.co_filename, step.tb_lineno).strip()
            found = f" in `{line}`" if line else found
        step = step.tb_next
    return found


def _enclosed(own: Any, self: Any, tree: ast.Module) -> Any:
    """Give a rewritten kernel the variables of the function around it, which the rewritten text has lost."""
    names = self.fn.__code__.co_freevars
    if not names:
        return own(self, tree)
    name = self.fn.__name__
    around = ast.parse(f"def {name}({', '.join(names)}):\n return {name}")
    around.body[0].body[:0] = tree.body  # type: ignore[attr-defined]
    outer = own(self, around)
    return outer(*(cell.cell_contents for cell in self.fn.__closure__))


def _timed(own: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Launch a tuned kernel, and add up how long its launches take."""
    begin = time.perf_counter()
    try:
        return own(self, *args, **options)
    finally:
        vars(self)["launched"] = vars(self).get("launched", 0.0) + time.perf_counter() - begin


def _tried(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Run a kernel in the first configuration that is not pruned before the launch, which takes this configuration.

    A tuner on a GPU runs each one many times. A kernel that works in place, or adds to its outputs, is then wrong
    without `restore_value` or `reset_to_zero`. Here one run shows it, as long as such runs take little time.
    """
    kept = vars(self)
    if kept.get("trial") is self.nargs or kept.get("tried", 0.0) > FREE + SHARE * kept.get("launched", 0.0):
        return [0.0]
    kept["trial"] = self.nargs  # of this launch
    begin, everything = time.perf_counter(), {**self.nargs, **meta, **config.all_kwargs()}
    if config.pre_hook:
        config.pre_hook(everything)
    self.pre_hook(everything)
    try:
        self.fn.run(*args, **meta, **config.all_kwargs())
    except Exception as error:
        self.post_hook(everything, exception=error)
        raise
    self.post_hook(everything, exception=None)
    kept["tried"] = kept.get("tried", 0.0) + time.perf_counter() - begin
    return [0.0]


def _traceable(own: Any, kernel: Any) -> Any:
    """Return what torch.library.wrap_triton gives: a kernel that nothing runs where torch infers shapes."""
    from triton.runtime.interpreter import InterpretedFunction

    function = kernel
    while hasattr(function, "fn") and not isinstance(function, InterpretedFunction):  # a tuner, heuristics
        function = function.fn
    return _Traceable(kernel) if isinstance(function, InterpretedFunction) else own(kernel)


class _Traceable:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> Any:
            from torch._subclasses.functional_tensor import FunctionalTensor

            given = (*args, *options.values())
            if any(isinstance(one, FunctionalTensor) for one in given):
                raise NotImplementedError(f"a kernel of torch.library.wrap_triton, traced, needs a GPU: {INTERPRETED}")
            return None if _fake(*given) else self.kernel[grid](*args, **options)

        return launch
