"""The corner lines of GroupNorm and InstanceNorm: each exercises what its comment says."""

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
        ((1, 16, 64, 64), {"num_groups": 2}),  # channels and positions of a model
        ((1, 8, 80, 64), {"num_groups": 2, **LAST}),
    ),
    "layouts of x": (
        ((2, 4, 8, 8), {"num_groups": 4, "x_layout": "row_strided"}),
        ((2, 10, 4, 4), {"num_groups": 2, "x_layout": "channels_last"}),
        ((2, 6, 5, 4), {"num_groups": 3, "x_layout": "transposed"}),
        ((2, 4, 33), {"num_groups": 2, "x_layout": "every_other"}),
        ((3, 4, 6), {"num_groups": 2, "x_layout": "far", "dy_layout": "far"}),  # offsets beyond 32 bits
        (
            (2, 4, 32),
            {"num_groups": 1, "x_layout": "offset", "weight_layout": "every_other", "bias_layout": "offset"}
            | {"weight_data": "wide"},
        ),
        ((2, 6, 5, 4), {"num_groups": 3, "weight_data": "some_one", **SLICE}),
        ((2, 6, 9), {"num_groups": 3, "weight_data": "one", **SEQUENCE}),
        ((1, 6, 9, 1), {"num_groups": 3, **LOOSE}),  # the stride of the last dimension is none of an element
        ((2, 6, 5, 6), {"num_groups": 3, "x_layout": "swapped"}),  # channels first; as many columns as channels
        ((2, 6, 5, 8), {"num_groups": 3, **INNER}),  # a part of an image
        ((2, 6, 3, 2, 4), {"num_groups": 3, **HEADS_FIRST}),  # frames of a video, in front of their channels
        ((2, 6, 3, 2, 5), {"num_groups": 2, **HEADS_FIRST}),
        (
            (2, 6, 5, 4),
            {"num_groups": 3, "x_layout": "swapped_last", "dy_layout": "swapped", "weight_layout": "scalar"},
        ),
    ),
    "layouts of dy": (
        ((2, 6, 5, 4), {"num_groups": 3, "dy_layout": "transposed"}),
        ((2, 10, 4, 4), {"num_groups": 2, "dy_layout": "channels_last"}),
        ((2, 4, 6), {"num_groups": 2, "dy_layout": "scalar"}),
        ((3, 4, 6), {"num_groups": 2, "dy_layout": "expanded"}),
        ((3, 4, 8), {"num_groups": 2, "alias": "x:dy"}),  # two inputs are one tensor
        ((3, 4, 8), {"num_groups": 2, "x_layout": "expanded", "dy_layout": "offset"}),
        ((2, 4, 7), {"num_groups": 2, "dy_layout": "expanded_last"}),
        ((2, 4, 7), {"num_groups": 2, "dy_data": "zero", "eps": 2.0**-7}),
        # the gradient of a sum over positions, and of one over all but the last
        ((2, 4, 3, 5), {"num_groups": 2, "dy_layout": "expanded_inner", "x_layout": "expanded_middle"}),
        ((2, 4, 5, 3), {"num_groups": 2, "dy_layout": "expanded_middle", "x_layout": "expanded_inner"}),
    ),
    "weights": (
        ((2, 4, 7, 7), {"num_groups": 2, "weight_dtype": "float32"}),
        ((2, 6, 9), {"num_groups": 2, "weight": False, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "zero"}),  # y = b and dx = 0, but dweight is not
        ((2, 6, 9), {"num_groups": 2, "bias": False}),
        ((2, 6, 9), {"num_groups": 2, "weight_data": "some_zero"}),  # groups of zero and other weights
        ((2, 6, 9), {"num_groups": 2, "weight": False}),
        ((2, 8, 8), {"num_groups": 2, "alias": "weight:bias"}),  # as many positions as channels
        ((2, 6, 10), {"num_groups": 2, "weight_dtype": "bfloat16"}),  # of a float32 x
        # In each type: subnormal numbers of a narrow one are not all 0.
        ((2, 6, 11), {"num_groups": 2, "weight_data": "subnormal"}),
        ((2, 6, 12), {"num_groups": 2, "weight_data": "subnormal"}),
        ((2, 6, 2, 1, 2, 3), {"num_groups": 2, "weight_data": "subnormal", "dy_data": "one"}),  # rank 6
    ),
    "groups": (
        ((1, 6, 5), {"num_groups": 1}),  # one group
        ((3, 4), {"num_groups": 4}),  # no spatial dimensions, one channel a group: x̂ = 0
        ((2, 12, 5), {"num_groups": 12}),  # InstanceNorm
        ((1, 4, 2, 3, 5), {"num_groups": 2, "x_layout": "channels_last", "weight_data": "wide"}),  # rank 5
        ((2, 128, 4, 4), {"num_groups": 64, **LAST}),  # more groups than a warp has threads
        ((3, 6, 1, 1), {"num_groups": 2, "dy_data": "zero_columns"}),  # contiguous in both orders of dimensions
    ),
    "eps": (
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-3}),
        ((4, 16, 4), {"num_groups": 4, "eps": 0.0}),  # all sizes alike
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1e-12}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e-1, "dy_data": "ramp", "dy_layout": "offset", "weight_data": "wide"}),
        ((2, 4, 20), {"num_groups": 2, "eps": 1e3}),  # rstd no longer matters
        ((2, 4, 20), {"num_groups": 2, "log2_scale": -8, "eps": 1.5e-5, "weight_data": "initial"}),
    ),
    "samples": (  # in every type enough groups to detect the loss of a few, and batches
        ((140, 4, 5), {"num_groups": 2}),
        ((0, 4, 3), {"num_groups": 2}),
        ((141, 4, 3), {"num_groups": 2}),
        ((24, 4, 500), {"num_groups": 2, "batch": 150}),
        ((139, 4, 8), {"num_groups": 2, "x_layout": "offset"}),
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
        ((7, 4, 12), {"num_groups": 2, "special": "nan+inf", "special_at": "rows"}),
        ((3, 4, 14), {"num_groups": 2, "special": "nan+inf", "special_in": "dy"}),
        ((2, 4, 10), {"num_groups": 2, "data": "zero"}),  # rstd = 1/√eps
        ((2, 4, 10), {"num_groups": 2, "data": "zero", "eps": 0.0}),  # 0/0
        ((2, 4, 11), {"num_groups": 2, "data": "zero", "eps": 1e-12}),
        ((3, 4, 9), {"num_groups": 2, "special": "nan", "special_at": "row"}),
    ),
    "scales": (
        ((2, 4, 20), {"num_groups": 2, "log2_scale": 11, "x_layout": "offset"}),
        ((2, 4, 12), {"num_groups": 2, "log2_scale": LARGEST, "data": "alternating"}),  # squares that overflow
        ((2, 4, 12), {"num_groups": 2, "log2_scale": SUBNORMAL}),
        ((2, 4, 20), {"num_groups": 2, "dy_log2_scale": STRONG}),
        ((2, 4, 20), {"num_groups": 2, "dy_log2_scale": FAINT}),
        ((2, 4, 12), {"num_groups": 2, "log2_scale": SUBNORMAL, "eps": 0.0}),  # the variance underflows
        ((2, 4, 12), {"num_groups": 2, "log2_scale": LARGEST, "data": "constant", "offset": 8.0}),  # sums that overflow
        ((2, 4, 13), {"num_groups": 2, "log2_scale": SUBNORMAL, "eps": 1e-12}),
        ((2, 4, 13), {"num_groups": 2, "log2_scale": LARGEST, "data": "alternating"}),
        ((2, 4, 21), {"num_groups": 2, "dy_log2_scale": FAINT}),
        ((2, 4, 21), {"num_groups": 2, "dy_log2_scale": STRONG}),
    ),
    "data": (
        ((1, 2, 70, 71), {"num_groups": 1, "data": "heavy"}),  # a large x̂: the exponential of an activation overflows
        ((2, 8, 50), {"num_groups": 2, "data": "channel"}),
        ((2, 8, 50), {"num_groups": 2, "data": "heavy", "dy_data": "heavy"}),
        ((3, 8, 20), {"num_groups": 4, "data": "padded"}),  # zero groups among others
        ((2, 4, 30), {"num_groups": 2, "data": "alternating"}),
        ((2, 4, 15), {"num_groups": 2, "data": "integers"}),
        (
            (3, 6, 40),
            {"num_groups": 3, "data": "uneven", "eps": 3e-8, "dy_layout": "offset"},
        ),  # what the first group decides for others
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
# Beyond 128 channels a group, 1024 channels, 32 groups: tiles, blocks and masks of warps end there. Beyond 1024
# channels in one group and 1024 groups: so does a loop over either. Beyond 65,535 samples: a grid's second dimension.
# 1920 and 2560 channels are those of an image model's decoder.
_BLOCKS = (
    *((1, 4, 128, 513, 2), (257, 4, 8, 8, 1), (2, 2048, 5, 9, 4), (1025, 96, 1, 1, 48), (1, 1, 362, 363, 1)),
    *((1, 64, 64, 64, 8), (2, 1536, 2, 3, 1), (1, 1280, 3, 2, 1280), (65537, 2, 1, 1, 1), (1, 2560, 4, 4, 32)),
)
_LAST = ((8, 91, 91, 4), (1920, 4, 4, 32), (4, 129, 130, 2))
WIDE_GROUPS: tuple[Row, ...] = (  # groups of many elements, many groups, many channels, many samples
    *(
        ((1 + more, channels, height, width), {"num_groups": groups, **LAST})
        for more in range(3)
        for channels, height, width, groups in _LAST
    ),
    *(
        ((samples + more, channels, height, width), {"num_groups": groups})
        for more in range(3)
        for samples, channels, height, width, groups in _BLOCKS
    ),
    ((1, 2, 1030, 1030), {"num_groups": 2}),  # more than 2^20 values of a group
)
GPU_GROUP_CORNERS: tuple[Row, ...] = (  # groups of many programs; three of each, so that every type has its turn
    ((1, 160, 56, 56), {"num_groups": 16, **LAST}),  # a memory line holds parts of several groups
    ((1, 160, 57, 55), {"num_groups": 16, **LAST}),
    ((2, 160, 56, 56), {"num_groups": 16, "offset": 1e3, **LAST}),
    ((1, 16, 224, 224), {"num_groups": 2}),
    ((2, 6, 181, 199), {"num_groups": 2}),
    ((1, 16, 224, 224), {"num_groups": 2, "offset": 1e3}),
)
