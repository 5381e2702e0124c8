"""The JSON Schema of what verify-norm writes, made from the types: see `verify-norm schema`."""

import json
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from verify_norm import __version__
from verify_norm.auditing.model import Audit
from verify_norm.core import ways
from verify_norm.core.dtypes import FLOATS
from verify_norm.core.results import SCHEMA, Report
from verify_norm.core.spec import ALIASES, COTANGENTS, FAMILIES, LAYOUTS, WEIGHTS, CaseSpec
from verify_norm.equality import model as equality
from verify_norm.exhaustive import model as exhaust
from verify_norm.report.compare import model as comparison

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[str, tuple[Any, int, str]] = {  # a document's type, the version of its shape, and its title
    "report": (Report, SCHEMA, "verify-norm's report of one kernel"),
    "audit": (Audit, SCHEMA, "verify-norm's audit of one kernel"),
    "comparison": (comparison.RunComparison, comparison.SCHEMA, "verify-norm's comparison of two runs"),
    "same": (equality.Equality, equality.SCHEMA, "verify-norm's comparison of the bits of two kernels"),
    "exhaust": (exhaust.Exhausted, exhaust.SCHEMA, "verify-norm's exhaustive run of one kernel"),
    "case": (CaseSpec, SCHEMA, "a case of verify-norm, as its replay lines have it"),
}
FIRST = {"comparison": "worse", "same": "identical"}  # the verdict, in front of a document


class _Words(GenerateJsonSchema):
    """A schema where a float may be a word: JSON has no infinite numbers and no NaN."""

    def float_schema(self, schema: core_schema.FloatSchema) -> dict[str, Any]:
        """Return the schema of a number or one of the words."""
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def text(kind: str) -> str:
    """Return the schema of one of KINDS as JSON text."""
    return json.dumps(schema(kind), indent=1, ensure_ascii=False) + "\n"


def schema(kind: str) -> dict[str, Any]:
    """Return the schema of one of KINDS. A differentiable kernel's file is a list with an item for each direction.

    Fields that an older verify-norm did not write are not required; fields that a newer one adds are allowed.

    >>> schema("report")["properties"]["schema"]["const"], schema("case")["required"]
    (1, ['shape', 'kernel'])
    """
    described, version, title = KINDS[kind]
    made = TypeAdapter(described).json_schema(schema_generator=_Words)
    made = {"$schema": DIALECT, "$comment": f"schema {version}, of verify-norm {__version__}"} | made | {"title": title}
    if kind == "case":
        _restrict(made)
    else:
        made["properties"]["schema"] = {"const": version, "title": "Schema"}
        made["required"] = [*made["required"], "schema"]
    if kind in FIRST:
        first = FIRST[kind]
        made["properties"] = {first: {"type": "boolean", "title": first.capitalize()}} | made["properties"]
    return made


def _restrict(made: dict[str, Any]) -> None:
    """Add what `replay` requires of a case beyond its type: a kernel, and names that exist."""
    properties: dict[str, dict[str, Any]] = made["properties"]
    for name in ("kernel", "op"):
        properties[name] = {"type": "string", "title": name.capitalize()}
    allowed = {"dtype": FLOATS, "data": FAMILIES, "dy_data": COTANGENTS, "weight_data": WEIGHTS}
    allowed["alias"] = ("", *ALIASES)
    allowed |= {f.name: LAYOUTS for f in fields(CaseSpec) if f.name.endswith("_layout")}
    allowed |= {name: ("", *ways.known(name)) for name in ways.WAYS}
    for name, values in allowed.items():
        properties[name]["enum"] = list(values)
    properties["shape"] |= {"minItems": 1, "items": {"type": "integer", "minimum": 0}}
    made["required"] = [*made["required"], "kernel"]
    made["additionalProperties"] = False
