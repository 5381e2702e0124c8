"""Layouts, guards and poison: what the kernels are handed."""

import doctest
import resource

import numpy as np
import pytest
import torch

from verify_norm.cases import contents, placement
from verify_norm.cases.device_array import DeviceArray
from verify_norm.core.spec import LAYOUTS

SHAPES = [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 2, 3, 2, 3), (0, 4), (1, 1)]


def test_doctests():
    assert doctest.testmod(placement).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "far"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_placed_tensor_holds_its_values_and_nothing_else_does(layout, shape, dtype):
    values = placement.shared(np.arange(1.0, 1 + np.prod(shape)).reshape(shape), layout)
    tensor = placement.place(values, dtype, layout, np.nan, "cpu")
    assert tensor.shape == shape
    assert contents.dtype_name(tensor) == dtype
    assert np.array_equal(contents.to_float64(tensor), values)
    storage = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    assert int((~storage.isnan()).sum()) == np.unique(values).size  # every element once, and poison everywhere else


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_another_tensors_values_take_the_place_of_a_tensors_own(layout, shape):
    """Also where elements share memory, and nothing else in its storage changes."""
    one, two = (placement.shared(np.full(shape, value), layout) for value in (1.0, 2.0))
    tensor, source = (placement.place(values, "float16", layout, 7.0, "cpu") for values in (one, two))
    contents.overwrite(tensor, source)
    assert np.array_equal(contents.to_float64(tensor), two)
    if layout != "far":
        both = (t.as_strided((t.untyped_storage().nbytes() // 2,), (1,), 0) for t in (tensor, source))
        assert torch.equal(*both)


def test_layouts_are_what_they_are_called():
    def tensor(layout, shape=(4, 6)):
        return placement.place(placement.shared(np.ones(shape), layout), "float32", layout, np.nan, "cpu")

    assert tensor("contiguous").is_contiguous()
    assert tensor("transposed").T.is_contiguous()
    assert tensor("row_strided").stride() == (9, 1)
    assert tensor("row_strided", (2, 3, 4)).stride() == (21, 7, 1)
    assert tensor("row_strided", (3, 24)).stride() == (24 + 64, 1)
    assert tensor("row_strided", (3, 16)).stride() == (19, 1)
    assert tensor("row_strided", (2, 5, 24)).stride() == (5 * 88, 88, 1), "the length of rows decides, no other size"
    assert tensor("row_strided", (2, 8, 3)).stride() == (8 * 6, 6, 1)
    assert tensor("heads_first", (2, 3, 4, 5)).transpose(1, 2).is_contiguous()
    assert tensor("every_other").stride() == (12, 2)
    assert tensor("expanded").stride() == (0, 1)
    assert tensor("scalar").stride() == (0, 0)
    assert tensor("expanded_last").stride() == (1, 0)
    for dimensions, layout in ((1, 2), "expanded_middle"), ((2, 3), "expanded_inner"):
        x, seen = torch.zeros(2, 3, 4, 5, requires_grad=True), []
        x.register_hook(seen.append)
        summed = x.sum(dimensions)
        summed.backward(torch.ones_like(summed))
        assert tensor(layout, x.shape).stride() == seen[0].stride()
    longer = torch.zeros(2, 3 + placement.GAP, 5, 4)
    assert tensor("swapped", (2, 3, 5)).stride() == torch.empty(3, 2, 5).transpose(0, 1).stride()
    assert tensor("swapped_last", (2, 3, 5)).stride() == torch.empty(2, 5, 3).transpose(1, 2).stride()
    assert tensor("sequence_slice", (2, 3, 5, 4)).stride() == longer[:, :3].stride()
    wider = torch.zeros(2, 3, 5 + placement.GAP, 4)
    assert tensor("inner_slice", (2, 3, 5, 4)).stride() == wider[:, :, :5].stride()
    assert tensor("inner_slice", (3, 5, 4)).stride() == wider[0, :, :5].stride()
    longer = longer.contiguous(memory_format=torch.channels_last)
    assert tensor("channel_slice", (2, 3, 5, 4)).stride() == longer[:, :3].stride()
    own = tensor("own")
    assert (own.storage_offset(), own.untyped_storage().nbytes(), own._base) == (0, 4 * 24, None)
    assert tensor("offset").is_contiguous()
    assert tensor("offset").storage_offset() % 2 == 1
    assert tensor("offset").storage_offset() > 2**16
    beyond = [tensor("offset", (3, n)).storage_offset() - 2**16 - placement.GUARD for n in (8, 16, 24, 32, 64, 128)]
    assert beyond == [2, 1, 4, 1, 1, 4]
    other = [placement.placement(shape, "offset").offset - 2**16 - placement.GUARD for shape in ((), (9,), (3, 25))]
    assert other == [1, 1, 1], "where rows are no whole vectors"
    assert tensor("loose", (1, 6)).stride() == torch.zeros(6).expand(4, 6)[:1].stride() == (0, 1)
    assert tensor("loose", (4, 1)).stride() == (1, 0)
    assert tensor("channels_last", (2, 3, 4, 5)).is_contiguous(memory_format=torch.channels_last)
    assert tensor("channels_last", (2, 3, 2, 4, 5)).is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        ("loose", [(4, 6), (2, 2)]),
        ("swapped", [(13, 4), (3,)]),
        ("swapped_last", [(13, 4), (3,)]),
        ("sequence_slice", [(13, 4)]),
        ("channel_slice", [(13, 4)]),
        ("inner_slice", [(13, 4)]),
        ("channels_last", [(13, 4)]),
        ("expanded", [(3,)]),
        ("expanded_last", [(3,)]),
        ("expanded_middle", [(13, 4)]),
        ("expanded_inner", [(13, 4)]),
        ("row_strided", [(3,)]),
        ("far", [(5,), (1, 4), (0, 4), (3, 0), (placement.FAR_ROWS + 1, 2)]),
    ],
)
def test_a_layout_that_a_shape_cannot_have_is_contiguous(layout, shapes):
    assert [placement.placement(shape, layout) for shape in shapes] == [
        placement.placement(shape, "contiguous") for shape in shapes
    ]


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "far"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_values_of_a_device_are_placed_as_those_of_numpy(layout, dtype):
    values = placement.shared(np.arange(1.0, 121.0).reshape(2, 3, 4, 5), layout)
    moved, storages = DeviceArray(torch.tensor(values)), []
    one, two = (placement.place(these, dtype, layout, 0.1, "cpu") for these in (values, moved))
    for tensor in (one, two):
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        storages.append(tensor.as_strided((elements,), (1,), 0))
    assert torch.equal(*storages)
    assert (two.dtype, two.shape, two.stride()) == (one.dtype, one.shape, one.stride())
    assert two.storage_offset() == one.storage_offset()
    assert (two._base is None) == (layout == "own") == (one._base is None)
    there = placement.place(DeviceArray(moved.tensor.to("meta")), dtype, layout, np.nan, "meta")
    assert (there.device.type, there.stride()) == ("meta", one.stride())


def test_a_signalling_nan_is_placed_without_a_warning():
    signalling = np.array([0x7FF0000000000001]).view(np.float64)
    assert placement.place(signalling, "float32", "contiguous", 0.0, "cpu").isnan().all()


def test_values_that_share_no_memory_are_not_copied():
    values = np.ones((2, 3))
    assert placement.shared(values, "transposed") is values


def test_both_sides_are_guarded():
    tensor = placement.place(np.ones((2, 3)), "float16", "contiguous", 7.0, "cpu")
    assert tensor.storage_offset() >= placement.GUARD
    assert tensor.untyped_storage().nbytes() // 2 - tensor.storage_offset() - 6 >= placement.GUARD


def test_far_rows_are_beyond_32_bits_and_cost_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for shape in ((2, 3), (3, 4), (7, 2, 5), (1000, 2)):
        where = placement.placement(shape, "far")
        stride = where.strides[0]
        assert (shape[0] - 1) * stride >= 2**31
        assert (stride >= 2**31) == (shape[0] == 2)
        assert where.offset >= 2**31  # where an offset that wrapped to a negative number leads
        for dtype in ("bfloat16", "float32"):
            values = np.arange(np.prod(shape)).reshape(shape) % 128.0
            tensor = placement.place(values, dtype, "far", np.nan, "cpu")
            assert (tensor.stride(), tensor.storage_offset()) == (where.strides, where.offset)
            assert np.array_equal(contents.to_float64(tensor), values)
            assert float(tensor.as_strided((1,), (1,), 0)) == 0.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB: of some 100 GiB
    assert placement.applies("far", (placement.FAR_ROWS, 2))
    strides = placement.placement((placement.FAR_ROWS, 2**22), "far").strides
    assert (strides, {*map(type, strides)}) == ((2**22, 1), {int}), "rows do not lie in each other"


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), ValueError("mmap length is too large")])
def test_far_without_room_is_contiguous(monkeypatch, error):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(placement.mmap, "mmap", refuse)
    tensor = placement.place(np.ones((2, 3)), "float16", "far", 7.0, "cpu")
    assert tensor.is_contiguous()
    assert tensor.storage_offset() >= placement.GUARD
    assert tensor.as_strided((1,), (1,), 0).item() == 7.0
