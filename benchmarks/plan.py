"""What the command line of run.py asks for: its options, and the jobs that they stand for."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from verify_norm import session
from verify_norm.bind import UsageError

if TYPE_CHECKING:
    from work import Job

KERNELS = "layernorm_fwd,layernorm_bwd,rmsnorm_fwd,rmsnorm_bwd"
SHAPES = {"rows": "4096x8192,32768x1024", "groups": "8x320x64x64"}
SMOKE = {"rows": (8, 64), "groups": (1, 8, 4, 4)}  # what Triton's interpreter does in a second


class Parser(argparse.ArgumentParser):
    """A user's mistake is one line."""

    def error(self, message: str) -> NoReturn:
        """Raise it instead of printing the usage before it."""
        raise UsageError(message)


def parser(description: str) -> Parser:
    """The options that say what is run, and on what; for `plan`, those of run.py have their defaults."""
    made = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kernel", default="", help=f"names or path.py:attr, separated by commas [{KERNELS}]")
    made.add_argument("--op", help="the operator of kernels whose names do not tell it")
    made.add_argument("--shapes", default="", help="as 4096x8192,1x32x64x64 [a few]")
    made.add_argument("--dtype", default="bf16", help="fp32, fp16 or bf16")
    made.add_argument("--groups", type=int, default=32, help="of GroupNorm's channels")
    made.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    made.add_argument("--mean", type=float, default=-2.3, help="of x, whose deviation is 0.5")
    made.add_argument("--json", default="", metavar="FILE")
    made.set_defaults(peers="none", preset="", seconds=0.1, plot="", out="")
    return made


def options(argv: list[str] | None, description: str = "") -> argparse.Namespace:
    """What the command line of run.py says; raises UsageError."""
    made = parser(description)
    made.add_argument("--peers", default="", help="of torch, compile, liger, fla, quack, apex; none [those installed]")
    made.add_argument(
        "--preset", default="", help="perf, fp8, seed001, seed003, seed004, choices: known tables and plots"
    )
    made.add_argument("--seconds", type=float, help="for each median")
    made.add_argument("--plot", default="", metavar="FILE.svg")
    made.add_argument("--out", default="", metavar="FOLDER", help="a preset's name.json and name.svg")
    made.add_argument(
        "--warm", type=int, default=0, metavar="N", help="let N processes fill the compilers' caches first"
    )
    made.add_argument("--show", default="", metavar="FILE", help="print a JSON of an earlier run, and --plot it")
    made.add_argument("--shard", default="", help=argparse.SUPPRESS)
    return made.parse_args(argv)


def plan(o: argparse.Namespace) -> dict[str, list[Job]]:
    """The jobs of each preset, or those asked for, under ""; raises UsageError where the options make no sense."""
    import peers
    from presets import ALL, PRESETS
    from work import Job, Work

    from verify_norm import registry
    from verify_norm.ops import OPS

    names = session.split(o.preset)
    for name in names:
        registry.one_of("preset", name, PRESETS)
    own = [f"--{n}" for n in ("kernel", "shapes") if getattr(o, n)]
    if names and own:
        raise UsageError(f"a preset has its own {', '.join(own)}")
    for name in ("seconds", "groups"):
        if getattr(o, name) <= 0:
            raise UsageError(f"--{name} is to be greater than 0")
    if o.out and not names:
        raise UsageError("--out is for presets; --json and --plot name one file each")
    if len(names) > 1 and (o.json or o.plot):
        raise UsageError("several presets go to --out FOLDER, not to --json and --plot")
    asked = [] if o.peers == "none" else session.split(o.peers)
    for name in asked:
        peers.missing(name)
    if names:
        kept = asked if o.peers else ALL
        return {n: [replace(j, peers=tuple(p for p in j.peers if p in kept)) for j in PRESETS[n]()] for n in names}
    chosen = asked if o.peers else [name for name in ALL if peers.missing(name) is None]
    works: dict[Work, list[str]] = {}
    for name in session.split(o.kernel or KERNELS):
        kernel = registry.find(name.partition("@")[0], o.op)
        if kernel.op not in OPS or kernel.op.rpartition("_")[0] not in peers.NORMS:
            raise UsageError(f"{name} is a kernel for {kernel.op}; there are benchmarks for {', '.join(peers.NORMS)}, "
                             "each with _fwd or _bwd")  # fmt: skip
        peers.ours(name, kernel.op)  # it can be loaded
        view = OPS[kernel.op].view
        for shape in shapes(o.shapes or SHAPES[view], view, o.groups):
            layout = o.layout if view == "groups" else "contiguous"
            dtype = session.dtype(o.dtype)
            works.setdefault(Work(kernel.op, shape, dtype, o.groups, layout, o.mean), []).append(name)
    return {"": [Job(work, tuple(kernels), tuple(chosen)) for work, kernels in works.items()]}


def shapes(text: str, view: str, groups: int) -> list[tuple[int, ...]]:
    """Read --shapes; raises UsageError where one is none, or none of the operator's."""
    found = []
    for part in session.split(text):
        sizes = part.split("x")
        if not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
            raise UsageError(f"{part!r} is no shape; it is to be like 4096x8192 or 1x32x64x64")
        shape = tuple(map(int, sizes))
        if view == "groups" and (len(shape) != 4 or shape[1] % groups):
            raise UsageError(f"GroupNorm takes BxCxHxW with C a multiple of {groups} groups, not {part}")
        if view == "rows" and len(shape) < 2:
            raise UsageError(f"{part!r} has no rows; it is to be like 4096x8192")
        found.append(shape)
    return found


def smoke(jobs: dict[str, list[Job]]) -> dict[str, list[Job]]:
    """One tiny piece of work for each operator, with stock torch alone; CUDA C++ does not run here."""
    from work import Job

    from verify_norm.ops import OPS

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
