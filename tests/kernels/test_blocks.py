"""Tiles of rows: their sizes, the places of their elements, and the lanes that hold none."""

import pytest
import torch
import triton.language as tl

from verify_norm.kernels.blocks import BLOCKS, offsets, tile, xhat
from verify_norm.kernels.launch import LANES, jit


@pytest.mark.parametrize(("n", "block"), [(1, 64), (64, 64), (65, 1024), (1024, 1024), (1025, 4096), (10**6, 4096)])
def test_a_tile_holds_a_row_or_the_largest_block_of_it(n, block):
    for rows in (1, 1000):
        sizes = tile(n, torch.empty(rows, 1))
        assert sizes["BLOCK_N"] == block  # whatever the number of rows: a row's bits may not depend on it
        assert sizes["BLOCK_M"] * block == LANES["cpu"]
    assert all(LANES["cuda"] % block == 0 for block in BLOCKS)


@jit(int64="row_stride col_stride")
def places(Out, row_stride, col_stride, UNIT: tl.constexpr):
    rows, cols = tl.arange(0, 2), tl.arange(0, 4)
    at = offsets(rows * 2**20, row_stride, cols, col_stride, UNIT)
    tl.store(Out + rows[:, None] * 4 + cols[None, :], at)


@pytest.mark.parametrize("unit", [True, False])
def test_offsets_are_in_64_bits(device, unit):
    out = torch.empty(2, 4, dtype=torch.int64, device=device)
    places[(1,)](out, 2**20, 3, unit)
    step = 1 if unit else 3  # with UNIT the column stride is not read
    assert out.tolist() == [[row * 2**40 + step * col for col in range(4)] for row in (0, 1)]


@jit(float32="mean rstd")
def normal(Out, mean, rstd, N: tl.constexpr):
    cols = tl.arange(0, 4)
    x = tl.where(cols < N, 3.0, 0.0)
    tl.store(Out + cols, xhat(x, mean, rstd, cols < N))


def test_a_lane_without_an_element_is_0_even_where_it_would_overflow(device):
    out = torch.empty(4, device=device)
    normal[(1,)](out, 1.0, 0.5, 3)
    assert out.tolist() == [1.0, 1.0, 1.0, 0.0]
    normal[(1,)](out, 3.0, 3e38, 2)  # (0 − 3)·3e38 is −inf
    assert out.tolist() == [0.0] * 4
