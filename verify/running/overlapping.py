"""Finds tensors that share memory, and tensors with elements that share memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from verify_norm.core.layouts import memory_span

TOO_HARD = 2  # torch's answer to whether a tensor overlaps itself, where strides do not tell
COUNTED = 2**20  # elements whose addresses are compared


def overlaps(outputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every output that shares bytes with an argument or an earlier output, as (output, the other)."""
    earlier = [(name, value, _reach(value)) for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    for name, output in outputs.items():
        if not isinstance(output, torch.Tensor):
            continue
        reach = _reach(output)
        for other, tensor, its_reach in earlier:
            near = reach.start < its_reach.stop and its_reach.start < reach.stop
            if near and _overlap(output, tensor):
                yield name, other
        earlier.append((name, output, reach))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements of a tensor share memory; False where the answer would take long.

    >>> overlaps_itself(torch.zeros(3).expand(2, 3)), overlaps_itself(torch.zeros(4).as_strided((3, 2), (1, 1)))
    (True, True)
    >>> overlaps_itself(torch.zeros(3, 2).t()), overlaps_itself(torch.zeros(9).as_strided((2, 3), (3, 2)))
    (False, False)
    """
    answer = torch._debug_has_internal_overlap(tensor)  # 0: no, 1: yes, 2: too hard
    if answer != TOO_HARD or tensor.numel() > COUNTED:
        return bool(answer == 1)
    return int(np.unique(offsets(tensor)).size) < tensor.numel()


def offsets(tensor: torch.Tensor) -> Any:
    """Return each element's distance from the first one in memory, in elements, in the tensor's shape."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return sum(np.ix_(*(np.arange(n) * stride for n, stride in steps)))


def _reach(tensor: torch.Tensor) -> range:
    """Return the addresses from a tensor's first byte to its last."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return range(0)
    first = tensor.data_ptr()
    return range(first, first + memory_span(tensor.shape, tensor.stride()) * tensor.element_size())


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors that reach into each other share a byte."""
    return a.device == b.device and bool(np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b))))


class _Addresses:
    """A tensor's addresses as an array: NumPy compares them, and reads no memory, which may be a GPU's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }
