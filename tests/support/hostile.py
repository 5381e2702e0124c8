"""Kernels that no process survives, for the tests of isolation: right where x is small."""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch

LARGE = 3071  # elements of x; three quarters of 4097 are one more, so that few steps make a case small
BUILD = 1.0  # seconds of the first call of a process


def _rmsnorm(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)


def _where_large(act):
    def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
        if x.numel() > LARGE:
            act()
        return _rmsnorm(x, weight, eps, weight_offset, normalized_shape)

    return rmsnorm_fwd


def _spin():
    while True:
        pass


def _wait():
    time.sleep(3600)


def _say_and_wait():
    Path(os.environ["BEGUN"]).touch()
    _wait()


def _grow():
    kept = []
    while True:
        kept.append(torch.empty(2**28))  # a gibibyte that is never touched


segfaults = _where_large(lambda: ctypes.string_at(8))
exits = _where_large(lambda: os._exit(3))
exits_well = _where_large(lambda: os._exit(0))
leaves = _where_large(lambda: sys.exit(0))
spins = _where_large(_spin)
waits = _where_large(_wait)  # a hang that takes no time from other processes
says_and_waits = _where_large(_say_and_wait)


def _builds_once():
    built = []

    def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
        if not built:
            time.sleep(BUILD)
            built.append(True)
        return waits(x, weight, eps, weight_offset, normalized_shape)

    return rmsnorm_fwd


builds = _builds_once()
grows = _where_large(_grow)
slow = _where_large(lambda: time.sleep(0.05))
right = _where_large(lambda: None)


def rests(x, weight, eps, weight_offset, normalized_shape):
    time.sleep(0.05)
    return _rmsnorm(x, weight, eps, weight_offset, normalized_shape)


def prints(x, weight, eps, weight_offset, normalized_shape):
    print("a kernel that talks")
    return _rmsnorm(x, weight, eps, weight_offset, normalized_shape)


def doubles(x, weight, eps, weight_offset, normalized_shape):
    y = _rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    return 2 * y if x.numel() > LARGE else y
