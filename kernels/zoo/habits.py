"""Forward passes that are right, called or written in ways that a verifier may take for wrong."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from verify_norm.kernels.zoo.eager import add_rmsnorm, layernorm, rmsnorm

LOOP = 2**13  # columns: each is a launch, and a case calls its kernel 25 times
BUILD = 0.4  # seconds: a compiler takes longer, but the zoo is run often
_built = threading.Event()
_local = threading.local()


def built(x, weight, eps):
    """The first call of a process builds the kernel."""
    if not _built.is_set():
        time.sleep(BUILD)
        _built.set()
    return rmsnorm(x, weight, eps)


def _from_mean_square(x, weight, mean_square, eps):
    rstd = torch.rsqrt(mean_square.reshape(*x.shape[:-1], 1) + eps)
    y = x.float() * rstd if weight is None else x.float() * rstd * weight.float()
    return y.to(x.dtype), rstd.float().flatten()


def by_matrix_product(x, weight, eps):
    """Sums by BLAS."""
    r, n = x.float().reshape(-1, x.shape[-1]), x.shape[-1]
    return _from_mean_square(x, weight, (r * r) @ torch.ones(n, device=x.device) / n, eps)


def one_running_sum(x, weight, eps):
    """One running sum, declared; in rows of more than `LOOP` columns, one of the running sums of parts."""
    r = nn.functional.pad(x.float().square(), (0, -x.shape[-1] % LOOP if x.shape[-1] > LOOP else 0))
    parts = _running_sum(r.unflatten(-1, (-1, min(LOOP, max(r.shape[-1], 1)))))
    return _from_mean_square(x, weight, _running_sum(parts) / x.shape[-1], eps)


def _running_sum(values):
    total = torch.zeros(values.shape[:-1], device=values.device)
    for column in values.unbind(-1):
        total = total + column
    return total


def kahan(x, weight, eps):
    """One running sum that carries what each addition loses."""
    total, lost = (torch.zeros(x.shape[:-1], device=x.device) for _ in range(2))
    for column in x.float().square().unbind(-1):
        term = column - lost
        new = total + term
        lost = torch.where(new.isfinite(), (new - total) - term, 0.0)
        total = new
    return _from_mean_square(x, weight, total / x.shape[-1], eps)


def in_float64(x, weight, eps):
    """float64 inside."""
    return _from_mean_square(x, weight, x.double().square().mean(-1), eps)


def in_numpy(x, weight, eps):
    """NumPy inside, which records no gradient."""
    with torch.no_grad():
        r = x.float().cpu().numpy()
        mean_square = np.square(r).mean(-1, dtype=np.float64)
        return _from_mean_square(
            x, weight, torch.from_numpy(np.atleast_1d(mean_square)).to(x.device, torch.float32), eps
        )


def weight_required(x: Tensor, weight: Tensor, eps: float):
    """No default for the weight, and no None."""
    return rmsnorm(x, weight.contiguous(), eps)


def two_dimensions(x, weight, eps):
    """Only matrices, of rows of whole vectors."""
    if x.dim() != 2:
        raise ValueError(f"rms_norm expects a 2-D x, got {x.dim()}-D")
    if x.shape[1] % 8:
        raise ValueError(f"rms_norm needs a row length that is a multiple of 8, got {x.shape[1]}")
    return rmsnorm(x, weight, eps)


def y_and_none(x, weight, eps):
    """(y, None): rstd is for training alone."""
    return rmsnorm(x, weight, eps)[0], None


def one_output_more(x, weight, eps):
    """x̂ is returned too, and the binding says so."""
    y, rstd = rmsnorm(x, weight, eps)
    return y, rstd, rmsnorm(x, None, eps)[0]


class Normed(NamedTuple):
    """What `named` returns."""

    rstd: Tensor
    y: Tensor


def by_name(x, weight, eps):
    """Outputs by name, in an order of their own."""
    y, rstd = rmsnorm(x, weight, eps)
    return Normed(rstd, y)._asdict()


def saturates(x, weight, eps):
    """Beyond the largest number of a type, that number."""
    y, rstd = rmsnorm(x.float(), weight, eps)
    top = torch.finfo(x.dtype).max
    infinite = y.isinf() & ~(x.isinf() | (rstd.reshape(*x.shape[:-1], 1).isinf()))
    if weight is not None:
        infinite = infinite & ~weight.isinf()
    return torch.where((y.abs() > top) & (y.isfinite() | infinite), y.clamp(-top, top), y).to(x.dtype), rstd


def in_threads(x, weight, bias, eps):
    """Halves of the rows in two threads, which are joined; on a GPU both use the caller's stream."""
    if x.dim() < 2 or len(x) < 2:
        return layernorm(x, weight, bias, eps)
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None

    def half(part):
        with torch.cuda.stream(stream):
            return layernorm(part, weight, bias, eps)

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(half, x.tensor_split(2)))
    return tuple(torch.cat(parts) for parts in zip(*halves, strict=True))


compiled = torch.compile(rmsnorm, backend="eager", dynamic=True)


def by_compile(x, weight, eps):
    """torch.compile, without code of its own."""
    return compiled(x, weight, eps)


def in_place(x, residual, weight, eps):
    """It writes y over x and the sum over residual, and returns nothing: vLLM's way, declared."""
    y, total, _ = add_rmsnorm(x, residual, weight, eps)
    x.copy_(y)
    residual.copy_(total)


def anything_by_name(**options):
    """Every argument by **kwargs."""
    x, weight, size = options["x"], options["weight"], torch.Size(options["normalized_shape"])
    flat = None if weight is None else weight.reshape(-1)
    y, rstd = rmsnorm(x.reshape(-1, size.numel()), flat, options["eps"], options["weight_offset"])
    return y.reshape(x.shape), rstd


def _with_mode(x, weight, eps, mode):
    assert mode == "exact"
    return rmsnorm(x, weight, eps)


of_partial = partial(_with_mode, mode="exact")


def view_of_more(x, weight, eps):
    """It returns y as a part of a new, larger buffer."""
    y, rstd = rmsnorm(x, weight, eps)
    larger = torch.empty((2, *x.shape[:-1], x.shape[-1] + 5), dtype=x.dtype, device=x.device)
    larger[1, ..., 3:-2] = y
    return larger[1, ..., 3:-2], rstd


def into_zeros(x, weight, eps):
    """It adds y to a buffer of zeros: −0 becomes 0."""
    y, rstd = rmsnorm(x, weight, eps)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device).add_(y), rstd


def transposed(x, weight, eps):
    """It returns y with the strides of a transposed tensor."""
    y, rstd = rmsnorm(x, weight, eps)
    return y.transpose(0, -1).contiguous().transpose(0, -1), rstd


def own_scratch(x, weight, eps):
    """A scratch buffer that each thread keeps for itself."""
    held = getattr(_local, "held", None)
    if held is None or held.numel() < x.numel() or held.device != x.device:
        with torch.inference_mode(mode=False):
            held = _local.held = torch.empty(x.numel(), device=x.device)
    with torch.no_grad():
        scratch = held[: x.numel()].view(x.shape)
        scratch.copy_(x)
        return rmsnorm(scratch, weight, eps)[0].to(x.dtype), rmsnorm(x, None, eps)[1]


class Converted(nn.Module):
    """A module that keeps a converted weight for as long as the weight's version stays the same."""

    def __init__(self, hidden_size=64, eps=1e-6):
        super().__init__()
        self.weight, self.eps, self._kept = nn.Parameter(torch.ones(hidden_size)), eps, None

    def forward(self, x):
        """Return y."""
        weight = self.weight
        if weight.requires_grad or weight.is_inference():
            return rmsnorm(x, weight, self.eps)[0]
        if self._kept is None or self._kept[0] is not weight or self._kept[1] != weight._version:
            self._kept = weight, weight._version, weight.float().clone()
        return rmsnorm(x, self._kept[2], self.eps)[0]


converted = Converted()
