"""Operators of torch.library that a kernel calls, and whether what they promise to torch's compilers holds."""

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from verify_norm.cases import contents, gpu_memory
from verify_norm.checks.relations.rerun import rerun
from verify_norm.core.errors import one_line
from verify_norm.core.layouts import memory_span
from verify_norm.core.run import Case, Run
from verify_norm.running.guards import PoisonEmpty

TESTS = ("test_schema", "test_faketensor")  # of torch.library.opcheck: writes and aliases; the fake implementation
MISSING = "no fake impl"  # nothing is wrong with an operator without one: torch.compile refuses it
MOST = 4  # calls of an operator in one run that are looked at
LARGEST = 2**22  # elements from a tensor's first to its last: a copy has the same strides
OF_TORCH = frozenset(  # namespaces of its own operators
    [
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "_inductor_test",
        "_native",
        "_quantized",
        "_test",
        "aten",
        "c10d",
        "c10d_functional",
        "cplib",
        "debug_mode_ops",
        "debugprims",
        "export",
        "flex_lib",
        "fsdp",
        "inductor",
        "inductor_prims",
        "mkl",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "onnx",
        "onnx_symbolic",
        "prim",
        "prims",
        "profiler",
        "quantization",
        "quantized",
        "quantized_decomposed",
        "rngprims",
        "sparse",
        "static_runtime",
        "streams",
        "symm_mem",
    ]
)
Call = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]


def registered() -> bool:
    """Return whether this process has operators that are not torch's own."""
    names = torch._C._dispatch_get_all_op_names()
    return any(name.partition("::")[0] not in OF_TORCH for name in names)


def broken_promises(run: Run) -> Iterator[str]:
    """Yield what torch.library.opcheck says against the operators that the kernel calls in this case, in words."""
    made: list[_Recording] = []

    def recording(case: Case) -> _Recording:
        made.append(_Recording(case))
        return made[0]

    rerun(run, within=recording)
    said = set()
    for operator, args, kwargs in made[0].calls:
        found: dict[str, Any] = torch.library.opcheck(operator, args, kwargs, test_utils=TESTS, raise_exception=False)
        for test, error in found.items():
            if isinstance(error, BaseException) and (gpu_memory.full(error) or gpu_memory.failed_in_cuda(error)):
                raise error  # not the operator's: the check is left out, or the case examined again
            absent = MISSING in str(error) or str(error) == str(operator)
            if isinstance(error, BaseException) and not absent and (operator, test) not in said:
                said.add((operator, test))
                yield f"torch.library.opcheck of {operator}: {test} says: {one_line(error)}"


class Foreign(TorchDispatchMode):
    """Notes whether operators run that are not torch's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type for it
        self.ran = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran = self.ran or (isinstance(func, OpOverload) and func.namespace not in OF_TORCH)
        return func(*args, **(kwargs or {}))


class _Recording(PoisonEmpty):
    """Allocates as every call does, and copies the arguments of operators that are not torch's own."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.poison)
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        foreign = isinstance(func, OpOverload) and func.namespace not in OF_TORCH
        if foreign and sum(operator is func for operator, *_ in self.calls) < MOST:
            tensors = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, torch.Tensor)]
            if all(memory_span(tensor.shape, tensor.stride()) <= LARGEST for tensor in tensors):
                self.calls.append((func, *tree_map_only(torch.Tensor, _copied, (args, kwargs or {}))))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the same strides; without elements a dense one, since opcheck itself fails at another."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    contents.overwrite(copy, tensor)
    return copy
