"""Test whether the error bounds of `verify_norm.reference` are sound and tight, on float32 kernels.

    python benchmarks/bounds.py [--cases 20000] [--seed 0] [--jobs 2] [--out benchmarks/results/bounds.json]

Every case draws an operator, types, a shape, data, and a method of computation, and runs it in float32 arithmetic. The
ratio of an element is its error over the allowed error, δ + ½ ulp; a ratio above 1 is a false alarm. One case in four
also runs a plain kernel with a mistake or, as a control, the plain kernel without one. Exit status 1 if there is a
false alarm, if the largest ratio stays below the expected one, or if a mistake is not detected.
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import emulate
import numpy as np
import torch
from emulate import F32, Method
from scipy.special import ndtri

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import ratio
from verify_norm.core.run import Expected
from verify_norm.reference import groupnorm, layernorm, rmsnorm
from verify_norm.reference.arithmetic import PRODUCTS, Arithmetic
from verify_norm.reference.statistics_rounding import Given

FAMILIES = ("normal", "heavy", "channel", "constant", "identical", "integers", "alternating", "sorted", "ramp", "steps")
WANTED = {"float32": 0.1, "float16": 0.95, "bfloat16": 0.95}  # the largest ratio that correct kernels must reach
CONTROL = "none (control)"
WANTED_Y = 0.3  # y in float32 has few roundings, so kernels come closer to the bound
ELEMENTS = 1 << 20  # the most elements of a case: 64 rows of 16384
SINGLE = {"u": 2.0**-24, "tiny": 2.0**-126, "huge": FORMATS["float32"].largest}

Table = dict[str, Any]
Tables = tuple[Table, Table, Table]  # of right kernels, of kernels with a weaker contract, and of wrong ones


@dataclass(frozen=True)
class Draw:
    """A case: the arguments in float64, and the method that computes them."""

    op: str
    dtype: str
    wdtype: str
    method: Method
    arithmetic: Arithmetic
    eps: float
    groups: int
    offset: float  # of the weight
    arrays: dict[str, Any]
    kind: str  # "strict", or the weaker contract of the method
    words: str


def data(rng: np.random.Generator, shape: tuple[int, ...], family: str) -> Any:
    """Return noise of one family, of magnitude about 1."""
    K, n = shape
    z = rng.standard_normal(shape)
    if family == "heavy":
        return z**3 / (0.05 + rng.random(shape))
    if family == "channel":
        z[:, rng.integers(n)] *= 1000
    elif family == "constant":
        return np.repeat(z[:, :1], n, axis=1)
    elif family == "identical":
        return np.repeat(z[:1], K, axis=0)
    elif family == "integers":
        return np.rint(4 * z)
    elif family in ("sorted", "ramp", "steps"):
        place = (np.arange(n) + 0.5) / n
        return {"sorted": ndtri(place), "ramp": 2 * place, "steps": np.floor(8 * place) / 4}[family] + z / 64
    elif family == "alternating":
        return np.broadcast_to(np.where(np.arange(n) % 2, 1.0, -1.0) * (1 + abs(z[:, :1])), shape)
    return z


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def draw_shape(rng: np.random.Generator, op: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of x and the number of groups: long rows, many rows, groups; around powers of two."""
    n = int(log_uniform(rng, 1, 16385))
    if rng.random() < 0.3:
        n = max(1, 2 ** round(math.log2(n)) + int(rng.integers(-1, 2)))
    if op == "groupnorm":
        D = min(n, int(rng.integers(1, 9)))
        S, G = max(1, n // D), int(rng.integers(1, 7))
        B = int(log_uniform(rng, 1, max(2, min(64, ELEMENTS // (G * D * S)))))
        return (B, G * D, S), G
    if rng.random() < 0.25:  # the reduction over rows
        n = int(log_uniform(rng, 1, 17))
        return (int(log_uniform(rng, 64, 4097)), n), 1
    return (int(log_uniform(rng, 1, max(2, min(65, ELEMENTS // n)))), n), 1


def draw_method(rng: np.random.Generator, op: str) -> tuple[Method, Arithmetic, str]:
    """Return a method, the arithmetic that a kernel of this kind would declare, and its kind."""
    coin = lambda p: bool(rng.random() < p)  # noqa: E731
    centred = op != "rmsnorm"
    variance = str(rng.choice(["two_pass", "welford", "chan", "shifted"])) if centred else "two_pass"
    sequential = coin(0.1)
    m = Method(
        total="sequential" if sequential else str(rng.choice(emulate.BLOCKED)),
        fused=coin(0.4),
        reciprocal=coin(0.5),
        variance=variance,
        lanes=int(rng.choice([128, 256, 512, 1024])),
        rsqrt_ulps=None if coin(0.5) else int(rng.integers(0, 3)),
        approximate=int(rng.choice([0, 1, -1], p=[0.6, 0.2, 0.2])),
        fold=coin(0.3),
        sums=coin(0.5),
        given=coin(0.5),
        flush=coin(0.5),
    )
    kinds = ["strict", "expanded", "stats", "xhat", "partials", "products"]
    kind = str(rng.choice(kinds, p=[0.65, 0.07, 0.07, 0.07, 0.07, 0.07]))
    narrow = str(rng.choice(["float16", "bfloat16"]))
    if kind == "expanded":
        m, kind = replace(m, expanded=centred), kind if centred else "strict"
    elif kind in ("stats", "xhat", "partials"):
        m = replace(m, **{kind: narrow}, fold=False)
    elif kind == "products":
        m = replace(m, products=str(rng.choice(list(PRODUCTS))), cut=coin(0.5), ones=coin(0.5))
    two = variance == "two_pass" and coin(0.5)  # a two-pass kernel may declare the weaker "centered"
    u = FORMATS[narrow].u
    if kind == "strict" and (sequential or variance == "shifted"):
        kind = "sequential" if sequential else "shifted"
    declared = Arithmetic(
        **SINGLE,
        summation="sequential" if sequential else "blocked",
        variance="shifted" if variance == "shifted" else "two_pass" if two else "centered",
        expanded=m.expanded,
        products=m.products or "float32",
        stats_u=u * bool(m.stats),
        xhat_u=u * bool(m.xhat),
        partials_u=u * bool(m.partials),
        narrow_tiny=float(FORMATS[narrow].ulp(np.float64(0.0)) / 2) if m.stats or m.xhat or m.partials else 0.0,
        narrow_huge=FORMATS[narrow].largest,
    )
    return m, declared, kind


def draw(seed: int, index: int) -> Draw:
    """Return case number `index`."""
    rng = np.random.default_rng((seed, index))
    op, dtype = str(rng.choice(["layernorm", "rmsnorm", "groupnorm"])), str(rng.choice(list(WANTED)))
    wdtype = dtype if rng.random() < 0.6 else "float32"
    shape, G = draw_shape(rng, op)
    method, arithmetic, kind = draw_method(rng, op)
    family, dy_family = (str(rng.choice(FAMILIES, p=[0.28, *[0.08] * 9])) for _ in range(2))
    scale, relative = log_uniform(rng, 1e-3, 1e2), 0.0 if rng.random() < 0.3 else log_uniform(rng, 0.1, 1e4)
    if dtype == "float32" and rng.random() < 0.04:
        scale *= float(rng.choice([1e-20, 1e-15, 1e-8, 1e8, 1e14, 1e17]))  # squares underflow, or overflow
    if dtype == "float16":
        scale, relative = min(scale, 20.0), min(relative, 100.0)  # 65504 is the largest
    rows = (shape[0] * G, math.prod(shape) // (shape[0] * G)) if op == "groupnorm" else shape
    channels = shape[1]
    rounded = lambda name, value: FORMATS[name].round(np.clip(value, -6e4, 6e4) if name == "float16" else value)  # noqa: E731
    weight = rng.standard_normal(channels) * (1000 if rng.random() < 0.05 else 1)
    arrays = {
        "x": rounded(dtype, scale * (data(rng, rows, family) + relative)).reshape(shape),
        "dy": rounded(dtype, log_uniform(rng, 1e-3, 1e2) * data(rng, rows, dy_family)).reshape(shape),
        "weight": None if rng.random() < 0.1 else rounded(wdtype, weight),
        "bias": None if rng.random() < 0.1 or op == "rmsnorm" else rounded(wdtype, rng.standard_normal(channels)),
    }
    eps, offset = log_uniform(rng, 1e-12, 1e-1), float(op != "groupnorm" and rng.random() < 0.3)
    if offset and wdtype != "float32" and rng.random() < 0.5:
        method, arithmetic = replace(method, offset=True), replace(arithmetic, offset_u=FORMATS[wdtype].u)
        kind = "offset" if kind == "strict" else kind
    words = f"{shape} {family}, offset {relative:.3g}, scale {scale:.3g}, eps {eps:.2g}; dy {dy_family}; {method}"
    return Draw(op, dtype, wdtype, method, arithmetic, eps, G, offset, arrays, kind, words)


def expected(d: Draw, arithmetic: Arithmetic) -> tuple[Any, Any, Any, Any, Any]:
    """Return values and bounds of the forward pass and of the backward pass, and the bound with given statistics."""
    a, options = d.arrays, {"eps": d.eps}
    module, args = rmsnorm if d.op == "rmsnorm" else layernorm, (a["x"], a["weight"])
    args = args if d.op == "rmsnorm" else (*args, a["bias"])
    if d.op == "groupnorm":
        module, options = groupnorm, options | {"num_groups": d.groups}
    else:
        options |= {"weight_offset": d.offset}
    value, bounding = module.forward(*args, **options), {**options, "arithmetic": arithmetic}
    given = Given(
        *(None if v is None else FORMATS["float32"].round(v) for v in (getattr(value, "mean", None), value.rstd))
    )
    return (
        value,
        module.forward_error(*args, **bounding),
        module.backward(a["dy"], *args, **options),
        module.backward_error(a["dy"], *args, **bounding),
        module.backward_error(a["dy"], *args, **bounding, given=given),
    )


def computed(d: Draw, m: Method, truth: Any) -> dict[str, Any]:
    """Return the outputs of a float32 kernel, before the final rounding."""
    x = d.arrays["x"]
    shape = (x.shape[0], d.groups, -1, math.prod(x.shape[2:])) if d.op == "groupnorm" else x.shape
    K = x.shape[0] * d.groups

    def spread(v: Any) -> Any:
        if v is None:
            return None
        v = v.reshape(1, d.groups, -1, 1) if d.op == "groupnorm" else v
        return np.ascontiguousarray(np.broadcast_to(v, x.reshape(shape).shape)).reshape(K, -1)

    def by_weight(v: Any) -> Any:
        v = v.reshape(x.shape)
        return np.ascontiguousarray(np.moveaxis(v, 1, 0)).reshape(x.shape[1], -1)

    single = {name: None if v is None else v.astype(F32) for name, v in d.arrays.items()}
    weight = single["weight"] if single["weight"] is None else single["weight"] + F32(d.offset)
    if weight is not None and m.offset:
        weight = emulate.quantized(weight, d.wdtype)
    w, b, centred = spread(weight), spread(single["bias"]), d.op != "rmsnorm"
    rows, dy = single["x"].reshape(K, -1), single["dy"].reshape(K, -1)
    y, mean, rstd = emulate.forward(rows, w, b, d.eps, m, centred=centred)
    saved = [v.astype(F32).reshape(K, 1) for v in (getattr(truth, "mean", np.zeros(K)), truth.rstd)]
    dx, _, xhat = emulate.backward(dy, rows, w, d.eps, m, centred=centred, given=(saved[0], saved[1]))
    out = {"y": y, "rstd": emulate.quantized(rstd, "bfloat16" if m.bug == "stats_bf16" else m.stats), "dx": dx}
    if centred:
        out["mean"] = emulate.quantized(mean, "bfloat16" if m.bug == "stats_bf16" else m.stats)
    if weight is not None:
        out["dweight"] = emulate.reduced(by_weight(dy), by_weight(xhat), m)
    if b is not None:
        out["dbias"] = emulate.reduced(by_weight(dy), None, m)
    return out


def measured(d: Draw, m: Method, arithmetic: Arithmetic) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield for each output its name, its type, the ratios of its elements, and the mask of bounded elements.

    The gradients of a kernel that uses the given statistics are judged twice: also, as "dx/given", by the bound for it.
    """
    value, error, dvalue, derror, dgiven = expected(d, arithmetic)
    torch.set_flush_denormal(m.flush)  # for this thread, so for NumPy's float32 too
    with np.errstate(all="ignore"):
        out = computed(d, m, value)
    torch.set_flush_denormal(False)
    stats = m.stats or "float32"
    for name, got in out.items():
        want, delta = (getattr(v if hasattr(v, name) else dv, name) for v, dv in ((value, dvalue), (error, derror)))
        dtype = {"mean": stats, "rstd": stats, "dweight": d.wdtype, "dbias": d.wdtype}.get(name, d.dtype)
        rounded = FORMATS[dtype].round(got.astype(np.float64).reshape(want.shape))
        yield name, dtype, ratio(rounded, Expected(want, delta, dtype)), np.isfinite(delta)
        if m.given and name in ("dx", "dweight"):
            delta = getattr(dgiven, name)
            yield f"{name}/given", dtype, ratio(rounded, Expected(want, delta, dtype)), np.isfinite(delta)


def note(table: Table, key: str, where: str, ratios: Any, judged: Any, words: str) -> None:
    """Enter the ratios of one output into the row of a key."""
    zeros = {"cases": 0, "elements": 0, "judged": 0, "alarms": 0, "infinite": 0}
    row = table.setdefault(key, zeros | {"largest": 0.0, "where": ""})
    finite = np.where(np.isfinite(ratios), ratios, 0.0)
    counts = (1, ratios.size, judged.sum(), np.sum(~(ratios <= 1)), np.sum(~np.isfinite(ratios)))
    row.update({name: row[name] + int(count) for name, count in zip(zeros, counts, strict=True)})
    if ratios.size and (largest := float(np.max(finite))) > row["largest"]:
        place = [int(i) for i in np.argwhere(finite == largest)[0]]
        row.update(largest=largest, where=f"{where}{place} of {words}")


def study(seed: int, indices: range) -> Tables:
    """Return the tables of some cases: strict kernels, kernels with a weaker contract, and wrong kernels."""
    torch.set_num_threads(1)
    strict: Table = {}
    weaker: Table = {}
    wrong: Table = {}
    for index in indices:
        d = draw(seed, index)
        for name, dtype, ratios, judged in measured(d, d.method, d.arithmetic):
            table, key = (strict, name) if d.kind == "strict" else (weaker, f"{name} ({d.kind})")
            note(table, f"{d.op} {key} {dtype}", f"case {index}: {name}", ratios, judged, d.words)
        if index % 4 == 0:
            bug = (*emulate.WRONG, None)[index // 4 % (len(emulate.WRONG) + 1)]
            plain, key = Method(bug=bug), f"{bug or CONTROL} {d.dtype}"
            for name, dtype, ratios, judged in measured(d, plain, Arithmetic(**SINGLE)):
                note(wrong, key, f"case {index}: {d.op} {name} {dtype}", ratios, judged, d.words)
    return strict, weaker, wrong


def joined(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the union of many tables: counts are added, the largest ratio is kept."""
    out: dict[str, Any] = {}
    for table in tables:
        for key, row in table.items():
            best = max(out.get(key, row), row, key=lambda r: r["largest"])
            counts = {k: v + (out[key][k] if key in out else 0) for k, v in row.items() if isinstance(v, int)}
            out[key] = counts | {"largest": best["largest"], "where": best["where"]}
    return dict(sorted(out.items()))


def failures(
    strict: Table, weaker: Table, wrong: Table, least: dict[str, float] = WANTED, least_y: float = WANTED_Y
) -> Iterator[str]:
    """Yield one line for each bound that is not sound, not tight, or that misses a mistake.

    `least` is the largest ratio that right kernels must reach in a type, `least_y` that of y in float32.
    """
    for key, row in (strict | weaker).items():
        if row["alarms"]:
            yield f"{key}: {row['alarms']} false alarms"
    for key, row in strict.items():
        _, output, dtype = key.split()
        wanted = least_y if output == "y" and dtype == "float32" else least[dtype]
        if row["largest"] < wanted:
            yield f"{key}: largest ratio {row['largest']:.2f}, expected at least {wanted}"
    for key, row in wrong.items():
        if key.startswith(CONTROL) and row["alarms"]:
            yield f"{key}: {row['alarms']} false alarms"
        elif not key.startswith(CONTROL) and not row["alarms"]:
            yield f"{key}: not detected"


def machine() -> dict[str, Any]:
    """Return the processor, without names of hosts or paths."""
    names = [
        n.split(":")[1].strip() for n in Path("/proc/cpuinfo").read_text().splitlines() if n.startswith("model name")
    ]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}


def main(study: Callable[[int, range], Tables], name: str, cases: int, **least: Any) -> int:
    """Run a study in many processes; write its tables, and print them and what fails."""
    parser = argparse.ArgumentParser(description="Test whether the error bounds are sound and tight.")
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"{name}.json")
    options = parser.parse_args()
    began, shares = time.time(), [range(i, min(i + 50, options.cases)) for i in range(0, options.cases, 50)]
    with ProcessPoolExecutor(options.jobs) as pool:
        results = list(pool.map(study, [options.seed] * len(shares), shares))
    strict, weaker, wrong = (joined(list(tables)) for tables in zip(*results, strict=True))
    report = {
        "cases": options.cases,
        "seed": options.seed,
        "seconds": round(time.time() - began),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        "strict": strict,
        "weaker": weaker,
        "wrong": wrong,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    for key, row in (strict | weaker | wrong).items():
        judged = row["judged"] / max(row["elements"], 1)
        print(
            f"{key:<40} {row['cases']:>6} cases {row['elements']:>11} elements  {judged:7.2%} judged  "
            f"largest {row['largest']:9.3g}  alarms {row['alarms']}"
        )
    complaints = list(failures(strict, weaker, wrong, **least))
    print(*complaints, f"{report['seconds']} s", sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(study, "bounds", 20000))
