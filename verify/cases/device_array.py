"""Float64 arrays in a GPU's memory that NumPy's functions accept: the reference and the checks run on them as they are.

`reference/` and the checks are written in NumPy array operations. NumPy hands an operation on a `DeviceArray` to that
class (NEP 13 and NEP 18), which calls torch. So one text computes truth and bound on both devices. Operations of IEEE
754 (+, −, ·, /, √, comparisons) give the bits that they give in NumPy. Sums add in another order. A function that is
not in the tables of `device_functions`, or a method not in the class, runs in NumPy, on a copy in the host's memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from verify_norm.cases.device_functions import FLOAT, FLOATS, FUNCTIONS, LAST_AS_IT_IS, METHODS, UFUNCS, Function

TYPES = {np.dtype(np.float64): FLOAT, np.dtype(np.int64): torch.int64, np.dtype(np.bool_): torch.bool}
HELD = TYPES | {np.dtype(np.float32): torch.float32}  # float32 only while an array is rounded
UNKNOWN = "CUDA error: unknown error"  # torch.unique raises it on a GPU whose memory other processes fill
NUMBERS = (bool, int, float, np.generic)
ZEROS = {repr(zero): zero for zero in (0, 0.0, -0.0, False)}

_constants: dict[tuple[int, torch.device], tuple[Any, Tensor]] = {}  # copies of read-only arrays on a device


class DeviceArray(NDArrayOperatorsMixin):
    """A tensor of a type of HELD that NumPy's functions accept; arrays and numbers beside it join it there."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def _joined(self, value: Any) -> Any:
        """Return a tensor that torch combines with this one; what is no array, number or boolean stays as it is."""
        if isinstance(value, DeviceArray):
            return value.tensor
        if isinstance(value, NUMBERS):
            number: Any = value.item() if isinstance(value, np.generic) else value
            return _number(number or repr(number), type(number).__name__, self.tensor.device)
        if not isinstance(value, np.ndarray):
            return value
        return self._joined(value[()]) if value.ndim == 0 else on_device(value, self.tensor.device).tensor

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        function = UFUNCS.get(ufunc.__name__)
        if method != "__call__" or function is None or kwargs or (out and not isinstance(out[0], DeviceArray)):
            options = {**kwargs, "out": out} if out else kwargs
            return getattr(ufunc, method)(*map(in_memory, inputs), **in_memory(options))
        tensors = [self._joined(value) for value in inputs]
        result = function(*(map(_float, tensors) if ufunc.__name__ in FLOATS else tensors))
        if out is not None:  # a += b
            out[0].tensor = result
            return out[0]
        return _arrays(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in METHODS and isinstance(args[0], DeviceArray):
            return getattr(args[0], METHODS[function])(*args[1:], **kwargs)
        if function not in FUNCTIONS or (kwargs and kwargs.keys() - {"minlength", "return_inverse"}):
            return function(*in_memory(args), **in_memory(kwargs))
        if function in LAST_AS_IT_IS:
            values = [*map(self._joined, args[:-1]), args[-1]]
        else:
            values = [self._joined(value) for value in args]
        try:
            return _arrays(FUNCTIONS[function](*values, **kwargs))
        except RuntimeError as error:
            if UNKNOWN not in str(error):
                raise
            return function(*in_memory(args), **in_memory(kwargs))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.tensor.cpu().numpy(), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, as a plain tuple like NumPy's."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensor.numel()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, as NumPy names it."""
        return next(ours for ours, theirs in HELD.items() if theirs == self.tensor.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        """Return the elements in another type; itself, without `copy`, where it has that type."""
        kind = HELD[np.dtype(dtype)]
        return self if self.tensor.dtype == kind and not copy else DeviceArray(self.tensor.to(kind, copy=copy))

    def view(self, dtype: Any) -> DeviceArray:
        """Return the same bits as elements of another type of the same size."""
        return DeviceArray(self.tensor.contiguous().view(TYPES[np.dtype(dtype)]))

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return the reshaped array, as NumPy does."""
        return DeviceArray(self.tensor.reshape(*shape))

    def ravel(self) -> DeviceArray:
        """Return the elements in one dimension."""
        return DeviceArray(self.tensor.reshape(-1))

    def copy(self) -> DeviceArray:
        """Return a copy."""
        return DeviceArray(self.tensor.clone())

    def mean(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Return the mean over these axes, or over all of them, as NumPy does; torch's multiplies by a rounded 1/n."""
        total = DeviceArray(_float(self.tensor)).sum(axis, keepdims)
        mean: DeviceArray = total / (self.size / max(total.size, 1))
        return mean

    def sum(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Return the sum over these axes, or over all of them, as NumPy does."""
        return DeviceArray(self.tensor.sum(axis, keepdim=keepdims))

    def max(self, axis: Any = (), keepdims: bool = False, initial: float | None = None) -> DeviceArray:
        """Return the maximum over these axes, or over all of them, as NumPy does."""
        return self._extreme("amax", torch.maximum, axis, keepdims, initial)

    def min(self, axis: Any = (), keepdims: bool = False, initial: float | None = None) -> DeviceArray:
        """Return the minimum over these axes, or over all of them, as NumPy does."""
        return self._extreme("amin", torch.minimum, axis, keepdims, initial)

    def _extreme(self, name: str, pair: Function, axis: Any, keepdims: bool, initial: float | None) -> DeviceArray:
        axes = () if axis is None else axis
        if initial is not None and not self.tensor.numel():
            return DeviceArray(torch.full_like(self.tensor.sum(axes, keepdim=keepdims), initial))
        extreme = getattr(self.tensor, name)(axes, keepdim=keepdims)
        return DeviceArray(extreme if initial is None else pair(extreme, torch.full_like(extreme, initial)))

    def any(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Return whether any element along these axes, or at all, is not 0."""
        return DeviceArray(self.tensor.any() if axis is None else self.tensor.any(axis, keepdim=keepdims))

    def all(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Return whether all elements along these axes, or all of them, are not 0."""
        return DeviceArray(self.tensor.all() if axis is None else self.tensor.all(axis, keepdim=keepdims))

    def argmax(self) -> int:
        """Return the flat index of the first largest element, or of the first NaN."""
        return int((self.tensor.to(torch.uint8) if self.tensor.dtype is torch.bool else self.tensor).argmax())

    def tolist(self) -> Any:
        """Return the elements as Python's numbers, in nested lists."""
        return self.tensor.tolist()

    def item(self) -> Any:
        """Return the only element as a number of Python."""
        return self.tensor.item()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __format__(self, spec: str) -> str:
        return format(np.asarray(self)[()], spec)

    def __repr__(self) -> str:
        return f"DeviceArray({np.asarray(self)!r})"

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __index__(self) -> int:
        if self.tensor.ndim or self.tensor.dtype != torch.int64:  # NumPy would take a mask of one element for a number
            raise TypeError("only an integer without dimensions is an index")
        return int(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[DeviceArray]:
        return map(DeviceArray, self.tensor)

    def _index(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(map(self._index, index))
        return self._joined(index) if isinstance(index, np.ndarray | DeviceArray) else index

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self.tensor[self._index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tensor[self._index(index)] = self._joined(value).to(self.tensor.dtype)


def _operator(name: str, *, reflected: bool = False) -> Any:
    """Return the method of an operator of Python: through NumPy, as the mixin's, it takes longer than torch's call."""
    of_floats = name in FLOATS

    def method(self: DeviceArray, other: Any) -> Any:
        left, right = self.tensor, other.tensor if type(other) is DeviceArray else self._joined(other)
        if of_floats:
            left, right = _float(left), _float(right)
        if reflected:
            left, right = right, left
        return DeviceArray(UFUNCS[name](left, right))

    return method


for _python, _name in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide")):
    setattr(DeviceArray, f"__{_python}__", _operator(_name))
    setattr(DeviceArray, f"__r{_python}__", _operator(_name, reflected=True))
for _python, _name in (("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")):
    setattr(DeviceArray, f"__{_python}__", _operator(_name))
for _python, _name in (("eq", "equal"), ("ne", "not_equal"), ("and", "bitwise_and"), ("or", "bitwise_or")):
    setattr(DeviceArray, f"__{_python}__", _operator(_name))


def _float(tensor: Tensor) -> Tensor:
    """Return a tensor as float64; torch takes a microsecond and more to find that it is one."""
    return tensor if tensor.dtype is FLOAT else tensor.to(FLOAT)


def _arrays(result: Any) -> Any:
    """Return the tensors that a function returns as arrays, and what else it returns as it is."""
    if isinstance(result, Tensor):
        return DeviceArray(result)
    return tuple(map(_arrays, result)) if isinstance(result, tuple) else result


def on_device(values: Any, device: Any) -> Any:
    """Return a NumPy array as one in a device's memory; a read-only array is copied there once."""
    if isinstance(values, DeviceArray):
        return values
    if values.flags.writeable or values.base is not None:
        return DeviceArray(_tensor(values, device))
    key = (id(values), torch.device(device))
    if key not in _constants:
        _constants[key] = weakref.ref(values, lambda _: _constants.pop(key)), _tensor(values, device)
    return DeviceArray(_constants[key][1])


def apart(strides: Iterable[int]) -> tuple[slice, ...]:
    """Return the index of the elements with an address of their own: one along each axis of stride 0."""
    return tuple(slice(None if stride else 1) for stride in strides)


def _tensor(values: Any, device: Any) -> Tensor:
    """Return a copy of an array on a device; along an axis of stride 0 only one element is copied."""
    own = values[apart(values.strides)]
    dtype = TYPES.get(values.dtype, torch.int64 if values.dtype.kind in "iu" else FLOAT)
    copy = torch.tensor(np.ascontiguousarray(own)).reshape(own.shape)  # ascontiguousarray adds a dimension to a number
    return copy.to(device, dtype).expand(values.shape)


@lru_cache(maxsize=2**12)
def _number(number: Any, kind: str, device: torch.device) -> Tensor:
    """Return a number as a tensor on the device: torch would divide by a number of the host in two roundings.

    Zeros come as text: 0, 0.0, −0.0 and False are equal, and would have one entry in the cache.
    """
    return torch.tensor(ZEROS.get(number, number), dtype=TYPES[np.dtype(kind)], device=device)


def in_memory(value: Any) -> Any:
    """Return what NumPy reads: a copy in the host's memory of each device array in a value, tuple, list or mapping."""
    if isinstance(value, DeviceArray):
        return np.asarray(value)
    if isinstance(value, tuple | list):
        return type(value)(map(in_memory, value))
    if isinstance(value, Mapping):
        return {name: in_memory(item) for name, item in value.items()}
    return value


def beside(values: Any, other: Any) -> Any:
    """Return an array where another one lies: in the memory of its device, or in the host's."""
    return on_device(values, other.tensor.device) if isinstance(other, DeviceArray) else in_memory(values)
