"""How the kernels here are compiled and launched, and what their plans know of a device.

Triton's own launch inspects every argument to find the compiled variant for it, which takes longer than many a kernel.
A `Plan` is looked up by what tells variants apart, keeps the compiled kernel, and calls it as Triton would. That key is
complete because `jit` lets Triton specialize on no size, stride, address or float: the types of the pointers, which of
them are None, the constants and the device remain. Triton's launch hooks do not see these calls.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = {"cuda": 4096, "cpu": 16384}  # elements a tile: what registers hold; what makes an interpreted program worth it
CPU_PROGRAMS = 4  # the interpreter runs them one after another


def jit(function: Callable[..., Any] | None = None, **types: str) -> Any:
    """Return triton.jit of a function, with one compiled variant for all sizes, strides and alignments.

    Only types and constexpr tell variants apart. A fuzzer, or a model with ragged batches, would otherwise wait for the
    compiler at every shape. Therefore the constants of a kernel are one frozen dataclass, its parameter K, and its
    other parameters stay flat: Triton specializes each number in a tuple, whatever do_not_specialize says.

    `types` names the numbers of each type, as int64="M N"; Triton takes the type of other numbers from their values.
    """
    if function is None:
        return lambda function: jit(function, **types)
    numbers = {name: getattr(tl, type_) for type_, names in types.items() for name in names.split()}
    function.__annotations__ |= numbers
    parameters = inspect.signature(function).parameters
    if unknown := numbers.keys() - parameters.keys():
        raise TypeError(f"{function.__name__} has no parameter {', '.join(sorted(unknown))}")
    names = tuple(name for name, p in parameters.items() if p.annotation is not tl.constexpr)
    return triton.jit(function, do_not_specialize=names, do_not_specialize_on_alignment=names)


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run `programs` programs on the first argument's device, all on axis 0: no other takes more than 65535."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants)


@dataclass(slots=True)
class Plan:
    """A kernel with its constants, for one type and form of every argument, on one device.

    constants : the kernel's last parameter, K
    vec : elements that strides and lengths are counted in
    rows : rows a tile
    most : programs that run on the device at a time
    ahead : tiles between one and the one that it prefetches
    alone : tiles that one program takes faster than several and a launch that adds up what they summed
    options : Triton's, such as num_warps
    """

    kernel: Any
    constants: Any
    device: torch.device
    vec: int = 1
    rows: int = 1
    most: int = 0
    ahead: int = 0
    alone: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    compiled: tuple[Any, ...] | None = None

    def launch(self, programs: int, *arguments: Any) -> None:
        """Run so many programs on the device's current stream."""
        index = self.device.index
        if index is not None and torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index):
                self.launch(programs, *arguments)
        elif self.compiled is None:
            compiled = self.kernel[(programs,)](*arguments, self.constants, **self.options)
            if compiled is not None:  # as it is in the interpreter
                self.compiled = _launcher(compiled)
        else:
            run, options = self.compiled
            run(
                programs, 1, 1, torch._C._cuda_getCurrentRawStream(index), *options, *arguments, None
            )  # K is compiled in


def _launcher(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what launches a compiled kernel, and its arguments between the stream and the kernel's own.

    In Triton 3.6 it is the function in C below the one in Python that allocates scratch memory, of which these kernels
    need none: 1.4 of 7 µs.
    """
    run = compiled.run
    scratch = any(getattr(run, f"{name}_scratch_size", True) for name in ("global", "profile"))
    if triton.__version__.startswith("3.6.") and not scratch:
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        return run.launch, (compiled.function, *flags, None, None, compiled.packed_metadata, None, None, None)
    return run, (compiled.function, compiled.packed_metadata, None, None, None)


def programs(x: Tensor) -> int:
    """Return how many programs fill the device a few times over."""
    return 4 * multiprocessors(x.device) if x.is_cuda else CPU_PROGRAMS


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many the device has; a few for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else CPU_PROGRAMS


class Room(NamedTuple):
    """What a device has for a plan.

    kind : cuda or cpu
    l2 : bytes of the L2 cache
    multiprocessors : how many there are
    registers, shared : bytes of each
    warp : threads of a warp
    """

    kind: str
    l2: int
    multiprocessors: int
    registers: int
    shared: int
    warp: int


H200 = Room("cuda", 60 << 20, 132, 256 << 10, 228 << 10, 32)  # as torch reports it


@functools.cache
def room(device: torch.device) -> Room:
    """Return what a device has; of a CPU, where kernels are interpreted, an H200's."""
    if device.type != "cuda":
        return H200._replace(kind="cpu")
    p: Any = torch.cuda.get_device_properties(device)
    shared = getattr(p, "shared_memory_per_multiprocessor", shared_memory(device))  # older torch lacks it
    return Room("cuda", p.L2_cache_size, p.multi_processor_count, 4 * p.regs_per_multiprocessor, shared, p.warp_size)


def warps_of(device: torch.device, count: int) -> int:
    """Return how many warps of the device have as many threads as so many of an H200's: an MI300X has 64 in each."""
    return max(count * H200.warp // room(device).warp, 1)


def shared_memory(device: torch.device) -> int:
    """Return how many bytes of it one program may have."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


@functools.cache
def ptx(device: torch.device) -> bool:
    """Return whether kernels may use instructions of sm_90."""
    if device.type != "cuda" or torch.version.hip is not None or triton.knobs.runtime.interpret:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def dependent(device: torch.device) -> dict[str, bool]:
    """Return the option of a kernel that waits for the launch before it, and so may start early: on sm_90."""
    return {"launch_pdl": True} if ptx(device) else {}
