"""The presets of run.py: the jobs and the plots of this project's tables."""

from collections.abc import Sequence
from typing import Any

from plots import dots, lines
from table import STEP
from work import Job, Work

from verify_norm.loading.builtin import BUILTIN

ALL = ("torch", "compile", "liger", "fla", "quack", "apex")
LIBRARIES = ("torch", "liger", "fla", "quack", "apex")  # peers that compile quickly, or once for many sizes
FEW = (64, 512, 1024, 2240)  # X of seed 003 where slow peers and slow compilers take part too
MODULATED = ((8, 4096, 3072), (8, 512, 8192), (8, 4096, 4096))
BLOCKS = (32, 64, 128, 256, 512, 1024)  # block sizes of llm.c's kernels, which seed 004 explains


def perf() -> list[Job]:
    """Return the jobs of the main table: bfloat16 rows, additions, GroupNorm, and one size that host time limits."""
    small, wide, tall, large, square = (4096, 1024), (4096, 8192), (32768, 1024), (32768, 4096), (16384, 16384)
    rows = {
        "layernorm_fwd": ((8, 1024), small, (4096, 4096), wide, (4096, 15872), tall, large, square),
        "layernorm_bwd": ((8, 1024), wide, (4096, 15872), tall, large, square),
        "rmsnorm_fwd": (small, wide, large, square),
        "rmsnorm_bwd": (wide, tall, large, square),
        "add_layernorm_fwd": (wide,),
        "add_layernorm_bwd": (wide,),
        "add_rmsnorm_fwd": (wide,),
        "add_rmsnorm_bwd": (wide,),
    }
    works = [Work(op, shape) for op, shapes in rows.items() for shape in shapes]
    works += [Work("groupnorm_fwd", (1, 32, x, x), "float32", 8) for x in FEW]
    diffusion = ((8, 320, 64, 64), (8, 640, 32, 32), (8, 1280, 16, 16), (8, 1280, 8, 8))
    both = ("contiguous", "channels_last")
    works += [Work("groupnorm_fwd", shape, layout=layout) for shape in diffusion for layout in both]
    works += [Work(f"groupnorm_silu_{way}", (8, 320, 64, 64)) for way in ("fwd", "bwd")]
    return [Job(work, (work.op,), ALL) for work in works]


def fp8() -> list[Job]:
    """Return the jobs of norms with 8-bit output: bfloat16 rows of models' lengths."""
    shapes = ((4096, 8192), (32768, 4096), (16384, 5120), (16384, 16384))
    return [
        Job(Work(f"{norm}_fp8_fwd", shape), (f"{norm}_fwd_e4m3fn",), ("torch", "compile"))
        for norm in ("layernorm", "rmsnorm")
        for shape in shapes
    ]


def channels() -> list[Job]:
    """Return the jobs of BatchNorm in training and InstanceNorm: images in both layouts, and rows of features."""
    images, rows = ((32, 256, 56, 56), (128, 512, 28, 28), (256, 2048, 7, 7)), ((32768, 4096), (4096, 8192))
    works = [
        Work(f"{norm}_{way}", shape, layout=layout)
        for norm, shapes in (("batchnorm", images), ("instancenorm", ((16, 64, 256, 256), images[0])))
        for way in ("fwd", "bwd")
        for shape in shapes
        for layout in ("contiguous", "channels_last")
    ]
    works += [Work(f"batchnorm_{way}", shape) for way in ("fwd", "bwd") for shape in rows]
    return [Job(work, (work.op,), ("torch", "compile")) for work in works]


def chains() -> list[Job]:
    """Return the jobs of the norms with a stage behind them that have an operator: bfloat16 rows."""
    wide, large = (4096, 8192), (32768, 4096)
    rows: dict[str, tuple[tuple[int, ...], ...]] = {
        "gated_rmsnorm_fwd": (wide, large, (131072, 128)),
        "gated_rmsnorm_bwd": (wide, large, (131072, 128)),
        "modulate_layernorm_fwd": MODULATED,
        "l2norm_fwd": (wide, large, (131072, 128)),
        "l2norm_bwd": (wide, large, (131072, 128)),
        "rmsnorm_quant_fwd": (wide, large, (16384, 5120)),
        "add_rmsnorm_quant_fwd": (wide, large, (16384, 5120)),
        "add_rmsnorm_quant_group_fwd": (wide, large, (16384, 5120)),
    }
    works = [Work(op, shape) for op, shapes in rows.items() for shape in shapes]
    works += [Work("modulate_layernorm_fwd", shape, affine=False) for shape in MODULATED]  # as diffusion models have it
    return [Job(work, (work.op,), ALL) for work in works if work.op in BUILTIN]


def heads() -> list[Job]:
    """Return the jobs of RMSNorm and rotation of heads of 128: as many elements as 4096×8192 and 32768×4096."""
    works = [
        Work(f"qk_norm_rope_{way}", shape) for way in ("fwd", "bwd") for shape in ((4096, 64, 128), (32768, 32, 128))
    ]
    return [Job(work, (work.op,), ("torch", "compile")) for work in works]


def seed001() -> list[Job]:
    """Return the jobs of the plot layer-norm-backward: M = 4096, float16, N = 1024, 1536, … 15872."""
    works = [Work("layernorm_bwd", (4096, n), "float16") for n in range(1024, 15873, 512)]
    return [Job(work, ("layernorm_bwd",), LIBRARIES) for work in works]


def seed003() -> list[Job]:
    """Return the jobs of the GroupNorm plot: float32 (1, 32, X, X), X = 64, 96, … 2240, 8 groups."""
    jobs = []
    for x in range(64, 2241, 32):
        work = Work("groupnorm_fwd", (1, 32, x, x), "float32", 8)
        jobs.append(Job(work, ("groupnorm_fwd",), ("torch", "compile", "liger") if x in FEW else ("torch",)))
    return jobs


def seed004() -> list[Job]:
    """Return the jobs of the ladder by block size: 8192×768, float32, as in llm.c; all steps are right at mean 0."""
    steps = tuple(f"layernorm_fwd_cuda{step}@{block}" for step in range(1, 6) for block in BLOCKS)
    work = Work("layernorm_fwd", (8192, 768), "float32", mean=0.0)
    return [Job(work, ("layernorm_fwd", *steps), ("torch", "compile"))]


def choices() -> list[Job]:
    """Return the jobs that compare our plans with other constants; NOTES.md discusses them."""

    def job(op: str, shape: tuple[int, ...], constants: str, *how: Any) -> Job:
        module = "group_plan" if len(shape) == 4 else "row_plan"
        return Job(Work(op, shape, *how), (op, *(f"{op}@{module}.{one}" for one in constants.split())), ())

    seed, diffusion, last = ("float32", 8), ("bfloat16", 32), ("bfloat16", 32, "channels_last")
    shared = "BLOCK=1024 BLOCK=4096 SUMMED=16384 SUMMED=65536"
    return [
        *(job("layernorm_fwd", shape, "AHEAD=1 AHEAD=196608") for shape in ((4096, 8192), (32768, 4096))),
        job("layernorm_bwd", (4096, 8192), "CONVERTED=4096 TWO_ROWS=16384 TOGETHER=264"),
        *(job("groupnorm_fwd", (1, 32, x, x), f"BATCH=9437184 BATCH=37748736 {shared}", *seed) for x in (512, 1024)),
        job("groupnorm_fwd", (1, 32, 2240, 2240), shared, *seed),
        job("groupnorm_fwd", (8, 320, 64, 64), f"TILED=0 COMPUTED=2 {shared}", *last),
        job("groupnorm_silu_bwd", (8, 320, 64, 64), f"TILED=0 {shared}", *last),
        job("groupnorm_silu_bwd", (8, 320, 64, 64), "BOTH=196608", *diffusion),
        *(job("groupnorm_silu_bwd", (8, 640, 32, 32), "BOTH=0", *how) for how in (diffusion, last)),
        job("groupnorm_fwd", (8, 640, 32, 32), "HELD=4096", *last),
    ]


PRESETS = {
    "perf": perf,
    "fp8": fp8,
    "channels": channels,
    "chains": chains,
    "heads": heads,
    "seed001": seed001,
    "seed003": seed003,
    "seed004": seed004,
    "choices": choices,
}


def picture(rows: Sequence[Any], device: str) -> str:
    """Return the plot of the results: the ladder over block sizes, lines over the last dimension, or dots."""
    timed = [row for row in rows if row.times is not None]
    if any(STEP.fullmatch(row.name) for row in rows):
        return _ladder(timed, device)
    works = list(dict.fromkeys(row.work for row in rows))
    first, alike = works[0], {(w.op, w.dtype, w.layout, len(w.shape), w.shape[0]) for w in works}
    if len(alike) > 1 or len(works) < 4:
        found: dict[str, dict[str, float]] = {work.title: {} for work in works}
        alone = all(sum(not row.peer for row in timed if row.work == work) < 2 for work in works)
        for row in timed:
            mine = row.name == row.work.op or (alone and not row.peer)
            found[row.work.title]["ours" if mine else row.name] = row.of_copy
        return dots(found, f"Speed as a fraction of a copy of as many bytes, {device}", "fraction of copy")
    series: dict[str, list[tuple[float, float]]] = {}
    copies: dict[float, float] = {}
    for row in timed:
        series.setdefault(row.name, []).append((row.work.shape[-1], row.gbs))
        copies[row.work.shape[-1]] = row.work.size / row.copy_us / 1e3
    square = len(first.shape) == 4
    size = f"{first.shape[0]} × {first.shape[1]} × X × X" if square else f"{first.shape[0]} × N"
    return lines(
        {**series, "copy": sorted(copies.items())},
        f"{first.op}, {size}, {first.dtype}, {device}",
        size[-1],
        "GB/s",
        log_x=square,
        subject=first.op,
        level=("copy",),
    )


def _ladder(rows: Sequence[Any], device: str) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        step = STEP.fullmatch(row.name)
        if step:
            series.setdefault(f"kernel {step[1]}", []).append((int(step[2]), row.gbs))
    blocks = sorted({x for some in series.values() for x, _ in some})
    others = {row.name: row.gbs for row in rows if not STEP.fullmatch(row.name)}
    flat = {name: [(x, value) for x in (blocks[0], blocks[-1])] for name, value in others.items() if blocks}
    title = f"CUDA ladder, {rows[0].work.title if rows else 'nothing'}, {device}"
    return lines({**series, **flat}, title, "threads a block", "GB/s", log_x=True, level=tuple(flat))
