"""Certifies what has neither jvp nor double backward, such as every chain: values and gradients to fifty digits.

The operator is written out once more on mpmath's numbers, element by element, with none of the references' lines. A
gradient is checked along random directions v of each input: ⟨dp, v⟩ is the change of ⟨dy, y⟩ + ⟨dresidual_out,
residual_out⟩ along v, a central difference in so many digits that nothing is lost (`exact`), and where the path takes
complex numbers a complex step of the reference itself.

**Allowed** is the reference's own rounding analysis, at float64: δ of a value, Σ|v|δ of a claim and some ulps of its
terms; of a complex step, which rounds on both sides, four times that.

What quantizes has values alone: y before its last rounding, and its scales.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import mpmath
import numpy as np

from verify_norm.cases import make
from verify_norm.core import geometry, ops
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import Array
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.certify.exact import DIGITS, Exact, H
from verify_norm.validation.certify.methods import RESOLVES, STEP, U

DOUBLE = Contract(accumulate="float64", stats="float64", partials="float64")
DIRECTIONS = 2
ROWS: tuple[tuple[str, CaseSpec], ...] = (
    ("offset 0", CaseSpec((2, 3, 6))),
    ("offset 100", CaseSpec((2, 3, 6), offset=100.0, eps=1e-12)),
    ("a row a token", CaseSpec((2, 2, 5), modulation="token", eps=0.1)),
    ("no weight", CaseSpec((2, 2, 4), weight=False)),
    ("x alone", CaseSpec((2, 2, 4), weight=False, bias=False, dresidual_out=False)),
    ("scale 2⁻²⁰", CaseSpec((2, 5), log2_scale=-20, eps=1e-12)),
    ("normalized_shape of 2", CaseSpec((2, 2, 2, 3), normalized_ndim=2)),
    ("weight_offset 1", CaseSpec((3, 7), weight_offset=1.0)),
    ("long rows", CaseSpec((2, 66), variance_size=5, dropout_p=0.75)),
    ("part of a row", CaseSpec((2, 3, 7), rotary="half")),
)
GROUPS: tuple[tuple[str, CaseSpec], ...] = (
    ("offset 0", CaseSpec((2, 4, 3), num_groups=2)),
    ("offset 100", CaseSpec((2, 4, 3), num_groups=2, offset=100.0, eps=1e-12)),
    ("no weight", CaseSpec((2, 4, 2), num_groups=2, weight=False)),
    ("x alone", CaseSpec((2, 4, 2), num_groups=2, weight=False, bias=False)),
    ("a group a channel", CaseSpec((2, 3, 4), num_groups=3)),
    ("no spatial dimensions", CaseSpec((3, 6), num_groups=2)),
)

BLOCKS: tuple[tuple[str, CaseSpec], ...] = (
    ("several blocks", CaseSpec((2, 150), scale=40.0)),
    ("a scale that saturates", CaseSpec((2, 70), scale=1e4)),
)


class Found(NamedTuple):
    """What one method finds of one quantity, in one family of cases; errors are relative to the terms' size."""

    quantity: str
    family: str
    method: str
    error: float
    allowed: float
    ok: bool


def evaluates(op: Op) -> bool:
    """Return whether this module writes an operator's forward out: rows and groups, a sum, and stages.

    >>> from verify_norm.core.ops import OPS
    >>> [evaluates(OPS[name]) for name in ("gated_rmsnorm_fwd", "add_layernorm_fwd", "batchnorm_fwd")]
    [True, True, False]
    """
    return op.view != "channels" and not op.quantized and all(stage.name in STAGES for stage in op.stages)


def certified(name: str, seed: int) -> Iterator[Found]:
    """Yield what each method finds for both directions of an operator, in every family of cases."""
    forward = ops.OPS[f"{name}_fwd"]
    if forward.quantizer is not None:
        for number, (family, spec) in enumerate((*ROWS, *BLOCKS)):
            yield from _values(spec, forward, make.exact_inputs(replace(spec, seed=seed + number), forward), family)
        return
    backward = ops.OPS[f"{name}_bwd"]
    for number, (family, spec) in enumerate(ROWS if forward.view == "rows" else GROUPS):
        seeded = replace(spec, seed=seed + number)
        yield from _values(spec, forward, make.exact_inputs(seeded, forward), family)
        drawn = make.exact_inputs(seeded, backward)
        summed = drawn.get("residual_out")
        given = drawn if summed is None else {**drawn, **make.summed_alone(backward, summed)}
        yield from _gradients(spec, backward, given, family, np.random.default_rng([seed, number]))


def _values(spec: CaseSpec, op: Op, given: make.Exact, family: str) -> Iterator[Found]:
    """Yield how far each output of the forward is from fifty digits."""
    claims = make.call(op.reference, make.offer(spec, op, DOUBLE, given))
    with mpmath.workdps(DIGITS):
        truth = evaluate(spec, op, given)
    for output, claim, delta in zip(op.outputs, claims, make.errors(spec, op, DOUBLE, given), strict=True):
        off = np.abs((claim.ravel() - truth[output.name]).astype(float))
        free = op.quantizer is not None and op.quantizer.dtype == "int8" and output.name == "y"
        kept = claim.ravel() > -127 if free else slice(None)  # −128 is right too: a bound of 1, which shows nothing
        yield _found(output.name, family, "50 digits, relative", off[kept], delta.ravel()[kept], np.abs(claim).max())


def _gradients(spec: CaseSpec, op: Op, given: make.Exact, family: str, rng: np.random.Generator) -> Iterator[Found]:
    """Yield how far ⟨dp, v⟩ is from the change of ⟨dy, y⟩ along v, for each input p."""
    offered, forward = make.offer(spec, op, DOUBLE, given), ops.forward_of(op)
    claims, deltas = make.call(op.reference, offered), make.errors(spec, op, DOUBLE, given)
    for output, claim, delta in zip(op.outputs, claims, deltas, strict=True):
        name = output.name.removeprefix("d")
        value = given[name]
        if value is None or claim is None:
            continue
        spread = float(np.abs(value - value.mean()).max()) or 1.0
        for _ in range(DIRECTIONS):
            v = rng.normal(size=value.shape) * spread
            terms, size = v * claim, float((np.abs(v * claim)).sum())
            allowed = (np.abs(v) * delta).sum() + 2 * U * v.size * size
            with mpmath.workdps(DIGITS):
                up, down = (_loss(spec, forward, given, name, s * H * v) for s in (mpmath.mpf(1), mpmath.mpf(-1)))
                off = abs(float(mpmath.fsum(map(mpmath.mpf, terms.ravel())) - (up - down) / (2 * H)))
            yield _found(output.name, family, "50 digits, relative", off, allowed, size)
            if _analytic(forward, name):
                step = _complex_step(partial(make.call, forward.reference), offered, _source(forward, name), v)
                yield _found(output.name, family, "complex step", abs(terms.sum() - step), 4 * allowed, size)


def _found(quantity: str, family: str, method: str, off: Any, allowed: Any, size: Any) -> Found:
    """Return the worst element: its error and what is allowed, both relative to the largest value."""
    off, allowed, size = np.atleast_1d(off), np.atleast_1d(allowed), float(size) or 1.0
    off = np.where(np.isfinite(off), off, np.inf)
    ratio = np.where(off > 0, off / np.where(allowed > 0, allowed, U * U), 0.0)
    worst = int(np.argmax(ratio))
    sees = bool(allowed.max() <= RESOLVES * size)
    return Found(
        quantity, family, method, float(off[worst] / size), float(allowed[worst] / size), sees and ratio[worst] <= 1
    )


def _analytic(op: Op, name: str) -> bool:
    """Return whether y takes complex numbers in this input: no activation is applied to it."""
    return op.linear and name != "gate"


def _source(op: Op, name: str) -> str:
    """Return the input of a forward that moves with a backward's: that which holds the sum for residual_out."""
    return geometry.summands(op)[0] if name == "residual_out" else name


def _complex_step(call: Callable[..., Any], offered: dict[str, Any], source: str, v: Array) -> float:
    """Return the derivative of ⟨dy, y⟩ + ⟨dresidual_out, residual_out⟩ along v, of the input `source`."""
    moved = call({**offered, source: offered[source] + STEP * 1j * v})
    loss = (offered["dy"] * moved.y).sum()
    if offered.get("dresidual_out") is not None:
        loss = loss + (offered["dresidual_out"] * moved.residual_out).sum()
    return float(loss.imag / STEP)


def _loss(spec: CaseSpec, op: Op, given: make.Exact, name: str, change: Exact) -> mpmath.mpf:
    source = _source(op, name)
    value = given[source]
    assert value is not None
    made = evaluate(spec, op, {**given, source: _exactly(value) + change})
    total = mpmath.fsum(_exactly(given["dy"]).ravel() * made["y"])
    if given.get("dresidual_out") is not None:
        total += mpmath.fsum(_exactly(given["dresidual_out"]).ravel() * made["residual_out"])
    return total


_exactly = np.frompyfunc(mpmath.mpf, 1, 1)


def evaluate(spec: CaseSpec, op: Op, given: make.Exact) -> dict[str, Exact]:
    """Return the outputs of a forward, flat, on mpmath's numbers in the digits that are set."""
    v: dict[str, Any] = {name: None if value is None else _exactly(value) for name, value in given.items()}
    affine, adds = geometry.affine_shape(spec, op), any(tensor.name == "residual" for tensor in op.inputs)
    h = v["x"] if op.dropout is None else _dropped(v["x"], v["mask"], mpmath.mpf(spec.dropout_p))
    h = h + v["residual"] if adds else h
    if op.before is not None:
        h = STAGES[op.before.name](op.before, h, v, len(affine))
    n = geometry.row_length(spec, op)
    rows = h.reshape(-1, n)  # a group's channels, and their positions, follow one another
    means, roots, xhat = [], [], []
    taken = geometry.variance_size(spec, op) if "variance_size" in op.attrs else n
    for row in rows:
        mean = mpmath.fsum(row) / n if op.centred else mpmath.mpf(0)
        square = mpmath.fsum((row[:taken] - mean) ** 2) / (taken if op.averages else 1)
        means.append(mean)
        roots.append(1 / mpmath.sqrt(square + mpmath.mpf(spec.eps)))
        xhat.append((row - mean) * roots[-1])
    z = np.array(xhat, dtype=object).reshape(spec.shape)
    column = affine if op.view == "rows" else (-1, *(1,) * (len(spec.shape) - 2))
    if v.get("weight") is not None:
        offset = spec.weight_offset if "weight_offset" in op.attrs else 0.0
        z = z * (v["weight"] + mpmath.mpf(offset)).reshape(column)
    if v.get("bias") is not None:
        z = z + v["bias"].reshape(column)
    scales: list[Any] = []
    for stage in op.stages:
        v["scales"] = scales
        z = STAGES[stage.name](stage, z, v, len(affine))
    flat = {"y": z, "residual_out": h, "mean": np.array(means), "rstd": np.array(roots), "y_scale": np.array(scales)}
    return {name: value.ravel() for name, value in flat.items()}


def _dropped(x: Exact, mask: Exact, p: mpmath.mpf) -> Any:
    """Return x over 1 − p where the mask is, 0 elsewhere: a loop over elements."""
    out = x.copy()
    for place in np.ndindex(x.shape):
        out[place] = x[place] / (1 - p) if mask[place] else mpmath.mpf(0)
    return out


def _sigmoid(t: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-t))


ACTIVATIONS = {
    "silu": lambda t: t * _sigmoid(t),
    "sigmoid": _sigmoid,
    "gelu": lambda t: t * mpmath.erfc(-t / mpmath.sqrt(2)) / 2,
}


def _activated(stage: Any, z: Exact, v: dict[str, Any], ndim: int) -> Any:
    return np.frompyfunc(ACTIVATIONS[stage.name], 1, 1)(z)


def _gated(stage: Any, z: Exact, v: dict[str, Any], ndim: int) -> Any:
    return z * np.frompyfunc(ACTIVATIONS[stage.activation], 1, 1)(v["gate"])


def _modulated(stage: Any, z: Exact, v: dict[str, Any], ndim: int) -> Any:
    """Return z(1 + scale) + shift: each row of z looks up its sample, the first index, or its own token."""
    out = z.copy()
    for place in np.ndindex(z.shape):
        inner = place[len(place) - ndim :]
        own = place if v["scale"].shape == z.shape else (*place[: len(place) - ndim][:1], *inner)
        out[place] = z[place] * (1 + v["scale"][own]) + v["shift"][own]
    return out


def _rotated(stage: Any, z: Exact, v: dict[str, Any], ndim: int) -> Any:
    """Return z with pairs of each head turned by the angle of its token: a loop over heads and pairs."""
    lead = z.shape[: len(z.shape) - ndim]
    heads, half = z.reshape(*lead, -1).copy(), v["cos"].shape[-1]
    for place in np.ndindex(lead):
        token = place[:-1] if len(lead) > 1 else place
        for i in range(half):
            one, two = (i, i + half) if stage.style == "neox" else (2 * i, 2 * i + 1)
            cos, sin, a, b = v["cos"][token][i], v["sin"][token][i], heads[place][one], heads[place][two]
            heads[place][one], heads[place][two] = a * cos - b * sin, b * cos + a * sin
    return heads.reshape(z.shape)


E4M3 = [mpmath.mpf(m * 2 ** max(e - 1, 0)) / 512 for e in range(16) for m in range(8 * (e > 0), 8 + 8 * (e > 0))][:-1]
NEVER = mpmath.mpf(10) ** 400  # a bound that bounds nothing


def _scaled(stage: Any, most: mpmath.mpf, v: dict[str, Any]) -> mpmath.mpf:
    """Return the scale of a block whose largest |z| is `most`: for MX and NVFP4 by looking through all scales."""
    L = mpmath.mpf(stage.largest)
    if stage.granularity == "mx":
        binade = max(k for k in range(20) if 2**k <= L)
        return mpmath.mpf(2) ** (max(k for k in range(-200, 200) if mpmath.mpf(2) ** k <= most) - binade)
    if stage.granularity == "nvfp4":
        wanted = most * v["global_scale"][0] / L
        near = min(abs(one - wanted) for one in E4M3)
        return next(one for place, one in enumerate(E4M3) if abs(one - wanted) == near and place + 1)
    return min(most, v["scale_ub"][0] if stage.bounded else NEVER) / L


def _quantized(stage: Any, z: Exact, v: dict[str, Any], ndim: int) -> Any:
    """Return z over the scale of its block, saturated; `v["scales"]` gets the scales."""
    rows = z.reshape(int(np.prod(z.shape[: z.ndim - ndim], dtype=int)), -1)
    length = {"group64": 64, "group128": 128, "mx": 32, "nvfp4": 16}.get(stage.granularity, rows.shape[1])
    L, out = mpmath.mpf(stage.largest), rows.copy()
    for i, row in enumerate(rows):
        for start in range(0, len(row), length):
            block = row[start : start + length]
            s = _scaled(stage, max(abs(block)), v) if stage.dynamic else v["y_scale"][0]
            v["scales"] += [s] * stage.dynamic
            by = s / v["global_scale"][0] if stage.granularity == "nvfp4" else s
            out[i, start : start + length] = [min(max(t / by, -L), L) for t in block]
    return out.reshape(z.shape)


STAGES: dict[str, Callable[[Any, Exact, dict[str, Any], int], Any]] = {
    **dict.fromkeys(ACTIVATIONS, _activated),
    "gate": _gated,
    "modulate": _modulated,
    "rotate": _rotated,
    "quantize": _quantized,
}
