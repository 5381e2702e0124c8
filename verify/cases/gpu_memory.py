"""The memory of a GPU: which errors say that it is full, whether other processes fill it, and how to release it."""

import torch

from verify_norm.cases.device_array import UNKNOWN

FULL = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED",
)
DISTURBED = UNKNOWN, "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate"  # on a full GPU too
FAULTS = "illegal memory access", "misaligned address", "device-side assert", "illegal instruction"  # of a kernel
LARGE = 2**31  # bytes in torch's cache: less than a case with layout "far" takes


def release(device: torch.device | str) -> None:
    """Return torch's cached GPU memory to the device if it is large, for example after a case with layout "far".

    Other processes rely on free memory, as `verify_norm.cases.placement` does.
    """
    if torch.device(device).type == "cuda" and kept(device) >= LARGE:
        torch.cuda.empty_cache()


def full(error: BaseException | None) -> bool:
    """Return whether an error says that GPU memory is full, by torch's allocator, CUDA's own, Triton or cuBLAS.

    Errors of torch.compile quote the one that they follow from.
    """
    if not isinstance(error, RuntimeError):
        return False
    first = str(error).partition("\n")[0]
    return isinstance(error, torch.OutOfMemoryError) or any(words in first for words in FULL)


def failed_in_cuda(error: BaseException) -> bool:
    """Return whether a call failed in CUDA by no fault of a kernel: another process may cause it on the same GPU."""
    text = str(error)
    return isinstance(error, RuntimeError) and text.startswith("CUDA error") and not any(w in text for w in FAULTS)


class CrowdedError(RuntimeError):
    """A call failed in CUDA while other processes held most of the GPU's memory: no fault of a kernel."""


def taken_by_others(error: BaseException, device: torch.device) -> bool:
    """Return whether an error is one of a full GPU, and other processes hold half of its memory or more."""
    if device.type != "cuda" or not (full(error) or str(error).startswith(DISTURBED)):
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 2 * (total - free - torch.cuda.memory_reserved(device)) >= total


class WhereItFits:
    """Ends its block where GPU memory is full, by torch's allocator or by CUDA's, for example for a graph or a context.

    >>> with WhereItFits():
    ...     raise RuntimeError("CUDA error: out of memory")
    >>> with WhereItFits():
    ...     raise RuntimeError("no")
    Traceback (most recent call last):
    RuntimeError: no
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return full(error)


def kept(device: torch.device | str) -> int:
    """Return the bytes of a GPU that torch caches without using them; `torch.cuda.memory_reserved` takes far longer."""
    statistics = torch.cuda.memory_stats_as_nested_dict(device)
    if not statistics:  # before CUDA is initialized
        return 0
    reserved, allocated = (statistics[f"{name}_bytes"]["all"]["current"] for name in ("reserved", "allocated"))
    return int(reserved - allocated)
