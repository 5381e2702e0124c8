"""What proofs reach: our kernels at six lengths, the zoo's wrong Triton kernels, and errors of runs beside the bounds.

    python benchmarks/proofs.py lengths zoo errors    # any of the three; results/proofs.json, on a CPU, in minutes
    python benchmarks/proofs.py gpu --seconds 1.5 --to FILE    # on a GPU, after "errors": that of "errors" there

"lengths" proves kernels of ours, and those of other files (`--also FILE:FUNCTION=OPERATOR`), and says for which M.
"zoo" tries to prove each wrong Triton kernel, and compares the line that is named with `RIGHT`. "errors" runs
configurations that are proved, in Triton's interpreter and with the certificate's contract, and says the largest error
over its bound. "gpu" runs the same with the recorded contracts, and rows of 4 numbers as `exhaust` does, each for so
many seconds.
"""

import argparse
import json
import linecache
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if "gpu" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import verify_norm
from verify_norm.core.ops import OPS
from verify_norm.kernels.zoo import ZOO
from verify_norm.proof.certificate import certificates, versions
from verify_norm.proof.prove import REACH, Asked
from verify_norm.proof.shown import Configuration

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/proofs.json"
LENGTHS, TYPES = (64, 1000, 4096, 5120, 8192, 16384), ("float32", "float16", "bfloat16")
GROUPS = {64: (4, 4), 1000: (8, 10)}  # groups and positions of a channel; of the others OTHERWISE
OTHERWISE = (32, 256)
OURS = ("layernorm_fwd", "rmsnorm_fwd", "add_rmsnorm_fwd", "groupnorm_fwd", "layernorm_bwd", "rmsnorm_bwd")
ROWS = 40  # where M is no symbol
MOST = 100_000  # rows of other projects' kernels, whose offsets of rows have 32 bits
RIGHT = {  # of a wrong kernel: the line where it goes wrong, or what is said where that is no line of Triton
    "A01_ln_masked_variance": "var = sum_of_squares / N",
    "A02_gn_mask_bound_C": "tl.store(Y + (start + c)",
    "A05_row_tile_unmasked": "tl.load(X + row[:, None]",
    "A06_cols_beyond_block": "mean = tl.sum(total, axis=1) / N",
    "A16_int32_row_offset": "row[:, None] *",
    "A17_onepass_variance": "squares += x * x",
    "A18_fp16_sumsq": "squares += x * x",
    "A19_onepass_variance_clipped": "var = tl.maximum(var, 0.0)",
    "A24_eps_outside_sqrt": "tl.sqrt_rn(var) + eps",
    "A25_eps_none_low_precision": "tl.sqrt_rn(var + eps)",
    "A26_eps_on_sum": "tl.sqrt_rn((sum_of_squares + eps) / N)",
    "A34_dw_missing": "dweight is not returned",
    "A39_no_dependency_wait": "tl.load(X + row[:, None]",
    "S004_k4_onepass": "squares += x * x",
    "S004_k2_unguarded_tail": "tl.store(Y + at, y, mask=kept)",
}
COLUMNS = {"A05_row_tile_unmasked": 20, "A06_cols_beyond_block": 1500, "S004_k2_unguarded_tail": 1500}  # shows there
RIGHT_THERE = {  # what is right for all that a certificate covers
    "A15_vec_load_unaligned": "wrong where x is not aligned",
    "A28_block_depends_on_M": "its bits depend on whether there are 256 rows",
    "A35_empty_rows_launch": "fails without rows",
}
RUN = [("layernorm_fwd", n, dtype) for n in (64, 1000, 4096) for dtype in TYPES]
RUN += [("rmsnorm_fwd", n, dtype) for n in (64, 5120) for dtype in TYPES]
RUN += [("add_rmsnorm_fwd", 1000, dtype) for dtype in TYPES]
RUN += [("layernorm_bwd", 64, "float32"), ("rmsnorm_bwd", 1000, "float32")]
RUN += [("layernorm_fwd", 4, "bfloat16"), ("rmsnorm_fwd", 4, "bfloat16")]  # of rows that `exhaust` counts


def asked(kernel: str, op: str, n: int, dtype: str, most: int = 2**31 - 1) -> Asked:
    """Return what to prove of a kernel, of up to `most` rows."""
    groups, positions = GROUPS.get(n, OTHERWISE) if op == "groupnorm_fwd" else (0, 1)
    config = Configuration(op, dtype, 1e-5, 0.0, n, groups, positions)
    return Asked(kernel, config, rows=3 if groups else ROWS, most_rows=most)


def lengths(also: list[str]) -> list[dict[str, Any]]:
    """Return what is proved of kernels at all lengths and types."""
    rows = []
    for name in (*OURS, *also):
        target, _, op = name.rpartition("=")
        wanted = [asked(target or op, op, n, dtype, MOST if target else 2**31 - 1) for n in LENGTHS for dtype in TYPES]
        began = time.perf_counter()
        found = certificates(wanted)
        domains = sorted({one["domain"] for one in found if one["proved"]})
        reasons = sorted({f"{r['why']} ({r['line']})" for one in found if not one["proved"] for r in one["reasons"]})
        row = {"kernel": Path(target or op).name, "proved": sum(one["proved"] for one in found), "of": len(found)}
        rows.append(row | {"M": domains, "reasons": reasons, "seconds": round(time.perf_counter() - began, 1)})
        print(rows[-1], flush=True)
    return rows


def zoo() -> list[dict[str, Any]]:
    """Return what comes of each wrong Triton kernel of an operator that proofs reach."""
    wrong = [one for one in ZOO.values() if one.wrong and one.kind != "check" and one.kernel.backend == "triton"]
    wrong = [one for one in wrong if one.kernel.op in REACH]
    tried = []
    for one in wrong:
        kernel, backward = one.kernel, one.kernel.op.endswith("_bwd")
        config = Configuration(kernel.op, "bfloat16", 1e-5, 0.0, COLUMNS.get(one.name, 96 if backward else 1000))
        if kernel.op == "groupnorm_fwd":
            config = Configuration(kernel.op, "bfloat16", 1e-5, 0.0, 60, 3, 10)
        if one.name == "A18_fp16_sumsq":
            config = Configuration(kernel.op, "float16", 1e-5, 0.0, 1000)
        tried.append(Asked(kernel.target, config, kernel.bind, rows=3 if config.groups else 37))
    return [_judged(one.name, one.kind, found) for one, found in zip(wrong, certificates(tried), strict=True)]


def _judged(name: str, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return whether a wrong kernel has a certificate, and whether what stands in its way is what is wrong."""
    reasons = found.get("reasons", [])
    said = [f"{reason['why']} {_source(reason['line'])}" for reason in reasons]
    right = any(RIGHT[name] in one for one in said) if name in RIGHT else None
    row = {"name": name, "kind": kind, "certificate": found["proved"], "right line": right, "reasons": reasons}
    return row | ({"right for": RIGHT_THERE[name]} if name in RIGHT_THERE else {})


def _source(line: str) -> str:
    """Return the source of a line as the prover names it: the end of a path, and a number."""
    file, _, number = line.rpartition(":")
    paths = [path for path in (ROOT / "kernels").rglob("*.py") if file and str(path).endswith(f"/{file}")]
    return linecache.getline(str(paths[0]), int(number)) if paths else ""


def errors() -> list[dict[str, Any]]:
    """Return the largest error over its bound of runs of proved configurations."""
    rows = []
    found = certificates([asked(op, op, n, dtype) for op, n, dtype in RUN])
    for one, (op, n, dtype) in zip(found, RUN, strict=True):
        row = {"kernel": op, "N": n, "dtype": dtype, "M": one["domain"], "contract": one["contract"]}
        rows.append(row | {"proved": one["proved"]} | _largest(op, n, dtype, one["contract"], "cpu", 20))
        print(rows[-1], flush=True)
    return rows


def _largest(op: str, n: int, dtype: str, contract: str, device: str, seconds: float) -> dict[str, Any]:
    """Return the cases of a run, and the largest error of each output over its bound."""
    only = f"N={n},contiguous,weight,weight_dtype=x,eps=1e-5,ndim=2"
    only += ",bias" * op.startswith("layernorm") + ",weight_offset=0" * ("weight_offset" in OPS[op].attrs)
    report = verify_norm.verify(
        op,
        dtypes=dtype,
        checks="accuracy",
        contract=contract,
        only=only,
        examples=100,
        seconds=seconds,
        device=device,
        allow_incomplete=True,
        config=False,
    )
    return {"cases": report.cases, "largest error over its bound": _ratios(report.tallies)}


def _ratios(tallies: Any) -> dict[str, float]:
    return {tally.output: round(tally.ratio, 4) for tally in tallies}


def on_device(certified: list[dict[str, Any]], device: str, seconds: float) -> list[dict[str, Any]]:
    """Return the errors of runs of what has been proved, and of rows of 4 numbers one after the other."""
    rows = []
    for one in certified:
        op, n, dtype, contract = (one[name] for name in ("kernel", "N", "dtype", "contract"))
        row = {name: one[name] for name in ("kernel", "N", "dtype", "M", "contract", "proved")}
        rows.append(row | _largest(op, n, dtype, contract, device, seconds))
        print(rows[-1], flush=True)
        if n == 4:
            choice = {"space": "rows4", "dtype": dtype, "contract": contract, "config": False}
            found = verify_norm.exhaust(op, seconds=seconds, device=device, **choice)
            rows.append(row | {"cases": found.scope, "largest error over its bound": _ratios(found.tallies)})
            print(rows[-1], flush=True)
    return rows


def recorded(kept: dict[str, Any]) -> list[str]:
    """Return a line for each kernel, one for the zoo, one for errors and one for a GPU, where they are there."""
    lines = [
        f"{row['kernel']}: {row['proved']} of {row['of']} proved, {'; '.join(row['M'])}, {row['seconds']} s"
        for row in kept.get("lengths", {"rows": ()})["rows"]
    ]
    if "zoo" in kept:
        rows = kept["zoo"]["rows"]
        known = [row for row in rows if row["right line"] is not None]
        held = ", ".join(row["name"] for row in rows if row["certificate"])
        right = sum(row["right line"] for row in known)
        lines.append(
            f"zoo: {len(rows)} wrong kernels, certificates of {held}; {len(known)} in reach, the right line of {right}"
        )
    for part in [part for part in ("errors", "gpu") if part in kept]:
        largest = [max(one.values()) for row in kept[part]["rows"] if (one := row["largest error over its bound"])]
        tenth = sum(one >= 0.1 for one in largest)
        span = f"error/bound {min(largest)} to {max(largest)}, 0.1 or more in {tenth}"
        lines.append(f"{part}, {kept[part]['device']}: {len(largest)} runs, {span}")
    return lines


def _name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device != "cpu" else "CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("lengths", "zoo", "errors", "gpu"))
    parser.add_argument("--also", nargs="*", default=[], metavar="FILE:FUNCTION=OPERATOR", help="kernels to prove too")
    parser.add_argument("--device", default="cuda", help="of gpu; cpu tries it")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each configuration, with gpu")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the file that is written")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    parts = {"lengths": lambda: lengths(options.also), "zoo": zoo, "errors": errors}
    parts["gpu"] = lambda: on_device(kept["errors"]["rows"], options.device, options.seconds)
    for name in options.parts:
        kept[name] = {
            "date": str(datetime.now(UTC).date()),
            "versions": versions(),
            "device": _name(options.device) if name == "gpu" else "CPU",
            "rows": parts[name](),
        }
        options.to.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(*recorded(kept), sep="\n")


if __name__ == "__main__":
    main()
