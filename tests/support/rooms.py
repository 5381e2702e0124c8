"""What GPUs have for a plan: an H200 as torch reports it, the others, where nothing was timed, by data sheets."""

from verify_norm.kernels.launch import H200, Room

ROOMS = {
    "H200": H200,
    "A100": Room("cuda", 40 << 20, 108, 256 << 10, 164 << 10, 32),
    "L4": Room("cuda", 48 << 20, 58, 256 << 10, 100 << 10, 32),
    "RTX 4090": Room("cuda", 72 << 20, 128, 256 << 10, 100 << 10, 32),
    "B200": Room("cuda", 126 << 20, 148, 256 << 10, 228 << 10, 32),
    "MI300X": Room("cuda", 4 << 20, 304, 512 << 10, 64 << 10, 64),  # an L2 for each die, behind them a cache of 256 MB
    "interpreter": H200._replace(kind="cpu"),
}
