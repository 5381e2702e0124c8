"""Reads, overwrites and compares the contents of tensors."""

from typing import Any

import torch

from verify_norm.cases.device_array import DeviceArray, apart


def overwrite(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the values of a tensor of the same layout; along a stride of 0 there is one element."""
    own = apart(tensor.stride())
    with torch.no_grad():
        tensor[own].copy_(source[own])


def on_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return another contiguous tensor on the same memory, which counts the versions of its values by itself."""
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and type hold the same numbers: NaN equals NaN, and 0 equals −0."""
    return torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and type hold the same bits: 0 is not −0."""
    return torch.equal(bytes_of(first, whole=False), bytes_of(second, whole=False))


def to_float64(tensor: torch.Tensor, device: Any = None) -> Any:
    """Return the tensor's values, exactly, or the bytes of packed ones: as NumPy's array, or in a device's memory."""
    tensor = tensor.contiguous().view(torch.uint8) if dtype_name(tensor) == "float4_e2m1fn_x2" else tensor
    if device is not None:
        return DeviceArray(tensor.detach().to(device, torch.float64).contiguous())
    return tensor.detach().to("cpu", torch.float64).contiguous().numpy()


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's type, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: torch.Tensor, whole: bool) -> torch.Tensor:
    """Return the bytes of the tensor's storage, or only of its elements."""
    if not whole:
        dense = tensor.detach().contiguous()
        # One element counts as contiguous with any stride, but `view` needs a stride of 1.
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
