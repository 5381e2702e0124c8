"""Reports, audits and comparisons as JSON, both ways, by the types themselves."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from verify_norm.auditing.model import Audit, Document
from verify_norm.core.errors import UsageError
from verify_norm.core.results import SCHEMA, Report
from verify_norm.core.serial import by_lines, first_error, jsonable, short
from verify_norm.equality.model import Equality
from verify_norm.report.compare.model import RunComparison

_REPORT = TypeAdapter(Report)
_AUDIT = TypeAdapter(Audit)


def dump(*documents: Document) -> str:
    """Return reports or audits as JSON text, a list if several. A field, finding, tally or rung has a line."""
    if len(documents) != 1:
        return "[" + ",\n".join(dump(document).rstrip() for document in documents) + "]\n"
    return by_lines(jsonable(documents[0])) + "\n"


def dump_comparison(found: RunComparison) -> str:
    """Return a comparison as JSON text, with its verdict in front."""
    return by_lines({"worse": found.worse} | jsonable(asdict(found))) + "\n"


def dump_equality(*found: Equality) -> str:
    """Return comparisons of bits as JSON text, each with its verdict in front; a list if several."""
    texts = [by_lines({"identical": one.ok} | jsonable(one)) for one in found]
    if len(texts) == 1:
        return texts[0] + "\n"
    return "[" + ",\n".join(texts) + "]\n"


def load(text: str) -> Report:
    """Return the report that `dump` wrote; raises UsageError where the text is not one, or of another schema."""
    found = load_all(text)
    if len(found) == 1 and isinstance(found[0], Report):
        return found[0]
    got = "an audit" if len(found) == 1 else "several"
    raise UsageError(f"not the report of one run of verify-norm, but {got}")


def load_all(text: str) -> tuple[Document, ...]:
    """Return the reports and audits that `dump` wrote, one or a list; raises UsageError as `load` does."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError, and no JSONDecodeError
        said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"not a complete JSON file: {said}") from error
    return tuple(map(_document, data if isinstance(data, list) and data else [data]))


def read(path: str) -> tuple[Document, ...]:
    """Return the reports and audits in a file; raises UsageError, with the file's name, where none can be read."""
    try:
        return load_all(Path(path).read_text(encoding="utf-8-sig"))  # as some editors write it
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a JSON file: it is not in UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _document(data: Any) -> Document:
    """Return the report or audit of an object of JSON; raises UsageError."""
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
        raise UsageError(f"not a report of verify-norm: {first_error(error)}") from error


def _refuse_schema(found: Any) -> None:
    """Raise UsageError where this version does not read that schema."""
    if type(found) is not int or found != SCHEMA:
        newer = type(found) is int and found > SCHEMA
        hint = "a newer verify-norm wrote it" if newer else "write it again with this one"
        raise UsageError(f"the report has schema {short(found)}; this version reads schema {SCHEMA}; {hint}")
