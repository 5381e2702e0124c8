"""The pages of the reference name all that the code has."""

import inspect
import re
from dataclasses import fields

import generate
import pytest
import samples
from typer.main import get_command

import verify_norm
from verify_norm.cli.app import app
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.known import NAMES
from verify_norm.core.only import CLAUSES
from verify_norm.core.ops import OPS
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.results import Report
from verify_norm.core.spec import FAMILIES, LAYOUTS, CaseSpec
from verify_norm.loading.argument_names import ALIASES
from verify_norm.report.glossary import GLOSSARY
from verify_norm.search.options import Options

GROUP = get_command(app)
PARAMETERS = [p for command in (GROUP, *GROUP.commands.values()) for p in command.params]


@pytest.fixture(scope="module")
def pages():
    return generate.pages()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("commands", [f"## verify-norm {name}\n" for name in GROUP.commands if name != "campaign"]),
        ("commands", [f"## verify-norm campaign {name}\n" for name in GROUP.commands["campaign"].commands]),
        ("commands", [f"`{', '.join(p.opts)}`" for p in PARAMETERS if p.param_type_name == "option"]),
        ("commands", [f"`{p.name.upper()}`" for p in PARAMETERS if p.param_type_name == "argument"]),
        ("checks", [f"## {name}\n" for name in CHECK_NAMES]),
        ("operators", [f"| `{name}` |" for name in OPS]),
        ("arguments", [f"`{name}`" for names in ALIASES.items() for name in (names[0], *names[1])]),
        ("contract", [f"| `{name}` |" for name in (*(f.name for f in fields(Contract)), *NAMES)]),
        ("only", [f"| `{name}` |" for name in CLAUSES]),
        ("cases", [f"| `{name}` |" for name in (*LAYOUTS, *FAMILIES)]),
        (
            "settings",
            [f"| `{name}` |" for name in (*Options.model_fields, *(f.name for f in fields(RegressionLimits)))],
        ),
        ("exit-statuses", [f"| {int(status)} | `{status.name}` |" for status in Exit]),
        ("json", [f"| `{f.name}` |" for kind in (Report, Finding, CaseSpec, Contract) for f in fields(kind)]),
        ("glossary", [f"**{term}**\n:   {words}\n" for term, words in GLOSSARY.items()]),
    ],
)
def test_a_page_has_all_of_them(pages, page, names):
    text = pages[f"reference/{page}.md"]
    assert names
    assert [name for name in names if name not in text] == []


def test_tables_have_as_many_cells_in_each_row(pages):
    for name, text in pages.items():
        if name.startswith("reference/"):
            for block in text.split("\n\n"):
                rows = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
                assert len({row.count("|") for row in rows}) <= 1, rows[:3]
                assert all(cell.strip() or n > 0 for row in rows for n, cell in enumerate(row.split("|")[1:-1])), rows


def test_every_field_of_a_contract_is_explained(pages):
    rows = [line for line in pages["reference/contract.md"].splitlines() if line.startswith("| `")]
    assert all(len(row.split(" | ")[-1]) > 12 for row in rows), rows


def test_the_navigation_has_each_page(pages):
    text = (samples.DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    written = {
        path.relative_to(samples.DOCS).as_posix() for path in samples.pages() if path.is_relative_to(samples.DOCS)
    }
    assert [page for page in {*pages, *written} if f": {page}\n" not in text and f"- {page}\n" not in text] == []


def test_the_page_of_the_python_interface_has_every_public_name():
    page = (samples.DOCS / "reference/python.md").read_text()
    named = re.findall(r"^::: verify_norm\.(?:[\w.]+\.)?(\w+)$", page, re.MULTILINE)
    named += re.findall(r"`verify_norm\.(\w+)`", page)
    assert sorted(set(verify_norm.__all__) - {*named}) == []
    assert all(hasattr(verify_norm.testing, name) for name in {*named} - {*verify_norm.__all__})


def test_the_page_of_json_says_what_each_field_of_a_report_a_finding_and_a_case_means(pages):
    for kind in (Report, Finding, CaseSpec):
        _, said = generate._described(inspect.cleandoc(kind.__doc__))
        assert [f.name for f in fields(kind) if not said.get(f.name)] == []
        assert all(f"| {said[f.name]} |" in pages["reference/json.md"] for f in fields(kind))
