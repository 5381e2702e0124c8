"""Measure the detection and the cost of gradient checkers: torch's gradcheck (slow and fast), JAX's check, and ours.

    python benchmarks/gradcheck.py                         everything, in less than ten minutes
    python benchmarks/gradcheck.py --false-alarms 5000     only the false alarms on norms, added to the existing JSON
    python benchmarks/gradcheck.py --right-functions 5000  only those on right functions × points × types, added to it
    python benchmarks/gradcheck.py --functions             only wrong losses and functions with corners, added to it
    python benchmarks/gradcheck.py --alternated            only the times of slow gradcheck and ours, added to it

Writes benchmarks/results/gradcheck.json and gradcheck.svg. Runs on one thread, so that the times are comparable.
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import functions
import hypothesis
import numpy as np
import torch
from checkers import CHECKERS, SLOW_ELEMENTS

from verify_norm.cases import make, strategies
from verify_norm.checks import gradient
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.gradcheck.gradcheck import gradcheck
from verify_norm.running.execute import execute

RESULTS = Path(__file__).parent / "results"
KINDS = ("layernorm", "rmsnorm", "groupnorm")
SHAPES = ((4, 64), (16, 256), (64, 1024), (256, 4096))
MUTANTS = (
    "no c2",
    "weight left out of dx",
    "N - 1",
    "one element wrong by 1 %",
    "one row zeroed",
    "rstd of the neighbouring row",
    "dy read transposed",
    "dweight of one column doubled",
)
GROUPS, CHANNELS = 4, 8


def flat(kind: str, t: Any, groups: int = GROUPS, n: int | None = None) -> Any:
    """Return data as (rows, n); each row is normalized."""
    return t.reshape(t.shape[0] * groups, -1) if kind == "groupnorm" else t.reshape(-1, n or t.shape[-1])


def spread(kind: str, p: Any, x: Any) -> Any:
    """Return a weight or bias in the shape of x."""
    return p.reshape(-1, *(1,) * (x.dim() - 2)).expand(x.shape) if kind == "groupnorm" else p.expand(x.shape)


def gathered(kind: str, t: Any, p: Any) -> Any:
    """Return the gradient of a weight or bias: the sum over its copies."""
    return (
        t.reshape(*t.shape[:2], -1).sum((0, 2)) if kind == "groupnorm" else t.reshape(-1, p.numel()).sum(0).view_as(p)
    )


def statistics(kind: str, rows: Any, eps: float, lost: int = 0) -> tuple[Any, Any, Any]:
    mean = torch.zeros_like(rows[:, :1]) if kind == "rmsnorm" else rows.mean(1, keepdim=True)
    rstd = ((rows - mean).square().sum(1, keepdim=True) / max(rows.shape[1] - lost, 1) + eps).rsqrt()
    return mean, rstd, (rows - mean) * rstd


def norm(kind: str, mutant: str = "") -> Any:
    """Return a norm as an autograd.Function; `mutant` names the mistake in its backward, "" for none."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, *b: Any) -> Any:
            ctx.save_for_backward(x, w, *b)
            y = statistics(kind, flat(kind, x), 1e-5)[2].view(x.shape) * spread(kind, w, x)
            return y + spread(kind, b[0], x) if b else y

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, w, *b = ctx.saved_tensors
            _, r, xhat = statistics(kind, flat(kind, x), 1e-5, lost=mutant == "N - 1")
            if mutant == "rstd of the neighbouring row":
                r = r.roll(1, 0)
            d = flat(kind, dy)
            d = d.reshape(d.shape[::-1]).T.contiguous() if mutant == "dy read transposed" else d
            g = d if mutant == "weight left out of dx" else d * flat(kind, spread(kind, w, x))
            c1, c2 = (g * xhat).mean(1, keepdim=True), g.mean(1, keepdim=True)
            if mutant == "no c2" and kind == "rmsnorm":
                c1 = 0.0  # RMSNorm has no c2; the mutant drops its only mean
            dx = r * (g - xhat * c1 - (0.0 if mutant == "no c2" or kind == "rmsnorm" else c2))
            if mutant == "one element wrong by 1 %":
                dx[dx.shape[0] // 2, dx.shape[1] // 2] *= 1.01
            if mutant == "one row zeroed":
                dx[dx.shape[0] // 2] = 0
            dw = gathered(kind, (d * xhat).view(x.shape), w)
            if mutant == "dweight of one column doubled":
                dw[dw.numel() // 2] *= 2
            return dx.view(x.shape), dw, *(gathered(kind, d.reshape(x.shape), p) for p in b)

    if kind == "rmsnorm":
        return lambda x, weight: Norm.apply(x, weight)
    return lambda x, weight, bias: Norm.apply(x, weight, bias)


def shapes(kind: str, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    M, N = shape
    x, affine = ((M, CHANNELS, N // CHANNELS), (CHANNELS,)) if kind == "groupnorm" else ((M, N), (N,))
    return {"x": x, "weight": affine} | ({} if kind == "rmsnorm" else {"bias": affine})


def measure(name: str, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the median seconds for a right function, the mutants detected, and right functions falsely flagged."""
    check = CHECKERS[name]
    slow = name.startswith("gradcheck, slow")
    few = slow or shape == SHAPES[-1]
    seeds = (0,) if few else (0, 1, 2)
    if slow and math.prod(shape) > SLOW_ELEMENTS:
        return {"method": name, "shape": shape, "run": False}
    seconds: list[float] = []
    killed: dict[str, float] = {}
    flagged = 0
    for kind in KINDS:
        for seed in (0,) if few else (0, 0, 1, 2, 3):  # the first warms up
            started = time.perf_counter()
            flagged += not check(norm(kind), shapes(kind, shape), seed)
            seconds.append(time.perf_counter() - started)
        for mutant in MUTANTS:
            detected = [not check(norm(kind, mutant), shapes(kind, shape), seed) for seed in seeds]
            killed[f"{kind}: {mutant}"] = sum(detected) / len(detected)
    return {
        "method": name,
        "shape": shape,
        "run": True,
        "seconds": float(np.median(seconds)),
        "accused": flagged,
        "right_functions": len(seconds),
        "killed": sum(killed.values()),
        "mutants": len(killed),
        "missed": {mutant: rate for mutant, rate in killed.items() if rate < 1},
    }


def alternated(rounds: int = 5) -> dict[str, Any]:
    """Return the median seconds at (16, 256) of slow gradcheck and ours, in turns: a machine's speed drifts."""
    slow, *ours = (name for name in CHECKERS if name.startswith(("gradcheck, slow", "verify-norm")))
    seconds: dict[str, list[float]] = {name: [] for name in (slow, *ours)}
    for number in range(rounds + 1):  # the first warms up
        for kind in KINDS:
            for name, times in seconds.items():
                for seed in range(1 if name == slow else 4):
                    started = time.perf_counter()
                    CHECKERS[name](norm(kind), shapes(kind, SHAPES[1]), seed)
                    times += [time.perf_counter() - started] * (number > 0)
    medians = {name: float(np.median(times)) for name, times in seconds.items()}
    return {
        "shape": SHAPES[1],
        "seconds_each": medians,
        "times_as_fast": {name: medians[slow] / medians[name] for name in ours},
    }


def extrapolate(table: list[dict[str, Any]]) -> None:
    """Add the estimated time of each method that was not run: it grows as elements² (one linear call an element)."""
    for row in table:
        if not row["run"]:
            last = [r for r in table if r["method"] == row["method"] and r["run"]][-1]
            factor = (math.prod(row["shape"]) / math.prod(last["shape"])) ** 2
            row["would_take_seconds"] = last["seconds"] * factor
            row["note"] = f"not run: would take this, extrapolated from {last['shape']} by elements squared"


def linear() -> dict[str, Any]:
    """Return our time over three decades of elements: wall clock, user mode and kernel mode.

    A line a + b·elements is fitted to the user time. Beyond 2^18 elements the wall clock leaves the line because of
    page faults. GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592 makes
    glibc keep the pages of arrays of 32 MiB; 2^22 elements then took 4.7 s instead of 12.9 s.
    """
    f, rows = norm("layernorm"), []
    for M in (4, 16, 64, 256, 1024, 4096):
        size, before, times = shapes("layernorm", (M, 1024)), os.times(), []
        for _ in range(max(1024 // M, 1)):
            times.append(gradcheck(f, shapes=size, dtypes=["float64"]).seconds)  # noqa: PERF401 - this call is timed
        spent = [(now - then) / len(times) for now, then in zip(os.times()[:2], before[:2], strict=True)]
        rows.append((M * 1024, float(np.median(times)), *spent))
    elements, clock, user, system = (np.array(column) for column in zip(*rows, strict=True))
    line = np.polynomial.Polynomial.fit(elements, user, 1, w=1 / user).convert()
    return {
        "elements": elements.tolist(),
        "seconds": clock.tolist(),
        "user_seconds": user.tolist(),
        "system_seconds": system.tolist(),
        "line_seconds": line.coef[0],
        "line_seconds_per_element": line.coef[1],
        "user_over_line": (user / line(elements)).tolist(),
        "exponents_of_the_clock": (np.diff(np.log(clock)) / np.diff(np.log(elements))).tolist(),
    }


def pair(kind: str) -> Kernel:
    """Return a correct forward and backward: float32 inside, one rounding at the end."""

    def prepared(x: Any, offered: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        n = math.prod(offered["normalized_shape"]) if "normalized_shape" in offered else None
        w, b = offered["weight"], offered.get("bias")
        x, groups = x.float(), offered.get("num_groups", 1)
        w = None if w is None else spread(kind, w.float() + offered.get("weight_offset", 0.0), x)
        return flat(kind, x, groups, n), w, b, lambda t: flat(kind, t, groups, n)

    def forward(x: Any, **offered: Any) -> Any:
        rows, w, b, _ = prepared(x, offered)
        mean, rstd, xhat = statistics(kind, rows, offered["eps"])
        y = xhat.view(x.shape) if w is None else xhat.view(x.shape) * w
        y = (y if b is None else y + spread(kind, b.float(), x)).to(x.dtype)
        return (y, rstd[:, 0]) if kind == "rmsnorm" else (y, mean[:, 0], rstd[:, 0])

    def backward(dy: Any, x: Any, **offered: Any) -> Any:
        rows, w, b, seen = prepared(x, offered)
        mean, r = offered["mean"].reshape(-1, 1) if kind != "rmsnorm" else 0.0, offered["rstd"].reshape(-1, 1)
        xhat, d = (rows - mean) * r, dy.float()
        g = seen(d if w is None else d * w)
        dx = r * (g - (g.mean(1, keepdim=True) if kind != "rmsnorm" else 0.0) - xhat * (g * xhat).mean(1, keepdim=True))
        p = offered["weight"]
        dw = None if p is None else gathered(kind, d * xhat.view(x.shape), p).to(p.dtype)
        db = None if b is None else gathered(kind, d, b).to(b.dtype)
        return (dx.view(x.shape).to(x.dtype), dw) if kind == "rmsnorm" else (dx.view(x.shape).to(x.dtype), dw, db)

    return Kernel(kind, f"{kind}_bwd", run=backward, forward_run=forward)


def alarms_of_the_check(kind: str, count: int) -> dict[str, Any]:
    """Return the false alarms of the check `gradient` on correct kernels, over random cases of every kind."""
    kernel, op = pair(kind), OPS[f"{kind}_bwd"]
    total = {"cases": 0, "comparisons": 0, "judged": 0, "alarms": 0, "largest error/allowed": 0.0}

    @hypothesis.seed(7)
    @hypothesis.settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.specs(op, ("float32", "float16", "bfloat16"), gradient.ELEMENTS))
    def one(spec: Any) -> None:
        if total["cases"] >= count:
            return
        spec = replace(spec, special=None, eps=spec.eps or 1e-5)
        if not math.prod(spec.shape) or math.prod(spec.shape) > gradient.ELEMENTS:
            return
        run = execute(kernel, make.case(spec, op, kernel.contract))
        assert run.problem is None, run.problem
        total["cases"] += 1
        for c in gradient.comparisons(run):
            total["comparisons"] += c.left.size
            total["judged"] += c.judged
            total["alarms"] += int((c.ratio > 1).sum())
            total["largest error/allowed"] = max(total["largest error/allowed"], float(c.ratio.max(initial=0.0)))

    one()
    return total


def alarms_of_ours(count: int) -> dict[str, Any]:
    """Return the false alarms of `verify-norm gradcheck` on correct functions of random shapes, in three types."""
    rng, total = np.random.default_rng(7), {"cases": 0, "alarms": 0, "largest error/allowed": 0.0}
    for case in range(count):
        kind, dtype = KINDS[case % 3], ("float32", "float16", "bfloat16")[case // 3 % 3]
        M, N = (int(2 ** rng.uniform(0, 5)), int(2 ** rng.uniform(0, 9)))
        N = max(N // CHANNELS, 1) * CHANNELS if kind == "groupnorm" else N
        report = gradcheck(norm(kind), shapes=shapes(kind, (M, N)), dtypes=[dtype], seed=case)
        total["cases"] += 1
        total["alarms"] += len(report.findings)
        worst = max((c.ratio for c in report.compared), default=0.0)
        total["largest error/allowed"] = max(total["largest error/allowed"], worst)
        for finding in report.findings:
            print(f"  {kind} {(M, N)} {dtype} seed {case}: {finding}", file=sys.stderr)
    return total


def false_alarms(count: int) -> dict[str, Any]:
    found: dict[str, Any] = {f"check on {k}_bwd": alarms_of_the_check(k, -(-count // 3)) for k in KINDS}
    return found | {"gradcheck": alarms_of_ours(count)}


def picture(table: list[dict[str, Any]]) -> str:
    """Return a grid as SVG, a row for each method and a column for each size: detection, time, false alarms."""
    left, width, height = 230, 150, 40
    cells = []
    for column, shape in enumerate(SHAPES):
        cells.append(f'<text x="{left + column * width + 70}" y="44" class="h">{shape[0]} × {shape[1]}</text>')
    for line, name in enumerate(CHECKERS):
        y = 56 + line * height
        cells.append(f'<text x="{left - 10}" y="{y + 24}" class="m">{name}</text>')
        for column, shape in enumerate(SHAPES):
            row = next(r for r in table if r["method"] == name and tuple(r["shape"]) == shape)
            x = left + column * width
            rate = row["killed"] / row["mutants"] if row["run"] else None
            colour = "#e4e4e4" if rate is None else f"hsl({round(120 * rate)},55%,78%)"
            cells.append(f'<rect x="{x}" y="{y}" width="{width - 6}" height="{height - 5}" rx="3" fill="{colour}"/>')
            if rate is None:
                label = f"not run, ~{span(row['would_take_seconds'])}"
            else:
                label = f"{row['killed']:.3g} of {row['mutants']} · {span(row['seconds'])}"
                label += f" · {row['accused']} false" if row["accused"] else ""
            cells.append(f'<text x="{x + 72}" y="{y + 22}" class="c">{label}</text>')
    size = f'width="{left + 4 * width}" height="{66 + len(CHECKERS) * height}"'
    style = "text{font:12px sans-serif}.m{text-anchor:end}.h,.c{text-anchor:middle}.h{font-weight:bold}"
    title = "Wrong backwards detected, and the time for a right one (LayerNorm, RMSNorm, GroupNorm; one CPU thread)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style><rect width="100%" height="100%" '
        f'fill="white"/><text x="10" y="20" class="t">{title}</text>{"".join(cells)}</svg>\n'
    )


def span(seconds: float) -> str:
    """Return a time with its unit, for example "9 ms"."""
    for unit, length in (("years", 3.15e7), ("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "hypothesis": hypothesis.__version__,
    }


def save(found: dict[str, Any]) -> None:
    """Add results to the existing ones, which are read anew: another run may have written some."""
    path = RESULTS / "gradcheck.json"
    existing = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(existing | found, indent=1, ensure_ascii=False) + "\n")


def everything() -> None:
    """Measure all methods at all sizes, and our time by size."""
    started, table = time.perf_counter(), []
    for name in CHECKERS:
        for shape in SHAPES:
            table.append(measure(name, shape))
            print(json.dumps(table[-1])[:250], flush=True)
    extrapolate(table)
    save({"machine": machine(), "table": table, "linear": linear(), "seconds": time.perf_counter() - started})
    (RESULTS / "gradcheck.svg").write_text(picture(table))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--false-alarms", type=int, default=0, metavar="CASES", help="run only the search for false alarms"
    )
    parser.add_argument(
        "--right-functions", type=int, default=0, metavar="CASES", help="run only right functions at many points"
    )
    parser.add_argument("--functions", action="store_true", help="run only functions with few outputs or with corners")
    parser.add_argument("--alternated", action="store_true", help="run only slow gradcheck and ours, in turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Any] = {}
    if options.alternated:
        parts["alternated"] = alternated
    if options.functions:
        parts["functions"] = lambda: {"rows": functions.detections()}
    if options.right_functions:
        parts["right_functions"] = lambda: functions.right_functions(options.right_functions)
    if options.false_alarms:
        parts["false_alarms"] = lambda: false_alarms(options.false_alarms)
    for name, measured in parts.items():
        started, spent = time.perf_counter(), time.process_time()
        found = measured()
        seconds = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - spent}
        save({name: {"machine": machine(), **found, **seconds}})
        print(json.dumps({name: found}, indent=1))
    if not parts:
        everything()
    return 0


if __name__ == "__main__":
    sys.exit(main())
