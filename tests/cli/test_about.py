"""`list` and `show`."""

import re

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.only import CLAUSES
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FAMILIES, LAYOUTS
from verify_norm.loading import builtin


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("name", ["layernorm_bwd", "rmsnorm_fwd", "accuracy", "groupnorm_bwd"])
def test_show(name):
    result = run("show", name)
    assert result.exit_code == 0
    assert name in result.stdout


@pytest.mark.slow
def test_show_contracts():
    result = run("show", "contracts")
    assert result.exit_code == 0
    assert "llama" in result.stdout
    assert run("show", "contract").stdout == result.stdout
    near = run("show", "contrakt")
    assert near.exit_code == 2
    assert "did you mean contracts?" in near.stderr


def test_show_only_has_every_clause():
    result = run("show", "only")
    assert result.exit_code == 0
    assert all(f"\n{clause} " in result.stdout for clause in CLAUSES)


def test_show_cases_has_every_layout_and_every_kind_of_data():
    result = run("show", "cases")
    assert result.exit_code == 0
    assert all(f"\n{name} " in result.stdout for name in (*LAYOUTS, *FAMILIES))


def test_show_an_operator_has_its_tensors_and_names_no_function_of_ours():
    shown = {name: run("show", name).stdout for name in builtin.BOTH}
    for name, directions in builtin.BOTH.items():
        assert [line.split("(")[0] for line in shown[name].splitlines() if line.startswith("operator ")] == [
            f"operator {direction}" for direction in directions
        ]
    known = {*OPS, *(argument for op in OPS.values() for argument in op.attrs)}
    assert set(re.findall(r"`([^`]+)`", "".join(shown.values()))) <= known
    rows = [line.split() for line in shown["groupnorm"].splitlines()]
    assert [row[1:] for row in rows if row[:1] == ["rstd"]] == [
        ["returned", "(B,", "G),", "one", "of", "each", "group", "float32"],
        ["(B,", "G),", "one", "of", "each", "group", "float32"],
    ]


def test_list_names_everything():
    result = run("list")
    assert result.exit_code == 0
    assert result.stdout.startswith("operators")
    for name in [*builtin.BUILTIN, "accuracy", "statistics", "signature", "nonfinite", "groupnorm_bwd"]:
        assert name in result.stdout
