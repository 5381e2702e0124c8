"""The JSON Schema accepts what verify-norm writes, and refuses what it would not read."""

import json
from dataclasses import replace

import jsonschema
import pytest
from runs import finding, kernel, ladder, surveyed
from typer.testing import CliRunner

from verify_norm.auditing.fingerprint.statement import Fingerprint, Statement
from verify_norm.auditing.model import Audit
from verify_norm.cli.app import app
from verify_norm.core import serial
from verify_norm.report import documents, schema
from verify_norm.report.compare.compare import compare


def accepts(kind, text):
    return not list(jsonschema.Draft202012Validator(schema.schema(kind)).iter_errors(json.loads(text)))


@pytest.mark.parametrize("kind", schema.KINDS)
def test_a_schema_is_a_schema(kind):
    result = CliRunner().invoke(app, ["schema", kind])
    described = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(described)
    assert "$id" not in described


def test_an_unknown_kind_is_a_usage_error():
    assert CliRunner().invoke(app, ["schema", "reprt"]).exit_code == 2


def test_documents_are_what_the_schema_says(good):
    nan = replace(finding(), got=float("nan"), want=float("-inf"), ulp=float("inf"))
    report = replace(good, findings=(nan,))
    assert '"NaN"' in documents.dump(report)
    assert accepts("report", documents.dump(report))
    assert not accepts("audit", documents.dump(report))
    tree = Statement("row order", "pairwise", "seen", 0.9, tree=((0, 1), (2, (3, 4))))
    statements = Fingerprint("plain", good.op, "cpu", (tree,))
    audit = replace(surveyed(report, kernel(), 0, 6), ladders=(ladder((1.0, float("inf"))),), fingerprint=statements)
    assert isinstance(audit, Audit)
    assert accepts("audit", documents.dump(audit))
    assert accepts("comparison", documents.dump_comparison(compare([good], [report])))
    assert accepts("case", serial.spec_text("plain", finding().spec, "layernorm_fwd"))


def test_other_values_are_refused(good):
    for word in ('"many"', "null", '"Inf"'):
        assert not accepts("report", documents.dump(good).replace('"cases": ', f'"cases": {word}, "was": ', 1))
        assert not accepts("report", documents.dump(good).replace('"seconds": ', f'"seconds": {word}, "was": ', 1))
    assert not accepts("report", documents.dump(good).replace('"schema": 1', '"schema": 2'))
    for broken in ('"shape": []', '"shape": [2], "dtyp": "x"', '"shape": [2], "dtype": "int8"'):
        assert not accepts("case", f'{{"kernel": "k", {broken}}}')
