"""A callable as torch captures it: traced by torch.compile, or recorded in a CUDA graph and replayed."""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from verify_norm.cases import contents, gpu_memory, placement
from verify_norm.core.errors import one_line
from verify_norm.loading.returned import RefusedError

Function = Callable[..., Any]
OURS = ("verify_norm.cases", "verify_norm.loading", "verify_norm.running")  # packages that call a kernel
LOST_STREAM = "'torch.Stream' object has no attribute"  # Dynamo gives torch.Stream for a torch.cuda.Stream
# Dynamo of torch 2.11 gives gradients of an autograd.Function to the wrong output, where its forward returns a tensor
# that has another name there, for example by a `.to` of the same type (pytorch/pytorch#180642).
MISROUTES = torch.__version__.startswith("2.11.")
WARM = 3  # calls before a capture, which compile and choose what a kernel compiles and chooses once


def in_use() -> bool:
    """Return whether this process runs code that torch.compile has made, for the kernel itself."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo and dynamo.counters["stats"]["unique_graphs"])  # "frames" has none of fullgraph=True


def traced(function: Function) -> Function:
    """Return the function under torch.compile with backend "eager": Dynamo traces it, torch's own operators run it.

    Code that Dynamo cannot trace runs as usual, and so do Triton's interpreter and NumPy. Each call is traced anew.
    Raises RefusedError where this process has compiled code already, which a reset would throw away, and where the
    function needs attributes of a CUDA stream that Dynamo loses, such as its handle for a launch.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        from torch import _dynamo  # whose import takes a second

        if in_use():
            raise RefusedError("torch.compile is in use in this process")
        _leave_out()
        silent = logging.root.manager.disable
        logging.disable()  # Dynamo logs each error that it passes over, in hundreds of lines
        try:
            with _dynamo.config.patch(suppress_errors=True, trace_numpy=False):
                return torch.compile(function, backend="eager", dynamic=False)(*args, **kwargs)
        except AttributeError as error:
            if LOST_STREAM in str(error):
                raise RefusedError("torch.compile does not pass on CUDA streams as they are") from error
            raise
        finally:
            logging.disable(silent)
            _dynamo.reset()
            _dynamo.utils.counters.clear()

    return run


def _leave_out() -> None:
    """Let Dynamo skip our own frames, and Triton's interpreter, which takes seconds to trace."""
    from torch._dynamo import guards, trace_rules

    # Dynamo measures for a log how long guards take, and first empties the processor's cache: nearly half of a trace.
    guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    launch = interpreter and interpreter.InterpretedFunction.run
    if launch and not hasattr(launch, "_torchdynamo_disable"):
        interpreter.InterpretedFunction.run = torch.compiler.disable(launch)
    if trace_rules.check_file(placement.__file__).skipped:
        return
    for name in OURS:
        trace_rules.add(name)


def replayed(function: Function) -> Function:
    """Return the function as a CUDA graph, captured while other values are in its tensors, then replayed.

    Raises RefusedError where CUDA cannot capture it, for example if it waits for the GPU; the process is as before.
    """

    @wraps(function)
    def run(**arguments: Any) -> Any:
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        values = [tensor.clone() for tensor in tensors]

        def write(sources: list[torch.Tensor]) -> None:
            for tensor, source in zip(tensors, sources, strict=True):
                contents.overwrite(tensor, source)

        others = [(1 - value.float() / 2).to(value.dtype) for value in values]
        graph, usual, capturing = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        capturing.wait_stream(usual)
        with torch.cuda.stream(capturing):
            for _ in range(WARM):
                write(others)  # a kernel may overwrite them
                function(**arguments)
        usual.wait_stream(capturing)
        write(others)
        for device in {tensor.device for tensor in tensors}:
            gpu_memory.release(device)  # a capture cannot: the memory of an earlier case would be lost to it
        pool = torch.cuda.graph_pool_handle()
        try:
            # Without a stream, torch takes one of the device of the first capture.
            with torch.cuda.graph(graph, pool, stream=capturing):
                returned = function(**arguments)
        except Exception as error:
            torch.cuda.set_stream(usual)
            _end(pool)
            raise RefusedError(f"CUDA cannot capture it: {one_line(error)}") from error
        write(values)
        graph.replay()
        return tree_map_only(torch.Tensor, torch.clone, returned)  # the graph's own memory ends with it

    return run


def _end(pool: Any) -> None:
    """End what a capture that failed leaves open in torch's allocator, which would never free memory again.

    Newer versions of torch end it themselves, and refuse (pytorch/pytorch#180395, #190348).
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
