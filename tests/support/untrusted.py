"""Kernels for the tests of untrusted runs, right and wrong ones; nothing here is imported by the judge."""

import ctypes
import os
import socket
import time

import torch

from verify_norm import Contract, kernel
from verify_norm.loading.returned import RefusedError


def _right(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)


def in_place(x, weight, eps):
    return x.copy_(_right(x, weight, eps))


def prints(x, weight, eps):
    print("y is right", flush=True)
    os.write(2, b"\x1b[2J")
    return _right(x, weight, eps)


class Module(torch.nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        return _right(x, self.weight, self.eps)


def writes_into_weight(x, weight, eps):
    y = _right(x, weight, eps)
    if weight is not None:
        weight.add_(1)
    return y


def writes_behind_x(x, weight, eps):
    ctypes.memset(x.data_ptr() + (sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1) * 4, 1, 4)
    return _right(x, weight, eps)


def writes_behind_its_own(x, weight, eps):
    y = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(_right(x, weight, eps))
    ctypes.memset(y.data_ptr() + y.nbytes, 1, 4)
    return y


_kept = {}


def keeps_its_output(x, weight, eps):
    y = _kept.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype))
    return y.copy_(_right(x, weight, eps))


_calls = [0]


def counts_calls(x, weight, eps):
    _calls[0] += 1
    return _right(x, weight, eps) + _calls[0]


def disables_gradients(x, weight, eps):
    torch.set_grad_enabled(False)
    return _right(x, weight, eps)


def wrong_under_no_grad(x, weight, eps):
    return _right(x, weight, eps) * (1 if torch.is_grad_enabled() else 2)


def refuses(x, weight, eps):
    raise RefusedError("not today")


@kernel(op="rmsnorm_fwd", contract=Contract(accumulate="bfloat16", xhat="bfloat16"), only="eps=1e-5")
def declares_a_weak_contract(x, weight, eps):
    return _right(x, weight, eps).bfloat16().float()


def hangs(x, weight, eps):
    _calls[0] += 1
    if _calls[0] > 2:
        time.sleep(600)
    return _right(x, weight, eps)


def answers_twice(x, weight, eps):
    for number in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(number))
            channel.send(b"vn-norm1")
        except OSError:
            continue
    return _right(x, weight, eps)
