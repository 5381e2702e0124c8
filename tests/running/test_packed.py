"""Packed outputs: numbers of 4 bits, exponents in bytes, what cannot be unpacked, and each place that reads them."""

import doctest
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from verify_norm import testing
from verify_norm.core.contract import Contract
from verify_norm.core.errors import FindingsError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import blocks
from verify_norm.running import packed

MXFP4 = "rmsnorm | quantize(e2m1, mx)"
FP4, FP8 = f"{MXFP4}_fwd", "rmsnorm | quantize(e4m3fn, mx)_fwd"


def read(name, value, shape=(2, 4), op=FP4, **contract):
    return packed.values(name, value, CaseSpec(shape), OPS[op], Contract(**contract))


def test_doctests():
    assert doctest.testmod(packed).failed == 0


@pytest.mark.parametrize("packing", ["low", "high"])
def test_all_numbers_of_4_bits_are_those_of_ml_dtypes(packing):
    codes = np.arange(16, dtype=np.uint8)
    raw = codes[::2] | codes[1::2] << 4 if packing == "low" else codes[::2] << 4 | codes[1::2]
    kind, values = read("y", torch.from_numpy(raw), (16,), packing=packing)
    want = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert kind == "float4_e2m1fn"
    assert np.array_equal(values.numpy(), want)
    assert np.array_equal(np.signbit(values.numpy()), np.signbit(want))


def test_all_exponents_are_those_of_ml_dtypes():
    codes = np.arange(256, dtype=np.uint8)
    kind, values = read("y_scale", torch.from_numpy(codes), op=FP8)
    assert kind == "float8_e8m0fnu"
    assert np.array_equal(values.numpy(), codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64), equal_nan=True)
    assert math.isnan(values[255])


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("y", torch.zeros(2, 4, dtype=torch.uint8), "uint8"),  # a number a byte
        ("y", torch.zeros(2, 4), "float32"),
        ("y_scale", torch.zeros(2, 1), "float32"),
        ("rstd", torch.zeros(2, dtype=torch.uint8), "uint8"),
    ],
)
def test_what_is_not_packed_stays_as_it_is(name, value, kind):
    own, held = read(name, value)
    assert own == kind
    assert held.shape == value.shape


def test_types_of_torch_and_bytes_are_the_same():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    raw = torch.tensor([[0x21, 0x43], [0xF7, 0x80]], dtype=torch.uint8)
    assert torch.equal(read("y", raw.view(torch.float4_e2m1fn_x2))[1], read("y", raw)[1])


def test_a_type_that_is_not_packed_is_said(findings):
    def run(x, weight, eps, weight_offset, normalized_shape):
        y, scale, rstd = blocks.mxfp4(x, weight, eps, weight_offset, normalized_shape)
        return packed.unpacked(y, 4).reshape(x.shape), scale.float(), rstd

    found = findings(Kernel("k", FP4, run=run), [CaseSpec((3, 4), further=())], "signature")
    assert set(found) == {("signature", "y"), ("signature", "y_scale")}


def test_assertions_read_packed_outputs():
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    given = (x, None, 1e-5, 0.0, (64,))
    y, scale, rstd = blocks.mxfp4(*given)
    named = {"y": y, "y_scale": scale, "rstd": rstd}
    testing.assert_norm_close(named, MXFP4, x, None, eps=1e-5)
    swapped = {**named, "y": blocks.mxfp4_high_first(*given)[0]}
    with pytest.raises(FindingsError, match="y\\["):
        testing.assert_norm_close(swapped, MXFP4, x, None, eps=1e-5)
    testing.assert_norm_close(swapped, MXFP4, x, None, eps=1e-5, contract="packing=high")


@pytest.mark.parametrize("shape", [(8, 4), (32,), (2, 16)])
def test_bytes_of_another_shape_are_not_unpacked(shape):
    assert read("y", torch.zeros(4, 8, dtype=torch.uint8), (4, 16))[1].shape == (4, 16)
    assert read("y", torch.zeros(shape, dtype=torch.uint8), (4, 16))[1].shape == shape


def test_the_last_of_several_dimensions_may_be_packed():
    """Its bytes are those of the row, which has no odd length."""
    raw = torch.arange(48, dtype=torch.uint8).reshape(2, 3, 8)
    kind, values = packed.values("y", raw, CaseSpec((2, 3, 16), normalized_ndim=2), OPS[FP4], Contract())
    assert kind == "float4_e2m1fn"
    assert torch.equal(values, packed.unpacked(raw.reshape(2, 24), 48).reshape(2, 3, 16))


def test_half_of_the_last_byte_of_a_row_of_odd_length_holds_nothing():
    raw = torch.tensor([[0x21, 0x43, 0x05], [0x65, 0x07, 0xF1]], dtype=torch.uint8)
    kind, values = read("y", raw, (2, 5))
    assert kind == "float4_e2m1fn"
    assert values.tolist() == [[0.5, 1, 1.5, 2, 3], [3, 4, 6, 0, 0.5]]


@pytest.mark.parametrize("raw", [torch.zeros(3, 2, dtype=torch.uint8), torch.zeros((), dtype=torch.uint8)])
def test_bytes_of_another_number_are_not_unpacked(raw):
    own, values = read("y", raw)
    assert own == "uint8"
    assert torch.equal(values, raw)


def test_bytes_of_an_output_that_is_not_packed_are_the_same_tensor():
    for name in ("rstd", "an output of another operator"):
        raw = torch.zeros(4, 4, dtype=torch.uint8).t()
        assert read(name, raw)[1] is raw


def test_packed_numbers_of_an_output_that_is_another_are_bytes():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    raw = torch.tensor([[0x21, 0x43], [0xF7, 0x80]], dtype=torch.uint8)
    own, values = read("rstd", raw.view(torch.float4_e2m1fn_x2))
    assert own == "float4_e2m1fn_x2"
    assert torch.equal(values, raw)


def test_values_are_where_the_bytes_are_and_hold_all_exponents():
    raw = torch.zeros(2, 2, dtype=torch.uint8, device="meta")
    assert read("y", raw)[1].device.type == read("y_scale", raw, op=FP8)[1].device.type == "meta"
    assert read("y_scale", torch.zeros(2, 1, dtype=torch.uint8), op=FP8)[1].dtype == torch.float64
