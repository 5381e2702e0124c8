"""Which mistakes hide at which sizes: kernels with one mistake, run under the checks that compare numbers.

    python benchmarks/mutants.py [--seeds 3] [--large] [--out benchmarks/results/mutants.json]

Every kernel is LayerNorm or its backward in float32 NumPy, with one mistake in its sums, its statistics or its types.
The table says in how many of the seeds each check convicts it. `--large` adds sizes up to 65536 rows or columns and
500,000 rows. A second table has mistakes in the use of given statistics, by the offset of x, and how many of them the
bound of a backward that may compute its own detects. Exit status 1 if a kernel without a mistake is convicted.
"""

import argparse
import datetime
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

F32 = np.float32
LOOKING = ("accuracy", "statistics", "distribution", "sums", "identities")
NONE = "none"
FORWARD = (
    *(NONE, "eps / 10", "variance / (N - 1)", "last column left out", "rstd * (1 + 1e-4)", "rstd * (1 + 1e-5)"),
    "rstd in tf32",
)
BACKWARD = (
    *(NONE, "means / (N - 1)", "means / (N + 1)", "last column left out", "c1 in bfloat16"),
    *("last row left out", "one row of 1024 left out", "first 1024 rows only", "tf32 products"),
    *("bfloat16 partial sums", "float16 partial sums", "sums * (1 + 1e-4)", "sums * (1 + 1e-5)"),
)
OWN_MEAN = "mean again from x (right)"
GIVEN = (NONE, OWN_MEAN, "x * rstd - mean * rstd", "mean toward 0 by an ulp", "mean in 20 bits", "rstd * (1 + 1e-6)")
RIGHT = (NONE, OWN_MEAN)
OFFSETS = (0.0, 10.0, 100.0, 10000.0)
SMALL = ((16, 64), (64, 256), (1, 16384), (4096, 4), (1025, 16))
LARGE = ((4096, 256), (65536, 16), (500_000, 4), (4, 16384), (4, 65536))


def tf32(a: Any) -> Any:
    """Return float32 values rounded to 11 bits, as a tensor core reads them."""
    bits = a.astype(F32).view(np.int32)
    return ((bits + np.int32(0x0FFF) + ((bits >> 13) & 1)) & np.int32(~0x1FFF)).view(F32)


def rounded(a: Any, dtype: str) -> Any:
    return FORMATS[dtype].round(a.astype(np.float64)).astype(F32)


def array(tensor: Any, n: int | None = None) -> Any:
    values = tensor.detach().float().contiguous().numpy()
    return values if n is None else values.reshape(-1, n)


def like(values: Any, tensor: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=F32)).reshape(tensor.shape).to(tensor.dtype)


def forward(mistake: str) -> Callable[..., Any]:
    def layernorm_fwd(x: Any, weight: Any, bias: Any, eps: float, normalized_shape: Any) -> Any:
        n = int(np.prod(normalized_shape))
        rows, eps32 = array(x, n), F32(eps / 10 if mistake == "eps / 10" else eps)
        summed = rows[:, :-1] if mistake == "last column left out" else rows
        mean = summed.sum(1, keepdims=True, dtype=F32) / F32(n)
        squares = np.square(summed - mean).sum(1, keepdims=True, dtype=F32)
        rstd = F32(1) / np.sqrt(squares / F32(n - 1 if mistake == "variance / (N - 1)" else n) + eps32)
        if mistake.startswith("rstd * "):
            rstd = rstd * F32(1 + float(mistake[12:-1]))
        rstd = tf32(rstd) if mistake == "rstd in tf32" else rstd
        y = (rows - mean) * rstd * array(weight, n) + array(bias, n)
        return like(y, x), torch.from_numpy(mean[:, 0].copy()), torch.from_numpy(rstd[:, 0].copy())

    return layernorm_fwd


def summed(terms: Any, mistake: str) -> Any:
    """Return the sum over rows: runs of 128 rows, each in order, then all of them."""
    if mistake == "last row left out":
        terms = terms[:-1]
    if mistake == "one row of 1024 left out":
        terms = terms[np.arange(len(terms)) % 1024 != 5]
    if mistake == "first 1024 rows only":
        terms = terms[:1024]
    size = 1024 if mistake == "bfloat16 partial sums" else 128
    parts = np.stack([terms[i : i + size].sum(0, dtype=F32) for i in range(0, max(len(terms), 1), size)])
    if mistake.endswith("partial sums"):
        parts = rounded(parts, mistake.split()[0])
    total = parts.sum(0, dtype=F32)
    return total * F32(1 + float(mistake[12:-1])) if mistake.startswith("sums * ") else total


def used(mistake: str, rows: Any, mean: Any, rstd: Any) -> tuple[Any, Any]:
    """Return the mean and rstd that a backward computes with."""
    if mistake == OWN_MEAN:
        mean = rows.mean(1, keepdims=True, dtype=F32)
    if mistake == "mean toward 0 by an ulp":
        mean = np.nextafter(mean, F32(0))
    if mistake == "mean in 20 bits":
        mean = ((mean.view(np.int32) + 8) & np.int32(~15)).view(F32)
    return mean, rstd * F32(1 + 1e-6) if mistake == "rstd * (1 + 1e-6)" else rstd


def backward(mistake: str) -> Callable[..., Any]:
    def layernorm_bwd(
        dy: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, eps: float, normalized_shape: Any
    ) -> Any:
        n = int(np.prod(normalized_shape))
        d, rows = array(dy, n), array(x, n)
        mu, r = used(mistake, rows, *(array(t).reshape(-1, 1) for t in (mean, rstd)))
        xhat = rows * r - mu * r if mistake == "x * rstd - mean * rstd" else (rows - mu) * r
        g = d * array(weight, n)
        count = F32(n + {"means / (N - 1)": -1, "means / (N + 1)": 1}.get(mistake, 0))
        kept = slice(None, -1) if mistake == "last column left out" else slice(None)
        c1 = (g * xhat)[:, kept].sum(1, keepdims=True, dtype=F32) / count
        c2 = g[:, kept].sum(1, keepdims=True, dtype=F32) / count
        c1 = rounded(c1, "bfloat16") if mistake == "c1 in bfloat16" else c1
        products, terms = (tf32(d) * tf32(xhat), tf32(d)) if mistake == "tf32 products" else (d * xhat, d)
        dx = (g - (xhat * c1 + c2)) * r
        return like(dx, x), like(summed(products, mistake), weight), like(summed(terms, mistake), bias)

    return layernorm_bwd


def convicted(op: str, mistake: str, spec: CaseSpec) -> tuple[set[str], bool]:
    """Return the checks that find something in one run, and whether an output exceeds the bound of its own truth."""
    function = (forward if op == "layernorm_fwd" else backward)(mistake)
    with np.errstate(all="ignore"):
        run = execute(Kernel(op, op, run=function), make.case(spec, OPS[op], Contract()))
    assert run.problem is None, run.problem
    checks = [CHECKS[name] for name in LOOKING if CHECKS[name].applies(OPS[op])]
    beyond = any(o is not None and o.ratio is not None and o.ratio.max() > 1 for o in run.outputs.values())
    found = {c.name for c in checks if c.looks(run) and any(isinstance(f, Finding) for f in c.function(run))}
    return found, beyond


def counted(op: str, mistake: str, seeds: int, **fields: Any) -> dict[str, Any]:
    """Return a row of the table, and print it."""
    count: Counter[str] = Counter()
    for seed in range(seeds):
        found, beyond = convicted(op, mistake, CaseSpec(**fields, seed=seed, further=()))
        count.update(found | ({"beyond"} if beyond else set()))
    beyond = count.pop("beyond", 0)
    size = "×".join(map(str, fields["shape"]))
    words = dict(count) or "hides"
    print(f"{size} {fields['dtype']} {op} offset {fields.get('offset', 0.0):g} | {mistake:26s} | {words}", flush=True)
    row = {"shape": fields["shape"], "dtype": fields["dtype"], "op": op, "mistake": mistake, "seeds": seeds}
    return row | {"convicted_by": dict(count), "beyond_own": beyond, "offset": fields.get("offset", 0.0)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Find the mistakes that hide.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "mutants.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, table = time.time(), []
    for shape in (*SMALL, *(LARGE if options.large else ())):
        for dtype, weight_dtype in (("float32", None), ("bfloat16", "float32")):
            for op, mistakes in (("layernorm_fwd", FORWARD), ("layernorm_bwd", BACKWARD)):
                same = {"shape": shape, "dtype": dtype, "weight_dtype": weight_dtype}
                table += [counted(op, mistake, options.seeds, **same) for mistake in mistakes]
    given = [
        counted("layernorm_bwd", mistake, options.seeds, shape=(64, 256), dtype="float32", offset=offset)
        for offset in OFFSETS
        for mistake in GIVEN
    ]
    accused = [row for row in table + given if row["mistake"] in RIGHT and row["convicted_by"]]
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    facts = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "versions": versions}
    report = facts | {"seconds": round(time.time() - began), "table": table, "given": given}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())
