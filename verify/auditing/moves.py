"""Steps of the hunt: from a spec to one near it, and from the data of a spec to such as no spec says."""

from __future__ import annotations

from dataclasses import replace
from math import log10, prod
from typing import Any

import numpy as np

from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import CaseSpec

# Of a spec: what is added to log10 of the offset and of eps, to log2 of the scales and of the two sizes.
BOUNDS = ((-1.5, 1.5), (-2.0, 2.0), (-6.0, 6.0), (-6.0, 6.0), (-1.5, 1.5), (-1.5, 1.5))
LOWS = np.array([low for low, _ in BOUNDS])
WIDTHS = np.array([high - low for low, high in BOUNDS])


def spec_near(spec: CaseSpec, v: Any, rng: np.random.Generator, elements: int) -> CaseSpec:
    """A spec near this one: within half of the bounds nothing changes, so that one number can move alone."""
    v = np.where(np.abs(v) < np.abs(LOWS) / 2, 0.0, np.sign(v) * (np.abs(v) - np.abs(LOWS) / 2) * 2)
    shape = list(spec.shape)
    for axis, move in ((len(shape) - 1, v[4]), (0, v[5])):
        if move and shape[axis] and (axis != 1 or spec.num_groups is None):  # channels stay divisible by the groups
            shape[axis] = max(1, round(shape[axis] * 2**move))
    if prod(shape) > elements:
        shape = list(spec.shape)
    return replace(
        spec,
        shape=tuple(shape),
        offset=float(spec.offset * 10 ** v[0]),
        eps=float(10 ** (log10(spec.eps) + v[1])) if spec.eps > 0 else spec.eps,
        log2_scale=spec.log2_scale + round(float(v[2])),
        dy_log2_scale=spec.dy_log2_scale + round(float(v[3])),
        seed=int(rng.integers(2**32)),
    )


def other_data(spec: CaseSpec, exact: dict[str, Array | None], rng: np.random.Generator) -> dict[str, Array | None]:
    """One of the inputs with some signs swapped, some elements exchanged, or a step along a random direction."""
    names = [name for name in ("x", "residual", "residual_out", "dy") if exact.get(name) is not None]
    name = str(rng.choice(names))
    if getattr(spec, f"{name}_layout", "contiguous") in ("expanded", "scalar"):
        return dict(exact)
    values = np.array(exact[name])
    if not np.isfinite(values).all():
        return dict(exact)
    flat, form = values.reshape(-1), FORMATS[spec.dtype]
    some = rng.integers(flat.size, size=max(1, int(flat.size ** rng.random())))
    how = rng.integers(3)
    if how == 0:
        flat[some] = -flat[some] if not spec.offset or name == "dy" else 2 * flat.mean() - flat[some]
    elif how == 1:
        flat[some] = flat[rng.permutation(some)]
    else:
        flat[some] += rng.standard_normal(some.size) * flat.std() * 2.0 ** -rng.integers(0, 20)
    return exact | {name: form.round(np.clip(values, -form.largest, form.largest))}
