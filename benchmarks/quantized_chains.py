"""Test whether the error bounds of chains that quantize are sound and tight, on float32 kernels.

    python benchmarks/quantized_chains.py [--cases 4000] [--seed 0] [--jobs 2] [--out benchmarks/results/…]

As `chains.py`, for what `quantize` makes of z: y in 8 or 4 bits and the scale in its type. A kernel divides by the
scale, multiplies by its reciprocal, or makes that reciprocal of max |z| at once, and takes max |z|/L as a quotient or
as a product with 1/L. Contracts: z is rounded before, powers of two are rounded in other ways, scales have a floor.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import bounds
import chains
import numpy as np
import torch
from bounds import log_uniform
from chains import Draw, single
from emulate import F32, F, quantized

from verify_norm.cases.make import named
from verify_norm.core import promises
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import ratio
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.reference.stages.block_scale import BINADES, E8M0

NAMES = (
    "rmsnorm_quant",
    "add_rmsnorm_quant",
    "add_rmsnorm_quant_group",
    "rmsnorm | quantize(e4m3fn)",
    "layernorm | quantize(e5m2, group64)",
    "rmsnorm | quantize(int8, per_token)",
    "layernorm | gate | quantize(e4m3fn, per_token, scale_ub)",
    "rmsnorm | quantize(e4m3fn, mx)",
    "layernorm | quantize(e5m2, mx)",
    "rmsnorm | quantize(e2m1, mx)",
    "rmsnorm | quantize(e2m1, nvfp4)",
)
FLOOR = 1 / (448 * 512)
# The error of a quotient is a small part of a step of 8 bits, and of the distance from a tie that decides a rounding.
FEW_BITS = "few_bits"  # of a scale: it is seldom near the edge of a step, and exact elsewhere
LEAST = {"float32": 0.05, FEW_BITS: 0.0} | dict.fromkeys(FORMATS.keys() - {"float32"}, 0.5)


def scale_of(most: F, d: Draw) -> F:
    """Return the scale of blocks whose largest |z| is `most`, in float32, before its type; 0 of nothing but zeros."""
    stage, L = d.chain.quantizer, F32(d.chain.quantizer.largest)
    if stage.bounded:
        most = np.minimum(most, single(d, "scale_ub"))
    if stage.granularity == "mx":
        return power_of_two(most, stage.dtype, L, d.options["e8m0"])
    if stage.granularity == "nvfp4":
        g = single(d, "global_scale")
        s = g * (most * (F32(1) / L)) if d.folded else most * g / L
        return quantized(np.minimum(s, F32(448)), "float8_e4m3fn")
    s = most * (F32(1) / L) if d.folded else most / L
    return np.maximum(s, F32(d.options["scale_floor"]))


def power_of_two(most: F, dtype: str, L: F, how: str) -> F:
    """Return the power of two of MX by the bits of float32, 0 of 0."""
    binade, stored = BINADES[dtype]
    value = most / L if how == "rceil" else most
    bits = value.view(np.int32)
    if how == "even":
        bits = bits + (1 << 22 - stored)  # half of the last bit that is kept
    exponent, rest = (bits >> 23) - 127, bits & (1 << 23) - 1
    k = exponent + ((rest > 0) & (how in ("ceil", "rceil"))) - (0 if how == "rceil" else binade)
    return np.where(most > 0, np.ldexp(F32(1), np.clip(k, -127, 127)), F32(0)).astype(F32)


def finished(d: Draw, z: F) -> dict[str, F]:
    """Return y and its scale, in their types, of a float32 kernel that has z."""
    stage = d.chain.quantizer
    z = quantized(z, "bfloat16" if d.bug else d.options["z"])
    n = z.shape[1]
    L, most = F32(stage.largest), stage.most(np.abs(z)).astype(F32)
    s = scale_of(most, d) if stage.dynamic else np.broadcast_to(single(d, "y_scale"), most.shape)
    kept = np.where(s > 0, s, F32(1))
    by = kept / single(d, "global_scale") if stage.granularity == "nvfp4" else kept
    if d.folded and stage.granularity == "nvfp4":
        factor = F32(1) / (kept * (F32(1) / single(d, "global_scale")))
    elif d.exp2 and stage.granularity == "per_token" and not stage.bounded and not d.options["scale_floor"]:
        factor = np.where(most > 0, L / np.where(most > 0, most, F32(1)), F32(1))
    else:
        factor = F32(1) / by
    one = d.folded or d.exp2
    y = z * stage.spread(factor, n) if one else z / stage.spread(by, n)
    y = FORMATS[stage.dtype].round(np.clip(y, -L, L).astype(np.float64))
    return {"y": y, "y_scale": kept.astype(np.float64)} if stage.dynamic else {"y": y}


def draw(seed: int, index: int) -> Draw:
    """Return case number `index`: `chains.draw`, and what the contract says of the quantization."""
    rng = np.random.default_rng((seed, index, 1))
    d = chains.draw(seed, index, NAMES)
    stage = d.chain.quantizer
    options = {"z": None, "e8m0": "floor", "scale_floor": 0.0}
    if stage.granularity == "mx":
        options["e8m0"] = str(rng.choice(E8M0))
    if d.kind == "strict" and rng.random() < 0.3:
        options |= {"z": d.dtype} if rng.random() < 0.5 else {"scale_floor": FLOOR * float(stage.granularity != "mx")}
    kind = "z" if options["z"] not in (None, "float32") else d.kind
    ones = {"y_scale": 1.0, "scale_ub": 100.0, "global_scale": 100.0}
    arrays = {n: np.array([np.float32(log_uniform(rng, 0.01, 1.0) * ones[n])], float) for n in stage.inputs}
    return replace(d, arrays=d.arrays | arrays, options=d.options | options, kind=kind)


def measured(d: Draw) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield y and its scale: the name, the type, the ratios of the elements, and the mask of bounded elements."""
    op, z, arithmetic = OPS[f"{d.name}_fwd"], d.options["z"], d.arithmetic
    if z not in (None, "float32"):
        arithmetic = replace(arithmetic, **promises.between(FORMATS[z]))
    offered = {**d.arrays, **d.options, "arithmetic": arithmetic, "largest": d.chain.quantizer.largest}
    with np.errstate(all="ignore"):
        value, delta = (function(**named(function, offered)) for function in (op.reference, op.error))
        torch.set_flush_denormal(d.method.flush)
        got = finished(d, chains.forwarded(d)[0]["y"])
        torch.set_flush_denormal(False)
    types = {tensor.name: tensor.dtype for tensor in op.outputs}
    for name, made in got.items():
        want, off = getattr(value, name), getattr(delta, name)
        label = types[name] if name == "y" or types[name] == "float32" else FEW_BITS
        yield name, label, ratio(made.reshape(want.shape), Expected(want, off, types[name])), np.isfinite(off)


def plain(d: Draw, *, bug: bool) -> Draw:
    """Return the case with the strict method, wrong or as its control; how it divides stays."""
    strict = chains.plain(d, bug=bug)
    return replace(strict, kind=d.kind, folded=d.folded, exp2=d.exp2, options=d.options | {"z": None})


def study(seed: int, indices: range) -> bounds.Tables:
    """Return the tables of these cases; a wrong kernel belongs to the type of its output."""
    draws = ((index, draw(seed, index)) for index in indices)
    return chains.studied(draws, measured, plain, lambda _, dtype: dtype)


if __name__ == "__main__":
    sys.exit(bounds.main(study, "quantized_chains", 4000, least=LEAST, least_y=0.5))
