"""How rows are cut, which vectors load them, and which plan an argument of each form gets."""

import inspect
import itertools
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from rooms import ROOMS

from verify_norm.kernels import launch as launching
from verify_norm.kernels.launch import H200, Plan
from verify_norm.kernels.rows import launch
from verify_norm.kernels.rows import plan as row_plan
from verify_norm.kernels.rows.norm import Norm

GPU, F32, BF16 = torch.device("cuda", 0), torch.float32, torch.bfloat16
LENGTHS = [*range(1, 70), *range(120, 20000, 61), *(2**i + d for i in range(7, 16) for d in (-1, 0, 1)), 2**15]
LENGTHS += [3 * 2**i for i in range(5, 13)]


def on(monkeypatch, room, sm_90):
    """Plan for a device that has this room; a program may have all but 1 KiB of its shared memory, as on sm_80 on."""
    for function in (row_plan.forward_plan, row_plan.backward_plan, row_plan.gated_plan, row_plan.fold_plan):
        monkeypatch.setattr(row_plan, function.__name__, inspect.unwrap(function))  # without its cache
    monkeypatch.setattr(row_plan, "multiprocessors", lambda device: room.multiprocessors)
    monkeypatch.setattr(row_plan, "shared_memory", lambda device: room.shared - 1024)
    monkeypatch.setattr(row_plan, "ptx", lambda device: sm_90)
    monkeypatch.setattr(launching, "room", lambda device: room)


@pytest.fixture
def h200(monkeypatch):
    """The plans that an H200 gets."""
    on(monkeypatch, H200, sm_90=True)


def plans(n, dtype, vec):
    """All that there are for rows of n elements: with a residual or without, of one sum or two, of either weight."""
    for added, centered in itertools.product((False, True), repeat=2):
        if n <= row_plan.HELD["forward"]:
            yield row_plan.forward_plan(GPU, n, vec, dtype, dtype, dtype, added, centered, False)
            if not added:
                quantized = torch.float8_e4m3fn
                yield row_plan.forward_plan(GPU, n, vec, dtype, dtype, dtype, added, centered, False, quantized)
        if n <= row_plan.HELD["backward"] // (2 if vec == 1 else 1):
            for weight in {dtype, F32}:
                yield row_plan.backward_plan(GPU, n, vec, dtype, weight, added, centered, False, True, True, centered)


@pytest.mark.parametrize("name", [name for name in ROOMS if name != "interpreter"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_program_has_room_on_other_gpus_and_as_many_threads_as_on_an_h200(monkeypatch, name, dtype):
    room = ROOMS[name]
    for n in LENGTHS[::7]:
        vec = 16 // dtype.itemsize if n * dtype.itemsize % 16 == 0 else 1
        on(monkeypatch, H200, sm_90=name in ("H200", "B200"))
        usual = list(plans(n, dtype, vec))
        on(monkeypatch, room, sm_90=name in ("H200", "B200"))
        for plan, there in zip(plans(n, dtype, vec), usual, strict=True):
            threads = room.warp * plan.options["num_warps"]
            assert threads == max(32 * there.options["num_warps"], room.warp) <= 1024
            c = SimpleNamespace(**asdict(plan.constants))
            if there.most:
                assert plan.most >= max(row_plan.TOGETHER, room.multiprocessors)
                buffers = (c.STAGES - 1) * c.ROWS * c.CHUNK * c.CHUNKS * dtype.itemsize
                assert c.STAGES == 1 or 2 * buffers + row_plan.RESERVED < room.shared
            elif name in ("H200", "B200"):  # where the forward prefetches
                ahead = plan.ahead * c.ROWS * n * dtype.itemsize
                assert ahead <= room.l2 / 4 + 2 * c.ROWS * n * dtype.itemsize


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_chunks_cover_a_row_and_only_the_last_is_short(h200, dtype):
    for n in LENGTHS:
        for vec in {1, 16 // dtype.itemsize} if n * dtype.itemsize % 16 == 0 else {1}:
            for plan in plans(n, dtype, vec):
                c = SimpleNamespace(**asdict(plan.constants), **plan.options)
                assert (c.CHUNKS - 1) * c.CHUNK < n <= c.CHUNKS * c.CHUNK, (n, plan)
                assert n % c.CHUNK == 0 or not c.EVEN
                assert all(size.bit_count() == 1 for size in (c.CHUNK, c.ROWS, c.num_warps)), (n, plan)
                assert c.CHUNK % vec == 0


@pytest.mark.parametrize(("dtype", "rows"), [(F32, 1), (BF16, 2)])
def test_a_thread_has_64_bytes_of_a_short_row_and_no_lane_is_idle_at_768_columns(h200, dtype, rows):
    for n, vec, chunk, chunks in ((1024, 4, 1024, 1), (768, 4, 256, 3), (768, 1, 1024, 1), (767, 1, 1024, 1)):
        c = row_plan.forward_plan(GPU, n, vec, dtype, dtype, dtype, False, True, False).constants
        assert (rows, chunk, chunks, n % chunk == 0) == (c.ROWS, c.CHUNK, c.CHUNKS, c.EVEN)


@pytest.mark.parametrize(("dtype", "weight"), [(F32, F32), (BF16, BF16), (BF16, F32)])
def test_registers_hold_what_a_plan_says(h200, dtype, weight):
    """Of 64 Ki registers a multiprocessor has, the sums and what is held take at most three quarters, raw more."""
    seen = set()
    for n, added, centered in itertools.product(LENGTHS, (False, True), (False, True)):
        vec = 16 // dtype.itemsize if n * dtype.itemsize % 16 == 0 else 1
        if n > row_plan.HELD["backward"] // (2 if vec == 1 else 1):
            continue
        plan = row_plan.backward_plan(GPU, n, vec, dtype, weight, added, centered, False, True, True, centered)
        c = plan.constants
        columns, threads = c.CHUNK * c.CHUNKS, 32 * plan.options["num_warps"]
        own, form = dtype.itemsize / 4, weight.itemsize / 4  # registers that an element takes in its own type
        held = c.SUMS * (c.DWEIGHT + c.DBIAS)
        if c.AGAIN == 0:
            held += form if c.RAW else 1
        if c.AGAIN < 2:
            held += c.ROWS * (2 * own if c.RAW else 1 + own)  # x and dy, or x̂ and dy
        most = 240 if c.RAW else 192
        assert held * columns / threads <= most, (n, plan)
        assert held * columns * max(1, plan.most // 132) <= most * 2**8, (n, plan)
        seen.add((c.AGAIN, c.RAW, c.STAGES))
    assert {(0, 0, 3), (0, 0, 4), (0, 1, 3), (0, 0, 1)} <= seen
    assert ((1, 0, 1) in seen) == (dtype == BF16)
    assert ((2, 0, 1) in seen) == (weight == F32)


@pytest.mark.parametrize("name", [name for name in ROOMS if name != "interpreter"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_gradients_of_a_gated_norm_have_room_and_load_a_tile_ahead(monkeypatch, name, dtype):
    room, size = ROOMS[name], dtype.itemsize
    on(monkeypatch, room, sm_90=name in ("H200", "B200"))
    for n in [n for n in LENGTHS if n <= row_plan.HELD["backward"]]:
        for vec in {1, 16 // size} if n * size % 16 == 0 else {1}:
            plan = row_plan.gated_plan(GPU, n, vec, dtype, dtype, False)
            c, warps = plan.constants, plan.options["num_warps"]
            assert (c.CHUNKS - 1) * c.CHUNK < n <= c.CHUNKS * c.CHUNK, (n, plan)
            elements = 1024 if vec > 1 else 2048
            assert c.ROWS == 1 or elements == c.ROWS * c.CHUNK
            tile = c.ROWS * c.CHUNK * c.CHUNKS * size * 3
            assert (c.STAGES - 1) * tile + row_plan.RESERVED <= room.shared - 1024 or c.STAGES == 1
            ahead = 4096 < n <= 8192 and dtype is BF16  # into the L2
            fits = tile + row_plan.RESERVED <= room.shared - 1024
            assert (c.STAGES == 2) == (vec > 1 and not ahead and fits), (n, plan)
            assert plan.most >= max(row_plan.TOGETHER, room.multiprocessors)
            assert c.CHUNK * c.CHUNKS * c.ROWS * 3 * size / 4 / (32 * warps) <= 192  # registers that hold a tile


@pytest.mark.parametrize("n", [64, 768, 2048, 8192, 12288, 16384])
def test_without_sums_each_program_of_a_backward_has_one_tile(h200, n):
    for sums in ((False, False), (True, False), (False, True)):
        plan = row_plan.backward_plan(GPU, n, 8, BF16, BF16, False, True, False, True, *sums)
        key = (GPU, n, 8, BF16, BF16, False, True, False, True, *sums)
        _, programs, _ = launch._backward_programs(10**6, key, None, None)
        assert (programs == -(-(10**6) // plan.rows)) == (sums == (False, False))
        assert (plan.constants.STAGES == 1) or any(sums)


@pytest.mark.parametrize(("n", "warps"), [(4096, 8), (5120, 8), (6144, 8), (8192, 16)])
def test_no_more_lanes_idle_than_need_be_where_groups_have_scales(h200, n, warps):
    def planned(form):
        plan = row_plan.forward_plan(GPU, n, 8, BF16, BF16, None, True, False, False, torch.float8_e4m3fn, form)
        return plan.options["num_warps"], plan.constants.CHUNK * plan.constants.CHUNKS

    assert planned("group128") == (warps, -(-n // (256 * warps)) * 256 * warps)
    assert planned("group128")[1] <= planned("rows")[1]


@pytest.mark.parametrize("n", [8704, 12288, 16384])
def test_rows_are_kept_raw_only_where_the_compiler_can_be_kept_from_converting_them_early(h200, monkeypatch, n):
    arguments = (GPU, n, 8, BF16, BF16, False, True, False, True, True, True)
    assert row_plan.backward_plan(*arguments).constants.RAW == 1
    monkeypatch.setattr(row_plan, "ptx", lambda device: False)
    assert row_plan.backward_plan(*arguments).constants.RAW == 0


def test_columns_have_many_sums_side_by_side(h200):
    """Runs of a hundredth of the rows are what the error bound of a sum over rows allows for."""
    for n in LENGTHS:
        for plan in plans(n, BF16, 1):
            assert plan.most == 0 or plan.most >= row_plan.TOGETHER


def test_less_shared_memory_gets_fewer_stages(h200, monkeypatch):
    arguments = (GPU, 8192, 4, F32, F32, True, True, False, True, True, True)
    assert row_plan.backward_plan(*arguments).constants.STAGES == 3  # two buffers of 96 KiB
    monkeypatch.setattr(row_plan, "shared_memory", lambda device: 101376)  # of sm_86 and sm_89
    assert row_plan.backward_plan(*arguments).constants.STAGES == 1


def bits(t, lead=None):
    lead = t.dim() - 1 if lead is None else lead
    m, n = t.shape[:lead].numel(), t.shape[lead:].numel()
    return launch._rows(t, m, n, lead)[3] & 15


def test_vectors_load_what_is_aligned_and_nothing_else():
    x = torch.zeros(6, 48, dtype=BF16)
    assert bits(x) == bits(x[1:]) == bits(x[:, :40]) == bits(x[:1].expand(6, 48)) == bits(x.view(2, 3, 48)) == 0
    assert bits(x.view(6, 6, 8), lead=1) == 0
    flat = torch.zeros(300, dtype=BF16)
    misplaced = {
        "begins between vectors": flat[1:97].view(2, 48),
        "ends between vectors": torch.zeros(4, 41, dtype=BF16),
        "rows begin between vectors": torch.zeros(4, 51, dtype=BF16)[:, :48],
        "columns apart": torch.zeros(4, 96, dtype=BF16)[:, ::2],
        "one row of such": torch.zeros(4, 51, dtype=BF16)[:1, :48],  # torch calls it contiguous
        "one row of such, of rank 3": torch.zeros(4, 51, dtype=BF16)[:1, :48].unsqueeze(1),
    }
    for words, t in misplaced.items():
        assert bits(t) != 0, words


def test_a_row_is_cut_alike_alone_and_in_its_batch():
    """Else its bits would tell how many others there are."""
    batch = torch.zeros(9, 51, dtype=BF16)[:, :48]
    for rows in (batch, batch[3:4], batch[8:], batch.unsqueeze(1), batch[2:3].unsqueeze(1)):
        assert bits(rows) != 0
    for rows in (batch.contiguous(), batch.contiguous()[3:4], batch.contiguous()[2:3].unsqueeze(1)):
        assert bits(rows) == 0


def test_a_plan_meets_one_signature_alone(monkeypatch):
    """A type, or a missing argument, that a kernel was not compiled for would be read as another."""
    seen = {}

    def seen_launch(plan, programs, *arguments):
        assert len(arguments) + 1 == len(plan.kernel.arg_names)  # and K
        types = tuple(a.dtype if isinstance(a, torch.Tensor) else type(a).__name__ for a in arguments)
        seen.setdefault(id(plan), (plan, set()))[1].add(types)

    monkeypatch.setattr(Plan, "launch", seen_launch)
    calls = 0
    for n, dtype, w_type, b_type, offset, residual in itertools.product(
        (16, 40, 2048), (F32, BF16), (F32, BF16, None), (F32, BF16, None), (0.0, 1.0), (False, True)
    ):
        if dtype == F32 and BF16 in (w_type, b_type):
            continue
        x = torch.zeros(3, n, dtype=dtype)
        w, b = (None if t is None else torch.zeros(n, dtype=t) for t in (w_type, b_type))
        for rows, centered in ((x, True), (x[:2], True), (x, False), (torch.zeros(3, n + 1, dtype=dtype)[:, :n], True)):
            norm = Norm(len(rows), n, 1, centered, offset or None)
            mean, rstd = launch.forward(rows, rows if residual else None, w, b, 1e-5, norm)[2:4]
            for wanted in ((True, w, b), (True, w, None), (False, w, b), (True, None, None)):
                launch.backward(rows, rows if residual else None, rows, w, mean, rstd, norm, wanted)
                calls += 1
    assert calls > 1000
    assert 100 < len(seen) < calls
    assert all(len(signatures) == 1 for _, signatures in seen.values())
