"""Random numbers of a case: NumPy's where they are few, and by counter where they are many, the same on every device.

A number by counter is a function of the seed, the name of its tensor and its place: the hash of Steele, Lea & Flood
("Fast splittable pseudorandom number generators", OOPSLA 2014) in 64-bit integers, and operations that IEEE 754
defines. So a CPU and a GPU draw the same bits, in any order.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases.device_array import DeviceArray, on_device
from verify_norm.core.dtypes import Array

MANY = 2**17  # numbers: from here on they are drawn by counter
PIECE = 2**14  # numbers that a CPU draws at a time: all that they need stays in its cache
GOLDEN = 0x9E3779B97F4A7C15
MIXED = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # shifts and factors
CELLS = 14  # log2 of the cells of equal probability in which normal numbers are uniform


def generator(seed: int, key: int) -> np.random.Generator:
    """Return NumPy's generator of two keys. A list of them would become float64, with 53 bits of a seed from 2⁶³.

    >>> bool(generator(2**64 - 1, 5).random() == generator(2**64 - 2, 5).random())
    False
    """
    return np.random.Generator(np.random.Philox(key=np.array([seed, key], np.uint64)))


class Random:
    """The random stream of one tensor. `few` is NumPy's generator; `device` is where many numbers lie, None in memory.

    >>> bool(abs(Random(1, "x").standard_normal((512, 512)).std() - 1) < 0.01)
    True
    """

    def __init__(self, seed: int, name: str, device: Any = None) -> None:
        self.few = generator(seed, zlib.crc32(name.encode()))
        self._device = device
        self._start = seed * GOLDEN + (zlib.crc32(name.encode()) << 32)

    def standard_normal(self, shape: Sequence[int]) -> Array:
        """Return normal numbers of mean 0 and variance 1; by counter, none is above 4.8."""
        if prod(shape) < MANY:
            return self.few.standard_normal(shape)
        edges: Any = _edges() if self._device is None else on_device(_edges(), self._device)

        def normal(bits: Any) -> Any:
            cell, low_bits = _shifted(bits, 64 - CELLS), _shifted(bits, 12) & (1 << 52 - CELLS) - 1
            low = edges[cell]
            return low + (edges[cell + 1] - low) * (low_bits.astype(np.float64) * 2.0 ** (CELLS - 52))

        return self._drawn(normal, shape)

    def heavy(self, shape: Sequence[int]) -> Array:
        """Return numbers of Student's t with two degrees of freedom: without a variance, a few dominate."""
        if prod(shape) < MANY:
            return self.few.standard_t(2, shape)

        def quantile(bits: Any) -> Any:
            p = (_shifted(bits, 12).astype(np.float64) + 0.5) * 2.0**-52
            return (2.0 * p - 1.0) / np.sqrt(2.0 * p * (1.0 - p))

        return self._drawn(quantile, shape)

    def integers(self, low: int, high: int, shape: Sequence[int]) -> Array:
        """Return integers from `low` to below `high`, as float64."""
        if prod(shape) < MANY:
            return self.few.integers(low, high, shape).astype(np.float64)
        return self._drawn(lambda bits: np.floor((bits >> 40 & 0xFFFFFF) * ((high - low) * 2.0**-24)) + low, shape)

    def _drawn(self, function: Callable[[Any], Any], shape: Sequence[int]) -> Array:
        """Return a function of 64 random bits for each element, other ones at every call."""
        self._start += 1
        start, count = _signed(_hashed(self._start % 2**64)), prod(shape)
        values: Any
        if self._device is None:
            values = np.empty(count)
            for first in range(0, count, PIECE):
                place = np.arange(first, min(first + PIECE, count))
                values[first : first + PIECE] = function(_bits(place, start))
        else:
            values = function(_bits(DeviceArray(torch.arange(count, device=self._device)), start))
        drawn: Array = values.reshape(tuple(shape))
        return drawn


def _bits(place: Any, start: int) -> Any:
    """Return the hash of each place, as signed integers, whose products wrap."""
    bits = place * _signed(GOLDEN) + start
    for shift, factor in MIXED:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return bits


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _hashed(bits: int) -> int:
    for shift, factor in MIXED:
        bits = (bits ^ bits >> shift) * factor % 2**64
    return bits


def _shifted(bits: Any, places: int) -> Any:
    """Return the bits moved to the right, zeros before them."""
    return bits >> places & (1 << 64 - places) - 1


@cache
def _edges() -> Array:
    """Return the quantiles between which normal numbers are uniform, as float32 holds them; the last are finite."""
    share, least = np.arange(2**CELLS + 1) / 2**CELLS, 2.0 ** (-CELLS - 6)
    exact: Array = torch.special.ndtri(torch.from_numpy(np.clip(share, least, 1 - least))).numpy()
    edges = exact.astype(np.float32).astype(np.float64)
    edges.setflags(write=False)
    return edges
