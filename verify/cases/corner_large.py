"""Corner lines of many elements with other options than the usual ones: a kernel may take a path of its own for both.

The lines of an operator's view are triples: one each in float32, float16 and bfloat16. A threshold of elements may lie
at any power of two, so most have more than 2^20, and each option meets 16-bit types and float32 there.
"""

from typing import Any

from verify_norm.cases.corner_lines import LAST, Row

F32, BF16 = {"weight_dtype": "float32"}, {"weight_dtype": "bfloat16"}  # the latter of a float32 x
STRIDED = {"x_layout": "row_strided", "dy_layout": "row_strided"}
TURNED = {"x_layout": "transposed", "dy_layout": "transposed"}
NONE = {"weight": False, "bias": False}
BARE = {"bias": False}
EVALUATION = {"training": False}
# One value of one of many rows, of many samples: a kernel may lose it in a path that it has for them.
SPECIAL: tuple[dict[str, Any], ...] = (
    {"special": "nan", "special_at": "middle"},
    {"special": "inf", "special_at": "last"},
    {"special": "nan"},
)

LARGE_ROWS: tuple[Row, ...] = (
    ((2, 128, 64), {}),  # heads of large models, of a few tokens
    ((5, 96, 128), {}),
    ((3, 128, 128), {}),
    *(((130 + turn, 3, 16), special) for turn, special in enumerate(SPECIAL)),
    ((256, 1024), {"offset": 100.0}),
    ((257, 1024), {**F32, "offset": 10.0}),
    ((300, 1024), {**STRIDED, **BARE}),
    ((131, 1100), BF16),  # rows that no tile divides
    ((133, 1100), F32),
    ((134, 1100), F32),
    ((1024, 1024), {"offset": -100.0}),
    ((1030, 1026), {**F32, **TURNED}),
    ((1024, 1024), F32),
    ((519, 2049), {**BF16, **TURNED}),
    ((2048, 520), {**F32, **BARE}),
    ((1056, 1024), {"offset": 30.0, **NONE}),
    ((1024, 2048), {}),  # long partial sums
    ((520, 2048), {**STRIDED, "offset": 10.0}),
    ((1030, 2050), {**F32, **TURNED}),
    ((2051, 520), {**STRIDED, **NONE}),
    ((4096, 257), {**NONE, "data": "heavy"}),
    ((293, 3584), {**STRIDED, **BARE}),
    ((296, 3600), {**BARE, "eps": 1e-2, "dy_data": "zero_rows"}),
    ((24, 12288), {**F32, "data": "padded"}),
    ((20, 8192), F32),
)
LARGE_GROUPS: tuple[Row, ...] = tuple(
    (shape, {"num_groups": groups, **options})
    for shape, groups, options in (
        ((1, 320, 33, 33), 8, LAST),  # channels, groups and positions of diffusion models, in both layouts
        ((2, 96, 32, 36), 4, LAST),
        ((1, 320, 33, 33), 8, {"offset": 10.0, **LAST}),
        ((1, 320, 33, 33), 8, {"offset": 100.0}),
        ((2, 96, 35, 33), 4, {**F32, **LAST}),
        ((2, 96, 32, 36), 4, {**NONE, "offset": 10.0}),
        ((2, 96, 33, 35), 4, {**BARE, **LAST, "offset": -30.0}),
        ((2, 320, 34, 32), 16, {**BARE, **F32}),
        ((3, 160, 33, 33), 8, {**F32, **LAST}),
        ((2, 64, 91, 91), 16, {**BF16, "offset": -100.0}),
        ((1, 128, 91, 91), 32, {**NONE, **LAST}),
        ((4, 128, 46, 46), 32, {**F32, "offset": 30.0}),
        ((1, 64, 129, 130), 2, {**STRIDED, **NONE}),
        ((4, 256, 32, 33), 64, {**F32, "offset": 100.0}),
        ((2, 128, 65, 65), 4, {**BARE, **STRIDED}),
        ((1, 128, 96, 96), 8, {}),
        ((3, 96, 61, 61), 4, F32),
        ((2, 192, 53, 53), 6, {"offset": 100.0}),
    )
)
LARGE_GROUPS += tuple(((130 + turn, 8, 3, 5), {"num_groups": 2, **special}) for turn, special in enumerate(SPECIAL))
LARGE_CHANNELS: tuple[Row, ...] = (
    ((2, 40, 65, 64), {"offset": 100.0}),
    ((4, 64, 33, 33), {**F32, **LAST}),
    ((3, 96, 32, 33), {**BARE, **LAST}),
    ((4, 64, 65, 64), {"offset": -30.0, **LAST}),
    ((8, 128, 32, 33), {**BARE, **F32}),
    ((2, 256, 46, 46), {**F32, "offset": 10.0}),
    ((2, 64, 91, 91), {**BF16, **EVALUATION}),
    ((16, 64, 33, 33), {**NONE, **LAST}),
    ((4, 1024, 16, 17), {**NONE, **STRIDED, "running": False}),
    ((1, 64, 128, 129), {**BARE, "momentum": 0.9}),
    ((4, 128, 46, 46), {**EVALUATION, **LAST, **F32}),
    ((32, 512, 8, 9), {"eps": 1e-2, **EVALUATION, **BARE}),
    *(((130 + turn, 6, 5), special) for turn, special in enumerate(SPECIAL)),
)
