"""The contents of tensors: read, overwritten, compared."""

import numpy as np
import pytest
import torch

from verify_norm.cases import contents


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ((1.0, np.nan), (1.0, np.nan), True),
        ((0.0, np.inf), (-0.0, np.inf), True),
        ((1.0, np.inf), (1.0, -np.inf), False),
        ((1.0, 2.0), (1.0, 2.0000002), False),
        ((1.0, np.nan), (1.0, 2.0), False),
    ],
)
def test_the_same_values_are_equal_numbers_and_nan(one, two, same):
    assert contents.same_values(torch.tensor(one), torch.tensor(two)) is same


@pytest.mark.parametrize(
    "placed", [((1,), (0,)), ((1, 1), (0, 5)), ((2, 3), (1, 2)), ((2, 3), (0, 0)), ((0, 3), (3, 1))]
)
def test_bits_are_those_of_elements_with_any_strides(placed):
    one = torch.tensor([0.0, 1.0, np.nan, 3.0, 4.0, 5.0]).as_strided(*placed)
    assert contents.same_bits(one, one.clone())
    assert contents.same_bits(one, -one) is not bool(one.numel())


@pytest.mark.parametrize(("other", "same"), [(0.0, True), (1e-9, False), (-1e-300, False)])
def test_the_same_values_are_equal_near_zero_too(other, same):
    one, two = torch.zeros(1, dtype=torch.float64), torch.tensor([other], dtype=torch.float64)
    assert contents.same_values(one, two) is same


def test_a_tensor_beside_another_has_its_memory_and_a_count_of_its_own():
    tensor = torch.arange(6.0, dtype=torch.float16).reshape(2, 3).t()[1:]
    other = contents.on_same_memory(tensor)
    assert (other.dtype, other.shape, other.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert other.data_ptr() == tensor.data_ptr()
    before = other._version
    tensor.add_(1)
    assert torch.equal(other, tensor)
    assert other._version == before
    assert contents.on_same_memory(torch.ones(3, device="meta")).device.type == "meta"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_the_name_of_a_type_is_that_of_torch(name):
    assert contents.dtype_name(torch.empty(1, dtype=getattr(torch, name))) == name


def test_values_are_read_where_they_are_wanted():
    tensor = torch.tensor([[1.0, 2.0], [3.0, 0.1]], dtype=torch.float16).t()
    here, there = contents.to_float64(tensor), contents.to_float64(tensor, "meta")
    assert (here.dtype, here.tolist()) == (np.float64, tensor.double().tolist())
    assert (there.tensor.device.type, there.dtype, there.shape) == ("meta", np.float64, (2, 2))
    assert contents.to_float64(tensor, "cpu").tolist() == here.tolist()


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no packed type")
def test_of_packed_values_the_bytes_are_read():
    packed = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert contents.to_float64(packed).tolist() == [0x21, 0x43]


def test_content_is_on_the_device_of_its_tensor():
    for whole in (True, False):
        assert contents.bytes_of(torch.empty(3, device="meta"), whole).device.type == "meta"


def test_the_content_of_one_element_with_any_stride():
    one = torch.arange(6.0)[::2][1:2]
    assert one.stride() == (2,)
    assert bytes(contents.bytes_of(one, whole=False).tolist()) == np.float32(2.0).tobytes()
    assert contents.bytes_of(torch.arange(6.0)[::2], whole=False).numel() == 12
