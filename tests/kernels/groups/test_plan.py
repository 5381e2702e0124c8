"""How groups are divided, and what a plan may depend on."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from rooms import ROOMS

from verify_norm.kernels import launch
from verify_norm.kernels.groups import plan as group_plan
from verify_norm.kernels.launch import H200

FORMS = [  # of seed 003, of Stable Diffusion, and odd ones: sizes, the adjacent axis, vectors, bytes
    *(((32, x * x, 8), "positions", 4, 4) for x in (64, 512, 1024, 2240)),
    *(((320, 4096, 32), inner, 8, 2) for inner in ("positions", "channels")),
    *(((1280, 256, 32), inner, 8, 2) for inner in ("positions", "channels")),
    ((30, 5000, 2), "", 1, 2),
    ((20000, 300, 4), "positions", 4, 4),
]


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
        assert block <= group_plan.USUAL
        assert groups == 1 or min(width, block) * itemsize >= group_plan.LINE
        assert groups == 1 or width <= block or (width % block == 0 and width <= group_plan.TILED)
        assert groups == 1 or width % vec == 0
    assert group_plan._unit(320, 32, 8, 2) == (32, 64)  # of Stable Diffusion: no lane is idle
    assert group_plan._unit(132, 4, 4, 4) == (4, 256)  # a group of 33: all four, so that loads are vectors
    assert group_plan._unit(49 * 2048, 2048, 8, 2) == (8, 512)  # BatchNorm's 7×7: 392 columns


@pytest.mark.parametrize(("positions", "itemsize", "tile"), [(784, 2, 64), (784, 4, 32), (3136, 2, 64), (16, 4, 16)])
def test_adjacent_positions_of_a_block_fill_a_run_of_memory(positions, itemsize, tile):
    c = group_plan.plan((512, positions, 4), "positions", 4, itemsize, 1, H200).constants
    assert c["BLOCK_S"] >= tile


def test_programs_that_sum_a_sample_run_at_the_same_time():
    """Of rows without samples, as BatchNorm's: a second wave of a few programs would take as long as the first."""
    wave = group_plan.LOADING * H200.multiprocessors
    for channels, positions, groups in ((8192, 4096, 8192), (512, 128 * 784, 512), (49 * 2048, 256, 2048)):
        p = group_plan.plan((channels, positions, groups), "channels", 8, 2, 1, H200)
        programs = -(-groups // p.groups) * p.members
        assert wave / 2 < programs < 1.5 * wave


def test_what_merges_sums_takes_several_groups_at_a_time():
    p = group_plan.plan((8192, 4096, 8192), "channels", 8, 2, 1, H200)
    assert p.merging["MANY"] == 32
    for size in ((8192, 4096, 8192), (512, 100352, 512), (2048 * 49, 256, 2048), (320, 65536, 32)):
        m = group_plan.plan(size, "channels", 8, 2, 1, H200).merging
        assert m["RANKS"] * m["MANY"] * m["COLS"] <= 2 * group_plan.TOGETHER or m["MANY"] == 1
        assert (m["MANY"] == 1) == (size[2] < group_plan.FILLING)


def test_what_a_group_of_any_size_is_divided_into_covers_it():
    for channels, space, inner in itertools.product(
        (1, 5, 64, 5000), (1, 49, 5000, 300000), ("positions", "channels", "")
    ):
        for device, arrays in itertools.product(ROOMS.values(), (1, 2)):
            p = group_plan.plan((4 * channels, space, 4), inner, 4, 4, arrays, device)
            width = p.groups * channels
            if p.members:
                assert p.members % p.wide == 0
                assert p.wide * p.constants["BLOCK_C"] >= width
                assert p.blocks * p.constants["BLOCK_S"] >= space
                assert p.members <= max(group_plan._members(device), p.wide)
            else:
                assert p.constants["BLOCK_C"] * p.constants.get("WIDE", 1) >= channels
                assert p.constants["BLOCK_S"] * p.constants.get("BLOCKS", 1) >= space


@pytest.mark.parametrize("name", ROOMS)
@pytest.mark.parametrize("arrays", [1, 2])
def test_a_device_has_room_for_its_plan(name, arrays):
    room = ROOMS[name]
    for size, inner, vec, itemsize in FORMS:
        p = group_plan.plan(size, inner, vec, itemsize, arrays, room)
        c, elements = p.constants, p.constants["BLOCK_C"] * p.constants["BLOCK_S"]
        threads = c["num_warps"] * room.warp
        assert threads <= 1024
        if not p.members:  # two programs of a group, or a program of two arrays in their own type and in float32
            held = elements * c.get("WIDE", 1) * c.get("BLOCKS", 1) * c.get("BLOCK_G", 1) * itemsize * arrays
            assert held <= room.registers // 2
            continue
        tiles = (c["STAGES"] - 1) * elements * itemsize * arrays
        assert c["STAGES"] == 2 or group_plan.LOADING * tiles <= room.shared
        assert p.merging["RANKS"].bit_count() == 1
        unit, samples = p.groups * size[0] // size[2] * size[1] * itemsize * arrays, 40
        first, turns = group_plan.turns(p, samples, unit, room)
        assert sum(turn.units for turn in turns) == samples
        assert first + sum(turn.summed for turn in turns) == samples * p.members
        if len(turns) > 1:  # what is summed and what is computed are in the L2 together, up to a third of one unit
            assert unit * 3 <= 2 * room.l2
            assert all(turn.units == 1 or 3 * turn.units * unit <= room.l2 for turn in turns)


@pytest.mark.parametrize(
    ("name", "batches"),  # of seed 003's eight groups at X = 256, 512, 1024 and 2240: 1, 4, 16 and 77 MiB
    [
        ("H200", (1, 2, 8, 1)),
        ("A100", (1, 3, 8, 1)),
        ("L4", (1, 3, 8, 1)),
        ("RTX 4090", (1, 2, 8, 1)),
        ("B200", (1, 1, 4, 8)),
        ("MI300X", (1, 1, 1, 1)),
    ],
)
def test_a_batch_is_as_large_as_the_cache_allows(name, batches):
    found = []
    for x in (256, 512, 1024, 2240):
        p = group_plan.plan((32, x * x, 8), "positions", 4, 4, 1, ROOMS[name])
        found.append(len(group_plan.turns(p, 8, 4 * x * x * 4, ROOMS[name])[1]))
    assert tuple(found) == batches


def test_what_a_device_has_is_what_torch_reports(monkeypatch):
    told = SimpleNamespace(
        L2_cache_size=60 << 20,
        multi_processor_count=132,
        regs_per_multiprocessor=65536,
        shared_memory_per_multiprocessor=233472,
        shared_memory_per_block_optin=232448,
        shared_memory_per_block=49152,
        warp_size=32,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    read = launch.room.__wrapped__
    assert read(torch.device("cuda", 0)) == H200
    assert read(torch.device("cpu")) == ROOMS["interpreter"]
    del told.shared_memory_per_multiprocessor
    assert read(torch.device("cuda", 0)).shared == 232448
