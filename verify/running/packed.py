"""Unpacks outputs of few bits: two numbers of 4 bits (E2M1) in a byte, and exponents (E8M0) in a byte each.

Kernels return these as torch's types, or as bytes (uint8). Two neighbours of a row share a byte; in a row of odd
length, half of the last byte is unused. `Contract.packing` says which half comes first.
"""

import math

import torch

from verify_norm.core import geometry
from verify_norm.core.contract import Contract
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three bits below the sign
E8M0 = (*(2.0**k for k in range(-127, 128)), math.nan)
PAIRS = ("uint8", "float4_e2m1fn_x2")


def unpacked(raw: torch.Tensor, n: int, packing: str = "low") -> torch.Tensor:
    """Return rows of n numbers of E2M1 as float32, of bytes (M, ⌈n/2⌉).

    >>> unpacked(torch.tensor([[0x21, 0x0F]], dtype=torch.uint8), 3)
    tensor([[ 0.5000,  1.0000, -6.0000]])
    """
    halves = (raw & 15, raw >> 4)
    codes = torch.stack(halves if packing == "low" else halves[::-1], -1).flatten(1)[:, :n]
    magnitudes = torch.tensor(E2M1, device=raw.device)[(codes & 7).long()]
    return torch.where(codes > 7, -magnitudes, magnitudes)


def values(name: str, value: torch.Tensor, spec: CaseSpec, op: Op, contract: Contract) -> tuple[str, torch.Tensor]:
    """Return the name of an output's number format, and its values as a tensor, unpacked where they are packed."""
    dtype = str(value.dtype).removeprefix("torch.")
    declared = next((tensor.dtype for tensor in op.outputs if tensor.name == name), "")
    if declared == "float8_e8m0fnu" and dtype == "uint8":
        return declared, torch.tensor(E8M0, dtype=torch.float64, device=value.device)[value.long()]
    if dtype not in PAIRS or (declared != "float4_e2m1fn" and dtype == "uint8"):
        return dtype, value
    n, M = geometry.row_length(spec, op), geometry.rows(spec, op)
    raw = value.contiguous().view(torch.uint8)
    # bytes of a row, and of the last dimension, if a row has several
    row_bytes, last_bytes = -(-n // 2), -(-spec.shape[-1] // 2)
    fits = raw.ndim > 0 and raw.numel() == M * row_bytes and raw.shape[-1] in (row_bytes, last_bytes)
    if declared != "float4_e2m1fn" or not fits:
        return dtype, raw
    return declared, unpacked(raw.reshape(M, row_bytes), n, contract.packing).reshape(spec.shape)
