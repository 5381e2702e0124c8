"""Specs and documents as JSON text."""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import isfinite, prod
from typing import Any

from pydantic import TypeAdapter, ValidationError

from verify_norm.core import ways
from verify_norm.core.dtypes import FLOATS
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.geometry import repeated
from verify_norm.core.ranges import out_of_range
from verify_norm.core.spec import ALIASES, COTANGENTS, FAMILIES, FURTHER, LAYOUTS, WEIGHTS, CaseSpec

ELEMENTS = 2**36  # the most that x can have: half a tebibyte in float64, more than any machine holds
SEE_CASE = "verify-norm schema case"
OBJECT = 'an object, such as {"kernel": …, "shape": […]}'  # a replay line
_SPEC = TypeAdapter(CaseSpec)


def spec_text(kernel: str, spec: CaseSpec, op: str | None = None) -> str:
    """Return one line of JSON that replays a case: the kernel, and what differs from the defaults of CaseSpec."""
    named = {"kernel": kernel} | ({"op": op} if op else {})
    return json.dumps(jsonable(named | _changed(spec)), ensure_ascii=False)


def _changed(spec: CaseSpec) -> dict[str, Any]:
    default = {f.name: f.default for f in fields(CaseSpec) if f.default is not MISSING}
    return {k: v for k, v in asdict(spec).items() if k not in default or default[k] != v}


def read_spec(text: str) -> tuple[str, str | None, CaseSpec]:
    """Return the kernel, the op if named, and the case of a replay line; raises UsageError that says what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError
        raise UsageError(f"cannot parse the spec as JSON: {error}; expected {OBJECT}") from error
    if not isinstance(data, dict):
        raise UsageError(f"the spec: expected {OBJECT}, got {short(data)}")
    for name in data:
        one_of("field of the spec", name, ["kernel", "op", *(f.name for f in fields(CaseSpec))], see=SEE_CASE)
    for required in ("kernel", "shape"):
        if required not in data:
            raise UsageError(f"the spec has no {required!r}: expected {OBJECT}")
    kernel, op = data.pop("kernel"), data.pop("op", None)
    for key, name in (("kernel", kernel), ("op", op)):
        if not isinstance(name, str) and (key, name) != ("op", None):
            raise UsageError(f"the spec's {key}: expected a name, got {short(name)}")
    try:
        spec = _SPEC.validate_json(json.dumps(data), strict=True)  # strict JSON: a list is a tuple
    except ValidationError as error:
        detail = error.errors()[0]
        refused = out_of_range(str(detail["loc"][0]), detail["input"]) if detail["loc"] else None
        raise UsageError(refused or f"the spec: {first_error(error)}") from error
    refuse_nonsense(spec)
    return kernel, op, spec


def refuse_nonsense(spec: CaseSpec) -> None:
    """Raise UsageError if a value of the case is impossible for its field, whatever the operator."""
    one_of("dtype", spec.dtype, FLOATS)
    for dtype in (spec.weight_dtype, spec.other_dtype, spec.residual_dtype):
        one_of("dtype", dtype or spec.dtype, FLOATS)
    one_of("data family", spec.data, FAMILIES)
    one_of("dy_data", spec.dy_data, COTANGENTS)
    one_of("weight_data", spec.weight_data, WEIGHTS)
    for name in spec.frozen:
        one_of("frozen input", name, ways.LEAVES)
    for name in spec.further:
        one_of("further run", name, FURTHER)
    for name in ways.WAYS:
        one_of(name, getattr(spec, name), ("", *ways.known(name)), see=SEE_CASE)
    for name, value in asdict(spec).items():
        if name.endswith("_layout"):
            one_of(name, value, LAYOUTS)
        if name == "alias" and value:
            one_of(name, value, ALIASES)
        if refused := out_of_range(name, value):
            raise UsageError(refused)
    if any(n < 0 for n in spec.shape) or not spec.shape:
        raise UsageError(f"shape: expected one or more sizes, none negative, got {list(spec.shape)}")
    for name, shape in (("shape", spec.shape), ("batch", repeated(spec).shape)):
        if prod(shape) > ELEMENTS:
            raise UsageError(f"{name}: expected at most 2**36 elements, got {prod(shape):.3g} in {list(shape)}")
    if spec.normalized_ndim > len(spec.shape):
        raise UsageError(f"normalized_ndim: expected 1 to the rank of x, {len(spec.shape)}, got {spec.normalized_ndim}")


def by_lines(value: dict[str, Any]) -> str:
    """Return an object as JSON, with one line for each field and for each member of a list in it."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(item)}" for key, item in value.items()) + "\n}"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and "schema" in value:
        return by_lines(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """Return the value in JSON's types: NaN and infinities become words, a CaseSpec what is not its default."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, CaseSpec):
        value = _changed(value)
    elif is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, (list, tuple)) else value


def first_error(error: ValidationError) -> str:
    """Return the first of pydantic's errors, on one line."""
    detail = error.errors()[0]
    place = ".".join(map(str, detail["loc"])) or "value"
    return f"{place}: {detail['msg'].replace('Input should be', 'expected')}, got {short(detail['input'])}"


def short(value: Any) -> str:
    """Return a value from a file, on one line of at most 60 characters."""
    return " ".join(json.dumps(value, ensure_ascii=False, default=str).split())[:60]
