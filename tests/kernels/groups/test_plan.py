"""How groups are divided, and what a plan may depend on."""

import itertools

import pytest
import torch

from verify_norm.kernels.groups import plan as group_plan


@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 6, 10), (3, 10, 7)])
def test_loads_of_a_sample_are_as_wide_alone_as_among_others(shape):
    x = torch.zeros(shape)
    for t in (x, x.mT.contiguous().mT, x.bfloat16()):
        ways = set()
        for part in (t, *t.split(1)):
            at = part.data_ptr() | 16
            ways.add(group_plan.adjacent(at & -at, t.itemsize, part.shape, part.stride()))
        assert len(ways) == 1


def test_a_unit_has_a_line_of_memory_and_fills_its_lanes():
    for group, itemsize in itertools.product((1, 3, 4, 10, 16, 20, 40, 200), (2, 4)):
        vec = 16 // itemsize
        groups, block = group_plan._unit(32 * group, 32, vec, itemsize)
        width = groups * group
        assert block <= 128
        assert groups == 1 or min(width, block) * itemsize >= group_plan.LINE
        assert groups == 1 or width <= block or (width % block == 0 and width <= group_plan.TILED)
        assert groups == 1 or width % vec == 0
    assert group_plan._unit(320, 32, 8, 2) == (32, 64)  # of Stable Diffusion: no lane is idle
    assert group_plan._unit(132, 4, 4, 4) == (2, 128)  # 66 channels, two a load, and not 99 one by one


def test_what_a_group_of_any_size_is_divided_into_covers_it():
    for channels, space, inner in itertools.product(
        (1, 5, 64, 5000), (1, 49, 5000, 300000), ("positions", "channels", "")
    ):
        for device, arrays in itertools.product(("cuda", "cpu"), (1, 2)):
            p = group_plan.plan((4 * channels, space, 4), inner, 4, 4, arrays, device)
            width = p.groups * channels
            if p.members:
                assert p.members % p.wide == 0
                assert p.wide * p.constants["BLOCK_C"] >= width
                assert p.blocks * p.constants["BLOCK_S"] >= space
                assert p.members <= max(group_plan.MEMBERS, p.wide)
            else:
                assert p.constants["BLOCK_C"] * p.constants.get("WIDE", 1) >= channels
                assert p.constants["BLOCK_S"] * p.constants.get("BLOCKS", 1) >= space
