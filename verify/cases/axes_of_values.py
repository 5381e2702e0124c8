"""The axes of the values of a case's tensors and of its numbers: their data, their scale, and what is special."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import get_args, get_type_hints

from verify_norm.cases.axis import Axis, of_classes, of_field
from verify_norm.cases.corner_lines import DROPOUTS, FAINT, LARGEST, LONG, OUTPUT_SCALES, STRONG, SUBNORMAL
from verify_norm.cases.corners import exponent
from verify_norm.cases.sizes import Classes, classes
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.geometry import ROTARY
from verify_norm.core.op import Op
from verify_norm.core.spec import COTANGENTS, FAMILIES, CaseSpec
from verify_norm.core.specials import specials

OFFSET = Classes("|offset|", (0.0, 10.0, 100.0), ((0.0,), (1.0, -10.0), (100.0, -100.0), (1e4, -1e3)))
MOMENTUM = Classes("momentum", (0.0, 0.99), ((0.0,), (0.1, 0.3, 1e-3, 0.9), (1.0,)))
SCALES = {"usual x": 0, "small x": -8, "subnormal x": SUBNORMAL, "large x": 7, "largest x": LARGEST}
DY_SCALES: dict[str, int | str] = {
    "usual dy": 0,
    "small dy": -12,
    "faint dy": FAINT,
    "large dy": 10,
    "strong dy": STRONG,
}
MODULATIONS = get_args(get_type_hints(CaseSpec)["modulation"])


def of_values(op: Op) -> list[Axis]:
    """Return the axes of values."""
    scales = {name: [{"log2_scale": value}] for name, value in SCALES.items()}
    result = [of_field("data", FAMILIES), of_classes(OFFSET, "offset"), Axis("scale of x", scales, _scale)]
    result += [*_special(op), of_field("poison", ("nan", "finite"))]
    if op.forward:
        scales = {name: [{"dy_log2_scale": value}] for name, value in DY_SCALES.items()}
        result += [
            of_field("dy_data", COTANGENTS),
            Axis("scale of dy", scales, lambda spec: _dy_scale(spec.dtype, spec.dy_log2_scale)),
        ]
    if "momentum" in op.attrs:
        result.append(of_classes(MOMENTUM, "momentum"))
    if op.scaled:
        result.append(of_field("scale", OUTPUT_SCALES))
    if any(tensor.extent == "sample" for tensor in op.inputs):
        result.append(of_field("modulation", MODULATIONS))
    if "dropout_p" in op.attrs:
        result.append(of_field("dropout_p", DROPOUTS))
    if "variance_size" in op.attrs:
        parts = {None: "half of a row", 1: "its first element", LONG: "the whole row"}
        choices = {words: [{"variance_size": size}] for size, words in parts.items()}
        result.append(Axis("variance_size", choices, lambda spec: parts.get(spec.variance_size)))
    if any(tensor.extent == "position" for tensor in op.inputs):
        result.append(of_field("rotary", ROTARY))
    return result


def _special(op: Op) -> list[Axis]:
    """Return the axes of special values: which, in which input, and where. They meet types, sizes and each other."""
    inputs = specials(op)
    beside = ("dtype", "special", "special_in", "special_at", *(c.of_what for c in classes(op)))

    def where(field: str, values: Iterable[str]) -> Axis:
        axis = of_field(field, values)
        return replace(axis, beside=beside, read=lambda spec: axis.read(spec) if spec.special else None)

    places = get_args(get_type_hints(CaseSpec)["special_at"])
    return [
        of_field("special", (None, "nan", "inf", "-inf", "nan+inf")),
        where("special_in", inputs),
        where("special_at", places),
    ]


def _scale(spec: CaseSpec) -> str:
    form, power = FORMATS[spec.dtype], spec.log2_scale
    if power == 0:
        return "usual x"
    if power > 0:
        return "largest x" if power >= form.emax else "large x"
    return "subnormal x" if power <= form.emin else "small x"


@cache
def _dy_scale(dtype: str, log2_scale: int) -> str:
    exponents = {name: exponent(value, dtype) for name, value in DY_SCALES.items()}
    return min(exponents, key=lambda name: abs(exponents[name] - log2_scale))
