"""What a hunt tries next: a spec near a bad one, or other data for it."""

from dataclasses import replace
from math import log10, prod

import numpy as np

from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.spec import SHARED, CaseSpec

# Bounds of what is added to log10 of offset and eps, to log2 of the scales of x and dy, and to log2 of two sizes: the
# last one and the first one.
LIMITS = np.array([1.5, 2.0, 6.0, 6.0, 1.5, 1.5])


def spec_near(spec: CaseSpec, v: Array, rng: np.random.Generator, elements: int) -> CaseSpec:
    """Return a spec near this one with new data, of at most `elements` elements if it grows.

    `v` has a step for each of LIMITS. A step within half of its limit changes nothing, so that one property can change
    alone.
    """
    steps = np.where(np.abs(v) < LIMITS / 2, 0.0, np.sign(v) * (np.abs(v) - LIMITS / 2) * 2)
    offset, eps, scale, dy_scale, last, first = steps
    shape = list(spec.shape)
    for axis, step in ((len(shape) - 1, last), (0, first)):
        if step and shape[axis] and (axis != 1 or spec.num_groups is None):  # the groups keep dividing the channels
            shape[axis] = max(1, round(shape[axis] * 2**step))
    if prod(shape) > elements:
        shape = list(spec.shape)
    return replace(
        spec,
        shape=tuple(shape),
        offset=float(spec.offset * 10**offset),
        eps=float(10 ** (log10(spec.eps) + eps)) if spec.eps > 0 else spec.eps,
        log2_scale=spec.log2_scale + round(float(scale)),
        dy_log2_scale=spec.dy_log2_scale + round(float(dy_scale)),
        seed=int(rng.integers(2**32)),
    )


def other_data(spec: CaseSpec, exact: dict[str, Array | None], rng: np.random.Generator) -> dict[str, Array | None]:
    """Return the inputs with one of them changed: some signs flipped, some elements exchanged, or noise added."""
    names = [name for name in ("x", "residual", "residual_out", "dy") if exact.get(name) is not None]
    name = str(rng.choice(names))
    if getattr(spec, f"{name}_layout", "contiguous") in SHARED:
        return dict(exact)
    values = np.array(exact[name])
    if not np.isfinite(values).all():
        return dict(exact)
    flat, form = values.reshape(-1), FORMATS[spec.dtype]  # a view: what changes it changes the values
    some = rng.integers(flat.size, size=max(1, int(flat.size ** rng.random())))
    change = ("flip", "exchange", "noise")[rng.integers(3)]
    if change == "flip" and spec.offset and name != "dy":
        flat[some] = 2 * flat.mean() - flat[some]  # around the offset
    elif change == "flip":
        flat[some] = -flat[some]
    elif change == "exchange":
        flat[some] = flat[rng.permutation(some)]
    else:
        flat[some] += rng.standard_normal(some.size) * flat.std() * 2.0 ** -rng.integers(0, 20)
    return exact | {name: form.round(np.clip(values, -form.largest, form.largest))}
