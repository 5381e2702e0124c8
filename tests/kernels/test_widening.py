"""float32 values of a narrow type are exact, in the plain form and, on a GPU that has them, by its instructions."""

import pytest
import torch
import triton.language as tl

from verify_norm.kernels.launch import jit, ptx
from verify_norm.kernels.widening import anew, wide


@jit
def widened(X, Out, PTX: tl.constexpr, ANEW: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    tl.store(Out + at, anew(x, PTX) if ANEW else wide(x, PTX))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_number_of_a_type_keeps_its_value(device, dtype, again):
    if dtype == torch.float32:
        x = torch.tensor([0.0, -1.5, 3e38, 1e-45] * 4, device=device)
    else:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
        x = torch.where(x.isnan(), 1.0, x)
    out = torch.empty(len(x), device=device)
    widened[(1,)](x, out, device == "cuda" and ptx(x.device), again, len(x))
    assert torch.equal(out, x.float())
