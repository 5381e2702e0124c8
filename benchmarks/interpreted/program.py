"""A program that runs compiled on a GPU and in Triton's interpreter, and the data that programs share."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

N = 64
FLOAT = ("float32", "float16", "bfloat16")
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Program:
    """A kernel with its inputs, its outputs as (type, elements), and how far both machines may be apart.

    `ulp` is allowed in each element of a floating output, 0 stands for the same bits. `undefined` says why a result
    differs between architectures or compilers: it is recorded, and not compared.
    """

    name: str
    kernel: Any
    inputs: tuple[Any, ...]
    outputs: tuple[tuple[str, int], ...]
    constants: dict[str, Any] = field(default_factory=dict)
    grid: int = 1
    ulp: float = 0.0
    undefined: str = ""


def tensor(dtype: str, values: Any) -> Tensor:
    """Return values in the type of this name; unsigned types by way of NumPy."""
    if dtype.startswith("uint") and dtype != "uint8":
        return torch.from_numpy(np.array(values, dtype))
    exact = torch.tensor(values, dtype=torch.float64 if "float" in dtype else torch.int64)
    if dtype == "float8_e4m3fn":  # has no infinity, and versions of torch differ beyond its largest number
        exact = exact.clamp(-448, 448)
    return exact.to(getattr(torch, dtype))


EDGES = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 3.0, -2.5, 1 / 3, 1e-3, 100.0, -1000.0, 65504.0, 65520.0, -65536.0, 1e5,
         3.0e38, -3.4e38, 1e-8, -6e-8, 3e-5, 1e-38, 1.4e-45, -1e-40, INF, -INF, NAN, 2.0**24 + 2, 1 + 2.0**-8,
         1 + 3 * 2.0**-8, 447.0, 465.0]  # fmt: skip
ROLLED = EDGES[7:] + EDGES[:7]
FLOATS = (EDGES + EDGES, ROLLED + EDGES[13:] + EDGES[:13])  # 64 pairs
ANY = np.random.Generator(np.random.MT19937(5)).integers(-(2**63), 2**63, 3 * N)
INTEGERS = ([0, 1, -1, 7, -7, 127, -128, 2**31 - 1, -(2**31), 2**24 + 1, 2**24 + 3, -5, *ANY[:52].tolist()],
            [1, -1, 3, 3, 3, -2, 2, 5, 7, -3, 255, 2, *ANY[64:116].tolist()])  # fmt: skip
MODERATE = [(-1) ** i * 1.07 ** (3 * i - 90) for i in range(N)]  # 0.002 to 1000
NEAR = [i / 8 - 4 for i in range(N)]
POSITIVE = [abs(v) for v in MODERATE]


def given(dtype: str, which: int = 0) -> Tensor:
    """Return 64 values of the type: of two arguments `which` 0 and 1 make pairs."""
    if "float" in dtype:
        return tensor(dtype, FLOATS[which])
    if dtype == "bool":
        return tensor("bool", [i >> which & 1 for i in range(N)])
    bits = np.iinfo(dtype).bits
    wrapped = np.array(INTEGERS[which], np.int64).astype(f"uint{bits}").view(dtype)
    return tensor(dtype, wrapped.tolist())


@triton.jit
def described(r, Kind):
    tl.store(Kind, r.dtype.primitive_bitwidth)
    tl.store(Kind + 1, r.dtype.is_floating())
    tl.store(Kind + 2, r.dtype.is_int_signed())
    tl.store(Kind + 3, r.dtype.is_bf16())
