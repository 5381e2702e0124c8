"""Feeds a kernel crafted values: rows that are normalized on their own, or columns that dweight and dbias add up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from verify_norm import cases, data
from verify_norm.dtypes import FORMATS, Array
from verify_norm.execute import execute
from verify_norm.ops import OPS
from verify_norm.spec import CaseSpec, Kernel, Op, Output

CHANNELS = 4  # of a group that serves as a row
SLOW = 6e-3  # seconds a row, of which all pairs of 64 summands have two thousand
SPACE = 8  # positions of a channel, where dweight and dbias add up samples and positions


@dataclass(frozen=True, slots=True)
class Outputs:
    """What came out, in float64: y and dx as (rows, N), mean and rstd as (rows,), dweight and dbias as (columns,)."""

    values: Mapping[str, Array]
    dtypes: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


@dataclass(slots=True)
class Rig:
    """A kernel, ready to be fed. `runs` counts how often it was."""

    kernel: Kernel
    device: str
    runs: int = 0
    op: Op = field(init=False)
    _columns: dict[tuple[object, ...], Outputs | None] = field(default_factory=dict)  # dweight and dbias, of one run
    _took: list[tuple[float, int]] = field(default_factory=list)  # seconds and rows of every run

    def __post_init__(self) -> None:
        self.op = OPS[self.kernel.op]

    @property
    def backward(self) -> bool:
        """Whether the kernel computes gradients."""
        return self.op.forward is not None

    @property
    def centred(self) -> bool:
        """Whether a mean is subtracted, which RMSNorm does not do."""
        return "rmsnorm" not in self.op.name

    @property
    def slow(self) -> bool:
        """Whether it is so slow that fewer questions have to do: some kernels are in Triton's interpreter."""
        later = self._took[1:]  # the first run may compile
        return bool(later) and sum(t for t, _ in later) > SLOW * sum(rows for _, rows in later)

    def takes(self, dtype: str) -> bool:
        """Whether the kernel offers x of this type."""
        return dtype in self.kernel.dtypes

    def rows(
        self,
        x: Array,
        *,
        dtype: str = "float32",
        weight_dtype: str | None = None,
        eps: float = 2.0**-40,
        weight: float = 1.0,
        bias: float = 0.0,
        dy: Array | None = None,
        mean: Array | None = None,
        rstd: Array | None = None,
    ) -> Outputs | None:
        """Run on x (rows, N), every row normalized on its own; None where the kernel does not take that, or fails.

        GroupNorm's rows are samples of one group of a few channels. `weight` and `bias` are those of every element;
        `mean` and `rstd` are what a backward is given, 0 and 1 by default.
        """
        count, length = x.shape
        shape: tuple[int, ...] = (count, length)
        if self.op.view == "groups":
            channels = CHANNELS if length % CHANNELS == 0 else 1
            shape = (count, channels, length // channels)
        return self._run(shape, x, dy, mean, rstd, dtype, weight_dtype, eps, weight, bias)

    def columns(
        self,
        terms: Array,
        x: Array | None = None,
        *,
        dtype: str = "float32",
        weight_dtype: str | None = None,
        mean: Array | None = None,
        rstd: Array | None = None,
    ) -> Outputs | None:
        """Run a backward whose dbias[c] is the sum of terms[:, c]; dweight[c] too, up to the sign, where x is None.

        x̂ is then +1 in even columns and −1 in odd ones, exactly, whether statistics are given or computed. GroupNorm's
        terms are those of the samples' positions, SPACE of them a sample where their number allows it.
        """
        count, width = terms.shape
        if x is None:
            x = np.broadcast_to(np.where(np.arange(width) % 2, -1.0, 1.0), terms.shape)
        shape: tuple[int, ...] = (count, width)
        if self.op.view == "groups":
            space = SPACE if count % SPACE == 0 else 1
            shape = (count // space, width, space)
            terms, x = (t.reshape(count // space, space, width).swapaxes(1, 2) for t in (terms, x))
        eps = 2.0**-40  # lost beside a variance of 1
        key = shape, dtype, weight_dtype, *(hash(t.tobytes()) for t in (terms, x, mean, rstd) if t is not None)
        if key not in self._columns:
            self._columns[key] = self._run(shape, x, terms, mean, rstd, dtype, weight_dtype, eps, 1.0, 0.0)
        return self._columns[key]

    def _run(
        self, shape: tuple[int, ...], x: Array, dy: Array | None, mean: Array | None, rstd: Array | None, dtype: str,
        weight_dtype: str | None, eps: float, weight: float, bias: float,
    ) -> Outputs | None:  # fmt: skip
        spec = CaseSpec(
            shape=shape, dtype=dtype, weight_dtype=weight_dtype, eps=eps,
            num_groups=1 if self.op.view == "groups" else None,
        )  # fmt: skip
        refused = not self.takes(dtype) or (self.kernel.unsupported is not None and self.kernel.unsupported(spec))
        if refused:
            return None
        affine, statistics = data.affine_shape(spec, self.op), (shape[0], 1)[: 2 if self.op.view == "groups" else 1]
        kept = np.zeros(shape[0]) if mean is None else mean, np.ones(shape[0]) if rstd is None else rstd
        zeros = np.zeros(shape)
        offered = {
            "x": x.reshape(shape), "residual": zeros, "residual_out": x.reshape(shape), "dresidual_out": zeros,
            "dy": zeros if dy is None else dy.reshape(shape), "weight": np.full(affine, weight),
            "bias": np.full(affine, bias), "mean": kept[0].reshape(statistics), "rstd": kept[1].reshape(statistics),
        }  # fmt: skip
        exact: dict[str, Array | None] = {
            t.name: FORMATS[data.input_dtype(t, spec)].round(offered[t.name]) for t in self.op.inputs
        }
        self.runs += 1
        case = cases.build(spec, self.op, self.kernel.contract, self.device, exact)
        started = time.perf_counter()
        run = execute(self.kernel, case)
        self._took.append((time.perf_counter() - started, shape[0]))
        if run.problem is not None:
            return None
        return self._outputs(run.outputs, shape, prod(affine))

    def _outputs(self, outputs: Mapping[str, Output | None], shape: tuple[int, ...], columns: int) -> Outputs:
        rows = shape[0]
        sizes = {"data": (rows, prod(shape[1:])), "statistic": (rows,), "affine": (columns,)}
        values, dtypes = {}, {}
        for tensor in self.op.outputs:
            found, want = outputs.get(tensor.name), sizes[tensor.extent]
            if found is not None and found.got.size == prod(want):
                values[tensor.name], dtypes[tensor.name] = found.got.reshape(want), found.dtype
        return Outputs(values, dtypes)
