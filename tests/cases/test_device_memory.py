"""Arrays of a device and NumPy's side by side: what goes to the device, what stays there, and what comes back."""

import numpy as np
import pytest
import torch

from verify_norm.cases import device_array, device_functions
from verify_norm.cases.device_array import DeviceArray, in_memory, on_device

META = DeviceArray(torch.ones(2, 3, dtype=torch.float64, device="meta"))  # its values cannot be read
WHOLE = np.arange(12).reshape(3, 4)


def there(values):
    return on_device(values, "cpu")


@pytest.mark.parametrize("other", [2.0, True, np.float64(2.0), np.array(2.0), np.ones(3), META])
def test_what_is_combined_with_an_array_of_a_device_goes_there_first(monkeypatch, other):
    """By a number of the host's memory torch divides as by its reciprocal, which rounds twice."""
    devices = []

    def noted(one, two):
        devices.extend((one.device.type, two.device.type))
        return one

    monkeypatch.setitem(device_functions.UFUNCS, "divide", noted)
    _ = META / other
    assert devices == ["meta", "meta"]


def test_numbers_shapes_and_axes_that_torch_reads_are_not_sent():
    for array in (np.full_like(META, 2.5), np.broadcast_to(META, (5, 2, 3)), META[1], META[:, None, 0]):
        assert array.tensor.device.type == "meta"
    place = DeviceArray(torch.zeros(2, 3, dtype=torch.int64, device="meta"))
    assert np.take_along_axis(META, place, 1).shape == (2, 3)


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("float64", "float64"),
        ("float32", "float64"),
        ("float16", "float64"),
        ("int64", "int64"),
        ("int32", "int64"),
        ("uint8", "int64"),
        ("bool", "bool"),
    ],
)
def test_types_of_a_device_are_few(dtype, held):
    values = np.array([0, 1, 1]).astype(dtype)
    assert there(values).dtype == held
    assert there(values).tolist() == values.tolist()


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0)])
def test_of_what_is_broadcast_one_copy_is_sent(shape):
    values = np.broadcast_to(np.arange(shape[1], dtype=float), shape)
    tensor = there(values).tensor
    assert tensor.tolist() == values.tolist()
    assert tensor.untyped_storage().nbytes() <= 8 * shape[1]
    assert there(np.zeros(shape)).shape == shape


def test_constants_are_kept_by_what_they_are_and_where():
    one, two = np.arange(4.0), np.arange(5.0)
    for table in (one, two):
        table.setflags(write=False)
    for table in (one, two, one):
        assert there(table).tolist() == table.tolist()
        assert on_device(table, "meta").tensor.device.type == "meta"


def test_an_update_in_place_is_of_the_same_array():
    x = other = there(np.arange(3.0))
    x += 1.0
    assert isinstance(x, DeviceArray)
    assert x is other
    assert other.tolist() == [1.0, 2.0, 3.0]
    out = np.zeros(3)
    assert np.add(x, 1.0, out=out) is out
    assert out.tolist() == [2.0, 3.0, 4.0]


def test_a_row_is_a_view():
    x = there(np.zeros((2, 3)))
    x[1][2] = 7.0
    assert x.tolist() == [[0.0] * 3, [0.0, 0.0, 7.0]]


@pytest.mark.parametrize(
    "function",
    [
        lambda k: np.bincount(k.ravel(), minlength=20),
        lambda k: np.unique(abs(k - 5), return_inverse=True)[1],
        lambda k: np.sum(k, 0),
        lambda k: np.mean(k, axis=1, keepdims=True),
        lambda k: np.max(k, (0, 1), keepdims=True),
        lambda k: np.all(k, keepdims=False),
    ],
)
def test_options_that_torch_has_keep_an_array_on_its_device(function):
    got, want = function(there(WHOLE)), function(WHOLE)
    assert isinstance(got, DeviceArray)
    assert (got.shape, got.tolist()) == (want.shape, want.tolist())


@pytest.mark.parametrize(
    "function",
    [
        lambda k: np.sort(k, axis=0),
        lambda k: np.median(k, axis=1),
        lambda k: np.cumsum(k, axis=1),
        lambda k: np.maximum.reduce(k, axis=1),
        lambda k: np.add(k, 1.5, dtype=np.float32),
        lambda k: np.add(k, 1.5, where=WHOLE > 3, out=np.zeros((3, 4))),
    ],
)
def test_other_options_are_numpys(function):
    got, want = function(there(WHOLE)), function(WHOLE)
    assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())


def test_what_fails_on_the_device_has_its_options_in_memory(monkeypatch):
    def failing(values, return_inverse=False):
        raise RuntimeError(device_array.UNKNOWN)

    monkeypatch.setitem(device_functions.FUNCTIONS, np.unique, failing)
    values, places = np.unique(abs(there(WHOLE) - 5), return_inverse=True)
    assert np.array_equal(values[places], abs(WHOLE - 5))


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
def test_extremes_of_nothing_are_the_number_beside_it(shape, axis):
    for keepdims in (False, True):
        got, want = (x.max(axis, keepdims=keepdims, initial=2.0) for x in (there(np.zeros(shape)), np.zeros(shape)))
        assert (got.shape, got.tolist()) == (want.shape, want.tolist())


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, 1.5])
@pytest.mark.parametrize("exponent", [-5000, -2046, -2045, -1030, 0, 1030, 2046, 2047, 5000])
def test_powers_beyond_float64_lead_to_zero_or_infinity(value, exponent):
    with np.errstate(all="ignore"):
        got, want = (np.ldexp(np.array([value]), e) for e in (there(np.array([exponent])), exponent))
    assert got.tolist() == want.tolist()
    assert np.signbit(got.tolist()) == np.signbit(want)


def test_mantissas_and_exponents_are_float64():
    assert [part.dtype for part in np.frexp(there(np.array([3.0])))] == [np.float64] * 2


def test_what_is_read_has_the_type_that_is_asked_for():
    assert there(np.ones(2)).__array__(np.float32).dtype == np.float32
    read = in_memory({"x": there(np.ones(2)), "eps": 1e-5, "some": (there(np.zeros(1)),)})
    assert [type(value) for value in (read["x"], read["eps"], *read["some"])] == [np.ndarray, float, np.ndarray]
    with pytest.raises(AttributeError, match="_mask"):
        _ = there(np.ones(2))._mask
