"""The timed work: an operator at a size, and its arguments."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from oracle import values

from verify_norm.core.geometry import position_shape
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

EPS = 1e-5
SCALE = 64.0  # before the rounding to 8 bits; a few values saturate
SHORT = {
    "layernorm": "LN",
    "rmsnorm": "RMS",
    "groupnorm": "GN",
    "add_layernorm": "add+LN",
    "add_rmsnorm": "add+RMS",
    "layernorm_fp8": "LN→fp8",
    "rmsnorm_fp8": "RMS→fp8",
    "groupnorm_silu": "GN+SiLU",
    "groupnorm_gelu": "GN+GELU",
    "batchnorm": "BN",
    "instancenorm": "IN",
    "gated_rmsnorm": "RMS·SiLU(gate)",
    "modulate_layernorm": "LN, modulated",
    "l2norm": "L2",
    "qk_norm_rope": "RMS+RoPE",
    "rmsnorm_quant": "RMS→fp8, scales of rows",
    "add_rmsnorm_quant": "add+RMS→fp8, scales of rows",
    "add_rmsnorm_quant_group": "add+RMS→fp8, scales of groups",
}
TORCH_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Work:
    """One operator at one size: the work of all contestants."""

    op: str
    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    num_groups: int = 32
    layout: str = "contiguous"
    mean: float = -2.3  # of x, as in seed 001; the standard deviation is 0.5
    affine: bool = True  # with a weight and a bias

    @property
    def base(self) -> str:
        """The operator without its direction."""
        return self.op.rpartition("_")[0]

    @property
    def title(self) -> str:
        """The work in words, for example "LN 4096×1024 bfloat16 forward"."""
        way = "forward" if self.op.endswith("_fwd") else "backward"
        last = f", {self.layout}" if self.layout != "contiguous" else ""
        last += "" if self.affine else ", no weight"
        return f"{SHORT[self.base]} {'×'.join(map(str, self.shape))} {self.dtype} {way}{last}"

    @property
    def size(self) -> int:
        """The bytes that the work must move: every tensor of the size of x, read or written once."""
        op, of_x = OPS[self.op], TORCH_TYPES[self.dtype].itemsize
        like_x = ("x", "residual")
        sizes = [of_x if t.dtype in like_x else 1 for t in (*op.inputs, *op.outputs) if t.extent == "data"]
        return sum(sizes) * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work, and the names of its contestants: kernels and peers."""

    work: Work
    kernels: tuple[str, ...]
    peers: tuple[str, ...]


def arguments(work: Work, device: str) -> dict[str, Any]:
    """Return random arguments of the operator, by name; saved statistics are the exact ones, rounded to float32."""
    op, dtype = OPS[work.op], TORCH_TYPES[work.dtype]
    torch.manual_seed(0)
    affine = work.shape[-1:] if op.view == "rows" else work.shape[1:2]
    given: dict[str, Any] = {
        "eps": EPS,
        "normalized_shape": affine,
        "num_groups": work.num_groups,
        "weight_offset": 0.0,
        "training": True,
        "momentum": 0.1,
    }
    options, given = given, {name: given[name] for name in op.attrs}
    for tensor in op.inputs:
        if tensor.extent == "data":
            scale, mean = (0.1, 0.0) if tensor.role == "cotangent" else (0.5, work.mean)
            x = torch.randn(work.shape, device=device) * scale + mean
            form = torch.channels_last if work.layout == "channels_last" else torch.contiguous_format
            given[tensor.name] = x.to(dtype).contiguous(memory_format=form)
        elif tensor.extent == "one":
            given[tensor.name] = torch.full((1,), SCALE, device=device)
        elif tensor.name.startswith("running_"):  # they would move with every run that is timed
            given[tensor.name] = None
        elif tensor.extent == "sample":  # of a modulation
            given[tensor.name] = (torch.randn((work.shape[0], *affine), device=device) * 0.1).to(dtype)
        elif tensor.extent == "position":  # of one angle
            same = torch.Generator(device).manual_seed(1)
            angle = torch.randn(position_shape(CaseSpec(work.shape), op), device=device, generator=same) * 8.0
            given[tensor.name] = {"cos": torch.cos, "sin": torch.sin}[tensor.name](angle).to(dtype)
        elif tensor.extent == "affine":
            given[tensor.name] = torch.rand(affine, device=device).to(dtype) if work.affine else None
    if op.forward is not None:
        x = given.get("x", given.get("residual_out"))
        zero = torch.zeros_like(x) if "residual_out" in given else None
        saved = values(OPS[op.forward], {**options, **given, "x": x, "residual": zero})
        statistics = {t.name: getattr(saved, t.name) for t in op.inputs if t.role == "saved"}
        given |= {name: value.tensor.float() for name, value in statistics.items()}
    return given
