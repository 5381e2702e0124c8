"""Patches the conversions of Triton's interpreter to round as a GPU does, and checks them.

Triton 3.6 to 3.9 truncate float32 to bfloat16, and convert subnormals, NaN and large numbers to 8 bits wrongly. A GPU
rounds to nearest, ties to even, and saturates 8-bit types: from sm_89 on Triton compiles such a conversion to PTX's
`cvt.rn.satfinite`, the only instruction for it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify_norm.core.dtypes import FORMATS

TYPES = {  # Triton's names of the types that it stores as integers; float8_e4m3fn is its float8e4nv
    "bf16": ("bfloat16", np.uint16),
    "fp8e4nv": ("float8_e4m3fn", np.uint8),
    "fp8e5": ("float8_e5m2", np.uint8),
}
PLAIN = {"fp64": (np.float64, np.uint64), "fp32": (np.float32, np.uint32), "fp16": (np.float16, np.uint16)}

NANS = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)  # a quiet NaN, and two that a carry loses


def probes(name: str) -> NDArray[np.float32]:
    """Return float32 values at which a conversion to this type can go wrong.

    Numbers of the type, ties to either side, one bit beside each, the carry into the next power of two, the same among
    subnormals, the last number that stays finite, the tie that overflows, the last of float32, infinities, zero.

    >>> [len(probes(name)) > 20 for name in ("bfloat16", "float8_e4m3fn")]
    [True, True]
    """
    form = FORMATS[name]
    step = 2.0 * form.u
    ones = 1 + step * np.array([0, 0.5, 1, 1.5, 3, 3.5, 1 / step - 1, 1 / step - 0.5])
    small = form.smallest_normal * step * np.array([0, 0.5, 1, 1.5, 2.5, 1 / step - 0.5])
    end = form.largest + step * 2.0**form.emax * np.array([0, 0.5])
    exact = np.concatenate([ones, 16 * ones, small, end, [np.finfo(np.float32).max]]).astype(np.float32)
    with np.errstate(over="ignore"):
        towards = [np.nextafter(exact, np.float32(limit)) for limit in (0, np.inf)]
    beside = np.concatenate([exact, *towards, [np.float32(np.inf)]])
    return np.concatenate([beside, -beside])


def rounded(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the nearest numbers of this type, as on a GPU: 8-bit types saturate to the largest number.

    >>> rounded(np.array([1e9, -np.inf, 3.3], np.float32), "float8_e4m3fn").astype(float).tolist()
    [448.0, -448.0, 3.25]
    """
    form = FORMATS[name]
    with np.errstate(all="ignore"):
        wide = odd(values)
        return (np.clip(wide, -form.largest, form.largest) if form.dtype.itemsize == 1 else wide).astype(form.dtype)


def odd(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return values in float32, float64 rounded to odd: rounded again to a narrower type, they are rounded once."""
    near = values.astype(np.float32)
    return to_odd(near, values - near)


def to_odd(near: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
    """Return the odd neighbour of near + error, where near is that sum rounded to nearest: near itself if exact.

    Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd.
    """
    even = near.view(f"u{near.itemsize}") & 1 == 0
    beside = np.nextafter(near, np.copysign(near.dtype.type(np.inf), error).astype(near.dtype))
    return np.where(even & (error != 0) & ~np.isnan(error), beside, near)


def widened(data: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Return the float32 values of a type that Triton stores as integers, by its name of the type."""
    name, bits = TYPES[kind]
    return np.asarray(data).view(bits).view(FORMATS[name].dtype).astype(np.float32)


def convert(own: Any, data: NDArray[Any], source: Any, target: Any, how: Any) -> Any:
    """Return the bits of `data` in the type `target`, rounded as `how` says; `own` is Triton's conversion."""
    if not {source.name, target.name}.issubset({*TYPES, *PLAIN}):
        return own(data, source, target, how)
    plain = source.name in PLAIN
    wide = np.asarray(data).view(PLAIN[source.name][0]) if plain else widened(data, source.name)
    if target.name in TYPES:
        name, bits = TYPES[target.name]
        near: NDArray[Any] = rounded(wide, name)
    else:
        kind, bits = PLAIN[target.name]
        near = wide.astype(kind)
    result = near.view(bits)
    if how is not None and how.name == "RTZ":  # one step towards zero where it was rounded away from it
        result = result - (np.abs(near.astype(np.float64)) > np.abs(wide)).astype(bits)
    return result


def prove() -> None:
    """Run a small kernel that converts float32 to each type by a cast and by a store, and compare the bits.

    Raises RuntimeError if a result is not the value rounded to nearest, ties to even.
    """
    import torch
    import triton

    from verify_norm.running.interpreter.probes import cast

    where = f"Triton {triton.__version__} interpreter"
    for name, bits in TYPES.values():
        form, values = FORMATS[name], probes(name)
        x = torch.full((256,), torch.nan)
        x[: len(values)], x[len(values) : len(values) + len(NANS)] = map(torch.from_numpy, (values, NANS.view("f4")))
        outputs = [torch.zeros(len(x), dtype=getattr(torch, name)) for _ in range(2)]
        cast[(1,)](x, *outputs)
        want = rounded(values, name).view(bits)
        for how, out in zip(("cast", "store"), outputs, strict=True):
            got = out.view(torch.uint8).numpy().view(bits)[: len(values)]
            wrong = np.flatnonzero(got != want)
            if wrong.size:
                i = wrong[0]
                raise RuntimeError(
                    f"{where}: a {how} of {values[i]} to {name} gives {got.view(form.dtype)[i]}, "
                    f"round to nearest even gives {want.view(form.dtype)[i]}"
                )
            if not torch.isnan(out[len(values) :].float()).all():
                raise RuntimeError(f"{where}: a {how} of NaN to {name} does not give NaN")
