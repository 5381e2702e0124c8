"""What the lines of the corner table are made of, in corner_rows, corner_groups and corner_channels.

A run takes the first line of every topic, then the second ones, and so on: its first cases meet all topics. In a topic
the usual mistakes come first, then the extremes (none, one, far). Neighbours have different types: of three lines side
by side, or two apart, each type meets one. Layout "offset" is misaligned: each type meets it in x, in dy with bias, and
in weight, where rows are whole vectors of 16 bytes: a kernel may test the address of one tensor and not of another.
"""

from typing import Any

Row = tuple[tuple[int, ...], dict[str, Any]]
Topics = dict[str, tuple[Row, ...]]
SUBNORMAL, LARGEST = "subnormal", "largest"  # a log2_scale that differs between types
FAINT, STRONG = "faint", "strong"  # … and a dy_log2_scale: of gradients as far from 1 as a loss of a whole model gives
# Scales of a quantized y: none; most values normal in every format; some saturate; nearly all saturate; subnormals;
# nearly all zero; no power of two.
OUTPUT_SCALES = (1.0, 100.0, 300.0, 1e6, 2.0**-6, 2.0**-14, 40.7)
LONG = 2**20  # a variance_size of whole rows
DROPOUTS = (0.1, 0.3337, 0.0, 0.97, 0.5)  # the probabilities of a dropout
THIRD = 314573 / 2**20  # a weight_offset of about 0.3: a float32, and between the numbers of any type of 16 bits
LAST = {"x_layout": "channels_last", "dy_layout": "channels_last"}
SEQUENCE = {"x_layout": "sequence_slice", "dy_layout": "sequence_slice"}
SLICE = {"x_layout": "channel_slice", "dy_layout": "channel_slice"}
INNER = {"x_layout": "inner_slice", "dy_layout": "inner_slice"}
HEADS_FIRST = {"x_layout": "heads_first", "dy_layout": "heads_first"}
LOOSE = {"x_layout": "loose", "dy_layout": "loose"}
OWN = dict.fromkeys(("x_layout", "dy_layout", "weight_layout", "bias_layout"), "own")
UNTRACKED = "training without running statistics"
STATISTICS = {  # BatchNorm's
    "training": {"training": True, "running": True},
    UNTRACKED: {"training": True, "running": False},
    "evaluation": {"training": False, "running": True},
}
