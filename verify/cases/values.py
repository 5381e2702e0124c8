"""The values of a random case: eps, the families and sizes of its data, and what is special; not its shape and types.

A kernel is built for a shape and types, not for values, so others of the same shape cost little: `others` returns them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, get_args, get_type_hints
from zlib import crc32

from verify_norm.cases import further_runs
from verify_norm.cases.corner_lines import FAINT, STRONG
from verify_norm.cases.corners import exponent
from verify_norm.cases.make import POISONS
from verify_norm.core.geometry import refusal
from verify_norm.core.op import Op
from verify_norm.core.spec import COTANGENTS, FAMILIES, WEIGHTS, CaseSpec, having
from verify_norm.core.specials import specials

Choose = Callable[[Sequence[Any]], Any]  # one of some values, as Hypothesis draws it or a generator does

_EPS = (1e-5, 1e-5, 1e-6, 1e-12, 1e-3, 1e-1, 0.0, 1e3, 1.5e-5, 3e-8, 2.0**-7)
_OFFSETS = (0.0, 0.0, 1.0, -10.0, 100.0, -1e3, 1e4)
# log2: none, small beside every eps, squares underflow, subnormals, near overflow, the largest. Between them no two are
# much more than 2^13 apart: a kernel may scale by the largest |x|, and be wrong between two of its thresholds.
_WIDE = (*(0,) * 8, -13, -20, -32, -45, -58, -70, -127, 14, 26, 38, 49, 60, 125, 128)
_SCALES = {"float16": (0, 0, 0, 0, -8, -12, -15, -20, 11, 16), "float32": (*_WIDE, -140), "bfloat16": (*_WIDE, -131)}
_DY_SCALES = {
    dtype: (*(0, 0, 0, -12, 10) * 3, exponent(FAINT, dtype), exponent(STRONG, dtype), *(-36, 35) * (dtype != "float16"))
    for dtype in _SCALES
}
_PLACES = get_args(get_type_hints(CaseSpec)["special_at"])
SEEDS = 2**16
USUAL_PLACE: dict[str, Any] = {"special": None, "special_in": "x", "special_at": "first"}
NO_FURTHER_RUN: dict[str, Any] = {**further_runs.EVERYTHING, "further": ()}


def chosen(choose: Choose, op: Op, dtype: str) -> dict[str, Any]:
    """Return the values of a case of an operator and a type of x, by field, but for its seed and what is special."""
    backward = any(tensor.name == "dy" for tensor in op.inputs)
    return {
        "eps": choose(_EPS),
        "data": choose(FAMILIES),
        "offset": choose(_OFFSETS),
        "log2_scale": choose(_SCALES[dtype]),
        "dy_data": choose(COTANGENTS[:1] * 12 + COTANGENTS) if backward else "random",
        "dy_log2_scale": choose(_DY_SCALES[dtype]),
        "weight_data": choose(WEIGHTS[:1] * 6 + WEIGHTS),
    }


def special(choose: Choose, spec: CaseSpec, op: Op) -> dict[str, Any]:
    """Return a special value, its place and its input, in one case of nine; nothing where no input can hold it."""
    value = choose((None,) * 32 + ("nan", "inf", "-inf", "nan+inf"))
    at: dict[str, Any] = {"special": value, "special_at": choose(_PLACES)}
    if value is None:
        return {}
    able = [name for name in specials(op) if refusal(replace(spec, **at | {"special_in": name}), op) is None]
    return {**at, "special_in": choose(able)} if able else {}


def others(spec: CaseSpec, op: Op, numbers: Iterable[int]) -> Iterator[CaseSpec]:
    """Yield a case for each number: of the same shape, types and layouts, with other values, without further runs."""
    for number in numbers:
        rng = Random(crc32(f"{number} {spec!r}".encode()))
        fields = {**USUAL_PLACE, **NO_FURTHER_RUN, **chosen(rng.choice, op, spec.dtype)}
        fields |= {"seed": rng.randrange(SEEDS), "poison": rng.choice(tuple(POISONS))}
        other = replace(spec, **fields)
        yield having(other, special(rng.choice, other, op))
