"""NumPy's functions on device arrays: each gives what it gives on NumPy's own."""

import numpy as np
import pytest
import torch
from scipy import special

from verify_norm.cases import device_array, device_functions
from verify_norm.cases.device_array import DeviceArray, in_memory, on_device
from verify_norm.core.dtypes import FORMATS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NUMBERS = np.array([0.0, -0.0, 1.0, -1.5, 3.0, 2.0**-1060, 2.0**-30, 1e300, -7.25, np.inf, -np.inf, np.nan])
FINITE = np.where(np.isfinite(NUMBERS), NUMBERS, 0.5)
WHOLE = np.array([3, -4, 0, 7, 1, 2, -1, 5, 9, 8, 6, 4])
OTHER = NUMBERS[::-1].copy()
CLOSE = {"exp", "log2", "tanh", "hypot", "erf", "erfc (vectorized)", "power"}  # which IEEE 754 does not round for all
TWO = "add subtract multiply divide maximum minimum fmax fmin copysign nextafter hypot less less_equal greater"
OF_TWO = f"{TWO} greater_equal equal not_equal logical_and logical_or".split()
OF_BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
ZEROS = ("maximum", "minimum", "fmax", "fmin")
OF_ONE = sorted(
    device_functions.UFUNCS.keys() - {*OF_TWO, *OF_BITS, "invert", "ldexp", "power", "erf", "erfc (vectorized)"}
)


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param


def same(got, want, close=False, signs=True):
    got, want = np.asarray(in_memory(got)), np.asarray(want)
    assert got.shape == want.shape
    if close:
        np.testing.assert_allclose(got, want, rtol=1e-14)
    else:
        np.testing.assert_array_equal(got, want)
        assert want.dtype.kind != "f" or (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all() or not signs


@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.parametrize("other", [OTHER, 2.0, np.float64(-0.0), OTHER[:, None]], ids=["array", "2", "-0", "column"])
def test_of_two(device, name, other):
    function = getattr(np, name)
    with np.errstate(all="ignore"):
        for a, b in ((NUMBERS, other), (other, NUMBERS)):
            got = function(*(on_device(v, device) if v is NUMBERS else v for v in (a, b)))
            same(got, function(a, b), name in CLOSE, signs=name not in ZEROS)  # of 0 and −0 either is right


@pytest.mark.parametrize("initial", [None, -9.0, 9.0])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_with_a_number_beside_them(device, name, axis, initial):
    values, options = FINITE.reshape(3, 4), {} if initial is None else {"initial": initial}
    for keepdims in (False, True):
        want = getattr(values, name)(axis, keepdims=keepdims, **options)
        same(getattr(on_device(values, device), name)(axis, keepdims=keepdims, **options), want)


@pytest.mark.parametrize("name", OF_ONE)
def test_of_one(device, name):
    function, values = getattr(np, name), FINITE if name == "frexp" else NUMBERS
    with np.errstate(all="ignore"):
        got, want = function(on_device(values, device)), function(values)
    for a, b in zip(got, want, strict=True) if name == "frexp" else [(got, want)]:
        same(a, b, name in CLOSE)


def test_the_rest_of_the_ufuncs(device):
    x, k = on_device(FINITE, device), on_device(WHOLE, device)
    for function in (special.erf, special.erfc):
        same(function(x), function(FINITE), close=True)
    same(k**2, WHOLE**2, close=True)
    with np.errstate(all="ignore"):
        same(np.ldexp(1.5, k * 100), np.ldexp(1.5, WHOLE * 100))
        same(np.ldexp(x, -1070.0 * (k == 3)), np.ldexp(FINITE, -1070 * (WHOLE == 3)))
    for name in OF_BITS:
        same(getattr(np, name)(k, 3), getattr(np, name)(WHOLE, 3))
    same(~(x > 1) & (x < 5) | (k == 0), ~(FINITE > 1) & (FINITE < 5) | (WHOLE == 0))
    same(x.view(np.int64) >> 52 & 0x7FF, FINITE.view(np.int64) >> 52 & 0x7FF)
    x += 1.0
    same(x, FINITE + 1.0)


def test_division_by_a_number_rounds_once(device):
    many = np.arange(1.0, 5000.0)
    same(on_device(many, device) / 3.0, many / 3.0)
    same(3.0 / on_device(many, device), 3.0 / many)
    same(on_device(WHOLE, device) / 7, WHOLE / 7)


@pytest.mark.parametrize("length", [49, 103, 49792])
def test_the_mean_of_one_number_repeated_is_that_number(device, monkeypatch, length):
    """A sum of numbers of float32 is exact here. torch's mean on a GPU is the sum times a rounded 1/n."""
    monkeypatch.setattr(torch.Tensor, "mean", lambda t, *a, **k: t.sum(*a, **k) * (1 / length))
    number = np.float64(np.float32(0.59075457))
    rows = on_device(np.full((3, length), number), device)
    same(rows.mean(1, keepdims=True), np.full((3, 1), number))
    same(np.mean(rows.reshape(3 * length, 1), 1), np.full(3 * length, number))
    assert rows.mean(0).shape == (length,)
    assert np.isnan(np.asarray(rows[:0].mean(0))).all()
    assert rows[:0].mean(1).shape == (0,)


TABLE = {
    "where": lambda x, k: (
        np.where(x > 1, x, 0.5),
        np.where(k > 2, 1.0, -1.0),
        np.where(x > 1, True, k > 0),
        np.where(k * 1.0, x, 2.0),
    ),
    "clip": lambda x, k: (np.clip(x, -1.0, 2.0), np.clip(k, 0, 3)),
    "like": lambda x, k: (np.zeros_like(x), np.ones_like(x), np.full_like(x, 2.5)),
    "broadcast": lambda x, k: (np.broadcast_to(x, (3, 12)), np.broadcast_to(x[:1], 5)),
    "infinite": lambda x, k: (np.isneginf(x), np.isposinf(x)),
    "table": lambda x, k: (np.take_along_axis(np.arange(20.0), abs(k), 0),),
    "equal": lambda x, k: (np.array_equal(k, k), np.array_equal(k, k + 1)),
    "count": lambda x, k: (np.bincount(abs(k), minlength=20), np.bincount(abs(k), k * 0.5), np.count_nonzero(k)),
    "places": lambda x, k: (
        np.argwhere(k > 3),
        np.flatnonzero(k > 3),
        np.argmax(k),
        np.argmax(x),
        k.argmax(),
        np.argmax(k > 3),
    ),
    "order": lambda x, k: (np.argsort(k), np.cumsum(k), *np.unique(abs(k), return_inverse=True)),
    "reduce": lambda x, k: (np.sum(k), np.mean(k), np.max(k), np.min(k), np.any(k > 8), np.all(k > -9), k.mean()),
    "axes": lambda x, k: tuple(
        getattr(k.reshape(3, 4), n)(0, keepdims=True) for n in ("sum", "mean", "max", "min", "any")
    ),
    "initial": lambda x, k: (
        x[:0].max(initial=0.0),
        x[:0].min(initial=2.0),
        x.max(initial=0.0),
        (x * 0 - 1).max(initial=0.0),
    ),
    "index": lambda x, k: (x[k > 2], x[2], x[1:3], x[np.array([3, 1])], x.reshape(3, 4)[1, 2], x[None, ::2], x[x > 1]),
    "shape": lambda x, k: (
        x.ravel(),
        x.copy(),
        np.ravel(x),
        x.reshape(2, -1),
        np.reshape(x, (4, 3)),
        x.astype(np.float64),
    ),
    "unlisted": lambda x, k: (np.median(k), np.sort(k), np.diff(k), k.cumsum(), k.std(), np.maximum.reduce(k)),
}


@pytest.mark.parametrize("row", TABLE)
def test_functions(device, row):
    with np.errstate(all="ignore"):
        got, want = TABLE[row](on_device(NUMBERS, device), on_device(WHOLE, device)), TABLE[row](NUMBERS, WHOLE)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        same(a, b, close=row in ("reduce", "unlisted", "axes"))


def test_what_is_not_listed_runs_in_memory_and_what_is_listed_does_not(device, monkeypatch):
    x = on_device(FINITE, device)
    assert isinstance(np.median(x), np.float64)
    monkeypatch.setattr(DeviceArray, "__array__", None)
    assert isinstance(np.where(x > 1, x, 0.0).sum(), DeviceArray)


def test_what_fails_on_the_device_by_no_fault_of_its_values_runs_in_memory(device, monkeypatch):
    for words, expected in ((device_array.UNKNOWN, WHOLE.argsort()), ("CUDA error: misaligned address", None)):

        def failing(values, words=words):
            raise RuntimeError(words)

        monkeypatch.setitem(device_functions.FUNCTIONS, np.argsort, failing)
        if expected is None:
            with pytest.raises(RuntimeError, match=words):
                np.argsort(on_device(WHOLE, device))
        else:
            same(np.argsort(on_device(WHOLE, device)), expected)


def test_numbers_of_one_element(device):
    x = on_device(np.array([2.0]), device)[0]
    assert (float(x), int(x), bool(x), x.item(), x.ndim, x.size) == (2.0, 2, True, 2.0, 0, 1)
    assert list(range(on_device(np.array([3]), device)[0])) == [0, 1, 2]
    for mask in (np.array([True]), np.array([True, False])):
        same(np.array([5.0, 6.0])[: mask.size][on_device(mask, device)], [5.0])
    assert x.dtype == np.float64
    assert (f"{x:.3g}", repr(on_device(np.zeros(2), device))) == ("2", "DeviceArray(array([0., 0.]))")
    assert len(on_device(np.zeros(3), device)) == len(list(on_device(np.zeros(3), device))) == 3


def test_elements_are_set(device):
    x = on_device(np.arange(5.0), device)
    x[x > 2], x[0] = 0.0, 7
    same(x, [7.0, 1.0, 2.0, 0.0, 0.0])


def test_what_nobody_may_write_is_copied_once(device, monkeypatch):
    table, copies = np.arange(4.0), {}
    monkeypatch.setattr(device_array, "_constants", copies)
    assert on_device(table, device).tensor is not on_device(table, device).tensor
    table.setflags(write=False)
    assert on_device(table, device).tensor is on_device(table, device).tensor
    assert len(copies) == 1
    del table
    assert not copies


@pytest.mark.parametrize("dtype", FORMATS)
def test_ulps_and_roundings_of_each_format(device, dtype):
    rng, form = np.random.default_rng(0), FORMATS[dtype]
    values = np.ldexp(rng.standard_normal(4000), rng.integers(-160, 130, 4000))
    values[:3] = 0.0, 1.0, 2.0
    same(form.ulp(on_device(values, device)), form.ulp(values))
    same(form.round(on_device(values, device)), form.round(values))


def test_another_type_is_a_copy_unless_none_is_wanted(device):
    x = on_device(np.arange(4.0), device)
    kept, copy, other = x.astype(np.float64, copy=False), x.astype(np.float64), x.astype(np.int64, copy=False)
    assert kept is x
    assert copy.tensor.data_ptr() != x.tensor.data_ptr()
    assert other.dtype == np.int64
    same(other, [0, 1, 2, 3])
    x[0] = 5.0
    assert copy.tolist()[0] == 0.0


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_whether_any_or_all_are_not_zero(device, axis):
    values = np.array([[0.0, 1.0, 0.0], [0.0, 2.0, np.nan]])
    for name in ("any", "all"):
        same(getattr(on_device(values, device), name)(axis), getattr(values, name)(axis))
        if axis is not None:
            kept = getattr(on_device(values, device), name)(axis, keepdims=True)
            same(kept, getattr(values, name)(axis, keepdims=True))


@pytest.mark.parametrize("value", [2.5, True, 3])
def test_an_array_without_dimensions_has_none_there(device, value):
    there = on_device(np.array(value), device)
    assert (there.shape, there.item()) == ((), value)


@pytest.mark.parametrize("values", [np.array(1.0), np.array(True), np.array([1])], ids=str)
def test_only_a_whole_number_without_dimensions_is_an_index(device, values):
    with pytest.raises(TypeError, match="index"):
        range(on_device(values, device))


def test_what_is_set_takes_the_type_of_the_array(device):
    x = on_device(np.arange(3), device)
    x[1], x[np.array([0, 2])] = 2.9, np.array([3.9, 4.9])
    assert x.dtype == np.int64
    same(x, [3, 2, 4])


def test_an_array_comes_to_lie_where_another_one_does():
    values, there = np.arange(3.0), DeviceArray(torch.ones(2, device="meta"))
    assert device_array.beside(values, there).tensor.device.type == "meta"
    assert device_array.beside(values, values) is values
    back = device_array.beside(DeviceArray(torch.ones(2)), values)
    assert isinstance(back, np.ndarray)
    assert back.tolist() == [1.0, 1.0]
