"""The lines of the corner table, by view and topic: each exercises what its comment says."""

from typing import Any

Row = tuple[tuple[int, ...], dict[str, Any]]
Topics = dict[str, tuple[Row, ...]]
SUBNORMAL, LARGEST = "subnormal", "largest"  # a log2_scale that differs between types
# Scales of a quantized y: none; most values normal in every format; some saturate; nearly all saturate; subnormals;
# nearly all zero; no power of two.
OUTPUT_SCALES = (1.0, 100.0, 300.0, 1e6, 2.0**-6, 2.0**-14, 40.7)
LAST = {"x_layout": "channels_last", "dy_layout": "channels_last"}
SEQUENCE = {"x_layout": "sequence_slice", "dy_layout": "sequence_slice"}
SLICE = {"x_layout": "channel_slice", "dy_layout": "channel_slice"}
OWN = dict.fromkeys(("x_layout", "dy_layout", "weight_layout", "bias_layout"), "own")
# A run takes the first line of every topic, then the second ones, and so on: its first cases meet all topics. In a
# topic the usual mistakes come first, then the extremes (none, one, far). Neighbours have different types: of three
# lines side by side, or two apart, each type meets one.
ROW_CORNERS: Topics = {
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
        ((2, 1024), OWN),  # nothing tells that it is a test
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
        ((5, 33), {"dy_layout": "expanded_last"}),  # the gradient of .sum(-1)
        ((4, 21), {"dy_data": "zero", "eps": 2.0**-7}),
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
        ((4, 36), {"weight_dtype": "bfloat16"}),  # of a float32 x
    ),
    "ranks": (
        ((4, 6, 10), {"normalized_ndim": 2}),
        ((2, 3, 20), {}),
        ((2, 3, 2, 10), {"x_layout": "transposed", "dy_layout": "every_other"}),  # not collapsible
        ((30,), {}),  # one row
        ((3, 2, 3, 7), {"normalized_ndim": 3, "x_layout": "transposed"}),
        ((2, 1, 2, 2, 9), {}),
        ((2, 3, 2, 12), LAST),
        ((2, 5, 6, 8), {"normalized_ndim": 2, "weight_layout": "transposed", "bias_layout": "transposed"}),
        ((2, 5, 28), {**SEQUENCE, "weight_data": "one"}),
        ((2, 3, 4, 10), {**SLICE, "weight_data": "some_one"}),
    ),
    "eps": (
        ((8, 40), {"log2_scale": -8, "eps": 1e-3}),  # eps dominates the variance
        ((4, 91), {"eps": 0.0}),
        ((8, 41), {"log2_scale": -8, "eps": 1e-12}),
        ((4, 90), {"eps": 1e-1}),
        ((4, 50), {"eps": 1e3}),  # y is a thirtieth of x, and rstd no longer matters
        ((4, 50), {"eps": 1e3, "log2_scale": -8}),
        ((8, 42), {"log2_scale": -8, "eps": 1.5e-5, "weight_data": "initial"}),  # eps is no power of ten
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
        ((129, 5), {"dy_data": "zero_rows"}),  # masked tokens
        ((66, 30), {"dy_data": "zero_columns", "eps": 3e-8}),
    ),
    "values": (
        ((4, 30), {"special": "nan"}),
        ((3, 130), {"data": "constant"}),  # the variance is 0
        ((4, 30), {"special": "inf"}),
        ((5, 31), {"special": "nan", "special_in": "dy", "special_at": "last"}),
        ((4, 33), {"special": "nan", "special_in": "weight", "special_at": "middle"}),
        ((5, 34), {"special": "-inf", "special_in": "bias", "special_at": "last"}),
        ((5, 35), {"special": "-inf", "special_in": "dy", "special_at": "rows"}),
        ((3, 40), {"data": "zero"}),  # rows of zeros: rstd = 1/√eps
        ((3, 131), {"data": "constant", "offset": 10.0, "x_layout": "expanded_last"}),
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
        ((7, 130), {"data": "uneven", "eps": 3e-8}),  # what the first row decides for others
        ((7, 131), {"data": "sorted", "dy_data": "uneven"}),
        ((3, 201), {"data": "ramp", "dy_data": "ramp"}),
    ),
}
SERVING_ROWS: tuple[Row, ...] = (  # from small to large, as far as the kernel's time allows
    ((64, 1000), {"batch": 1025}),
    ((32, 4096), {"batch": 300}),
    ((64, 1000), {"batch": 4096}),  # thresholds of 4096 rows and of two million elements, in every type
    ((63, 1016), {"batch": 4097}),
    ((65, 512), {"batch": 4099}),
    ((16, 8192), {"batch": 300}),
    ((32, 4096), {"batch": 4096}),
    ((16, 8192), {"batch": 4096}),
)
GPU_SERVING_ROWS: tuple[Row, ...] = tuple(
    ((64, length), {"batch": batch}) for length in (512, 4096, 8192) for batch in (255, 256, 257, 300, 4096)
)
MANY_ROWS: tuple[Row, ...] = tuple(  # long sums of dweight and dbias, in every type
    ((rows + turn, length), {})
    for rows, lengths in ((1025, (3, 2, 4)), (4097, (2, 1, 4)), (16384, (1, 3, 2)))
    for turn, length in enumerate(lengths)
)
AT_EVERY_SIZE = ("memory", "determinism", "batch_invariance")  # further runs whose bugs have thresholds of size
_SIDES = ((16384, 3), (1, 131072), (65537, 2), (8193, 17), (2, 65536), (4100, 30), (1030, 60))
WIDE_ROWS: tuple[Row, ...] = tuple(  # thresholds of rows, of lengths and of elements, in every type
    ((rows + more, length + more), {}) for more in range(3) for rows, length in _SIDES
)
GPU_ROW_CORNERS: tuple[Row, ...] = (  # these take minutes in the interpreter
    ((16384, 256), {}),  # enough programs for contention on a lock or a buffer
    ((16385, 256), {"offset": 10.0}),
    ((4096, 1024), {"x_layout": "row_strided", "dy_layout": "offset"}),
    ((2**20, 1), {}),
    ((2**20 + 1, 2), {}),
    ((2**20 + 3, 3), {}),
)
GROUP_CORNERS: Topics = {
    "offsets": (  # a one-pass variance cancels; kernels take another path in channels_last
        ((2, 4, 60), {"num_groups": 2, "offset": 1e4}),
        ((2, 4, 60), {"num_groups": 2, "offset": -1e3}),
        ((2, 4, 6, 6), {"num_groups": 2, "offset": 1e3, "x_layout": "channels_last"}),
        ((2, 4, 6, 6), {"num_groups": 2, "offset": -1e4, **LAST}),
        ((2, 4, 6, 7), {"num_groups": 2, "offset": 1e4, **LAST}),
        ((1, 4, 50, 50), {"num_groups": 2, "offset": 100.0}),  # large groups, in every type
        ((1, 4, 51, 49), {"num_groups": 2, "offset": 10.0}),
        ((1, 2, 80, 60), {"num_groups": 1, "offset": -100.0}),
    ),
    "sizes": (
        ((2, 6, 3, 3), {"num_groups": 2}),  # C/G = 3: no power of two
        ((1, 4, 33, 33), {"num_groups": 2}),
        ((2, 4, 3), {"num_groups": 2, **OWN}),  # nothing tells that it is a test
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
        ((2, 6, 5, 4), {"num_groups": 3, "weight_data": "some_one", **SLICE}),
        ((2, 6, 9), {"num_groups": 3, "weight_data": "one", **SEQUENCE}),
    ),
    "layouts of dy": (
        ((2, 6, 5, 4), {"num_groups": 3, "dy_layout": "transposed"}),
        ((2, 10, 4, 4), {"num_groups": 2, "dy_layout": "channels_last"}),
        ((2, 4, 6), {"num_groups": 2, "dy_layout": "scalar"}),
        ((3, 4, 6), {"num_groups": 2, "dy_layout": "expanded"}),
        ((3, 4, 6), {"num_groups": 2, "x_layout": "expanded", "dy_layout": "offset"}),
        ((2, 4, 7), {"num_groups": 2, "dy_layout": "expanded_last"}),
        ((2, 4, 7), {"num_groups": 2, "dy_data": "zero", "eps": 2.0**-7}),
    ),
    "weights": (
        ((2, 4, 7, 7), {"num_groups": 2, "weight_dtype": "float32"}),
        ((2, 6, 9), {"num_groups": 2, "weight": False, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "zero"}),  # y = b and dx = 0, but dweight is not
        ((2, 6, 9), {"num_groups": 2, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "some_zero"}),  # groups of zero and other weights
        ((2, 6, 9), {"num_groups": 2, "weight": False}),
        ((2, 6, 10), {"num_groups": 2, "weight_dtype": "bfloat16"}),  # of a float32 x
    ),
    "groups": (
        ((1, 6, 5), {"num_groups": 1}),  # one group
        ((3, 4), {"num_groups": 4}),  # no spatial dimensions, one channel a group: x̂ = 0
        ((2, 6, 5), {"num_groups": 6}),  # InstanceNorm
        ((1, 4, 2, 3, 5), {"num_groups": 2, "x_layout": "channels_last"}),  # rank 5
        ((3, 6), {"num_groups": 2, "dy_data": "zero_columns"}),
    ),
    "eps": (
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-3}),
        ((2, 4, 20), {"num_groups": 2, "eps": 0.0}),
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-12}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e-1, "dy_data": "ramp"}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e3}),  # rstd no longer matters
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1.5e-5, "weight_data": "initial"}),
    ),
    "samples": (  # in every type enough groups to detect the loss of a few, and batches
        ((140, 4, 5), {"num_groups": 2}),
        ((0, 4, 3), {"num_groups": 2}),
        ((141, 4, 3), {"num_groups": 2}),
        ((24, 4, 500), {"num_groups": 2, "batch": 150}),
        ((139, 4, 4), {"num_groups": 2}),
        ((23, 4, 508), {"num_groups": 2, "batch": 129}),
        ((17, 2, 3), {"num_groups": 1, "dy_data": "zero_rows"}),
        ((25, 4, 16, 28), {"num_groups": 2, "batch": 128}),
    ),
    "values": (
        ((2, 4, 10), {"num_groups": 2, "special": "nan"}),
        ((2, 4, 30), {"num_groups": 2, "data": "constant", "offset": 10.0}),
        ((2, 4, 10), {"num_groups": 2, "special": "inf"}),
        ((3, 4, 11), {"num_groups": 2, "special": "nan", "special_in": "dy", "special_at": "last"}),
        ((2, 4, 12), {"num_groups": 2, "special": "nan", "special_in": "weight", "special_at": "middle"}),
        ((3, 4, 12), {"num_groups": 2, "special": "-inf", "special_in": "bias", "special_at": "last"}),
        ((3, 4, 13), {"num_groups": 2, "special": "-inf", "special_in": "dy", "special_at": "rows"}),
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
        ((3, 6, 40), {"num_groups": 3, "data": "uneven", "eps": 3e-8}),  # what the first group decides for others
        ((3, 6, 41), {"num_groups": 3, "dy_data": "uneven", "data": "steps", "x_layout": "expanded_last"}),
    ),
}
SERVING_GROUPS: tuple[Row, ...] = (  # from small to large
    ((24, 4, 500), {"num_groups": 2, "batch": 300}),
    ((25, 4, 16, 28), {"num_groups": 2, "batch": 1025, **LAST}),
    ((24, 4, 500), {"num_groups": 2, "batch": 4096}),  # in every type
    ((23, 4, 508), {"num_groups": 2, "batch": 4097}),
    ((25, 4, 16, 16), {"num_groups": 2, "batch": 4099}),
)
_BLOCKS = ((1, 4, 128, 513, 2), (257, 4, 8, 8, 1), (2, 512, 15, 17, 4), (1025, 64, 1, 1, 32), (1, 1, 362, 363, 1))
WIDE_GROUPS: tuple[Row, ...] = tuple(  # groups of many elements, many groups, many channels, many samples
    ((samples + more, channels, height, width), {"num_groups": groups})
    for more in range(3)
    for samples, channels, height, width, groups in _BLOCKS
)
GPU_GROUP_CORNERS: tuple[Row, ...] = (  # groups of many programs; three of each, so that every type has its turn
    ((1, 160, 56, 56), {"num_groups": 16, **LAST}),  # a memory line holds parts of several groups
    ((1, 160, 57, 55), {"num_groups": 16, **LAST}),
    ((2, 160, 56, 56), {"num_groups": 16, "offset": 1e3, **LAST}),
    ((1, 16, 224, 224), {"num_groups": 2}),
    ((2, 6, 181, 199), {"num_groups": 2}),
    ((1, 16, 224, 224), {"num_groups": 2, "offset": 1e3}),
)
_PLANES = ((16385, 8), (2, 1, 256, 257), (2, 1025, 8, 8), (1, 2, 65537), (65537, 2))
WIDE_CHANNELS: tuple[Row, ...] = tuple(  # many samples, many positions, many channels
    ((samples + more, *rest), {}) for more in range(3) for samples, *rest in _PLANES
)
CHANNEL_CORNERS: Topics = {  # each in training, and again in evaluation with running statistics
    "offsets": (
        ((3, 4, 60), {"offset": 1e4}),
        ((3, 4, 60), {"offset": -1e3}),
        ((3, 4, 6, 6), {**LAST, "offset": 1e3}),
        ((2, 1, 50, 50), {"offset": 100.0}),  # large channels, in every type
        ((2, 1, 49, 51), {"offset": 10.0}),
        ((3, 2, 2000), {"offset": -100.0}),
    ),
    "sizes": (
        ((4, 6, 5, 7), {}),
        ((2, 2, 70, 70), {}),  # a channel of more than one tile
        ((2, 4, 3), OWN),  # nothing tells that it is a test
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
        ((2, 6, 5, 4), {"weight_data": "some_one", **SLICE}),
        ((2, 6, 9), {"weight_data": "one", **SEQUENCE}),
    ),
    "layouts of dy": (
        ((2, 10, 4, 4), {"dy_layout": "channels_last"}),
        ((2, 4, 6), {"dy_layout": "scalar"}),  # the gradient of .sum()
        ((4, 6, 5, 7), LAST),
        ((2, 4, 7), {"dy_layout": "expanded_last"}),
        ((2, 4, 7), {"dy_data": "zero", "eps": 2.0**-7}),
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
        ((3, 6, 10), {"weight_dtype": "bfloat16"}),  # of a float32 x
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
        ((3, 4, 20), {"eps": 1e-1, "dy_data": "ramp"}),
        ((3, 4, 20), {"eps": 1e3}),
        ((3, 4, 20), {"log2_scale": -8, "eps": 1.5e-5, "weight_data": "initial"}),
    ),
    "samples": (  # enough in every type
        ((280, 2, 3), {}),
        ((0, 3, 4), {}),  # no samples: the running statistics do not change
        ((281, 3), {}),
        ((300, 2), {"dy_data": "zero_columns"}),  # no spatial dimensions
        ((279, 4), {}),
        ((17, 2, 3), {"dy_data": "zero_rows"}),
        ((0, 3), {}),
    ),
    "values": (
        ((3, 4, 10), {"special": "nan"}),
        ((3, 4, 30), {"data": "constant", "offset": 10.0}),  # the variance is 0
        ((3, 4, 10), {"special": "inf"}),
        ((3, 4, 11), {"special": "nan", "special_in": "dy", "special_at": "last"}),
        ((3, 4, 12), {"special": "nan", "special_in": "weight", "special_at": "middle"}),
        ((3, 4, 12), {"special": "-inf", "special_in": "bias", "special_at": "last"}),
        ((3, 4, 13), {"special": "-inf", "special_in": "dy", "special_at": "rows"}),
        ((3, 4, 13), {"special": "nan", "special_in": "running_mean"}),
        ((3, 4, 14), {"special": "inf", "special_in": "running_var", "special_at": "last"}),
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
        ((3, 6, 40), {"data": "uneven", "eps": 3e-8}),  # what the first channel decides for others
        ((3, 6, 41), {"dy_data": "uneven", "data": "steps", "x_layout": "expanded_last"}),
    ),
}
