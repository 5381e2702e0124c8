"""Outputs of few bits as their values: two numbers of 4 bits in a byte, and exponents of E8M0 in bytes.

Kernels return these as torch's types, or as bytes (uint8). Row after row, two neighbours share a byte; where a row has
an odd length, half of its last byte holds nothing. `Contract.packing` says which half comes first.
"""

import math

import torch

from verify_norm.core import geometry
from verify_norm.core.contract import Contract
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the three bits below the sign
E8M0 = (*(2.0**k for k in range(-127, 128)), math.nan)
PAIRS = ("uint8", "float4_e2m1fn_x2")


def unpacked(raw: torch.Tensor, n: int, packing: str = "low") -> torch.Tensor:
    """Return rows of n numbers of E2M1 as float32, of bytes (M, ⌈n/2⌉).

    >>> unpacked(torch.tensor([[0x21, 0x0F]], dtype=torch.uint8), 3)
    tensor([[ 0.5000,  1.0000, -6.0000]])
    """
    halves = (raw & 15, raw >> 4)
    codes = torch.stack(halves if packing == "low" else halves[::-1], -1).flatten(1)[:, :n]
    sizes = torch.tensor(E2M1, device=raw.device)[(codes & 7).long()]
    return torch.where(codes > 7, -sizes, sizes)


def values(name: str, value: torch.Tensor, spec: CaseSpec, op: Op, contract: Contract) -> tuple[str, torch.Tensor]:
    """Return the type of an output and its values, those of few bits in a type that holds them."""
    own = str(value.dtype).removeprefix("torch.")
    kind = next((tensor.dtype for tensor in op.outputs if tensor.name == name), "")
    if kind == "float8_e8m0fnu" and own == "uint8":
        return kind, torch.tensor(E8M0, dtype=torch.float64, device=value.device)[value.long()]
    if own not in PAIRS or (kind != "float4_e2m1fn" and own == "uint8"):
        return own, value
    n, M = geometry.row_length(spec, op), geometry.rows(spec, op)
    raw = value.contiguous().view(torch.uint8)
    ends = [-(-size // 2) for size in (n, spec.shape[-1])]  # of rows, or of the last of several dimensions of one
    if kind != "float4_e2m1fn" or raw.numel() != M * ends[0] or not raw.ndim or raw.shape[-1] not in ends:
        return own, raw  # nothing that could be unpacked
    return kind, unpacked(raw.reshape(M, -(-n // 2)), n, contract.packing).reshape(spec.shape)
