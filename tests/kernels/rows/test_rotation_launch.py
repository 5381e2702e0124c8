"""How heads are cut into tiles of pairs, and which vectors load them."""

import math
from types import SimpleNamespace

import pytest
import torch

from verify_norm.kernels.launch import H200
from verify_norm.kernels.rows import rotation_launch
from verify_norm.kernels.rows.norm import Norm

GPU, F32, BF16 = torch.device("cuda", 0), torch.float32, torch.bfloat16
PARTS = [(n, n // (2 * part)) for n in (1, 2, 33, 64, 72, 96, 100, 128, 256, 2048, 8192) for part in (1, 2, 4)]


@pytest.fixture
def h200(monkeypatch):
    """The plans that an H200 gets."""
    monkeypatch.setattr(rotation_launch, "multiprocessors", lambda device: H200.multiprocessors)
    monkeypatch.setattr(rotation_launch, "ptx", lambda device: True)
    monkeypatch.setattr(rotation_launch, "warps_of", lambda device, count: count)
    yield
    rotation_launch.rotation_plan.cache_clear()


@pytest.mark.parametrize("heads", [1, 3, 8, 40])
def test_tiles_have_all_pairs_and_whole_heads(h200, heads):
    for n, half in PARTS:
        for dtype in (F32, BF16):
            vec = 16 // dtype.itemsize if (n | half) * dtype.itemsize % 16 == 0 else 1
            for backward in (False, True):
                how = (GPU, n, half, heads, vec, dtype, dtype, dtype, False, False, backward)
                plan = rotation_launch.rotation_plan(*how)
                k, threads = plan.constants, 32 * plan.options["num_warps"]
                assert n - half - (n - 2 * half) // 2 <= k.PAIRS
                assert (n == 2 * k.PAIRS) == k.EVEN
                assert (2 * half == n) == k.ALL
                assert (heads % k.HEADS, k.TOKENS * k.HEADS) == (0, plan.rows)
                assert math.gcd(heads, plan.rows) == k.HEADS
                assert 64 <= threads <= 512
                assert 2 * plan.rows * k.PAIRS <= (16 if backward else 32) * threads
                if backward:  # 16 warps a multiprocessor
                    assert plan.most == max(H200.multiprocessors * 512 // threads, rotation_launch.TOGETHER)


def test_heads_have_a_stride_of_each_dimension():
    qkv = torch.zeros(2, 5, 12, 64, dtype=BF16)
    norm = Norm(2 * 5 * 8, 64, 3, False, None)
    q = qkv[:, :, :8]
    assert rotation_launch.tokens_and_heads(q, norm) == (10, 8)
    found = rotation_launch._heads(q, 10, 8, 64, 3)
    assert (found.token, found.head, found.column, found.bits & 15) == (12 * 64, 64, 1, 0)
    assert found.t.data_ptr() == q.data_ptr()
    narrow = qkv.view(2, 5, 12 * 64)[:, :, 4 : 4 + 8 * 64].view(2, 5, 8, 64)  # begins at 8 bytes
    assert rotation_launch._heads(narrow, 10, 8, 64, 3).bits & 15
    assert rotation_launch._heads(q.transpose(0, 1), 10, 8, 64, 3).t.shape == (10, 8, 64)  # a copy
    for shape, lead, want in (((7, 64), 1, (7, 1)), ((64,), 0, (1, 1)), ((3, 2, 64), 2, (3, 2))):
        x = torch.zeros(shape)
        assert rotation_launch.tokens_and_heads(x, Norm(math.prod(shape[:lead]), 64, lead, False, None)) == want


def test_an_interpreted_program_has_more_rows():
    plan = rotation_launch.rotation_plan(torch.device("cpu"), 128, 64, 3, 8, BF16, None, BF16, False, False, True)
    assert (plan.rows, plan.constants.HEADS, plan.constants.PTX) == (128, 1, False)


def test_a_launch_counts_tiles_of_tokens_and_heads():
    plan = SimpleNamespace(constants=SimpleNamespace(TOKENS=4, HEADS=8))
    assert rotation_launch.Geometry(plan, 9, 40, 16, 8).tiles == 3 * 5
