"""The options of run.py, and the jobs that they select."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from verify_norm.core.dtypes import dtype_name
from verify_norm.core.errors import UsageError
from verify_norm.search.options import split

if TYPE_CHECKING:
    from work import Job

KERNELS = "layernorm_fwd,layernorm_bwd,rmsnorm_fwd,rmsnorm_bwd"
SHAPES = {"rows": "4096x8192,32768x1024", "groups": "8x320x64x64", "channels": "32x256x56x56"}
SMOKE = {
    "rows": (8, 64),
    "groups": (1, 8, 4, 4),
    "channels": (2, 8, 4, 4),
}  # small enough for a second in Triton's interpreter


class Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError without printing the usage."""
        raise UsageError(message)


def parser(description: str) -> Parser:
    """Return a parser of the options that select kernels and shapes, with defaults for the other options of run.py."""
    made = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kernel", default="", help=f"names or path.py:attr, separated by commas [{KERNELS}]")
    made.add_argument("--op", help="the operator, if the kernel's name does not contain it")
    made.add_argument("--shapes", default="", help="for example 4096x8192,1x32x64x64 [a few]")
    made.add_argument("--dtype", default="bf16", help="fp32, fp16 or bf16")
    made.add_argument("--groups", type=int, default=32, help="groups of GroupNorm [32]")
    made.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    made.add_argument("--mean", type=float, default=-2.3, help="mean of x [-2.3]; its standard deviation is 0.5")
    made.add_argument("--json", default="", metavar="FILE")
    made.set_defaults(peers="none", preset="", seconds=0.1, plot="", out="")
    return made


def options(argv: list[str] | None, description: str = "") -> argparse.Namespace:
    """Return the parsed command line of run.py; raise UsageError."""
    made = parser(description)
    made.add_argument(
        "--peers", default="", help="some of torch, compile, liger, fla, quack, apex; or none [all installed]"
    )
    made.add_argument(
        "--preset",
        default="",
        help="perf, fp8, channels, chains, heads, seed001, seed003, seed004, choices: tables and plots of this project",
    )
    made.add_argument("--seconds", type=float, help="time for each median [0.1]")
    made.add_argument("--plot", default="", metavar="FILE.svg")
    made.add_argument("--out", default="", metavar="FOLDER", help="write NAME.json and NAME.svg of each preset")
    made.add_argument(
        "--warm", type=int, default=0, metavar="N", help="first fill the compilers' caches, with N processes"
    )
    made.add_argument("--show", default="", metavar="FILE", help="print the JSON of an earlier run; --plot draws it")
    made.add_argument("--shard", default="", help=argparse.SUPPRESS)
    return made.parse_args(argv)


def plan(o: argparse.Namespace) -> dict[str, list[Job]]:
    """Return the jobs of each preset, or those of the options under ""; raise UsageError for options that conflict."""
    import peers
    from presets import ALL, PRESETS
    from work import Job, Work

    from verify_norm.core import errors
    from verify_norm.core.ops import OPS
    from verify_norm.loading import registry

    names = split(o.preset)
    for name in names:
        errors.one_of("preset", name, PRESETS)
    own = [f"--{n}" for n in ("kernel", "shapes") if getattr(o, n)]
    if names and own:
        raise UsageError(f"--preset and {', '.join(own)} exclude each other: a preset selects kernels and shapes")
    for name in ("seconds", "groups"):
        if getattr(o, name) <= 0:
            raise UsageError(f"--{name}: expected a number greater than 0, got {getattr(o, name)}")
    if o.out and not names:
        raise UsageError("--out needs --preset; without a preset use --json FILE and --plot FILE")
    if len(names) > 1 and (o.json or o.plot):
        raise UsageError("several presets need --out FOLDER; --json and --plot write one file each")
    asked = [] if o.peers == "none" else split(o.peers)
    for name in asked:
        peers.missing(name)
    if names:
        kept = asked if o.peers else ALL
        return {n: [replace(j, peers=tuple(p for p in j.peers if p in kept)) for j in PRESETS[n]()] for n in names}
    chosen = asked if o.peers else [name for name in ALL if peers.missing(name) is None]
    works: dict[Work, list[str]] = {}
    for name in split(o.kernel or KERNELS):
        kernel = registry.find(name.partition("@")[0], o.op)
        if kernel.op not in OPS or kernel.op.rpartition("_")[0] not in peers.NORMS:
            raise UsageError(
                f"{name} is a kernel for {kernel.op}; expected one of {', '.join(peers.NORMS)}, with _fwd or _bwd"
            )
        peers.ours(name, kernel.op)  # raises UsageError if it cannot be loaded
        view = OPS[kernel.op].view
        for shape in shapes(o.shapes or SHAPES[view], view, o.groups):
            layout = o.layout if view != "rows" and len(shape) == 4 else "contiguous"
            dtype = dtype_name(o.dtype)
            works.setdefault(Work(kernel.op, shape, dtype, o.groups, layout, o.mean), []).append(name)
    return {"": [Job(work, tuple(kernels), tuple(chosen)) for work, kernels in works.items()]}


def shapes(text: str, view: str, groups: int) -> list[tuple[int, ...]]:
    """Return the shapes of --shapes; raise UsageError for text that is no shape of this view."""
    found = []
    for part in split(text):
        sizes = part.split("x")
        if not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
            raise UsageError(f"--shapes: expected a shape like 4096x8192 or 1x32x64x64, got {part!r}")
        shape = tuple(map(int, sizes))
        if view == "groups" and (len(shape) != 4 or shape[1] % groups):
            raise UsageError(f"--shapes: expected BxCxHxW with C a multiple of {groups} groups, got {part!r}")
        if view != "groups" and len(shape) < 2:
            raise UsageError(f"--shapes: expected rows like 4096x8192, got {part!r}")
        found.append(shape)
    return found


def smoke(jobs: dict[str, list[Job]]) -> dict[str, list[Job]]:
    """Return one tiny job for each operator, for a CPU: without CUDA C++ kernels, with stock torch as the only peer."""
    from work import Job

    from verify_norm.core.ops import OPS

    few: dict[str, list[Job]] = {}
    for name, some in jobs.items():
        by_op = {}
        for job in some:
            kernels = tuple(k for k in job.kernels if "_cuda" not in k)
            view = OPS[job.work.op].view
            work = replace(job.work, shape=SMOKE[view], num_groups=4, dtype="float32", layout="contiguous")
            peers = tuple(p for p in job.peers if p == "torch")
            by_op[job.work.op] = Job(work, kernels or job.kernels[:1], peers)
        few[name] = list(by_op.values())
    return few
