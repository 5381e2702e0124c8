"""A device that does not exist, as torch and Triton take it: an H100 to call kernels for, on a machine without one."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

CAPABILITY = 90
DEVICE = {  # of an H100, for kernels that cut their work by them
    "name": "NVIDIA H100",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "warp_size": 32,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "total_memory": 80 << 30,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "L2_cache_size": 50 << 20,
}


class Driver:
    """A driver of Triton's for a device that does not exist."""

    def get_current_target(self) -> Any:
        """Return what Triton compiles for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        """Return its number."""
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        """Return its stream."""
        return 0

    def is_active(self) -> bool:
        """Return whether it is used."""
        return True

    def get_active_torch_device(self) -> Any:
        """Return what torch calls it."""
        import torch

        return torch.device("cuda", 0)


def pretend(launch: Callable[..., None], address: Callable[[Any], int]) -> None:
    """Let torch and Triton take the device of `DEVICE` for an existing one, with these for launches and addresses."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(Driver())
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    replaced: dict[str, Any] = {
        "get_device_properties": lambda *_: SimpleNamespace(**DEVICE),
        "get_device_capability": lambda *_: divmod(CAPABILITY, 10),
        "device_of": lambda *_: nullcontext(),
        "device": lambda *_: nullcontext(),
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "current_stream": lambda *_: stream,
        "synchronize": lambda *_: None,
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch._C._cuda_getDevice = lambda: 0
    FakeTensor.data_ptr = address  # type: ignore[assignment, method-assign]
    JITFunction.run = launch
