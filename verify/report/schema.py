"""The JSON Schema of what verify-norm writes, by the types themselves: see `verify-norm schema`."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from verify_norm import __version__
from verify_norm.auditing.model import Audit
from verify_norm.dtypes import FORMATS
from verify_norm.report import comparison
from verify_norm.report.comparison import Comparison
from verify_norm.report.model import SCHEMA, Report
from verify_norm.spec import FAMILIES, LAYOUTS, WEIGHTS, CaseSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[str, tuple[Any, int, str]] = {  # what is described, the version of its shape, and what it is
    "report": (Report, SCHEMA, "verify-norm's report of one kernel"),
    "audit": (Audit, SCHEMA, "verify-norm's audit of one kernel"),
    "comparison": (Comparison, comparison.SCHEMA, "verify-norm's comparison of two runs"),
    "case": (CaseSpec, SCHEMA, "a case of verify-norm, as its replay lines have it"),
}


class _Words(GenerateJsonSchema):
    """JSON has no number that is infinite or none: such a float is a word in what we write."""

    def float_schema(self, schema: core_schema.FloatSchema) -> dict[str, Any]:
        """A number, or one of the words."""
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def text(kind: str) -> str:
    """The schema of one of KINDS as JSON text."""
    return json.dumps(schema(kind), indent=1, ensure_ascii=False) + "\n"


def schema(kind: str) -> dict[str, Any]:
    """The schema of one of KINDS. Of a differentiable kernel a file holds a list, with an item for each direction.

    Fields that an older verify-norm did not write are not required, and those that a newer one adds are allowed.

    >>> schema("report")["properties"]["schema"]["const"], schema("case")["required"]
    (1, ['shape', 'kernel'])
    """
    described, version, title = KINDS[kind]
    made = TypeAdapter(described).json_schema(schema_generator=_Words)
    made = {"$schema": DIALECT, "$comment": f"schema {version}, of verify-norm {__version__}"} | made | {"title": title}
    if kind == "case":
        _replayed(made)
    else:
        made["properties"]["schema"] = {"const": version, "title": "Schema"}
        made["required"] = [*made["required"], "schema"]
    if kind == "comparison":
        made["properties"] = {"worse": {"type": "boolean", "title": "Worse"}} | made["properties"]
    return made


def _replayed(made: dict[str, Any]) -> None:
    """What `replay` asks of a case beyond its type: a kernel, and names that there are."""
    told: dict[str, dict[str, Any]] = made["properties"]
    for name in ("kernel", "op"):
        told[name] = {"type": "string", "title": name.capitalize()}
    allowed = {"dtype": FORMATS, "data": FAMILIES, "weight_data": WEIGHTS}
    allowed |= {f.name: LAYOUTS for f in fields(CaseSpec) if f.name.endswith("_layout")}
    for name, values in allowed.items():
        told[name]["enum"] = list(values)
    told["shape"] |= {"minItems": 1, "items": {"type": "integer", "minimum": 0}}
    made["required"] = [*made["required"], "kernel"]
    made["additionalProperties"] = False
