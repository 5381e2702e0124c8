"""The corner table, which always runs first: each line exercises what its comment says."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, count, zip_longest
from math import ceil, log2
from typing import Any

from verify_norm.cases import turns
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.geometry import differentiable
from verify_norm.core.spec import LAYOUTS, CaseSpec, Op

_Row = tuple[tuple[int, ...], dict[str, Any]]
_Topics = dict[str, tuple[_Row, ...]]
SUBNORMAL, LARGEST = "subnormal", "largest"  # a log2_scale that differs between types
# Scales of a quantized y: none; most values normal in every format; some saturate; nearly all saturate; subnormals;
# nearly all zero; no power of two.
OUTPUT_SCALES = (1.0, 100.0, 300.0, 1e6, 2.0**-6, 2.0**-14, 40.7)
_LAST = {"x_layout": "channels_last", "dy_layout": "channels_last"}
# A run takes the first line of every topic, then the second ones, and so on: its first cases meet all topics. In a
# topic the usual mistakes come first, then the extremes (none, one, far). Neighbours have different types: of three
# lines side by side, or two apart, each type meets one.
ROW_CORNERS: _Topics = {
    "offsets": (  # a one-pass variance cancels; then long rows, in every type
        ((4, 300), {"offset": 1e4}),
        ((4, 512), {"offset": -1e3}),
        ((5, 301), {"offset": 1e3}),
        ((2, 4096), {"offset": 100.0}),
        ((2, 4099), {"offset": 10.0}),
        ((2, 5000), {"offset": -100.0}),
        ((1, 2), {"offset": 1e3}),
    ),
    "lengths": (
        ((2, 1025), {"x_layout": "row_strided"}),  # one element more than a tile
        ((1, 1), {}),  # N = 1: x̂ = 0
        ((2, 4097), {}),
        ((5, 2), {}),  # N = 2: x̂ is ±1, up to eps
        ((1, 17000), {}),  # a row of more than 64 KB
        ((2, 3), {}),  # the smallest shape with rows and columns
        ((2, 1024), {}),
        ((3, 1), {"eps": 1e-12}),
    ),
    "layouts of x": (
        ((5, 64), {"x_layout": "row_strided"}),
        ((4, 12), {"x_layout": "far"}),  # a stride within 32 bits whose multiples are beyond
        ((6, 40), {"x_layout": "transposed"}),
        ((2, 16), {"x_layout": "far"}),  # … and a stride beyond 32 bits
        ((4, 257), {"x_layout": "offset"}),  # misaligned
        ((3, 128), {"x_layout": "every_other", "dy_layout": "offset"}),
        ((5, 48), {"x_layout": "expanded"}),
    ),
    "layouts of dy": (
        ((5, 65), {"dy_layout": "transposed"}),
        ((4, 96), {"dy_layout": "scalar"}),  # the gradient of .sum()
        ((2, 77), {"dy_layout": "row_strided", "x_layout": "row_strided"}),
        ((9, 50), {"dy_layout": "expanded"}),
        ((2, 17), {"dy_layout": "far"}),
        ((3, 256), {"x_layout": "offset", "dy_layout": "offset"}),  # misaligned rows whose length a vector load divides
        ((4, 13), {"dy_layout": "far"}),
    ),
    "weights": (
        ((7, 33), {"weight_dtype": "float32"}),  # fp32 weights with half inputs
        ((3, 62), {"weight": False, "bias": False}),
        ((4, 33), {"weight_data": "zero"}),  # y = b and dx = 0, but dweight is not
        ((17, 61), {"bias": False}),
        ((4, 34), {"weight_data": "some_zero"}),  # a division of y by the weight fails
        ((17, 60), {"weight": False}),
        ((4, 20), {"weight_data": "zero", "weight_dtype": "float32", "bias": False}),
        ((3, 100), {"weight_layout": "every_other", "bias_layout": "offset"}),
    ),
    "ranks": (
        ((4, 6, 10), {"normalized_ndim": 2}),
        ((2, 3, 20), {}),
        ((2, 3, 2, 10), {"x_layout": "transposed", "dy_layout": "every_other"}),  # not collapsible
        ((30,), {}),  # one row
        ((3, 2, 3, 7), {"normalized_ndim": 3, "x_layout": "transposed"}),
        ((2, 1, 2, 2, 9), {}),
        ((2, 3, 2, 12), _LAST),
    ),
    "eps": (
        ((8, 40), {"log2_scale": -8, "eps": 1e-3}),  # eps dominates the variance
        ((4, 91), {"eps": 0.0}),
        ((8, 41), {"log2_scale": -8, "eps": 1e-12}),
        ((4, 90), {"eps": 1e-1}),
        ((4, 50), {"eps": 1e3}),  # y is a thirtieth of x, and rstd no longer matters
        ((4, 50), {"eps": 1e3, "log2_scale": -8}),
    ),
    "rows": (  # in every type enough to detect the loss of a few, and batches as in serving: thresholds of 256 rows
        ((260, 20), {}),
        ((0, 8), {}),  # no rows: dweight = dbias = 0
        ((261, 17), {}),
        ((64, 1000), {"batch": 300}),
        ((259, 24), {}),
        ((63, 1016), {"batch": 257}),
        ((70, 24), {}),  # more rows than programs, and no multiple
        ((65, 900), {"batch": 256}),
        ((129, 5), {}),
    ),
    "values": (
        ((4, 30), {"special": "nan"}),
        ((3, 130), {"data": "constant"}),  # the variance is 0
        ((4, 30), {"special": "inf"}),
        ((3, 40), {"data": "zero"}),  # rows of zeros: rstd = 1/√eps
        ((3, 131), {"data": "constant", "offset": 10.0}),
        ((3, 41), {"data": "zero", "eps": 0.0}),  # 0/0
        ((3, 42), {"data": "zero", "eps": 1e-12}),
    ),
    "scales": (
        ((3, 60), {"log2_scale": 11}),  # near fp16's overflow
        ((3, 24), {"log2_scale": LARGEST, "data": "alternating"}),  # squares that overflow
        ((3, 24), {"log2_scale": SUBNORMAL}),
        ((3, 60), {"dy_log2_scale": 13}),  # gradients that overflow fp16
        ((3, 60), {"dy_log2_scale": -20}),  # gradients among fp16's subnormals
        ((3, 25), {"log2_scale": SUBNORMAL, "eps": 0.0}),  # the variance underflows
        ((3, 26), {"log2_scale": LARGEST, "data": "constant", "offset": 8.0}),  # sums that overflow
        ((3, 26), {"log2_scale": SUBNORMAL, "eps": 1e-12, "weight": False}),
        ((3, 25), {"log2_scale": LARGEST, "data": "alternating", "eps": 0.0}),
    ),
    "data": (
        ((3, 768), {"data": "channel"}),
        ((3, 200), {"data": "heavy"}),
        ((2, 256), {"data": "alternating"}),
        ((4, 31), {"data": "integers"}),
    ),
}
SERVING_ROWS: tuple[_Row, ...] = (  # from small to large, as far as the kernel's time allows
    ((64, 1000), {"batch": 1025}),
    ((32, 4096), {"batch": 300}),
    ((64, 1000), {"batch": 4096}),  # thresholds of 4096 rows and of two million elements, in every type
    ((63, 1016), {"batch": 4097}),
    ((65, 512), {"batch": 4099}),
    ((16, 8192), {"batch": 300}),
    ((32, 4096), {"batch": 4096}),
    ((16, 8192), {"batch": 4096}),
)
GPU_SERVING_ROWS: tuple[_Row, ...] = tuple(
    ((64, length), {"batch": batch}) for length in (512, 4096, 8192) for batch in (255, 256, 257, 300, 4096)
)
MANY_ROWS: tuple[_Row, ...] = tuple(  # long sums of dweight and dbias, in every type
    ((rows + turn, length), {})
    for rows, lengths in ((1025, (3, 2, 4)), (4097, (2, 1, 4)), (16384, (1, 3, 2)))
    for turn, length in enumerate(lengths)
)
AT_EVERY_SIZE = ("memory", "determinism", "batch_invariance")  # further runs whose bugs have thresholds of size
_SIDES = ((16384, 3), (1, 131072), (65537, 2), (8193, 17), (2, 65536), (4100, 30), (1030, 60))
WIDE_ROWS: tuple[_Row, ...] = tuple(  # thresholds of rows, of lengths and of elements, in every type
    ((rows + more, length + more), {}) for more in range(3) for rows, length in _SIDES
)
GPU_ROW_CORNERS: tuple[_Row, ...] = (  # these take minutes in the interpreter
    ((16384, 256), {}),  # enough programs for contention on a lock or a buffer
    ((16385, 256), {"offset": 10.0}),
    ((4096, 1024), {"x_layout": "row_strided", "dy_layout": "offset"}),
    ((2**20, 1), {}),
    ((2**20 + 1, 2), {}),
    ((2**20 + 3, 3), {}),
)
GROUP_CORNERS: _Topics = {
    "offsets": (  # a one-pass variance cancels; kernels take another path in channels_last
        ((2, 4, 60), {"num_groups": 2, "offset": 1e4}),
        ((2, 4, 60), {"num_groups": 2, "offset": -1e3}),
        ((2, 4, 6, 6), {"num_groups": 2, "offset": 1e3, "x_layout": "channels_last"}),
        ((2, 4, 6, 6), {"num_groups": 2, "offset": -1e4, **_LAST}),
        ((2, 4, 6, 7), {"num_groups": 2, "offset": 1e4, **_LAST}),
        ((1, 4, 50, 50), {"num_groups": 2, "offset": 100.0}),  # large groups, in every type
        ((1, 4, 51, 49), {"num_groups": 2, "offset": 10.0}),
        ((1, 2, 80, 60), {"num_groups": 1, "offset": -100.0}),
    ),
    "sizes": (
        ((2, 6, 3, 3), {"num_groups": 2}),  # C/G = 3: no power of two
        ((1, 4, 33, 33), {"num_groups": 2}),
        ((2, 4, 3), {"num_groups": 2}),
        ((1, 2, 70, 70), {"num_groups": 1}),  # a group of more than one tile
        ((2, 4, 1), {"num_groups": 2}),  # two elements a group
        ((1, 1, 1), {"num_groups": 1}),  # one element
        ((2, 4, 2), {"num_groups": 4}),  # two elements a channel
    ),
    "layouts of x": (
        ((2, 4, 8, 8), {"num_groups": 4, "x_layout": "row_strided"}),
        ((2, 10, 4, 4), {"num_groups": 2, "x_layout": "channels_last"}),
        ((2, 6, 5, 4), {"num_groups": 3, "x_layout": "transposed"}),
        ((2, 4, 33), {"num_groups": 2, "x_layout": "every_other"}),
        ((3, 4, 6), {"num_groups": 2, "x_layout": "far", "dy_layout": "far"}),  # offsets beyond 32 bits
        ((2, 4, 33), {"num_groups": 1, "x_layout": "offset", "weight_layout": "every_other", "bias_layout": "offset"}),
    ),
    "layouts of dy": (
        ((2, 6, 5, 4), {"num_groups": 3, "dy_layout": "transposed"}),
        ((2, 10, 4, 4), {"num_groups": 2, "dy_layout": "channels_last"}),
        ((2, 4, 6), {"num_groups": 2, "dy_layout": "scalar"}),
        ((3, 4, 6), {"num_groups": 2, "dy_layout": "expanded"}),
        ((3, 4, 6), {"num_groups": 2, "x_layout": "expanded", "dy_layout": "offset"}),
    ),
    "weights": (
        ((2, 4, 7, 7), {"num_groups": 2, "weight_dtype": "float32"}),
        ((2, 6, 9), {"num_groups": 2, "weight": False, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "zero"}),  # y = b and dx = 0, but dweight is not
        ((2, 6, 9), {"num_groups": 2, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "some_zero"}),  # groups of zero and other weights
        ((2, 6, 9), {"num_groups": 2, "weight": False}),
    ),
    "groups": (
        ((1, 6, 5), {"num_groups": 1}),  # one group
        ((3, 4), {"num_groups": 4}),  # no spatial dimensions, one channel a group: x̂ = 0
        ((2, 6, 5), {"num_groups": 6}),  # InstanceNorm
        ((1, 4, 2, 3, 5), {"num_groups": 2, "x_layout": "channels_last"}),  # rank 5
        ((3, 6), {"num_groups": 2}),
    ),
    "eps": (
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-3}),
        ((2, 4, 20), {"num_groups": 2, "eps": 0.0}),
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-12}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e-1}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e3}),  # rstd no longer matters
    ),
    "samples": (  # in every type enough groups to detect the loss of a few, and batches
        ((140, 4, 5), {"num_groups": 2}),
        ((0, 4, 3), {"num_groups": 2}),
        ((141, 4, 3), {"num_groups": 2}),
        ((24, 4, 500), {"num_groups": 2, "batch": 150}),
        ((139, 4, 4), {"num_groups": 2}),
        ((23, 4, 508), {"num_groups": 2, "batch": 129}),
        ((17, 2, 3), {"num_groups": 1}),
        ((25, 4, 16, 28), {"num_groups": 2, "batch": 128}),
    ),
    "values": (
        ((2, 4, 10), {"num_groups": 2, "special": "nan"}),
        ((2, 4, 30), {"num_groups": 2, "data": "constant", "offset": 10.0}),
        ((2, 4, 10), {"num_groups": 2, "special": "inf"}),
        ((2, 4, 10), {"num_groups": 2, "data": "zero"}),  # rstd = 1/√eps
        ((2, 4, 10), {"num_groups": 2, "data": "zero", "eps": 0.0}),  # 0/0
        ((2, 4, 11), {"num_groups": 2, "data": "zero", "eps": 1e-12}),
    ),
    "scales": (
        ((2, 4, 20), {"num_groups": 2, "log2_scale": 11}),
        ((2, 4, 12), {"num_groups": 2, "log2_scale": LARGEST, "data": "alternating"}),  # squares that overflow
        ((2, 4, 12), {"num_groups": 2, "log2_scale": SUBNORMAL}),
        ((2, 4, 20), {"num_groups": 2, "dy_log2_scale": 13}),
        ((2, 4, 20), {"num_groups": 2, "dy_log2_scale": -20}),
        ((2, 4, 12), {"num_groups": 2, "log2_scale": SUBNORMAL, "eps": 0.0}),  # the variance underflows
        ((2, 4, 12), {"num_groups": 2, "log2_scale": LARGEST, "data": "constant", "offset": 8.0}),  # sums that overflow
        ((2, 4, 13), {"num_groups": 2, "log2_scale": SUBNORMAL, "eps": 1e-12}),
        ((2, 4, 13), {"num_groups": 2, "log2_scale": LARGEST, "data": "alternating"}),
    ),
    "data": (
        ((1, 2, 70, 71), {"num_groups": 1, "data": "heavy"}),  # a large x̂: the exponential of an activation overflows
        ((2, 8, 50), {"num_groups": 2, "data": "channel"}),
        ((2, 8, 50), {"num_groups": 2, "data": "heavy"}),
        ((2, 4, 30), {"num_groups": 2, "data": "alternating"}),
        ((2, 4, 15), {"num_groups": 2, "data": "integers"}),
    ),
}
SERVING_GROUPS: tuple[_Row, ...] = (  # from small to large
    ((24, 4, 500), {"num_groups": 2, "batch": 300}),
    ((25, 4, 16, 28), {"num_groups": 2, "batch": 1025, **_LAST}),
    ((24, 4, 500), {"num_groups": 2, "batch": 4096}),  # in every type
    ((23, 4, 508), {"num_groups": 2, "batch": 4097}),
    ((25, 4, 16, 16), {"num_groups": 2, "batch": 4099}),
)
_BLOCKS = ((1, 4, 128, 513, 2), (257, 4, 8, 8, 1), (2, 512, 15, 17, 4), (1025, 64, 1, 1, 32), (1, 1, 362, 363, 1))
WIDE_GROUPS: tuple[_Row, ...] = tuple(  # groups of many elements, many groups, many channels, many samples
    ((samples + more, channels, height, width), {"num_groups": groups})
    for more in range(3)
    for samples, channels, height, width, groups in _BLOCKS
)
GPU_GROUP_CORNERS: tuple[_Row, ...] = (  # groups of many programs; three of each, so that every type has its turn
    ((1, 160, 56, 56), {"num_groups": 16, **_LAST}),  # a memory line holds parts of several groups
    ((1, 160, 57, 55), {"num_groups": 16, **_LAST}),
    ((2, 160, 56, 56), {"num_groups": 16, "offset": 1e3, **_LAST}),
    ((1, 16, 224, 224), {"num_groups": 2}),
    ((2, 6, 181, 199), {"num_groups": 2}),
    ((1, 16, 224, 224), {"num_groups": 2, "offset": 1e3}),
)
_PLANES = ((16385, 8), (2, 1, 256, 257), (2, 1025, 8, 8), (1, 2, 65537), (65537, 2))
WIDE_CHANNELS: tuple[_Row, ...] = tuple(  # many samples, many positions, many channels
    ((samples + more, *rest), {}) for more in range(3) for samples, *rest in _PLANES
)
CHANNEL_CORNERS: _Topics = {  # each in training, and again in evaluation with running statistics
    "offsets": (
        ((3, 4, 60), {"offset": 1e4}),
        ((3, 4, 60), {"offset": -1e3}),
        ((3, 4, 6, 6), {**_LAST, "offset": 1e3}),
        ((2, 1, 50, 50), {"offset": 100.0}),  # large channels, in every type
        ((2, 1, 49, 51), {"offset": 10.0}),
        ((3, 2, 2000), {"offset": -100.0}),
    ),
    "sizes": (
        ((4, 6, 5, 7), {}),
        ((2, 2, 70, 70), {}),  # a channel of more than one tile
        ((2, 4, 3), {}),
        ((2, 1), {}),  # the smallest: the unbiased variance is twice the biased one
        ((1, 3, 7), {}),  # one sample: InstanceNorm's statistics
        ((2, 3, 2, 2, 5), {}),  # rank 5
        ((2, 3, 0), {}),  # no spatial positions
    ),
    "layouts of x": (
        ((2, 10, 4, 4), {"x_layout": "channels_last"}),
        ((3, 4, 6), {"x_layout": "far", "dy_layout": "far"}),  # offsets beyond 32 bits
        ((2, 3, 40), {"x_layout": "transposed"}),
        ((2, 3, 40), {"x_layout": "row_strided", "dy_layout": "transposed"}),
        ((3, 4, 6), {"x_layout": "every_other", "dy_layout": "row_strided"}),
        ((3, 4, 6), {"x_layout": "expanded", "dy_layout": "offset"}),
        ((3, 4, 6), {"x_layout": "offset", "dy_layout": "expanded"}),
    ),
    "layouts of dy": (
        ((2, 10, 4, 4), {"dy_layout": "channels_last"}),
        ((2, 4, 6), {"dy_layout": "scalar"}),  # the gradient of .sum()
        ((4, 6, 5, 7), _LAST),
    ),
    "weights": (
        ((2, 4, 7, 7), {"weight_dtype": "float32"}),  # as under autocast
        ((3, 6, 9), {"weight": False, "bias": False}),
        ((3, 4, 9), {"weight_data": "zero"}),
        ((3, 6, 9), {"bias": False}),
        ((3, 4, 9), {"weight_data": "some_zero"}),
        ((3, 6, 9), {"weight": False}),
        ((3, 5, 4), {"weight_dtype": "float32", "weight": False, "bias": False}),  # running statistics in float32
        ((2, 5, 9), {"weight_layout": "every_other", "bias_layout": "offset"}),
    ),
    "running statistics": (
        ((5, 3), {"momentum": 1e-3}),
        ((3, 6, 9), {"running": False}),  # track_running_stats=False
        ((4, 3, 8), {"momentum": 1.0}),  # the running statistics become the batch's
        ((4, 3, 8), {"momentum": 0.0}),  # … or do not change
        ((4, 3, 8), {"momentum": 0.5, "offset": 100.0}),
        ((4, 3, 8), {"running": False, "weight": False, "bias": False}),
    ),
    "eps": (
        ((3, 4, 20), {"log2_scale": -8, "eps": 1e-3}),  # eps dominates the variance
        ((3, 4, 20), {"eps": 0.0}),
        ((3, 4, 20), {"log2_scale": -8, "eps": 1e-12}),
        ((3, 4, 20), {"eps": 1e-1}),
        ((3, 4, 20), {"eps": 1e3}),
    ),
    "samples": (  # enough in every type
        ((280, 2, 3), {}),
        ((0, 3, 4), {}),  # no samples: the running statistics do not change
        ((281, 3), {}),
        ((300, 2), {}),  # no spatial dimensions
        ((279, 4), {}),
        ((17, 2, 3), {}),
        ((0, 3), {}),
    ),
    "values": (
        ((3, 4, 10), {"special": "nan"}),
        ((3, 4, 30), {"data": "constant", "offset": 10.0}),  # the variance is 0
        ((3, 4, 10), {"special": "inf"}),
        ((3, 4, 11), {"data": "zero"}),  # rstd = 1/√eps
        ((3, 4, 11), {"data": "zero", "eps": 0.0}),  # 0/0
    ),
    "scales": (
        ((3, 4, 20), {"log2_scale": 11}),
        ((3, 4, 12), {"log2_scale": LARGEST, "data": "alternating"}),
        ((3, 4, 12), {"log2_scale": SUBNORMAL}),
        ((3, 4, 20), {"dy_log2_scale": 13}),
        ((3, 4, 20), {"dy_log2_scale": -20}),
        ((3, 4, 13), {"log2_scale": SUBNORMAL, "eps": 0.0}),
    ),
    "data": (
        ((3, 8, 50), {"data": "channel"}),
        ((3, 8, 50), {"data": "heavy"}),
        ((3, 4, 30), {"data": "alternating"}),
        ((3, 4, 15), {"data": "integers"}),
    ),
}


def corners(op: Op, dtypes: tuple[str, ...], *, frozen: bool = False, gpu: bool = False) -> list[CaseSpec]:
    """Return the corner cases of an operator; the dtypes take turns.

    `frozen` adds cases with inputs that need no gradient, for a backward by torch's autograd. `gpu` adds cases that are
    too large for a CPU, and puts layout "far" into 16-bit types, which take the least memory. MANY_ROWS, of a backward,
    and the batches of serving are last: where an interpreter runs a program for each row they take minutes, and a
    search leaves them out.
    """
    narrow = [dtype for dtype in dtypes if FORMATS[dtype].dtype.itemsize == 2] or dtypes
    specs: list[tuple[int, CaseSpec]] = []  # each with its turn among the types
    for number, (turn, (shape, options)) in enumerate((*_table(op), *enumerate(_large(op, gpu)))):
        among = narrow if gpu and "far" in options.values() else dtypes
        dtype = among[turn % len(among)]
        specs.append(
            (turn, _of(op, CaseSpec(shape=shape, dtype=dtype, seed=number, **_scaled(options, dtype)), number))
        )
    usual = next(spec for _, spec in specs if spec.weight and spec.bias and len(spec.shape) > 2)
    for number, inputs in enumerate(freezable(op) if frozen else (), len(specs)):
        specs.append((number, replace(usual, dtype=dtypes[number % len(dtypes)], frozen=inputs, seed=number)))
    met = [count() for _ in dtypes]
    return [turns.of_type(spec, next(met[turn % len(met)]), turn % len(met), op) for turn, spec in specs]


def wide(op: Op, dtypes: tuple[str, ...]) -> list[CaseSpec]:
    """Return corner cases that are larger than any of `corners` in rows, length or elements; the dtypes take turns.

    A torch kernel runs one in a tenth of a second, an interpreter in seconds; each meets as many as its time allows.
    """
    lines = {"rows": WIDE_ROWS, "groups": WIDE_GROUPS, "channels": WIDE_CHANNELS}[op.view]
    specs = []
    for number, (shape, options) in enumerate(lines):
        turn = number % len(dtypes)
        spec = _of(op, CaseSpec(shape=shape, dtype=dtypes[turn], seed=number, **options), number)
        specs.append(turns.also(turns.of_type(spec, number // len(dtypes), turn, op), AT_EVERY_SIZE))
    return specs


def _of(op: Op, spec: CaseSpec, number: int) -> CaseSpec:
    """Return the case with what the operator takes; its number decides what only some operators have."""
    names = {tensor.name for tensor in op.inputs}
    layout = "contiguous" if spec.batch else LAYOUTS[number % 5]
    if "bias" not in names:
        spec = replace(spec, bias=True, bias_layout="contiguous")
    if "residual" in names:
        spec = replace(spec, residual_layout=spec.x_layout, x_layout=layout)
    if "residual_out" in names:
        spec = replace(spec, residual_out_layout=spec.x_layout, x_layout="contiguous", dresidual_out=number % 5 > 0)
        spec = replace(spec, dresidual_out_layout=spec.dy_layout, dy_layout=layout)
    if "weight_offset" in op.attrs and number % 4 == 3:
        spec = replace(spec, weight_offset=1.0)  # Gemma's
    if op.quantized:
        spec = replace(spec, scale=OUTPUT_SCALES[number % len(OUTPUT_SCALES)])
    if "num_groups" not in op.attrs:
        spec = replace(spec, num_groups=None)  # InstanceNorm
    return spec


def freezable(op: Op) -> tuple[tuple[str, ...], ...]:
    """Return the sets of inputs of a backward that may need no gradient: neither none nor all of them."""
    names = differentiable(op)
    return tuple(some for size in range(1, len(names)) for some in combinations(names, size))


def _table(op: Op) -> list[tuple[int, _Row]]:
    """Return the lines of an operator in their order, each with its turn among the types."""
    if op.view != "channels":
        return list(_in_turn(ROW_CORNERS if op.view == "rows" else GROUP_CORNERS))
    training = list(_in_turn(CHANNEL_CORNERS))
    fixed = [(turn + 1, (shape, o | {"training": False})) for turn, (shape, o) in training if "running" not in o]
    one = (0, ((1, 3, 1), {"training": False}))  # one value a channel: training has no variance
    return [*training, *fixed, one]


def _in_turn(topics: _Topics) -> Iterator[tuple[int, _Row]]:
    """Yield the first line of every topic, then the second ones, …; neighbours in a topic are one turn apart."""
    for place, lines in enumerate(zip_longest(*topics.values())):
        yield from ((place + topic, line) for topic, line in enumerate(lines) if line is not None)


def _large(op: Op, gpu: bool) -> tuple[_Row, ...]:
    """Return the lines that may take long."""
    if op.view == "rows":
        many = MANY_ROWS if op.forward else ()
        return (*many, *SERVING_ROWS, *(GPU_ROW_CORNERS + GPU_SERVING_ROWS if gpu else ()))
    return (*SERVING_GROUPS, *(GPU_GROUP_CORNERS if gpu else ())) if op.view == "groups" else ()


def _scaled(options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the options with a named scale as a number: most values subnormal, or ±1 scaled to the largest number."""
    form, scale = FORMATS[dtype], options.get("log2_scale", 0)
    exponents = {SUBNORMAL: form.emin - 1, LARGEST: ceil(log2(form.largest))}
    return options | {"log2_scale": exponents.get(scale, scale)}
