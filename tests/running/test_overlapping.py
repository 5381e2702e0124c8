"""Tensors that share memory, with others or in themselves."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verify_norm.running import overlapping


def test_what_ends_where_another_begins_does_not_overlap_it_and_of_no_elements_nothing_does():
    memory = torch.zeros(8)
    assert list(overlapping.overlaps({"y": memory[:4], "z": memory[4:]}, {})) == []
    assert list(overlapping.overlaps({"y": memory[4:], "z": memory[:4]}, {})) == []
    assert overlapping._reach(memory[2:2]) == range(0)
    assert overlapping._reach(torch.eye(3).to_sparse()) == range(0)
    first = memory.data_ptr()
    assert overlapping._reach(memory[1:7:2]) == range(first + 4, first + 4 + 5 * 4)


def test_outputs_that_lie_in_each_other_or_in_arguments_overlap():
    x, y = torch.zeros(8), torch.zeros(8)
    outputs = {"y": y[:4], "mean": y[3:5], "rstd": x[7:], "dx": torch.zeros(8), "dbias": None}
    assert list(overlapping.overlaps(outputs, {"x": x, "eps": 1.0})) == [("mean", "y"), ("rstd", "x")]


@st.composite
def views(draw):
    """Where a view of 256 bytes lies: its type, shape, strides and offset."""
    dtype = draw(st.sampled_from([torch.uint8, torch.float16, torch.float64]))
    room = 256 // dtype.itemsize
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(0, 6), st.integers(0, 3)))
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    assume(extent <= room)
    return dtype, shape, strides, draw(st.integers(0, room - extent))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(views(), views())
def test_tensors_overlap_where_they_have_a_byte_in_common(first, second):
    memory = torch.zeros(256, dtype=torch.uint8)
    tensors = [
        memory.view(dtype).as_strided(shape, strides, offset) for dtype, shape, strides, offset in (first, second)
    ]
    own = []
    for tensor in tensors:  # its elements' bytes, one more dimension
        size = tensor.element_size()
        memory.zero_()
        strides = [stride * size for stride in tensor.stride()]
        memory.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size).fill_(1)
        own.append(memory.bool())
    common = bool((own[0] & own[1]).any())
    assert bool(list(overlapping.overlaps({"y": tensors[0]}, {"x": tensors[1]}))) == common


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 3), (5, 2), False),
        ((4, 3), (2, 3), True),
        ((4, 3), (3, 2), False),
        ((3, 2), (2, 5), False),
        ((2, 2, 2), (1, 3, 5), False),
        ((2, 2, 2), (1, 2, 3), True),
    ],
)
def test_elements_of_a_tensor_that_share_memory(shape, strides, overlaps, monkeypatch):
    """A tensor that is too large to tell has none, as far as it is known."""
    tensor = torch.zeros(64).as_strided(shape, strides)
    assert overlapping.overlaps_itself(tensor) is overlaps
    monkeypatch.setattr(overlapping, "COUNTED", tensor.numel())
    assert overlapping.overlaps_itself(tensor) is overlaps
    monkeypatch.setattr(overlapping, "COUNTED", tensor.numel() - 1)
    assert overlapping.overlaps_itself(tensor) is False


def test_tensors_that_are_misaligned_to_each_other_overlap_byte_by_byte():
    memory = bytearray(4096)
    first = torch.frombuffer(memory, dtype=torch.float32, count=40)[::2]
    second = torch.frombuffer(memory, dtype=torch.float32, count=100, offset=1)[::2]
    third = torch.frombuffer(memory, dtype=torch.uint8, count=200, offset=4)[::8]
    assert list(overlapping.overlaps({"y": first}, {"x": second})) == [("y", "x")]
    assert list(overlapping.overlaps({"y": first}, {"x": third})) == []
