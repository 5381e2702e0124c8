"""The corner lines of LayerNorm and RMSNorm: each exercises what its comment says."""

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

ROW_CORNERS: Topics = {
    "offsets": (  # a one-pass variance cancels; then long rows, in every type
        ((4, 300), {"offset": 1e4}),
        ((4, 512), {"offset": -1e3, "weight_layout": "offset"}),
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
        ((2, 5376), {}),  # an odd number of blocks of 256 elements
        ((40, 112), {}),  # a head size that is no power of two, in every type
        ((41, 112), {}),
        ((42, 112), {}),
        ((4, 4224), {}),  # an odd number of blocks of 128 elements
    ),
    "layouts of x": (
        ((5, 64), {"x_layout": "row_strided"}),
        ((4, 12), {"x_layout": "far"}),  # a stride within 32 bits whose multiples are beyond
        ((6, 40), {"x_layout": "transposed"}),
        ((2, 16), {"x_layout": "far"}),  # … and a stride beyond 32 bits
        ((4, 256), {"x_layout": "offset"}),
        ((5, 128), {"x_layout": "every_other", "dy_layout": "offset", "bias_layout": "offset"}),
        ((5, 48), {"x_layout": "expanded"}),
        ((1, 88), LOOSE),  # one row, of stride 0
        ((6, 72), {"x_layout": "row_strided", "dy_layout": "row_strided"}),  # gaps of whole vectors
        ((2, 5, 3, 16), INNER),  # heads of a fused projection
        *(((2, 3, 5 + turn, 16), HEADS_FIRST) for turn in range(3)),  # heads of an attention, in every type
    ),
    "layouts of dy": (
        ((5, 65), {"dy_layout": "transposed"}),
        ((4, 96), {"dy_layout": "scalar"}),  # the gradient of .sum()
        ((2, 77), {"dy_layout": "row_strided", "x_layout": "row_strided"}),
        ((9, 50), {"dy_layout": "expanded"}),
        ((6, 64), {"alias": "x:dy"}),  # two inputs are one tensor
        ((2, 17), {"dy_layout": "far"}),
        ((2, 256), {"x_layout": "offset", "dy_layout": "offset"}),
        ((4, 13), {"dy_layout": "far"}),
        ((5, 33), {"dy_layout": "expanded_last"}),  # the gradient of .sum(-1)
        ((4, 21), {"dy_data": "zero", "eps": 2.0**-7}),
        ((5, 70), {"dy_data": "one"}),  # the gradient of .sum(), in memory of its own
        ((2, 3, 29), {"dy_layout": "expanded_middle", "x_layout": "expanded_middle"}),  # the gradient of .sum(1)
        ((3, 4, 2, 5), {"dy_layout": "expanded_inner", "x_layout": "expanded_inner", "normalized_ndim": 3}),
    ),
    "weights": (
        ((7, 33), {"weight_dtype": "float32"}),  # fp32 weights with half inputs
        ((3, 62), {"weight": False, "bias": False}),
        ((4, 33), {"weight_data": "zero"}),  # y = b and dx = 0, but dweight is not
        ((17, 61), {"bias": False}),
        ((4, 34), {"weight_data": "some_zero"}),  # a division of y by the weight fails
        ((17, 60), {"weight": False}),
        ((5, 128), {"alias": "weight:bias"}),
        ((4, 20), {"weight_data": "zero", "weight_dtype": "float32", "bias": False}),
        ((3, 104), {"weight_layout": "every_other", "bias_layout": "offset", "weight_data": "wide"}),
        ((4, 36), {"weight_dtype": "bfloat16"}),  # of a float32 x
        ((4, 37), {"weight_data": "subnormal"}),  # in each type: the subnormal weights of a narrow one are not all 0
        ((5, 37), {"weight_data": "subnormal"}),
        ((6, 37), {"weight_data": "subnormal"}),
    ),
    "ranks": (
        ((4, 6, 10), {"normalized_ndim": 2}),
        ((2, 3, 20), {"x_layout": "swapped"}),  # sequence first
        ((2, 3, 2, 10), {"x_layout": "transposed", "dy_layout": "every_other"}),  # not collapsible
        ((30,), {"weight_data": "wide"}),  # one row
        (
            (3, 2, 3, 7),
            {
                "normalized_ndim": 3,
                "x_layout": "transposed",
                "weight_layout": "transposed",
                "bias_layout": "transposed",
            },
        ),
        ((2, 2, 2, 1, 9), {"weight_data": "wide", "normalized_ndim": 4}),
        ((2, 3, 2, 12), LAST),
        (
            (6, 6, 6, 6),
            {"normalized_ndim": 2, "weight_layout": "transposed", "bias_layout": "transposed"},
        ),  # all sizes alike
        ((2, 5, 28), {**SEQUENCE, "weight_data": "one"}),
        # as many rows as columns, samples as tokens, and tokens as heads: sizes do not tell which dimension is which
        *(((size, size), {}) for size in (24, 17)),
        *(((size, size, 20), {}) for size in (4, 5)),
        *(((2, size, size, 16), {}) for size in (6, 7)),
        ((2, 3, 41, 16), {**SLICE, "weight_data": "some_one"}),  # 41 · (1/41) is below 1 in float32
        ((3, 4, 2, 11), {"x_layout": "swapped_last", "dy_layout": "swapped", "weight_layout": "scalar"}),
        ((2, 3, 2, 1, 2, 3, 12), {"x_layout": "sequence_slice", "dy_layout": "inner_slice"}),  # windows of a video
        ((2, 112, 16), {}),  # more heads than a tile of 64 holds, of several tokens
        ((2, 96, 24), {}),
        ((3, 80, 16), {}),
        ((4, 1, 64), {}),  # one token of each sequence
        ((5, 1, 48), LOOSE),  # … where the stride from token to token is not that from row to row
        ((6, 1, 40), {}),
    ),
    "eps": (
        ((8, 40), {"log2_scale": -8, "eps": 1e-3, "weight_layout": "offset"}),  # eps dominates the variance
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
        ((259, 24), {"x_layout": "offset"}),
        ((63, 1016), {"batch": 257}),
        ((70, 16), {"x_layout": "offset"}),  # more rows than programs, and no multiple
        ((65, 900), {"batch": 256}),
        ((129, 72), {"dy_data": "zero_rows"}),  # masked tokens
        ((66, 30), {"dy_data": "zero_columns", "eps": 3e-8}),
        ((6, 384), {"dy_data": "zero_columns"}),  # the gradient of a part of y
        ((128, 256), {}),  # whole tiles
        ((256, 128), {}),
        ((64, 512), {}),
    ),
    "values": (
        ((4, 30), {"special": "nan"}),
        ((3, 130), {"data": "constant"}),  # the variance is 0
        ((4, 30), {"special": "inf"}),
        ((5, 31), {"special": "nan", "special_in": "dy", "special_at": "last"}),
        ((4, 33), {"special": "nan", "special_in": "weight", "special_at": "middle"}),
        ((5, 34), {"special": "-inf", "special_in": "bias", "special_at": "last"}),
        ((5, 35), {"special": "-inf", "special_in": "dy", "special_at": "rows"}),
        ((7, 36), {"special": "nan+inf", "special_at": "rows"}),
        ((5, 37), {"special": "nan+inf", "special_in": "dy"}),
        ((3, 40), {"data": "zero", "weight_layout": "offset"}),  # rows of zeros: rstd = 1/√eps
        ((3, 131), {"data": "constant", "offset": 10.0, "x_layout": "expanded_last"}),
        ((3, 41), {"data": "zero", "eps": 0.0}),  # 0/0
        ((3, 42), {"data": "zero", "eps": 1e-12}),
        ((5, 32), {"special": "nan", "special_at": "row"}),
        *(((2, 16400 + turn), {"special": "nan", "special_at": "rows"}) for turn in range(3)),  # in long rows
    ),
    "scales": (
        ((3, 60), {"log2_scale": 11}),  # near fp16's overflow
        ((3, 24), {"log2_scale": LARGEST, "data": "alternating"}),  # squares that overflow
        ((3, 24), {"log2_scale": SUBNORMAL}),
        ((3, 60), {"dy_log2_scale": STRONG}),  # gradients that overflow fp16, or are far beyond its largest number
        ((3, 60), {"dy_log2_scale": FAINT}),  # gradients among fp16's subnormals, or far below
        ((3, 25), {"log2_scale": SUBNORMAL, "eps": 0.0}),  # the variance underflows
        ((3, 26), {"log2_scale": LARGEST, "data": "constant", "offset": 8.0}),  # sums that overflow
        ((3, 26), {"log2_scale": SUBNORMAL, "eps": 1e-12, "weight": False}),
        ((3, 25), {"log2_scale": LARGEST, "data": "alternating", "eps": 0.0}),
        ((3, 61), {"dy_log2_scale": FAINT}),
        ((3, 61), {"dy_log2_scale": STRONG}),
    ),
    "data": (
        ((2, 8192), {"data": "channel"}),  # x̂ up to 90: the massive activations of a large model
        ((3, 208), {"data": "heavy", "dy_data": "heavy", "dy_layout": "offset", "bias_layout": "offset"}),
        ((2, 256), {"data": "alternating", "dy_layout": "offset", "bias_layout": "offset"}),
        ((4, 31), {"data": "integers"}),
        ((7, 130), {"data": "uneven", "eps": 3e-8}),  # what the first row decides for others
        ((7, 131), {"data": "sorted", "dy_data": "uneven"}),
        ((3, 201), {"data": "ramp", "dy_data": "ramp"}),
        ((12, 304), {"data": "padded"}),  # zero rows among others, and rows with blocks of zeros
        ((12, 1024), {"data": "padded", "dy_data": "zero_columns"}),
        ((6, 8192), {"data": "padded", "dy_data": "zero_rows"}),
    ),
}
SERVING_ROWS: tuple[Row, ...] = (  # from small to large, as far as the kernel's time allows
    ((64, 1000), {"batch": 1025}),
    ((32, 4096), {"batch": 300}),
    ((64, 1000), {"batch": 4096}),  # thresholds of 4096 rows and of two million elements, in every type
    ((63, 1016), {"batch": 4097}),
    ((65, 512), {"batch": 4099}),
    ((16, 8192), {"batch": 300}),
    ((32, 4096), {"batch": 1025}),
)
GPU_SERVING_ROWS: tuple[Row, ...] = tuple(
    ((64, length), {"batch": batch}) for length in (512, 4096, 8192) for batch in (255, 256, 257, 300, 4096)
)
MANY_ROWS: tuple[Row, ...] = (  # long sums of dweight and dbias, in every type
    *(
        ((rows + turn, length), {})
        for rows, lengths in ((1025, (3, 2, 4)), (4097, (2, 1, 4)), (16384, (1, 3, 2)))
        for turn, length in enumerate(lengths)
    ),
    # the gradients of .sum(0) and of .sum(): one row, or one number, times the number of rows
    *(((4101 + turn, 12), {"dy_layout": "expanded"}) for turn in range(3)),
    *(((1031 + turn, 20), {"dy_layout": "scalar"}) for turn in range(3)),
    *(((4112 + turn, 3), {"special": "nan", "special_in": "dy", "special_at": "rows"}) for turn in range(3)),
)
_SIDES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (16384, (3, 4, 5)),
    (1, (200003, 600011, 300007)),  # an image that is normalized as a whole
    *((262147, (2, 1, 3)), (8193, (17, 18, 19)), (45055, (5, 6, 7))),
    *((2, (65536, 20480, 49152)), (3, (36864, 81920, 24576))),  # lengths of models, between any two powers of two
    *((4099, (64, 31, 32)), (1031, (128, 61, 62))),  # of heads
    (40, (12288, 9216, 10240)),  # more than a few long rows
)
_WHOLE: tuple[tuple[Row, ...], ...] = (  # whole tiles, as a model has
    (((512, 1024), {"weight_dtype": "float32"}), ((256, 768), {"weight_dtype": "float32"}), ((256, 1024), {})),
    (((512, 2048), {}), ((256, 2048), {}), ((65537, 64), {})),  # the last: the heads of many tokens
    (((2048, 512), {}), ((4096, 256), {}), ((1024, 1024), {})),
)
WIDE_ROWS: tuple[Row, ...] = (  # thresholds of rows, of lengths and of elements, in every type
    *(((1, 2051 + more, 2, 8), {}) for more in range(3)),  # heads of many tokens
    *(
        line
        for more, whole in enumerate(_WHOLE)
        for line in (*(((rows + more, lengths[more]), {}) for rows, lengths in _SIDES), *whole)
    ),
    *(((2096 + more, 8), {"weight_dtype": "float32"}) for more in range(3)),  # a large rest, whatever the tile
    *(((12, 1370 + more, 8), {}) for more in range(3)),  # long samples: a division by their length rounds
    *(((1, 4099 + more, 2, 4), {}) for more in range(3)),  # heads of more tokens than a table has positions
)
CROWDED_ROWS: tuple[Row, ...] = tuple(  # enough programs to contend for a lock or a buffer, in every type
    ((rows + more, length), {})
    for more in range(3)
    for rows, length in ((16384, 192), (32768, 96), (65536, 64), (8192, 500))
)
GPU_ROW_CORNERS: tuple[Row, ...] = (  # these take minutes in the interpreter
    ((16384, 256), {}),
    ((16385, 256), {"offset": 10.0}),
    ((4096, 1024), {"x_layout": "row_strided", "dy_layout": "offset"}),
    ((2**20, 1), {}),
    ((2**20 + 1, 2), {}),
    ((2**20 + 3, 3), {}),
)
