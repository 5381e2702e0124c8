"""A rig that feeds crafted values to a kernel: rows to normalize, or columns that dweight and dbias sum."""

import math
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from verify_norm.auditing.fingerprint.statement import HiddenError
from verify_norm.cases import make
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

CHANNELS = 4  # of a group that serves as a row
SLOW = 6e-3  # seconds a row: too slow for all pairs of 64 summands, two thousand rows
SPACE = 8  # positions of a channel, if dweight and dbias sum over samples and positions
EPS = 2.0**-40  # rounded away next to a variance of 1


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs in float64: y and dx as (rows, N), mean and rstd as (rows,), dweight and dbias as (columns,)."""

    values: Mapping[str, Array]
    dtypes: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Array:  # raises HiddenError if the kernel did not return it
        if name not in self.values:
            raise HiddenError(name)
        return self.values[name]


@dataclass(frozen=True, slots=True)
class Feed:
    """The inputs of one run; x and dy are (rows, N), mean and rstd (rows,)."""

    x: Array
    dy: Array | None = None  # 0
    dtype: str = "float32"  # of x
    weight_dtype: str | None = None  # that of x
    eps: float = EPS
    weight: float = 1.0  # of all elements
    bias: float = 0.0
    mean: Array | None = None  # 0, for a backward pass
    rstd: Array | None = None  # 1, for a backward pass

    def value(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return an input of an operator by its name; what is not given is 0, but rstd and a mask 1."""
        given = {"x": self.x, "residual_out": self.x, "dy": self.dy, "mean": self.mean, "rstd": self.rstd}.get(name)
        if given is not None:
            return given.reshape(shape)
        return np.full(shape, {"weight": self.weight, "bias": self.bias, "rstd": 1.0, "mask": 1.0}.get(name, 0.0))


@dataclass(slots=True)
class Rig:
    """A kernel that is ready to be fed. `runs` counts its runs."""

    kernel: Kernel
    device: str
    runs: int = 0
    op: Op = field(init=False)
    backward: bool = field(init=False)  # whether the kernel computes gradients
    centred: bool = field(init=False)  # whether the norm subtracts a mean
    _columns: dict[int, Outputs] = field(default_factory=dict)
    _took: list[tuple[float, int]] = field(default_factory=list)  # seconds and rows of every run

    def __post_init__(self) -> None:
        self.op = OPS[self.kernel.op]
        self.backward = self.op.forward is not None
        self.centred = self.op.centred

    @property
    def slow(self) -> bool:
        """Whether the kernel needs more than SLOW seconds a row, as some do in Triton's interpreter."""
        later = self._took[1:]  # the first run may compile
        return bool(later) and sum(t for t, _ in later) > SLOW * sum(rows for _, rows in later)

    def rows(self, feed: Feed) -> Outputs:
        """Run with every row normalized on its own; return no outputs if the kernel fails, or does not take the feed.

        A row of GroupNorm is a sample with one group of a few channels. L2Norm is run as the RMSNorm that it is (see
        `root`), which changes no bits where √N is a power of two.
        """
        count, length = feed.x.shape
        channels = CHANNELS if length % CHANNELS == 0 else 1
        return self._run((count, channels, length // channels) if self.op.view == "groups" else (count, length), feed)

    def columns(self, feed: Feed) -> Outputs:
        """Run a backward pass whose dbias[c] is the sum of dy[:, c], and whose dweight[c] is that of (dy·x̂)[:, c].

        The rows of GroupNorm are the positions of samples, SPACE positions a sample if they divide the rows.
        """
        key = hash(pickle.dumps(feed))
        if key not in self._columns:
            assert feed.dy is not None
            count, width = shape = feed.x.shape
            if self.op.view == "groups":
                space = SPACE if count % SPACE == 0 else 1
                shape = (count // space, width, space)
                dy, x = (t.reshape(count // space, space, width).swapaxes(1, 2) for t in (feed.dy, feed.x))
                feed = replace(feed, dy=dy, x=x)
            self._columns[key] = self._run(shape, feed)
        return self._columns[key]

    def root(self, length: int) -> float:
        """Return √N of an L2Norm of N elements, 1 of other norms.

        y = x/√(Σx² + N·eps) is that of RMSNorm with eps over √N, and so are rstd and dx.
        """
        return 1.0 if self.op.averages else math.sqrt(length)

    def _run(self, shape: tuple[int, ...], feed: Feed) -> Outputs:
        """Run on x of this shape; return no outputs if the kernel fails, or does not take the feed."""
        groups = 1 if self.op.view == "groups" else None
        root = self.root(shape[-1])
        eps = feed.eps * (1 if self.op.averages else shape[-1])
        spec = CaseSpec(shape, feed.dtype, feed.weight_dtype, eps=eps, num_groups=groups, dropout_p=0.0)
        if self.kernel.refuses(spec) or feed.dtype not in self.kernel.dtypes:
            return Outputs({}, {})
        statistic = (shape[0], 1) if self.op.view == "groups" else shape[:1]
        shapes = {"data": shape, "affine": geometry.affine_shape(spec, self.op), "statistic": statistic}
        exact: dict[str, Array | None] = {}
        for tensor in self.op.inputs:
            value = feed.value(tensor.name, shapes[tensor.extent])
            if tensor.name == "rstd":
                value = value / root
            exact[tensor.name] = FORMATS[geometry.input_dtype(tensor, spec)].round(value)
        self.runs += 1
        case = make.build(spec, self.op, self.kernel.contract, self.device, exact)
        started = time.perf_counter()
        run = execute(self.kernel, case)
        self._took.append((time.perf_counter() - started, shape[0]))
        sizes = {"data": (shape[0], -1), "affine": (-1,), "statistic": shape[:1]}
        values, dtypes = {}, {}
        for tensor in self.op.outputs:
            found = run.outputs.get(tensor.name)
            if found is not None and found.got.size == math.prod(shapes[tensor.extent]):
                values[tensor.name] = found.got.reshape(sizes[tensor.extent]) * root
                dtypes[tensor.name] = found.dtype
        return Outputs(values, dtypes)
