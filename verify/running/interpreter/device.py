"""The device that an interpreted kernel runs on, as its launcher asks torch and Triton for it.

Launchers cut the work by the number of multiprocessors, and enter the device of x. On a CPU torch and Triton raise
there, and a file that asks Triton's driver cannot be imported, although the interpreter needs none of it.
"""

from types import SimpleNamespace
from typing import Any

from verify_norm.running.interpreter.arithmetic import around

MULTIPROCESSORS = 4  # few: the interpreter runs their programs one after another
SHARED = 232448  # bytes, as of an H100
PROPERTIES = {  # by Triton's names
    "max_shared_mem": SHARED,
    "max_num_regs": 65536,
    "multiprocessor_count": MULTIPROCESSORS,
    "warpSize": 32,
}
OF_TORCH = {
    "name": "Triton's interpreter",
    "multi_processor_count": MULTIPROCESSORS,
    "warp_size": 32,
    "shared_memory_per_block_optin": SHARED,
    "shared_memory_per_multiprocessor": SHARED,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "L2_cache_size": 50 << 20,
}


class Driver:
    """A driver of Triton's for the CPU: its target is neither CUDA nor HIP."""

    utils = SimpleNamespace(get_device_properties=lambda _=0: dict(PROPERTIES))

    def get_current_target(self) -> Any:
        """Return what Triton would compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)

    def get_current_device(self) -> int:
        """Return its number."""
        return 0

    def is_active(self) -> bool:
        """Return whether it is used."""
        return True

    def get_active_torch_device(self) -> Any:
        """Return what torch calls it."""
        import torch

        return torch.device("cpu")


def patch() -> None:
    """Let Triton's driver be that of the CPU, and torch.cuda answer for tensors there; for a GPU it does as before."""
    import torch
    from triton.runtime.driver import driver

    driver.set_active(Driver())
    around(torch.cuda, "get_device_properties", _properties)
    around(torch.cuda.device, "__init__", _chosen)
    around(torch.cuda.device, "__enter__", lambda own, self: None if self.idx is None else own(self))
    around(torch.cuda.device, "__exit__", lambda own, self, *error: False if self.idx is None else own(self, *error))


def _on_cpu(device: Any) -> bool:
    import torch

    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"


def _properties(own: Any, device: Any = None) -> Any:
    return SimpleNamespace(**OF_TORCH) if _on_cpu(device) else own(device)


def _chosen(own: Any, self: Any, device: Any) -> None:
    """Choose no device for a tensor on the CPU, whose device has the index None."""
    if device is None or _on_cpu(device):
        self.idx = None
    else:
        own(self, device)
