"""Reports and specs as JSON, both ways, by the types themselves."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from verify_norm.auditing.model import Audit, Document
from verify_norm.dtypes import FORMATS
from verify_norm.ranges import wrong
from verify_norm.registry import UsageError, one_of
from verify_norm.report.comparison import Comparison
from verify_norm.report.model import SCHEMA, Report
from verify_norm.spec import FAMILIES, LAYOUTS, WEIGHTS, CaseSpec

ELEMENTS = 2**36  # of x, at most: half a tebibyte in float64, which no machine has room for
_REPORT = TypeAdapter(Report)
_AUDIT = TypeAdapter(Audit)
_SPEC = TypeAdapter(CaseSpec)


def dump(*documents: Document) -> str:
    """Reports or audits as JSON text: a line for each field, and for each finding, tally, rung, … A list if several."""
    if len(documents) != 1:
        return "[" + ",\n".join(dump(document).rstrip() for document in documents) + "]\n"
    return _fields(jsonable(_plain(documents[0]))) + "\n"


def dump_comparison(found: Comparison) -> str:
    """A comparison as JSON text, with its verdict in front."""
    return _fields({"worse": found.worse} | jsonable(asdict(found))) + "\n"


def load(text: str) -> Report:
    """The report that `dump` wrote; raises UsageError where the text is not one, or of another schema."""
    found = load_all(text)
    if len(found) != 1 or not isinstance(found[0], Report):
        raise UsageError(
            "not the report of one run of verify-norm, but " + ("an audit" if len(found) == 1 else "several")
        )
    return found[0]


def load_all(text: str) -> tuple[Document, ...]:
    """The reports and audits that `dump` wrote, one or a list; raises UsageError as `load` does."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError, and no JSONDecodeError
        said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"not a JSON file, or not all of one: {said}") from error
    if isinstance(data, list) and data:
        return tuple(_document(one) for one in data)
    return (_document(data),)


def read(path: str) -> tuple[Document, ...]:
    """The reports and audits in a file; raises UsageError, with the file's name, where none can be read."""
    try:
        return load_all(Path(path).read_text(encoding="utf-8-sig"))  # as some editors write it
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a JSON file: it is not in UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _document(data: Any) -> Document:
    if data == []:
        raise UsageError("not a report of verify-norm: an empty list")
    if not isinstance(data, dict) or "schema" not in data or not data.keys() & {"kernel", "report"}:
        raise UsageError("not a report of verify-norm: it has no kernel and schema")
    _refuse_schema(data["schema"])
    if isinstance(data.get("report"), dict) and "schema" in data["report"]:
        _refuse_schema(data["report"]["schema"])
    try:
        return _AUDIT.validate_python(data) if "report" in data else _REPORT.validate_python(data)
    except ValidationError as error:
        raise UsageError(f"not a report of verify-norm: {_first(error)}") from error


def _refuse_schema(found: Any) -> None:
    """Raise UsageError where this version does not read that schema."""
    if type(found) is int and found == SCHEMA:
        return
    newer = type(found) is int and found > SCHEMA
    hint = "; a newer verify-norm wrote it" if newer else "; write it anew with this one"
    raise UsageError(f"the report has schema {_short(found)}; this version reads schema {SCHEMA}{hint}")


def spec_text(kernel: str, spec: CaseSpec, op: str | None = None) -> str:
    """One line of JSON that replays a case: the kernel, and what differs from the defaults of CaseSpec."""
    named = {"kernel": kernel} | ({"op": op} if op else {})
    return json.dumps(jsonable(named | _changed(spec)), ensure_ascii=False)


def _changed(spec: CaseSpec) -> dict[str, Any]:
    """What of a case is not the default; the shape has none."""
    default = {f.name: f.default for f in fields(CaseSpec) if f.default is not MISSING}
    return {k: v for k, v in asdict(spec).items() if k not in default or default[k] != v}


def _plain(value: Any) -> Any:
    """As `asdict`, with the cases short."""
    if isinstance(value, CaseSpec):
        return _changed(value)
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def read_spec(text: str) -> tuple[str, str | None, CaseSpec]:
    """The kernel, the op if it is named, and the case of a replay line; raises UsageError that says what is wrong."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"the spec is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f'the spec is a {type(data).__name__}; it is to be an object as {{"kernel": …, "shape": […]}}')
    for required in ("kernel", "shape"):
        if required not in data:
            raise UsageError(f"the spec has no {required!r}")
    kernel, op = data.pop("kernel"), data.pop("op", None)
    for key, name in (("kernel", kernel), ("op", op or "")):
        if not isinstance(name, str):
            raise UsageError(f"the spec's {key} is to be a name, not {_short(name)}")
    for name in data:
        one_of("field of the spec", name, [f.name for f in fields(CaseSpec)])
    try:
        spec = _SPEC.validate_json(json.dumps(data), strict=True)  # JSON has lists alone, which are to be tuples
    except ValidationError as error:
        raise UsageError(f"the spec is malformed: {_first(error)}") from error
    refuse_nonsense(spec)
    return kernel, op, spec


def refuse_nonsense(spec: CaseSpec) -> None:
    """Raise UsageError where a value of the case is none that its field can have, whatever the operator."""
    one_of("dtype", spec.dtype, FORMATS)
    one_of("dtype", spec.weight_dtype or spec.dtype, FORMATS)
    one_of("data family", spec.data, FAMILIES)
    one_of("weight_data", spec.weight_data, WEIGHTS)
    for name in spec.frozen:
        one_of("frozen input", name, ("x", "weight", "bias"))
    for name in (f.name for f in fields(CaseSpec) if f.name.endswith("_layout")):
        one_of(name, getattr(spec, name), LAYOUTS)
    for name, value in asdict(spec).items():
        refused = wrong(name, value)
        if refused is not None:
            raise UsageError(refused)
    if any(n < 0 for n in spec.shape) or not spec.shape:
        raise UsageError(f"the spec's shape {list(spec.shape)} is to have one or more sizes, none negative")
    if prod(spec.shape) > ELEMENTS:
        raise UsageError(f"the spec's shape {list(spec.shape)} has {prod(spec.shape):.3g} elements; 2**36 are the most")
    if not 1 <= spec.normalized_ndim <= len(spec.shape):
        raise UsageError(f"normalized_ndim {spec.normalized_ndim} is to be from 1 to the {len(spec.shape)} of shape")
    if not 0 <= spec.seed < 2**64:
        raise UsageError(f"seed {spec.seed} is to be from 0 to 2**64 − 1")


def write(text: str, path: str) -> None:
    """Write a report's text to a file, whole or not at all; raises UsageError where that cannot be done."""
    target = Path(path)
    try:
        temporary = target.with_name(target.name + ".part")
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # half a pair of UTF-16: as JSON has it
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _fields(value: dict[str, Any]) -> str:
    """An object with a line for each of its fields, and for each member of a list in it."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(item)}" for key, item in value.items()) + "\n}"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and "schema" in value:
        return _fields(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """The value in types that JSON has: what is no number, or infinite, as a word."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def _first(error: ValidationError) -> str:
    detail = error.errors()[0]
    place = ".".join(map(str, detail["loc"])) or "value"
    return f"{place}: {detail['msg']}, not {_short(detail['input'])}"


def _short(value: Any) -> str:
    """A value from a file, on one line and not long."""
    return " ".join(json.dumps(value, ensure_ascii=False, default=str).split())[:60]
