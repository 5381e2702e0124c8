"""Memory of a GPU: what is sent there, what of it is free, and which errors say that it is full."""

import mmap
import sys

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu

from verify_norm.cases import gpu_memory, placement
from verify_norm.cases.device_array import DeviceArray


def test_what_numpy_makes_is_sent_with_its_layout_and_poison(monkeypatch):
    asked = []
    monkeypatch.setattr(placement, "sent", lambda tensors, device: asked.append(device) or tensors)
    tensor = placement.place(np.ones((2, 3)), "float16", "transposed", 7.0, "cuda:1")
    assert asked == ["cuda:1"]
    assert (tensor.dtype, tensor.stride(), tensor.tolist()) == (torch.float16, (1, 2), [[1.0] * 3] * 2)
    assert tensor.as_strided((placement.GUARD,), (1,), 0).tolist() == [7.0] * placement.GUARD


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_what_numpy_makes_is_sent_at_once_and_the_rest_is_made_there(monkeypatch, device):
    """What is far would take gigabytes of the host's memory, and values of a device are there already."""
    placed, sent = [], []

    def place(values, dtype, layout, poison, where):
        placed.append((layout, poison, where))
        return f"{dtype} {layout}"

    monkeypatch.setattr(placement, "place", place)
    monkeypatch.setattr(placement, "sent", lambda some, where: sent.append(where) or [f"sent {one}" for one in some])
    values, there = np.ones((2, 3)), DeviceArray(torch.ones(2, 3))
    wanted = {"x": (values, "float16", "own"), "dy": (values, "float32", "far"), "b": (values, "float32", "scalar")}
    made = placement.place_all(wanted | {"w": (there, "float32", "offset")}, 7.0, device)
    first = "" if device == "cpu" else "sent "
    assert made == {
        "x": f"{first}float16 own",
        "b": f"{first}float32 scalar",
        "dy": "float32 far",
        "w": "float32 offset",
    }
    assert sent == ([] if device == "cpu" else [device])
    assert placed == [("own", 7.0, "cpu"), ("scalar", 7.0, "cpu"), ("far", 7.0, device), ("offset", 7.0, device)]


@pytest.mark.parametrize(("free", "reserved", "fits"), [(400, 0, True), (300, 100, True), (300, 99, False)])
def test_what_is_far_takes_half_of_what_is_free_at_most(monkeypatch, free, reserved, fits):
    """What torch keeps for no tensor is free too. 100 elements take 200 bytes."""
    held = {f"{name}_bytes": {"all": {"current": n}} for name, n in (("reserved", reserved + 50), ("allocated", 50))}
    monkeypatch.setattr(torch.cuda, "mem_get_info", {"meta": (free, 10**9)}.__getitem__)  # no other device is there
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", {"meta": held}.__getitem__)
    found = placement._untouched(100, "bfloat16", "meta")
    assert (found is not None) == fits
    assert found is None or (found.shape, found.dtype, found.device.type) == ((100,), torch.bfloat16, "meta")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes memory by page there")
@pytest.mark.parametrize("named", [None, 0x8000])
def test_memory_of_the_host_is_taken_without_a_reservation(monkeypatch, named):
    """Python names the flag from 3.13 on."""
    asked = {}

    def refuse(file, size, **options):
        asked.update(options, size=size)
        raise OSError

    if named is None:
        monkeypatch.delattr(mmap, "MAP_NORESERVE", raising=False)
    else:
        monkeypatch.setattr(mmap, "MAP_NORESERVE", named, raising=False)
    monkeypatch.setattr(mmap, "mmap", refuse)
    assert placement._untouched(100, "float32", "cpu") is None
    assert asked == {"size": 400, "flags": mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | (named or 0x4000)}


@pytest.mark.parametrize(("reserved", "allocated", "times"), [(9, 1, 1), (9, 8, 0), (2, 0, 1), (1, 0, 0)])
def test_much_that_a_gpu_keeps_for_no_tensor_is_given_back(monkeypatch, reserved, allocated, times):
    called = []
    FakeGpu(monkeypatch).keeps(reserved * 2**30, allocated * 2**30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append("empty"))
    gpu_memory.release("cuda:0")
    assert len(called) == times
    gpu_memory.release("cpu")
    assert len(called) == times


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("a graph failed: CUDA driver error: out of memory\nwhere it began"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("compilation failed\nCUDA error: out of memory"), False),  # quoted, as by torch.compile
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError("CUDA error: out of memory"), False),
        (None, False),
    ],
)
def test_an_error_says_in_its_first_line_that_a_gpu_is_full(error, full):
    assert gpu_memory.full(error) is full


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (RuntimeError("CUDA error: unknown error"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: misaligned address"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: an illegal instruction was encountered"), False),
        (RuntimeError("the kernel raised CUDA error: unknown error"), False),
        (ValueError("CUDA error: unknown error"), False),
        (RuntimeError("no"), False),
    ],
)
def test_a_call_fails_in_cuda_by_no_fault_of_a_kernel(error, failed):
    assert gpu_memory.failed_in_cuda(error) is failed


FULL = RuntimeError("CUDA error: out of memory")
DISTURBED = [RuntimeError(f"{words} and more") for words in gpu_memory.DISTURBED]


@pytest.mark.parametrize(
    ("error", "device", "free", "reserved", "taken"),
    [
        (FULL, "cuda:1", 40, 10, True),  # others hold 50 of 100
        (FULL, "cuda:1", 40, 11, False),
        (FULL, "cuda:1", 41, 10, False),
        (FULL, "cpu", 0, 0, False),
        *((error, "cuda:1", 0, 0, True) for error in DISTURBED),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda:1", 0, 0, False),
    ],
)
def test_a_full_gpu_is_taken_by_others_that_hold_half_of_it(monkeypatch, error, device, free, reserved, taken):
    asked = {torch.device("cuda:1"): (free, 100)}  # another device is not there
    monkeypatch.setattr(torch.cuda, "mem_get_info", asked.__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_reserved", dict.fromkeys(asked, reserved).__getitem__)
    assert gpu_memory.taken_by_others(error, torch.device(device)) is taken


def test_what_a_gpu_keeps_is_asked_of_that_device(monkeypatch):
    emptied = []
    stats = {name: {"all": {"current": count}} for name, count in (("reserved_bytes", 2**31), ("allocated_bytes", 0))}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", {"cuda:0": {}, "cuda:1": stats}.__getitem__)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("empty"))
    gpu_memory.release("cuda:0")  # CUDA is not initialized there
    assert not emptied
    gpu_memory.release("cuda:1")
    assert emptied == ["empty"]


def test_what_a_gpu_keeps_is_nothing_before_it_is_initialized(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {})
    assert gpu_memory.kept("cuda:0") == 0
