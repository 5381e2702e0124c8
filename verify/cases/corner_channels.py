"""The corner lines of BatchNorm: each exercises what its comment says."""

from verify_norm.cases.corner_lines import (
    FAINT,
    HEADS_FIRST,
    INNER,
    LARGEST,
    LAST,
    LOOSE,
    OWN,
    SEQUENCE,
    SLICE,
    STRONG,
    SUBNORMAL,
    Row,
    Topics,
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
        ((4, 1, 128, 130), {}),  # a channel that one program does not hold
        ((2, 4, 3), OWN),  # nothing tells that it is a test
        ((2, 1), {}),  # the smallest: the unbiased variance is twice the biased one
        ((1, 3, 7), {}),  # one sample: InstanceNorm's statistics
        ((2, 3, 2, 2, 5), {"weight_data": "wide"}),  # rank 5
        ((2, 3, 0), {}),  # no spatial positions
        ((1, 4, 80, 64), LAST),  # positions of a model
    ),
    "layouts of x": (
        ((2, 10, 4, 4), {"x_layout": "channels_last"}),
        ((3, 4, 6), {"x_layout": "far", "dy_layout": "far"}),  # offsets beyond 32 bits
        ((2, 3, 40), {"x_layout": "transposed"}),
        ((2, 3, 40), {"x_layout": "row_strided", "dy_layout": "transposed"}),
        ((3, 4, 6), {"x_layout": "every_other", "dy_layout": "row_strided"}),
        ((3, 4, 8), {"x_layout": "expanded", "dy_layout": "offset"}),
        ((3, 4, 8), {"x_layout": "offset", "dy_layout": "expanded"}),
        ((2, 6, 5, 4), {"weight_data": "some_one", **SLICE}),
        ((2, 6, 9), {"weight_data": "one", **SEQUENCE}),
        ((1, 6, 9, 1), LOOSE),  # the stride of the last dimension is none of an element
        ((3, 6, 5, 8), INNER),  # a part of an image
        ((2, 6, 3, 2, 4), HEADS_FIRST),  # frames of a video, in front of their channels
        ((3, 6, 5, 6), {"x_layout": "swapped", "dy_layout": "swapped_last"}),  # as many columns as channels
        ((3, 6, 5, 4), {"x_layout": "swapped_last", "dy_layout": "swapped", "weight_layout": "scalar"}),
    ),
    "layouts of dy": (
        ((2, 10, 4, 4), {"dy_layout": "channels_last"}),
        ((2, 4, 6), {"dy_layout": "scalar"}),  # the gradient of .sum()
        ((4, 6, 5, 7), LAST),
        ((3, 4, 8), {"alias": "x:dy"}),  # two inputs are one tensor
        ((2, 4, 7), {"dy_layout": "expanded_last"}),
        ((2, 4, 7), {"dy_data": "zero", "eps": 2.0**-7}),
        # the gradient of a sum over positions, and of one over all but the last
        ((2, 4, 3, 5), {"dy_layout": "expanded_inner", "x_layout": "expanded_middle"}),
        ((2, 4, 5, 3), {"dy_layout": "expanded_middle", "x_layout": "expanded_inner"}),
    ),
    "weights": (
        ((2, 4, 7, 7), {"weight_dtype": "float32"}),  # as under autocast
        ((3, 6, 9), {"weight": False, "bias": False}),
        ((3, 4, 9), {"weight_data": "zero"}),
        ((3, 6, 9), {"bias": False}),
        ((3, 4, 9), {"weight_data": "some_zero"}),
        ((3, 6, 9), {"weight": False}),
        ((3, 6, 8), {"alias": "weight:bias"}),
        ((3, 5, 4), {"weight_dtype": "float32", "weight": False, "bias": False}),  # running statistics in float32
        ((2, 5, 9), {"weight_layout": "every_other", "bias_layout": "offset", "weight_data": "wide"}),
        ((3, 6, 10), {"weight_dtype": "bfloat16"}),  # of a float32 x
    ),
    "running statistics": (
        ((5, 3), {"momentum": 1e-3, "running_mean_layout": "every_other", "running_var_layout": "offset"}),
        ((3, 6, 9), {"running": False}),  # track_running_stats=False
        ((4, 3, 8), {"momentum": 1.0, "x_layout": "offset"}),  # the running statistics become the batch's
        ((4, 3, 8), {"momentum": 0.0}),  # … or do not change
        ((4, 3, 8), {"momentum": 0.9, "offset": 100.0, "running_var_layout": "every_other"}),
        ((4, 3, 8), {"running": False, "weight": False, "bias": False}),
    ),
    "eps": (
        ((3, 4, 20), {"log2_scale": -8, "eps": 1e-3}),  # eps dominates the variance
        ((4, 4, 4), {"eps": 0.0}),  # all sizes alike
        ((3, 4, 20), {"log2_scale": -8, "eps": 1e-12}),
        ((3, 4, 20), {"eps": 1e-1, "dy_data": "ramp", "dy_layout": "offset"}),
        ((3, 4, 20), {"eps": 1e3}),
        ((3, 4, 20), {"weight_data": "subnormal", "dy_data": "one"}),
        ((3, 4, 20), {"log2_scale": -8, "eps": 1.5e-5, "weight_data": "initial"}),
    ),
    "samples": (  # enough in every type
        ((280, 2, 3), {}),
        ((0, 3, 4), {}),  # no samples: the running statistics do not change
        ((281, 3), {}),
        ((300, 2, 1, 1), {"dy_data": "zero_columns"}),  # contiguous in both orders of dimensions
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
        ((7, 3, 12), {"special": "nan+inf", "special_at": "rows"}),
        ((5, 3, 7), {"special": "nan+inf", "special_in": "dy"}),
        ((3, 4, 13), {"special": "nan", "special_in": "running_mean"}),
        ((3, 4, 14), {"special": "inf", "special_in": "running_var", "special_at": "last"}),
        ((3, 4, 11), {"data": "zero"}),  # rstd = 1/√eps
        ((3, 4, 11), {"data": "zero", "eps": 0.0}),  # 0/0
        ((4, 3, 9), {"special": "nan", "special_at": "row"}),
    ),
    "scales": (
        ((3, 4, 20), {"log2_scale": 11}),
        ((3, 4, 12), {"log2_scale": LARGEST, "data": "alternating"}),
        ((3, 4, 12), {"log2_scale": SUBNORMAL}),
        ((3, 4, 20), {"dy_log2_scale": STRONG}),
        ((3, 4, 20), {"dy_log2_scale": FAINT}),
        ((3, 4, 13), {"log2_scale": SUBNORMAL, "eps": 0.0}),
        ((3, 4, 21), {"dy_log2_scale": FAINT}),
        ((3, 4, 21), {"dy_log2_scale": STRONG}),
    ),
    "data": (
        ((3, 8, 50), {"data": "channel"}),
        ((3, 8, 50), {"data": "heavy", "dy_data": "heavy"}),
        ((3, 6, 20), {"data": "padded"}),  # zero channels among others
        ((3, 4, 30), {"data": "alternating"}),
        ((3, 4, 15), {"data": "integers"}),
        ((3, 6, 40), {"data": "uneven", "eps": 3e-8}),  # what the first channel decides for others
        ((3, 6, 41), {"dy_data": "uneven", "data": "steps", "x_layout": "expanded_last"}),
    ),
}
_PLANES = (
    *((16385, 8), (2, 1, 256, 257), (2, 1025, 8, 8), (2, 2048, 4, 4), (1, 2, 65537), (65537, 2), (4, 4096)),
    *((4, 8192), (3, 8200)),  # channels of a layer without positions
    (2, 672, 7, 7),  # channels of a model that are no power of two
)
WIDE_CHANNELS: tuple[Row, ...] = (  # many samples, many positions, many channels
    *(((1 + more, 4, 91, 91), LAST) for more in range(3)),
    *(((samples + more, *rest), {}) for more in range(3) for samples, *rest in _PLANES),
    ((2, 64, 182, 181), {}),  # several blocks for each of many channels
    ((17, 1, 256, 257), {}),  # more than 2^20 values of one channel
)
